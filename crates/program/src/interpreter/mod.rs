//! The meaning of operations, on any machine.
//!
//! The interpreter performs the operations of a thread: those on memory by the memory manager of
//! [`shootdown_vm`], and those on threads by the scheduler of a [`Host`]. The simulated machine and
//! the kernel that boots are hosts. A host performs accesses, runs threads, and reads clocks; it
//! does not know operations.
//!
//! A thread is in user mode between operations. On the simulated machine, the change between user
//! mode and kernel costs time, and the interpreter [enters](MemoryHost::enter_kernel) and
//! [leaves](MemoryHost::return_to_user) the kernel in each operation. The threads of a real kernel
//! are in the kernel, and enter user mode to touch memory and to compute.
//!
//! A host may compare the contents of memory with a model of its own: the interpreter reports every
//! [`Change`] of contents, before and after it.

// In reading order.
mod change;
mod process;
mod memory;
mod raw_address;
mod threads;

pub use change::{Change, Ended, FileKey, Shown};
pub use memory::{FAULTS_MAX, MemoryHost, ProcessMemory, ProcessOf, SpaceOf};
pub use process::Process;
pub use threads::{Host, Measurement, State, Until, run_thread, start};
