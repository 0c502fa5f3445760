//! A simulated machine: CPUs, caches, interrupts, TLBs and a scheduler, with an oracle that checks
//! every use of a translation.
//!
//! Code under test runs on the machine unchanged. It calls the machine for each step that takes
//! time: an access to a shared [word](SimWord), a touched page, a sent interrupt, a lock. The
//! machine lets that amount of simulated time pass on the calling CPU, and orders the effects of
//! all CPUs by simulated time. The same machine, code and seed give the same result, to the bit, on
//! any host.
//!
//! # What is modelled
//!
//! - **Time.** Each thread is a coroutine. The pair (time, CPU) alone decides which CPU runs next.
//! - **Memory.** A line of 64 bytes has an owner or sharers, and a queue of the CPUs that wait for
//!   it. Lines are identified by address, and those of the code's own structures are included, so
//!   false sharing has its real cost. Stores wait in a store buffer; locked operations and fences
//!   wait for the store buffer.
//! - **Translation.** x86-64 page tables in simulated memory are walked for each miss, entry by
//!   entry. TLBs have tags, sizes and least-recently-used replacement, and cache upper levels.
//!   Tags belong to each CPU or to the whole machine; the hardware or the kernel handles a miss.
//! - **Broadcasts** by hardware, which queue for one interconnect, and fences of remote CPUs by
//!   firmware. They take effect as late as they may, and only on entries cached before they were
//!   issued.
//! - **Interrupts.** Sending, delivery by distance, entry, acknowledgement, exit; the cost that a
//!   hypervisor adds to each; masking; wake-up from idle states, which get deeper with idle time.
//! - **Threads.** Run queues, affinity, stealing by idle CPUs; timeslices in turn, or Linux's EEVDF
//!   with preemption by threads that wake.
//! - **Locks.** Spin locks, and Linux's `rwsem`: writers spin while the owner runs, and overtake
//!   sleepers ([`LockWaiting`]).
//! - **Costs** come from a [machine file](machine), which gives the source of each.
//!
//! # What is not modelled, and in which direction that errs
//!
//! - *Weak memory.* Executions are sequentially consistent. The simulator cannot detect a missing
//!   barrier (loom can), although it charges the cost of each barrier.
//! - *Capacity and bandwidth of caches*, and the data in pages. No line is ever evicted, so cold
//!   starts are few and times a little low, for every design alike.
//! - *Instructions.* Computation between accesses is free, except the work that the memory manager
//!   and the scheduler report. A design costs the words it shares, the interrupts it sends, and its
//!   effect on TLBs. The engine's statistics are also free, including those per space that flushes
//!   share; on hardware they cost a locked operation or two for each flush that interrupts.
//! - *Out-of-order execution*, except for hits, which cost a slot and no latency, and for lines
//!   that are [prefetched](SimWord::prefetch). Other misses in a row add up.
//! - *Kernel translations.* Flushing them costs time, and has no effect.
//! - *Locks that mask interrupts.* The holder of a spin lock takes interrupts.
//!
//! # Reading order
//!
//! [`machine`], the description; [`time`](Time), `queue`, [`thread_id`](ThreadId) and `clock`,
//! which decide what runs when; [`sim`](Sim), the main loop and the passing of time, by
//! [`causes`](Cause), on `context`s, which are coroutines on `stack`s; `lines`, the cost of memory,
//! and [`word`](SimWord); `interrupt` and `hypervisor`; `memory`, `tlb`, `invalidation`, `mmu` and
//! `frames`, and `inspect`, which reads memory without them; [`broadcast`](BroadcastScope),
//! invalidation without interrupts; `threads`, `scheduler` and [`lock`](SleepingLock);
//! [`oracle`](ViolationKind), which checks each use; and `classes`, the need for each interrupt.

// In reading order.
pub mod machine;
mod time;
mod queue;
mod thread_id;
mod wait_loop;
mod clock;
mod sim;
mod causes;
mod attribute;
mod context;
mod stack;
mod hot;
mod lines;
mod word;
mod polls;
mod pair;
mod interrupt;
mod hypervisor;
mod memory;
mod holders;
mod tlb;
mod invalidation;
mod mmu;
mod frames;
mod insertion;
mod inspect;
mod broadcast;
mod threads;
mod eevdf;
mod scheduler;
mod preemption;
mod lock;
mod oracle;
mod classes;
mod classify;
mod counts;
mod waits;
mod rng;
mod jitter;

pub use broadcast::BroadcastScope;
pub use causes::{Cause, TimeByCause};
pub use counts::Counts;
pub use holders::Holder;
pub use hot::HotSpot;
pub use inspect::is_cached;
pub use lock::{LockWaiting, QueuedLock, ReadMostlyLock, SleepingLock, SpinLock};
pub use machine::{Machine, MachineError};
pub use memory::{FrameNumber, Purpose};
pub use mmu::{PageFault, TagEntries, Touch};
pub use oracle::{FlushRecord, Violation, ViolationKind};
pub use pair::PairWord;
pub use rng::Rng;
pub use sim::{Kernel, RunEnd, Sim, SwitchedTo, with_running};
pub use thread_id::ThreadId;
pub use threads::{Affinity, ThreadSpec, WaitMode};
pub use time::Time;
pub use tlb::SpaceKey;
pub use waits::FlushWaits;
pub use word::SimWord;
