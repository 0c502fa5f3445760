//! TLB coherence as a library: keeps every CPU's translation cache correct, with as few
//! interrupts as the machine allows.
//!
//! # The problem
//!
//! A CPU caches the translations that it has read in page tables, and nothing tells it when they
//! change. A kernel that unmaps a page, or takes a permission away, must therefore make sure that
//! no CPU goes on using the old translation *before* the page is used for anything else. The usual
//! way is to interrupt every CPU that may have it and to wait until each has answered: a "TLB
//! shootdown". It can take microseconds, and most of it is for nothing, for the CPUs interrupted
//! are idle, or elsewhere, or have long forgotten. Those that are left out wrongly corrupt memory,
//! rarely and far from the cause.
//!
//! This crate decides who must be told, when, and of what. It is `no_std`, allocates nothing,
//! depends on nothing, and touches the machine only through one trait.
//!
//! # The four ideas
//!
//! ```text
//!            Space                                       Cpu, one each
//!   ┌──────────────────────┐                    ┌──────────────────────────────┐
//!   │ generation      1042 │◄── 3. compare ─────│ tag slots  (space, 1040) …   │
//!   │ log   1041: 0x7000+1 │                    │ presence   Active(space)     │◄── 2. read
//!   │       1042: 0x9000+4 │                    │ bell       rung; round 6     │◄── 4. ring
//!   │ cpumask  {0, 3, 17}  │                    └──────────────────────────────┘
//!   └──────────────────────┘                                    │ 5. answer
//!        ▲ 1. count, log            flush ──► Pending ──► wait ◄┘
//! ```
//!
//! - **Generation.** Each [`Space`] counts its flushes and logs what the last 16 covered, if anyone
//!   may want to know. A CPU that knows which generation its TLB has seen knows what it missed:
//!   nothing, a few ranges, or too much to know. So a CPU that does not use the space *now* need
//!   not be told now. (Linux: `tlb_gen`, without the log.)
//! - **Presence.** Each [`Cpu`] publishes in one word what it could be using: a space
//!   [actively](Presence::Active), a space [lazily](Presence::Lazy) (loaded, but idle or in a
//!   kernel thread), or [nothing](Presence::Out). Only those who are active, or on their way there,
//!   are rung. (Linux: `mm_cpumask`, `is_lazy` and `loaded_mm` together.)
//! - **Doorbell.** A CPU that must be told has a bell. Ringing is one locked operation; an
//!   interrupt is sent only if the bell was quiet and nobody attends to it; one answer satisfies
//!   all who rang before it began. No call objects, no queue, no lock: the handler is
//!   [`Here::answer`], and that is all.
//! - **Pending.** A flush is two steps, [`Here::flush`] and [`Pending::wait`]. Between them the
//!   caller may drop its locks, send other flushes, and [join](Pending::join) them.
//!
//! Where hardware can tell other CPUs by itself (Arm, AMD, and RISC-V's firmware), it is one more
//! way to tell those who are present, and taken where it is cheaper: see [`Broadcast`]. A flush
//! that finds nobody else present tells nobody, on any machine. How spaces get their tags is in
//! [`Tagging`]: a few per CPU, one that all CPUs share, or ever new ones.
//!
//! What a lazy CPU can still *walk* is kept alive without it. Page tables that are taken out wait
//! in [`Quarantine`] until it has caught up, which it does by itself; a space that dies is freed by
//! the last CPU that lets go of it ([`Here::retire`]). Neither costs an interrupt, nor a reference
//! count that all CPUs write when they go idle.
//!
//! # Example
//!
//! Two CPUs of the software machine that the crate ships for tests, by turns on one thread:
//!
#![cfg_attr(feature = "soft", doc = "```")]
#![cfg_attr(not(feature = "soft"), doc = "```ignore")]
//! use shootdown::soft::{Config, Host, Soft, Touch};
//! use shootdown::{CpuId, Extent, Root};
//!
//! let engine = Soft::<Host>::engine(Config::default());
//! let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
//! zero.here().online();
//! one.here().online();
//!
//! // A space with one page. Both CPUs run it, and cache the translation.
//! let space = engine.space(Root(0));
//! engine.machine().map(&space, 3);
//! for cpu in [&zero, &one] {
//!     // SAFETY: `space` stays in place until the CPUs are gone.
//!     unsafe { cpu.here().switch(&space) };
//!     assert_eq!(cpu.touch(3), Touch::Ok);
//! }
//!
//! // CPU 0 unmaps the page. CPU 1 uses the space, so its bell rings.
//! engine.machine().unmap(&space, 3);
//! let mut pending = zero.here().flush(&space, Extent::page(0x3000));
//! assert!(!pending.poll());
//! assert_eq!(one.touch(3), Touch::Ok); // it still may: the page has not been given away
//! one.interrupt_point(); // the handler, which calls `Here::answer`
//! pending.wait(); // now nobody can use it
//! engine.machine().free(&space, 3);
//! assert_eq!(one.touch(3), Touch::Fault);
//!
//! // CPU 1 goes idle. The next flush does not disturb it; it makes up for it when it returns.
//! engine.machine().map(&space, 3);
//! assert_eq!(one.touch(3), Touch::Ok);
//! one.here().enter_lazy();
//! engine.machine().unmap(&space, 3);
//! zero.here().flush(&space, Extent::page(0x3000)).wait(); // returns at once
//! engine.machine().free(&space, 3);
//! // SAFETY: as above.
//! unsafe { one.here().switch(&space) };
//! assert_eq!(one.touch(3), Touch::Fault);
//! assert_eq!(engine.cpu(CpuId(1)).stats().answers, 1);
//! assert_eq!(engine.cpu(CpuId(1)).stats().caught_up_from_log, 1);
//! ```
//!
//! # Embedding it
//!
//! 1. Implement [`Machine`] for a type of your kernel: where a CPU's [`Cpu`] lives, how a root is
//!    loaded and a page invalidated, how the interrupt is sent. Make one [`Shootdown`] of it. (For
//!    x86-64, `AArch64` and `LoongArch64`, what is the processor's is done: see `shootdown-bare`.)
//! 2. On each CPU, when its flush interrupt works: [`Here::online`]. The handler calls
//!    [`Here::answer`]. Before the CPU stops: [`Here::offline`].
//! 3. Put a [`Space`] into each of your address spaces. The scheduler calls [`Here::switch`] when
//!    it runs a thread of it, and [`Here::enter_lazy`] when it runs none. Where the kernel touches
//!    no user address until it returns to user mode, it may do so there, too: a CPU that is
//!    interrupted often is then left alone while its threads are in the kernel.
//! 4. Where you change page tables: [`Here::flush`], drop your locks, [`Pending::wait`], and only
//!    then free pages. Where you free what was mapped, [`Gather`] does that in order, and page
//!    tables, too. Where you only allow more than before, nothing is flushed: a CPU that remembers
//!    what it refused (Arm, `LoongArch`) forgets it in its handler of page faults.
//! 5. Where memory is reclaimed, and pages of many spaces are unmapped one by one: a [`Batch`], so
//!    that each CPU is interrupted once for all of them. From then on, whoever changes page tables
//!    and finds a page gone [settles](Here::settle), lest it return before the batch is flushed.
//! 6. When the last thread of a space is gone, free its pages, and [`Here::retire`] the space: its
//!    page tables are yours again when [`Machine::reclaim`] says so. When memory is short:
//!    [`Here::reap`]. A CPU that enters a deep idle state calls [`Here::leave`], and holds nothing.
//!
//! `docs/embedding.md` goes through all of it in a kernel that boots, with what goes wrong at each
//! step.
//!
//! A [`Here`] is the proof that its holder is pinned to a CPU with the flush interrupt masked. Not
//! handled: an engine that is rung by NMI, or used in one; but an NMI handler may ask whether it
//! [may touch user memory](Shootdown::nmi_may_touch_user). Nor are secondary TLBs (IOMMUs) that
//! must be notified by commands of their own; those that observe broadcasts are covered if their
//! space is [pinned](Here::pin_tag). A flush that finds many CPUs present takes its time with the
//! interrupt masked: a cache miss for each CPU in the cpumask.
//!
//! # Reading it
//!
//! In this order: [`machine`](Machine) is the contract; [`extent`](Extent) what a flush covers;
//! `journal` the generation and its log; [`presence`](Presence), and `held`, what a CPU can walk;
//! `bell` the doorbell; `cpumask` who must be looked at; [`space`](Space) and [`cpu`](Cpu), what
//! these make up, with their [tags](Tagging); then the main path, [`switch`](Here::switch),
//! `catch_up`, `notify`, [`flush`](Here::flush), [`broadcast`](Broadcast) and the choice of a
//! `method`, [`pending`](Pending),
//! [`answer`](Here::answer); and the end of things,
//! [`quarantine`](Quarantine), [`gather`](Gather), [`reclaim`](Batch), [`retire`](Here::retire).
//! [`rules`] is the chapter on memory ordering: every barrier and every step that correctness
//! hangs on has a name there, and a test that fails without it.

