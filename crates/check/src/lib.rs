//! The model checker: a hostile machine that does whatever the architecture allows, and a search
//! through every schedule of small programs on it.
//!
//! The checker is independent of the engine. It uses only the engine's
//! [contract](shootdown::Machine) with the machine and the calls that a kernel makes. It looks for
//! violations in the hardware state, and does not trust what the engine reports about itself.
//!
//! # Method
//!
//! - **Steps.** Each CPU is a coroutine. It is suspended before each action that another CPU could
//!   observe: an access to shared memory, a load of a root, an invalidation, a change to user mode.
//!   A [`Chooser`] then selects the next event: a step of some CPU, an interrupt that arrives, or a
//!   store that becomes visible.
//! - **Exhaustive search.** The same choices give the same run, so the [`search`] can visit all
//!   runs by changing one choice at a time. A state consists of the memory, the store buffers, the
//!   translations that the hardware may hold, and the values that each program has observed so far.
//!   A run that reaches a visited state stops. An access to a word that only one CPU uses is not a
//!   step ([`Sharing`]). A waiting CPU continues when a word that it has read changes.
//! - **The most hostile hardware.** The search does not choose when a TLB fills itself. Instead,
//!   the machine keeps the set of entries that each TLB *may* hold: every entry that could be
//!   reached since the last invalidation, also by a lazy CPU, and also through cached pointers to
//!   page tables. A CPU in user mode that may hold a forbidden entry is a [`Violation`], whether or
//!   not it uses the entry. One run therefore stands for everything that speculation could have
//!   done.
//! - **Memory.** Stores become visible late: in order on x86, in nearly any order elsewhere. The
//!   second halves of locked operations that do not acquire are late as well.
//!
//! After the search finds a violation, it repeats the search with as few changes from one CPU to
//! another as possible ([`shortest`]), and draws the result as a [time line](Found::timeline).
//!
//! # Limits
//!
//! Loads of data never execute early here, so the checker cannot detect a missing barrier that only
//! orders loads; loom detects it (`crates/shootdown/tests/rules`). There is one exception: when a
//! CPU that is not online yet invalidates everything, that invalidation may take effect before the
//! CPU's earlier loads. All other invalidations are assumed to depend on all earlier loads, because
//! the machine cannot observe dependencies ([`Invalidations`]).
//!
//! Further limits:
//!
//! - Translations in flight are tracked only for programs that ask for it, as `tests/litmus` does.
//!   For a walk in progress, the machine does not track which tables the walk is in.
//! - A walker does not observe its own CPU's stores before other CPUs do.
//! - Page tables have two levels of two entries each. Guests never change their own stage.
//! - The exhaustive search covers programs of two or three CPUs. A dozen more steps mean ten times
//!   as many states.
//! - States are compared by hashes of 64 bits.
//!
//! `docs/checking.md` lists the parts of the engine that no program uses.
//!
//! Some rules order accesses that neither this machine nor loom reorders. For these rules,
//! the test `axiomatic` enumerates the executions of small programs under C++20's memory model,
//! without the machine.
//!
//! # Reading order
//!
//! [`Profile`] describes an architecture. [`HostileMachine`] is the state of a run: its `memory`,
//! its `hardware`, the kernel's pages, and the set of CPUs that a flush may interrupt
//! ([`SpaceUse`]). [`run`] executes one run, under a [`Chooser`]. [`search`] is the search, and
//! [`Found`] its result, as a time line and a drawing. [`engine`] runs the engine on this machine,
//! [`zoo`] contains known bugs, nearly all of other kernels, and a [`Campaign`] searches until its
//! time is up.

#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    clippy::cast_possible_truncation,
    reason = "names are qualified by their module; numbers are small"
)]

// In reading order.
use shootdown_profile as profile;
mod sometimes;
mod hash;
mod history;
mod memory;
mod hardware;
mod kernel_pages;
mod interrupt_oracle;
mod sharing;
mod machine;
mod choice;
mod explore;
mod timeline;
mod drawing;
mod design;
mod campaign;

pub mod engine;
pub mod zoo;

pub use campaign::{Campaign, CounterExample, Progress, UNLIMITED, Verdict};
pub use choice::{Chooser, Exhaustive, Priorities, Random, Replay};
pub use design::{Design, UnknownDesign};
pub use explore::{Budget, Found, Scenario, Search, at_random, by_priorities, search, shortest};
pub use hardware::{
    AccessTiming, Entry, Moment, OnLoad, PAGES, Reach, SLOTS, StaleEntries, Translation, Violation,
};
pub use history::{History, Line, LineKind};
pub use interrupt_oracle::{FlushScope, SpaceUse};
pub use machine::{
    Action, CheckWord, End, HostileMachine, KernelTable, Outcome, PageTables, RunSettings, System,
    WalkCaches, complete_accesses, fence, publish, run, with_machine,
};
pub use profile::{
    Again, Erratum, Invalidations, LoadsWithoutTags, Profile, Stages, Stores, UpperLevels,
};
pub use sharing::Sharing;
pub use sometimes::Sometimes;
pub use timeline::Detail;
