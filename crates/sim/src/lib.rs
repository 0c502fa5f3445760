//! A simulated machine: CPUs, caches, interrupts, TLBs, a scheduler; and an oracle that watches.
//!
//! Code under test runs on it unchanged. It calls back for whatever takes time: an access to a
//! shared [word](SimWord), a page that is touched, an interrupt that is sent, a lock. The machine
//! lets that much simulated time pass on the CPU that called, and sees to it that whatever the CPUs
//! do takes effect in the order of simulated time. Same machine, same code, same seed: same result,
//! to the bit, on any host.
//!
//! # What is modelled
//!
//! - **Time.** Each thread is a coroutine. Who runs next is decided by (time, CPU) alone.
//! - **Memory.** A line of 64 bytes has an owner or sharers, and a queue of those who wait for it.
//!   Lines are told by address, those of the code's own structures included, so that false sharing
//!   costs what it costs. Stores wait in a store buffer, locked operations and fences for it.
//! - **Translation.** x86-64 page tables in simulated memory are walked for each miss, entry by
//!   entry; TLBs have tags, sizes and least-recently-used replacement, and cache upper levels.
//!   Tags are each CPU's own, or everyone's; a miss is the hardware's, or the kernel's.
//! - **Broadcasts** by hardware, which queue for one interconnect, and fences of remote CPUs by
//!   firmware: at the last moment at which they may take effect, and only for what was cached
//!   before they were issued.
//! - **Interrupts.** Sending, delivery by distance, entry, acknowledgement, exit; what a hypervisor
//!   adds to each; masking; wake-up from idle states, the deeper the longer it has been idle.
//! - **Threads.** Run queues, affinity, stealing by idle CPUs, timeslices, locks that sleep or
//!   spin.
//! - **Costs** are a [machine file](machine)'s, each with its source.
//!
//! # What is not, and which way that errs
//!
//! - *Weak memory.* Executions are sequentially consistent: a missing barrier is never noticed here
//!   (loom is for that), though its cost is charged.
//! - *Capacity and bandwidth of caches*, and the data in pages: nothing is ever evicted, so cold
//!   starts are few and times a little low, for every design alike.
//! - *Instructions.* What code computes between accesses is free but for the work that the memory
//!   manager and the scheduler report: a design costs the words it shares, the interrupts it sends,
//!   and what it does to TLBs. The engine's statistics are free, too, those per space included,
//!   though flushes share them; on hardware that is a locked operation or two per flush that rings.
//! - *Out-of-order execution*, but for hits, which cost a slot and no latency, and for what is
//!   [asked for ahead](SimWord::prefetch). Misses in a row otherwise add up.
//! - *Kernel translations*: flushing them costs time, and has no effect.
//! - *Waiting for a sleeping lock by spinning first*, as Linux's `rwsem` does; threads that wait
//!   sleep at once, which makes CPUs idle more often than they would be.
//!
//! # Reading it
//!
//! In this order: [`machine`], the description; [`time`](Time), `queue` and `clock`, which decide
//! what acts when; [`sim`](Sim), the main loop and how time passes, on `context`s that are
//! coroutines on `stack`s; `lines`, what memory costs, and [`word`](SimWord); `interrupt`;
//! `memory`, `tlb`, `invalidation` and `mmu`, and `inspect`, which looks at memory past them;
//! [`broadcast`](BroadcastScope), the other way to tell; `threads`, `scheduler` and
//! [`lock`](SleepingLock); [`oracle`](Wrong), the judge.

// In reading order.
pub mod machine;
mod time;
mod queue;
mod clock;
mod sim;
mod context;
mod stack;
mod lines;
mod word;
mod interrupt;
mod memory;
mod tlb;
mod invalidation;
mod mmu;
mod inspect;
mod broadcast;
mod threads;
mod scheduler;
mod lock;
mod oracle;
mod counts;
mod waits;
mod rng;

pub use broadcast::BroadcastScope;
pub use counts::Counts;
pub use lock::{SleepingLock, SpinLock};
pub use machine::{Machine, MachineError};
pub use memory::{FrameNumber, Purpose};
pub use mmu::{PageFault, TagEntries, Touch};
pub use oracle::{FlushRecord, Violation, Wrong};
pub use rng::Rng;
pub use sim::{Kernel, RunEnd, Sim, SwitchedTo, with_running};
pub use threads::{Affinity, Meanwhile, ThreadId, ThreadSpec};
pub use time::Time;
pub use tlb::SpaceKey;
pub use waits::FlushWaits;
pub use word::SimWord;
