//! A small, real virtual memory system that leaves TLB coherence to another crate.
//!
//! It maps, unmaps, moves, protects, discards, faults in, forks and takes down address spaces,
//! reclaims pages when memory is short, moves them between nodes, and makes large ones of them; in
//! page tables of the hardware's own format. A [`System`] names the parts that it is built of: a
//! [`Platform`], which has frames, entries and locks, a [`Coherence`], which makes CPUs forget
//! translations, and a [`Format`]. Nothing else is known here: the same source runs on a simulated
//! machine whose MMU walks these very tables, and on bare metal.
//!
//! # Guarantees
//!
//! - When a call returns, no CPU uses a translation that the call removed, even where another call,
//!   not complete yet, had removed it first.
//! - A page is released only after the flush that makes every CPU forget it, and a page table freed
//!   only when no CPU can walk it. A call that removed no translation flushes nothing.
//! - Any number of CPUs can make calls. Faults and [`advise`](AddressSpace::advise) run side by
//!   side, and beside the second half of an [`unmap`](AddressSpace::unmap); entries of page tables
//!   are changed by atomic operations alone.
//! - A call that runs out of memory returns the memory that it took, and leaves a space that works.
//!   Before that, where memory is [reclaimed](Vm::with_reclaim), it reclaims pages of any space.
//! - Reclaim loses no write to a file: the page is written out after the flush, when no CPU can
//!   write to it unnoticed any more.
//!
//! # Example
//!
//! ```
//! use shootdown_vm::*;
//!
//! fn example<S: System>(
//!     platform: S::Platform,
//!     coherence: S::Coherence,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let vm: Vm<S> = Vm::new(platform, coherence)?; // one for all spaces
//!     let space = AddressSpace::new(&vm)?;
//!     let place = Place::Anywhere { length: 4 * PAGE_BYTES };
//!     let protection = Protection::READ | Protection::WRITE;
//!     let start = space.map(place, protection, Sharing::Private, Backing::Anonymous)?;
//!     space.fault(start, Access::Write)?; // the handler of page faults; then the CPU tries again
//!     let child = space.fork()?;
//!     space.unmap(start..start + 4 * PAGE_BYTES)?;
//!     child.exit();
//!     space.exit();
//!     Ok(())
//! }
//! ```
//!
//! # Page tables that outlive their use
//!
//! A CPU that is idle, or runs a kernel thread, may still walk the tables of the space that it ran
//! last. A [`Coherence`] that does not interrupt such CPUs reports this with the horizon of each
//! flush, and when a space is [retired](Lifetimes::retire). Tables are then held back: those of a
//! live space until one of its next flushes finds that no CPU can walk them; those of a dead space
//! until the last CPU has left it, and [frees](Vm::free_dead_tables) them. The scheduler makes that
//! call, on each CPU, where memory can be freed:
//!
//! - whenever the CPU has nothing to run, after the coherence has learnt so;
//! - after every switch also, while the system [holds many](Vm::has_many_quarantined).
//!
//! Without the call, tables wait for the next exit on the same CPU. An operation that would hold
//! back [too many](Vm::with_quarantined_tables_max) interrupts lazy CPUs. [`Vm::held_tables`] counts both.
//!
//! # What it is not
//!
//! There is no swap, and no end of a file. Pages of a [stored](File::stored) file are written out
//! when reclaim takes them, and at no other time. A file that is not stored, and every anonymous
//! page that nobody [gave up](Advice::Free), stays in memory. Heap allocations, for areas and
//! lists, are not expected to fail.
//!
//! Large pages are of 2 MiB, anonymous, private, and come by [`collapse`](AddressSpace::collapse)
//! alone: no fault maps one, no file has one, no thread looks for pages to collapse. What concerns
//! all of one is done at once, with one translation to flush; what concerns a part splits it, and
//! so do a fork, a move, and a migration. Reclaim takes their pages when they are split. Pages of 1
//! GiB would be split by the same code, but nothing makes them.
//!
//! The formats other than [x86-64's](X86_64) are those of [`Aarch64`], [`LoongArch64`], [`Sv39`]
//! and [`Sv48`]; the last two as far as their bits go: no machine that walks them is here yet, but
//! the MMU of a test. Where a CPU may remember that a page was *not* mapped, or remembers after a
//! fault what it refused (RISC-V without Svvptc; `LoongArch`; Arm, for permissions), the kernel's
//! fault handler has that forgotten on its own CPU.
//!
//! # Reading it
//!
//! In this order:
//!
//! - [`Platform`] and [`Coherence`] are the two seams.
//! - [`File`] is the page cache, [`Area`] what user space asked for, [`format`](Format) the bits of
//!   an entry, and `table` the tree of them.
//! - `deferred` keeps what is not complete: flushes in flight, unmaps whose flush CPUs come to by
//!   themselves, and page tables that a CPU may still walk.
//! - `mappings` is the part of a space that reclaim reaches from its pages; `reclaim` has the
//!   records of where each page is mapped, [`reclaim`](Vm::reclaim) itself, and
//!   [`migrate`](AddressSpace::migrate).
//! - [`Vm`] and [`AddressSpace`] hold it all; `gather` collects what an operation removes, flushes,
//!   and only then frees.
//! - `ops` has the operations, a file each.

#![no_std]
#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::cast_possible_truncation,
    reason = "names are read with their module; a method has its effect; indices are small"
)]

extern crate alloc;

// In reading order.
mod platform;
mod coherence;
mod error;
mod file;
mod area;
mod areas;
mod format;
mod table;
mod system;
mod deferred;
mod mappings;
mod reclaim;
mod vm;
mod space;
mod gather;
mod ops;

pub use area::{Access, Area, Backing, Protection, Sharing};
pub use coherence::{
    Batching, Cause, Change, Coherence, Defer, DynCoherence, EmptyTables, ErasedBatch,
    ErasedCoherence, ExtraFlushes, Flush, Freed, Later, Lifetimes, Policy, ReclaimFlush, Refault,
    Retired, Scheduling, UnmapLock, ZeroPage,
};
pub use deferred::tables::{QUARANTINED_TABLES_MAX, QuarantineStats};
pub use error::{BadRange, FaultError, MapError, RangeError, RemapError};
pub use file::File;
pub use format::aarch64::Aarch64;
pub use format::loongarch64::LoongArch64;
pub use format::riscv::{RiscV, Sv39, Sv48};
pub use format::x86_64::X86_64;
pub use format::{Bits, EMPTY, Format, Leaf, Marks};
pub use ops::{Advice, Place};
pub use platform::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform, Work};
pub use reclaim::{RECLAIM_PAGES, Reclaimed};
pub use space::{AddressSpace, Stats};
pub use system::System;
pub use vm::Vm;

/// The size of a page.
pub const PAGE_BYTES: u64 = 4096;
/// The size of a large page, as [`collapse`](AddressSpace::collapse) makes them.
pub const LARGE_PAGE_BYTES: u64 = 512 * PAGE_BYTES;
