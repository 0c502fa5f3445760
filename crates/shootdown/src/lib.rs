//! TLB coherence as a library: no CPU uses a dead translation, and only the CPUs that could use it
//! are interrupted.
//!
//! # The problem
//!
//! A CPU caches the translations that it reads from page tables, and is not notified when the page
//! tables change. A kernel that unmaps a page or removes a permission must therefore ensure that no
//! CPU can use the old translation *before* the page is used for anything else. The usual method is
//! a *TLB shootdown*: the kernel interrupts every CPU that may have cached the translation, and
//! waits until each of them has answered. That takes microseconds. Most of these interrupts are
//! unnecessary, because their targets are idle, or run another address space, or evicted the
//! translation long ago. But to skip one CPU wrongly corrupts memory, rarely and far from the
//! cause.
//!
//! This crate decides which CPUs must be notified of a change, when, and of which pages. It is
//! `no_std`, does not allocate, has no dependencies, and reaches the machine only through traits
//! that the kernel implements. After a change of the page tables, the kernel calls
//! [`flush`](PinnedCpu::flush) and then [`wait`](Pending::wait). When `wait` returns, no CPU can
//! use the old translations, and only CPUs that could have used them were interrupted.
//!
//! # The four ideas
//!
//! ```text
//!            Space                                    CpuState, one per CPU
//!   ┌──────────────────────┐                    ┌──────────────────────────────┐
//!   │ generation      1042 │◄── 3. compare ─────│ tag slots  (space, 1040) …   │
//!   │ log   1041: 0x7000+1 │                    │ presence   Active(space)     │◄── 2. read
//!   │       1042: 0x9000+4 │                    │ bell       rung; round 6     │◄── 4. ring
//!   │ cpumask   {0, 3, 17} │                    └──────────────────────────────┘
//!   └──────────────────────┘                                    │ 5. answer
//!        ▲ 1. count, log            flush ──► Pending ──► wait ◄┘
//! ```
//!
//! - **Generation.** Each [`Space`] counts its flushes, and logs the last 16. A CPU remembers up to
//!   which generation its TLB is clean, so the CPU can find out later what it has missed: nothing,
//!   a few ranges, or more than the log holds. A flush therefore does not interrupt a CPU that does
//!   not use the space at that moment. (Linux: `tlb_gen`, without the log.)
//! - **Presence.** Each CPU publishes, in one word of its [`CpuState`], what it could be using: a
//!   space [actively](Presence::Active), a space [lazily](Presence::Lazy) (the space is loaded, but
//!   the CPU is idle or runs a kernel thread), or [nothing](Presence::Out). A flush interrupts only
//!   CPUs that are active on the space, or are switching to it. (Linux: `mm_cpumask`, `is_lazy` and
//!   `loaded_mm` together.)
//! - **Doorbell.** Each CPU has a bell. To ring it is one locked operation. The ringing CPU sends
//!   an interrupt only if the bell is quiet and its owner does not poll it. One answer satisfies
//!   every CPU that rang before the answer began. There are no call objects, no queue and no lock,
//!   and the interrupt's handler is a single call of [`PinnedCpu::handle_flush_ipi`].
//! - **Pending.** A flush has two steps, [`PinnedCpu::flush`] and [`Pending::wait`]. Between them,
//!   the caller may drop its locks, start other flushes, and [join](Pending::join) them.
//!
//! Some hardware or firmware can invalidate translations on other CPUs by itself (Arm, AMD,
//! RISC-V's SBI). The engine uses such a [`Broadcaster`] where that costs less than interrupts. A
//! flush that finds no other CPU present notifies none, on any machine. [`Tagging`] describes how
//! spaces get their tags (PCIDs, ASIDs): a few per CPU, one that all CPUs share, or a new one after
//! each flush.
//!
//! A lazy CPU can still *walk* the page tables of its space. Therefore page tables that a flush
//! unhooked wait in [`Quarantine`] until every such CPU has caught up, which happens without an
//! interrupt. A space that dies is freed by the last CPU that drops it ([`PinnedCpu::retire`]).
//! Neither of the two costs an interrupt, or a reference count that all CPUs write when they become
//! idle.
//!
//! # Example
//!
//! Two CPUs of the software machine that the crate contains for tests. Both run on one thread, in
//! turns:
//!
#![cfg_attr(feature = "soft", doc = "```")]
#![cfg_attr(not(feature = "soft"), doc = "```ignore")]
//! use shootdown::soft::{Config, Host, Soft, Touch};
//! use shootdown::{CpuId, Extent, Root};
//!
//! let engine = Soft::<Host>::engine(Config::default());
//! let (zero, one) = (engine.enter(CpuId(0)), engine.enter(CpuId(1)));
//! zero.pin().online();
//! one.pin().online();
//!
//! // A space with one page. Both CPUs run it, and cache the translation.
//! let space = engine.space(Root(0));
//! engine.machine().map(&space, 3);
//! for cpu in [&zero, &one] {
//!     // SAFETY: `space` outlives both CPUs, and does not move.
//!     unsafe { cpu.pin().switch(&space) };
//!     assert_eq!(cpu.touch(3), Touch::Ok);
//! }
//!
//! // CPU 0 unmaps the page. CPU 1 uses the space, so CPU 0 rings CPU 1's bell.
//! engine.machine().unmap(&space, 3);
//! let mut pending = zero.pin().flush(&space, Extent::page(0x3000));
//! assert!(!pending.poll());
//! assert_eq!(one.touch(3), Touch::Ok); // still allowed: the page is not free yet
//! one.interrupt_point(); // the handler calls `PinnedCpu::handle_flush_ipi`
//! pending.wait(); // from here on, no CPU can use the old translation
//! engine.machine().free(&space, 3);
//! assert_eq!(one.touch(3), Touch::Fault);
//!
//! // CPU 1 goes idle. The next flush does not interrupt it. It catches up when it returns.
//! engine.machine().map(&space, 3);
//! assert_eq!(one.touch(3), Touch::Ok);
//! one.pin().enter_lazy();
//! engine.machine().unmap(&space, 3);
//! zero.pin().flush(&space, Extent::page(0x3000)).wait(); // returns without waiting for CPU 1
//! engine.machine().free(&space, 3);
//! // SAFETY: as above.
//! unsafe { one.pin().switch(&space) };
//! assert_eq!(one.touch(3), Touch::Fault);
//! assert_eq!(engine.cpu(CpuId(1)).stats().answers, 1);
//! assert_eq!(engine.cpu(CpuId(1)).stats().caught_up_from_log, 1);
//! ```
//!
//! # Embedding
//!
//! `examples/embed.rs` is a complete embedding to copy from: [`Memory`] and [`Machine`] for two
//! threads that play the CPUs of a toy MMU (`cargo run -p shootdown --example embed`). These are
//! the six steps in a kernel:
//!
//! 1. **Describe the machine.** Implement [`Memory`] and [`Machine`] for a type of your kernel:
//!    where the [`CpuState`] of each CPU is, how to load a root and invalidate a page, how to send
//!    the flush interrupt. Create one [`Shootdown`] from it. (The crate `shootdown-hw` has the
//!    processor's part for x86-64, `AArch64` and `LoongArch64`.)
//! 2. **Bring CPUs online.** On each CPU, call [`PinnedCpu::online`] when its flush interrupt
//!    works. Let the interrupt's handler call [`PinnedCpu::handle_flush_ipi`]. Call
//!    [`PinnedCpu::offline`] before the CPU stops.
//! 3. **Schedule.** Put a [`Space`] into each of your address spaces. Call [`PinnedCpu::switch`]
//!    when the scheduler runs a thread of the space, and [`PinnedCpu::enter_lazy`] when it runs a
//!    thread without one. If your kernel touches no user address between kernel entry and return,
//!    it may also call `enter_lazy` on entry and `switch` before the return: then flushes do not
//!    interrupt the CPU while its thread is in the kernel. [`LazyEntryPredictor`] predicts on which
//!    CPUs this saves interrupts.
//! 4. **Flush.** Where you change page tables, call [`PinnedCpu::flush`], drop your locks, call
//!    [`Pending::wait`], and only then free pages. Where you free what was mapped, page tables
//!    included, [`Gather`] does these steps in the right order. Where you only add permissions, do
//!    not flush. On CPUs that cache refused accesses (Arm, RISC-V) or invalid entries (RISC-V,
//!    `LoongArch`), invalidate these in the page-fault handler.
//! 5. **Reclaim.** Where you unmap pages of many spaces one by one, use a [`Batch`]: it interrupts
//!    each CPU once for all of them. With batches, code that changes page tables and finds an entry
//!    already clear must call [`PinnedCpu::flush_if_batched`], so that it does not return before
//!    the batch that cleared the entry is flushed.
//! 6. **Retire.** When the last thread of a space is gone, free its pages, and call
//!    [`PinnedCpu::retire`]. [`Machine::reclaim`] later returns the space and its page tables to
//!    you. When memory is short, call [`PinnedCpu::reap`]. On a CPU that enters a deep idle state,
//!    call [`PinnedCpu::leave_space`], so that the CPU keeps no page table alive.
//!
//! `docs/embedding.md` explains each step in a kernel that boots, with the typical mistakes.
//!
//! # What is not supported
//!
//! - **Flushes from an unpinned thread.** A [`PinnedCpu`] is the proof that the caller is pinned to
//!   its CPU, with the flush interrupt masked. A [`Pending`] can be waited for without one.
//! - **NMIs.** The flush interrupt must not be an NMI, and an NMI handler must not use the engine.
//!   An NMI handler may only ask whether it
//!   [may touch user memory](Shootdown::nmi_may_touch_user).
//! - **Real-time bounds on a flush.** A flush keeps the interrupt masked for about one cache miss
//!   per CPU in the space's mask, and `wait` takes as long as the slowest CPU takes to answer.
//!
//! # Reading the source
//!
//! Each folder is a chapter. Their order is the order of dependency, and so is the order of the
//! modules that each lists. Only modules of `state` depend on each other.
//!
//! - **`base`** has the foundations. [`rules`] is the chapter on memory ordering. Every barrier and
//!   every step that correctness depends on has a name there, and a test that fails without it.
//!   [`memory`](Memory) is the contract for shared words and barriers.
//! - **`parts`** need memory alone: [`extent`](Extent) and [`extent_set`](ExtentSet), the pages
//!   that a flush covers; [`hook`](HookedPages), which collects them; [`cpu_set`](CpuSet);
//!   `flush_log`, the generation and its log; [`presence`](Presence); `hazard`, the page tables
//!   that a CPU can walk; `bell`, the doorbell; `phase` and `cpumask`, the CPUs that a flush reads;
//!   `stats`, the counters; `method`, the choice between interrupts and broadcasts.
//! - **`state`** lasts between calls. [`machine`](Machine) is the contract, with its
//!   [`broadcaster`](Broadcaster). `vcpu` has a [word](VcpuWord) with which flushes of a guest skip
//!   CPUs that do not run. [`space`](Space) and [`cpu_state`](CpuState) are made of the parts, and
//!   [`stall`](StallReport) reads them for a watchdog. Then their [tags](Tagging), the
//!   [engine](Shootdown), [`pinned_cpu`](PinnedCpu), the CPU that runs the caller,
//!   [`engine_cell`](EngineCell), a place for the engine in a static, [`walk`](SoftwareWalk), walks
//!   by software, and [`devices`](Shootdown::attach_device), TLBs outside of the CPUs.
//! - **`path`** is what happens often: [`quarantine`](Quarantine), for tables that wait;
//!   [`pending`](Pending); [`trace`](CauseCounters) of flushes by cause; `broadcast`; `catch_up`;
//!   [`switch`](PinnedCpu::switch); [`loaded`](LoadedRoot), for trampolines; `notify`; [user
//!   mode](PinnedCpu::enter_user) without interrupts for the kernel; [`flush`](PinnedCpu::flush);
//!   [`flush_ipi`](PinnedCpu::handle_flush_ipi).
//! - **`end`** frees pages and spaces: [`gather`](Gather), [`parked`](Parked), [`reclaim`](Batch),
//!   [`retire`](PinnedCpu::retire) with a list of [dead spaces](DeadSpaces), and
//!   [`disconnect`](PinnedCpu::disconnect) for CPUs that have stopped in a crash. The last module,
//!   [`lazy_entry`](LazyEntryPredictor), predicts whether it saves an interrupt to become lazy at
//!   kernel entry.

