//! The adversary: a machine that does whatever the architecture allows, and every schedule of small
//! programs on it.
//!
//! It is independent of the engine: of it, it knows the [contract](shootdown::Machine) with the
//! machine, and what a kernel calls. What must never be is looked for in the hardware, and not in
//! what the engine says of itself.
//!
//! # How it looks
//!
//! - **Steps.** CPUs are coroutines that are suspended before each thing that another CPU could
//!   see: an access to shared memory, a load of a root, an invalidation, a move to user mode. Then
//!   somebody [chooses](Chooser) what comes next: a step of some CPU, an interrupt that arrives, a
//!   store that becomes visible.
//! - **Everything.** The same choices are the same run, so all runs can be gone through, one choice
//!   changed at a time. A state is memory, store buffers, what hardware may hold, and what each
//!   program has seen so far; from a state that was met before, no run goes on. Accesses to words
//!   that one CPU alone uses are no steps ([`Sharing`]), and who waits goes on when a word changes
//!   that it has read. ([`search`])
//! - **Hardware that cannot be more hostile.** Whether a TLB fills itself at this moment or that is
//!   not chosen. Instead it is kept what each *may* hold: all that could be reached since it was
//!   last dropped, by CPUs that are lazy, too, and by ways to page tables that they remember. A CPU
//!   that is in user mode while it may hold what it must not is [wrong](Wrong), whether or not it
//!   touches it. One run stands for all that speculation could have done.
//! - **Memory.** Stores become visible late: in order on x86, in nearly any order elsewhere; so do
//!   the second halves of locked operations that do not acquire.
//!
//! What is found is looked for again with as few changes from one CPU to another as possible
//! ([`shortest`]), and drawn as a [time line](Found::timeline).
//!
//! # What it cannot see
//!
//! Loads of data are not early, so a missing barrier that orders loads alone is not detected here;
//! loom detects it (`crates/shootdown/tests/rules`). Only when a CPU that is not online yet drops
//! everything may that come before its loads: other invalidations are taken to depend on all loads
//! before them, for the machine cannot see dependencies ([`Invalidations`]). Translations in flight
//! are kept for programs that ask for them, as `tests/litmus` does; of walks that are half done it
//! is not kept which tables they are in. Walkers do not see their own CPU's stores before others
//! do. Page tables have two levels, of two entries each. Programs that are gone through are of two
//! or three CPUs; a dozen steps more are ten times the states. States are compared by hashes of 64
//! bits. `docs/checking.md` has the parts of the engine that no program uses.
//!
//! For the rules that order what neither this machine nor loom reorders, [`axiomatic`] enumerates
//! the executions of small programs under C++20's memory model, without the machine.
//!
//! # Reading it
//!
//! [`Profile`] is what architectures allow; [`World`] what a run is in the middle of, with its
//! `memory`, its `hardware`, the kernel's pages, and who may be told of what ([`Use`]); [`run`]
//! does one; [`Chooser`] is who decides; [`search`] the search; [`Found`] what comes of it, as a
//! time line and a drawing. [`engine`] is the engine on this machine, [`zoo`] are bugs of others,
//! and a [`Campaign`] looks until time is up.

#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::cast_possible_truncation,
    reason = "names are read with their module; numbers are small"
)]

// In reading order.
mod profile;
mod sometimes;
mod hash;
mod history;
mod memory;
mod hardware;
mod kernel_pages;
mod flush_scope;
mod sharing;
mod world;
mod choice;
mod explore;
mod timeline;
mod drawing;
mod design;
mod campaign;

pub mod axiomatic;
pub mod engine;
pub mod zoo;

pub use campaign::{Campaign, CounterExample, Progress, Verdict};
pub use choice::{Again, Chooser, Everything, Priorities, Random};
pub use design::{Design, UnknownDesign};
pub use explore::{Budget, Found, Scene, Search, at_random, by_priorities, search, shortest};
pub use flush_scope::{FlushScope, Use};
pub use hardware::{
    Access, Entry, Keeps, Moment, Outdated, PAGES, Reach, SLOTS, Translation, Wrong,
};
pub use history::{Line, LineKind, Writing};
pub use profile::{Invalidations, LoadsWithoutTags, Profile, Stores, UpperLevels};
pub use sharing::Sharing;
pub use sometimes::Sometimes;
pub use timeline::Detail;
pub use world::{
    Action, CheckWord, End, KernelTable, Outcome, PageTables, Setting, Stacks, System, Upper,
    World, complete_accesses, fence, publish, run, with_world,
};