#![no_std]
#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    reason = "names are read with their module; a token's method has its effect; indices are small"
)]

#[cfg(any(test, feature = "soft"))]
extern crate std;

// In reading order, which is the order of dependency.
pub mod rules;
mod memory;
mod ids;
mod cache_padded;
mod costs;
mod extent;
mod extents;
mod cpu_set;
mod flush_log;
mod presence;
mod hazard;
mod bell;
mod phase;
mod cpumask;
mod stats;
mod method;
mod broadcaster;
mod machine;
mod space;
mod cpu;
mod tag;
mod engine;
mod here;
mod quarantine;
mod pending;
mod broadcast;
mod catch_up;
mod switch;
mod notify;
mod flush;
mod answer;
mod gather;
mod reclaim;
mod retire;

#[cfg(feature = "soft")]
pub mod soft;

pub use broadcaster::{Broadcast, Broadcaster, NoBroadcaster, Reach};
pub use costs::{FlushCosts, NotifyCosts};
pub use cpu::Cpu;
pub use cpu_set::{CpuBits, CpuSet};
pub use engine::Shootdown;
pub use extent::{Extent, PageSize};
pub use extents::Extents;
pub use gather::{Flushed, Gather, Sent};
pub use here::Here;
pub use ids::{CpuId, Root, SpaceId, Tag};
pub use machine::{Entries, Lifetime, Machine, Tagging};
pub use memory::{Memory, TagWords, Word};
pub use pending::Pending;
pub use presence::Presence;
pub use quarantine::{Horizon, Quarantine};
pub use reclaim::{BATCH_SPACES, Batch, BatchIsFull, InBatch, SentBatch, StaleWrites};
pub use retire::{Reaping, Retiring};
pub use rules::Rule;
pub use space::Space;
pub use stats::{CpuStats, SpaceStats};
pub use tag::slots::{TagSlot, TagSlots};