#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::missing_panics_doc,
    clippy::cast_possible_truncation,
    clippy::inline_always,
    reason = "types are named after their module; methods of `PinnedCpu` are called for their \
              effect; indices are small; the parts of a flush that interrupts have one or two \
              callers, and calls between them cost up to 70 instructions"
)]

#[cfg(any(test, feature = "soft"))]
extern crate std;

// The chapters in reading order, which is the order of dependency.
mod base;
mod parts;
mod state;
mod path;
mod end;

#[cfg(feature = "soft")]
pub mod soft;

pub use base::costs::{FlushCosts, NotifyCosts};
pub use base::ids::{CpuId, DeviceTicket, Root, SpaceId, Tag};
pub use base::memory::{Memory, TagWords, Word};
pub use base::rules;
pub use base::rules::Rule;
pub use end::dead_spaces::DeadSpaces;
pub use end::gather::{Flushed, Gather, Sent};
pub use end::lazy_entry::LazyEntryPredictor;
pub use end::parked::{Parked, ParkedFlush};
pub use end::reclaim::{BATCH_SPACES, Batch, BatchEntry, BatchIsFull, SentBatch, StaleWrites};
pub use end::reclaim::{CleanBatch, CleanEntry, CleanExtent, Unflushed};
pub use end::retire::{Reaping, Retiring};
pub use parts::bell::BellState;
pub use parts::cpu_set::{CpuBits, CpuSet};
pub use parts::extent::{Extent, PageSize};
pub use parts::extent_set::ExtentSet;
pub use parts::hook::{HookedPages, PageHook};
pub use parts::presence::Presence;
pub use parts::secondary::{PrimaryChange, PrimaryChanges, SecondaryFault};
pub use parts::stats::{CpuStats, SpaceStats};
pub use parts::trace_event::{FlushCause, FlushTrace, TraceScope, WaitTrace};
pub use path::loaded::LoadedRoot;
pub use path::pending::Pending;
pub use path::quarantine::{Horizon, Quarantine};
pub use path::trace::{CauseCounters, CauseStats};
pub use state::broadcaster::{Broadcast, Broadcaster, DomainCosts, NoBroadcaster, Reach, Refused};
pub use state::cpu_state::CpuState;
pub use state::devices::TooManyDevices;
pub use state::engine::Shootdown;
pub use state::engine_cell::EngineCell;
pub use state::machine::{Entries, Lifetime, Machine, Tagging};
pub use state::pinned_cpu::PinnedCpu;
pub use state::space::Space;
pub use state::stall::{StallReport, Unanswered};
pub use state::tag::slots::{TagSlot, TagSlots};
pub use state::vcpu::VcpuWord;
pub use state::walk::SoftwareWalk;
