//! A small kernel that embeds the engine and the memory manager.
//!
//! # Reading order
//!
//! The modules form layers. No module uses a module of a layer above its own.
//!
//! 1. [`arch`] is the interface of an architecture. [`console`] prints, [`end`] ends a run, and
//!    [`load`] parses what the kernel is asked to do.
//! 2. [`sync`] has locks, and [`memory`] has frames and a heap. [`boot_memory`] makes page tables
//!    without a heap.
//! 3. [`counts`] counts the events of each CPU. [`machine`] is the kernel's half of the engine's
//!    machine, [`totals`] adds the engine's counters, [`replicas`] flushes page tables of a CPU's
//!    own, and [`coherence`] connects the engine to the memory manager.
//! 4. [`scheduler`] runs threads on CPUs. [`platform`] gives the memory manager frames, page-table
//!    entries and locks.
//! 5. [`process`] holds processes, whose threads run in user mode by [`user`]. [`contents`] checks
//!    what memory holds. [`executor`] is the host of [`shootdown_program::interpreter`] and
//!    executes the steps of a workload. [`report`] prints the results of a run, and [`run`] starts
//!    a run.
//! 6. [`smoke`] and [`fault_injection`] are the other modes. [`entry`] is where CPUs enter the
//!    kernel, and selects the mode.

// In reading order.
mod arch;
mod console;
mod end;
mod load;

mod sync;
mod memory;
mod boot_memory;

mod counts;
mod machine;
mod totals;
mod replicas;
mod coherence;

mod scheduler;
mod platform;

mod process;
mod contents;
mod user;
mod executor;
mod report;
mod run;

mod smoke;
mod fault_injection;
mod entry;
