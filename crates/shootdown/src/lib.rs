//! TLB coherence as a library: keeps every CPU's translation cache correct, with as few
//! interrupts as the machine allows.
//!
//! # The problem
//!
//! A CPU caches the translations that it has read in page tables, and does not notice when the page
//! tables change. A kernel that unmaps a page, or takes a permission away, must therefore ensure
//! that no CPU uses the old translation *before* the page is used for anything else. The usual way
//! is to interrupt every CPU that may have cached it, and to wait until each has answered: a "TLB
//! shootdown". It can take microseconds. Most of these interrupts are unnecessary, because their
//! targets are idle, or run another space, or have not held the translation for long. Leaving out
//! one CPU wrongly corrupts memory, rarely and far from the cause.
//!
//! This crate decides which CPUs must be notified, when, and of what. It is `no_std`, allocates
//! nothing, depends on nothing, and reaches the machine only through traits that the kernel
//! implements.
//!
//! # The four ideas
//!
//! ```text
//!            Space                                       Cpu, one each
//!   ┌──────────────────────┐                    ┌──────────────────────────────┐
//!   │ generation      1042 │◄── 3. compare ─────│ tag slots  (space, 1040) …   │
//!   │ log   1041: 0x7000+1 │                    │ presence   Active(space)     │◄── 2. read
//!   │       1042: 0x9000+4 │                    │ bell       rung; round 6     │◄── 4. ring
//!   │ cpumask   {0, 3, 17} │                    └──────────────────────────────┘
//!   └──────────────────────┘                                    │ 5. answer
//!        ▲ 1. count, log            flush ──► Pending ──► wait ◄┘
//! ```
//!
//! - **Generation.** Each [`Space`] counts its flushes and logs the last 16. A CPU that knows which
//!   generation its TLB has seen knows what it missed: nothing, a few ranges, or too much to list.
//!   So a CPU that does not use the space *now* need not be notified now. (Linux: `tlb_gen`,
//!   without the log.)
//! - **Presence.** Each [`CpuState`] publishes in one word what it could be using: a space
//!   [actively](Presence::Active), a space [lazily](Presence::Lazy) (loaded, but the CPU is idle or
//!   runs a kernel thread), or [nothing](Presence::Out). A flush rings only CPUs that are active on
//!   the space, or are switching to it. (Linux: `mm_cpumask`, `is_lazy` and `loaded_mm` together.)
//! - **Doorbell.** Each CPU has a bell. Ringing it is one locked operation. The ringing CPU sends
//!   an interrupt only if the bell was quiet and its owner does not poll it. One answer satisfies
//!   all CPUs that rang before it began. There are no call objects, no queue and no lock: the
//!   handler is [`PinnedCpu::handle_flush_ipi`], and nothing else.
//! - **Pending.** A flush has two steps, [`PinnedCpu::flush`] and [`Pending::wait`]. Between them the
//!   caller may drop its locks, send other flushes, and [join](Pending::join) them.
//!
//! Some hardware can invalidate on other CPUs by itself (Arm, AMD, and RISC-V's firmware). The
//! engine uses such a [`Broadcaster`] where it costs less than interrupts. A flush that finds no
//! other CPU present notifies none, on any machine. [`Tagging`] describes how spaces get their
//! tags: a few per CPU, one that all CPUs share, or ever new ones.
//!
//! Page tables that a lazy CPU can still *walk* are kept alive without its help. Page tables that
//! were unhooked wait in [`Quarantine`] until the CPU has caught up, which it does by itself. A
//! space that dies is freed by the last CPU that drops it ([`PinnedCpu::retire`]). Neither costs an
//! interrupt, nor a reference count that all CPUs write when they go idle.
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
//! zero.pin().online();
//! one.pin().online();
//!
//! // A space with one page. Both CPUs run it, and cache the translation.
//! let space = engine.space(Root(0));
//! engine.machine().map(&space, 3);
//! for cpu in [&zero, &one] {
//!     // SAFETY: `space` stays in place until the CPUs are gone.
//!     unsafe { cpu.pin().switch(&space) };
//!     assert_eq!(cpu.touch(3), Touch::Ok);
//! }
//!
//! // CPU 0 unmaps the page. CPU 1 uses the space, so CPU 0 rings its bell.
//! engine.machine().unmap(&space, 3);
//! let mut pending = zero.pin().flush(&space, Extent::page(0x3000));
//! assert!(!pending.poll());
//! assert_eq!(one.touch(3), Touch::Ok); // it still may: the page is not free yet
//! one.interrupt_point(); // the handler calls `PinnedCpu::handle_flush_ipi`
//! pending.wait(); // now no CPU can use it
//! engine.machine().free(&space, 3);
//! assert_eq!(one.touch(3), Touch::Fault);
//!
//! // CPU 1 goes idle. The next flush does not interrupt it; it catches up when it returns.
//! engine.machine().map(&space, 3);
//! assert_eq!(one.touch(3), Touch::Ok);
//! one.pin().enter_lazy();
//! engine.machine().unmap(&space, 3);
//! zero.pin().flush(&space, Extent::page(0x3000)).wait(); // returns at once
//! engine.machine().free(&space, 3);
//! // SAFETY: as above.
//! unsafe { one.pin().switch(&space) };
//! assert_eq!(one.touch(3), Touch::Fault);
//! assert_eq!(engine.cpu(CpuId(1)).stats().answers, 1);
//! assert_eq!(engine.cpu(CpuId(1)).stats().caught_up_from_log, 1);
//! ```
//!
//! # Embedding it
//!
//! 1. Implement [`Memory`] and [`Machine`] for a type of your kernel: where a CPU's [`CpuState`] lives,
//!    how a root is loaded and a page invalidated, how the interrupt is sent. Make one
//!    [`Shootdown`] of it. (For x86-64, `AArch64` and `LoongArch64`, `shootdown-hw` has the
//!    processor's part.)
//! 2. On each CPU, when its flush interrupt works, call [`PinnedCpu::online`]. The handler calls
//!    [`PinnedCpu::handle_flush_ipi`]. Before the CPU stops, call [`PinnedCpu::offline`].
//! 3. Put a [`Space`] into each of your address spaces. The scheduler calls [`PinnedCpu::switch`] when
//!    it runs a thread of the space, and [`PinnedCpu::enter_lazy`] when it runs none. If the kernel
//!    touches no user address between kernel entry and return, it may enter lazy there as well: a
//!    CPU that is interrupted often is then left alone while its threads are in the kernel
//!    ([`LazyEntryPredictor`]).
//! 4. Where you change page tables, call [`PinnedCpu::flush`], drop your locks, call [`Pending::wait`],
//!    and only then free pages. Where you free what was mapped, [`Gather`] does that in order, for
//!    page tables as well. Where you only add permissions, flush nothing. A CPU that caches
//!    refusals (Arm, `LoongArch`) drops them in its handler of page faults.
//! 5. Where you reclaim memory, and unmap pages of many spaces one by one, use a [`Batch`], so that
//!    each CPU is interrupted once for all of them. From then on, code that changes page tables and
//!    finds a page gone calls [`PinnedCpu::flush_if_batched`], so that it does not return before the batch is
//!    flushed.
//! 6. When the last thread of a space is gone, free its pages, and [`PinnedCpu::retire`] the space.
//!    [`Machine::reclaim`] returns its page tables to you. When memory is short, call
//!    [`PinnedCpu::reap`]. On a CPU that enters a deep idle state, call [`PinnedCpu::leave_space`]: it then holds
//!    no page table.
//!
//! `docs/embedding.md` goes through all of it in a kernel that boots, with the typical mistakes at
//! each step.
//!
//! A [`PinnedCpu`] is the proof that its holder is pinned to a CPU with the flush interrupt masked. The
//! engine cannot be rung by NMI, nor used in an NMI handler; but an NMI handler may ask whether it
//! [may touch user memory](Shootdown::nmi_may_touch_user). Secondary TLBs (IOMMUs) that need
//! commands of their own are not handled; those that observe broadcasts are covered if their
//! space is [pinned](PinnedCpu::pin_tag). A flush that finds many CPUs present keeps the interrupt
//! masked for a cache miss for each CPU in the space's mask.
//!
//! # Reading it
//!
//! The order of reading is the order of dependency; only the three modules of the core know each
//! other.
//!
//! - *The ground:* [`rules`] is the chapter on memory ordering. Every barrier and every step that
//!   correctness depends on has a name there, and a test that fails without it. [`memory`](Memory)
//!   is the contract for shared words and barriers; `ids` and `costs` are plain numbers.
//! - *Parts that need memory alone:* [`extent`](Extent) and [`extents`](ExtentSet), the pages that a
//!   flush covers; [`cpu_set`](CpuSet); `flush_log`, the generation and its log;
//!   [`presence`](Presence); `hazard`, the page tables that a CPU can walk; `bell`, the doorbell;
//!   `cpumask`, the CPUs that a flush looks at; `method`, the choice between interrupts and
//!   broadcasts.
//! - *The core:* [`machine`](Machine) is the contract, with its [`broadcaster`](Broadcaster);
//!   [`space`](Space) and [`cpu`](CpuState) are made of the parts above. Then their [tags](Tagging), the
//!   [engine](Shootdown), and [`pin`](PinnedCpu), the CPU that runs the caller.
//! - *The main path:* [`quarantine`](Quarantine), for tables that wait; [`pending`](Pending),
//!   `broadcast`, `catch_up`, [`switch`](PinnedCpu::switch),
//!   `notify`, [`flush`](PinnedCpu::flush), [`answer`](PinnedCpu::handle_flush_ipi).
//! - *The end of pages and spaces:* [`gather`](Gather), [`reclaim`](Batch),
//!   [`retire`](PinnedCpu::retire).

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
mod extent_set;
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
mod cpu_state;
mod tag;
mod engine;
mod pinned_cpu;
mod quarantine;
mod pending;
mod broadcast;
mod catch_up;
mod switch;
mod notify;
mod flush;
mod flush_ipi;
mod gather;
mod reclaim;
mod retire;
mod lazy_entry;

#[cfg(feature = "soft")]
pub mod soft;

pub use broadcaster::{Broadcast, Broadcaster, NoBroadcaster, Reach};
pub use costs::{FlushCosts, NotifyCosts};
pub use cpu_set::{CpuBits, CpuSet};
pub use cpu_state::CpuState;
pub use engine::Shootdown;
pub use extent::{Extent, PageSize};
pub use extent_set::ExtentSet;
pub use gather::{Flushed, Gather, Sent};
pub use ids::{CpuId, Root, SpaceId, Tag};
pub use lazy_entry::LazyEntryPredictor;
pub use machine::{Entries, Lifetime, Machine, Tagging};
pub use memory::{Memory, TagWords, Word};
pub use pending::Pending;
pub use pinned_cpu::PinnedCpu;
pub use presence::Presence;
pub use quarantine::{Horizon, Quarantine};
pub use reclaim::{BATCH_SPACES, Batch, BatchEntry, BatchIsFull, SentBatch, StaleWrites};
pub use retire::{Reaping, Retiring};
pub use rules::Rule;
pub use space::Space;
pub use stats::{CpuStats, SpaceStats};
pub use tag::slots::{TagSlot, TagSlots};
