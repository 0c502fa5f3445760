//! The kernel: as small as one can be that the engine and the memory manager are embedded in.
//!
//! # Reading it
//!
//! In layers; no module uses one of a layer above its own.
//!
//! 1. [`arch`] is what an architecture provides. [`console`] and [`end`] print, and end a run;
//!    [`load`] is what to do.
//! 2. [`sync`] has locks, and [`memory`] frames and a heap; [`boot_memory`] does without a heap.
//! 3. [`counts`] counts what each CPU does. [`machine`] is the kernel's half of the engine's
//!    machine, [`totals`] adds the engine's counts, and [`coherence`] is the seam to the memory
//!    manager.
//! 4. [`scheduler`] runs threads on CPUs. [`platform`] is what else the memory manager asks for.
//! 5. [`process`] and [`user`], whose threads really run in user mode; [`contents`], what memory
//!    must hold; [`world`], the host of [`shootdown_program::interpreter`], which knows what the
//!    steps of a workload mean; [`report`], the results of a run; and [`run`], how it begins.
//! 6. [`smoke`], [`fault_injection`] and [`paths`] are the other things to do. [`entry`] is where
//!    CPUs come in, and chooses.

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
mod coherence;

mod scheduler;
mod platform;

mod process;
mod contents;
mod user;
mod world;
mod report;
mod run;

mod smoke;
mod fault_injection;
mod paths;
mod entry;
