//! The lab's memory manager: small, complete, and without a TLB coherence of its own.
//!
//! The crate is the test bed of this repository, and not a library for kernels: it is not
//! published, and its interface is not stable. Its mechanisms, such as discards in place and upper
//! page tables of each CPU's own, show what the engine's interface allows.
//!
//! The crate maps, unmaps, moves, protects, discards, faults in, forks and takes down address
//! spaces. It also reclaims pages when memory is short, moves pages between nodes, and collapses
//! small pages into large ones. Its page tables have the hardware's own format. A [`System`] names
//! the parts of a memory manager: a [`Platform`] provides frames, entries and locks, a
//! [`Coherence`] invalidates translations on all CPUs, and a [`Format`] encodes page-table entries.
//! The crate depends on nothing else, so the same source runs on a simulated machine whose MMU
//! walks these page tables, and on bare metal.
//!
//! # Guarantees
//!
//! - When a call returns, no CPU uses a translation that the call removed. This holds even for a
//!   translation that another call, which is not complete yet, had removed first.
//! - A page is released only after a flush has removed its translations from every CPU. A page
//!   table is freed only when no CPU can walk it. A call that removed no translation flushes
//!   nothing.
//! - Any number of CPUs can make calls. Faults and [`advise`](AddressSpace::advise) run
//!   concurrently, also with the second half of an [`unmap`](AddressSpace::unmap). All changes to
//!   page-table entries are atomic operations.
//! - A call that runs out of memory returns the memory that it allocated, and leaves the space
//!   usable. If memory is [reclaimed](Vm::with_reclaim), the call first reclaims pages of any
//!   space.
//! - Reclaim loses no write to a file: it writes the page out after the flush, when no CPU can
//!   write to the page unnoticed.
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
//! last. A [`Coherence`] that does not interrupt such CPUs reports this by the horizon of each
//! flush, and when a space is [retired](Lifetimes::retire). The memory manager then quarantines the
//! tables. The tables of a live space are freed after one of its next flushes, when that flush
//! finds that no CPU can walk them. The tables of a dead space are freed by
//! [`free_dead_tables`](Vm::free_dead_tables), after the last CPU has left the space. The scheduler
//! must make that call on each CPU, at a point where memory can be freed:
//!
//! - whenever the CPU has nothing to run, after the scheduler has reported so to the coherence;
//! - also after every switch, while [many tables are quarantined](Vm::has_many_quarantined).
//!
//! [`free_discarded`](Vm::free_discarded) belongs at the same place.
//!
//! Without the call, tables wait for the next exit on the same CPU. An operation that would
//! quarantine [too many](Vm::with_quarantined_tables_max) tables interrupts lazy CPUs.
//! [`Vm::quarantined_tables`] counts both.
//!
//! # Limits
//!
//! [`Advice::DontNeed`] may [keep a few pages](Discards::InPlace) for up to 20 ms and 2 MiB per
//! space, if the coherence's policy is so.
//!
//! There is no swap, and a file has no end. Pages of a [stored](File::stored) file are written out
//! only when reclaim takes them. A file that is not stored stays in memory, and so does every
//! anonymous page that no [`Advice::Free`] was given for. Heap allocations, for areas and lists,
//! must not fail.
//!
//! Large pages are of 2 MiB, anonymous and private. [`collapse`](AddressSpace::collapse) makes
//! them, and so do faults where [`use_large_pages`](AddressSpace::use_large_pages) was called. No
//! thread looks for pages to collapse. An operation on all of a large page changes one entry and
//! flushes one translation. An operation on a part splits the page first, and so do a fork, a move
//! and a migration. Reclaim takes the small pages after a split. The same code could split pages of
//! 1 GiB, but nothing makes them.
//!
//! The formats are [x86-64's](X86_64), [`Aarch64`], [`LoongArch64`], [`Sv39`] and [`Sv48`]. For the
//! last two only the bits are implemented: no machine here walks them, except the MMU of a test.
//! Some CPUs may cache that a page was *not* mapped, or keep a translation that has refused an
//! access (RISC-V without Svvptc; `LoongArch`; Arm, for permissions). On these machines the
//! kernel's fault handler must invalidate the page on its own CPU.
//!
//! # Reading order
//!
//! - [`Platform`] and [`Coherence`] are the two interfaces that an embedder implements.
//! - `rules` has a name for each ordering on a word that CPUs share, and the protocols that they
//!   are parts of.
//! - [`File`] is the page cache, [`Area`] is a range that user space mapped, [`format`](Format) has
//!   the bits of an entry, and `table` the tree of page tables.
//! - `area_index` has the areas' own locks, for faults, and `locked_areas` the lock of the space.
//! - `deferred` keeps what is not complete: flushes in flight, unmaps whose flush is deferred, and
//!   page tables that a CPU may still walk.
//! - `discarded` lists the pages of a space that were discarded in place, and `discard_registry`
//!   the spaces that have such pages.
//! - `placement` chooses addresses for threads. `replicas` has upper page tables for each CPU,
//!   `sharers` the CPUs that a flush concerns then, `worth` the decision for or against replicas,
//!   and `flushing` a flush that was sent.
//! - `mappings` is the part of a space that reclaim reaches from a page. `reclaim` has the reverse
//!   map, [`reclaim`](Vm::reclaim) itself, and [`migrate`](AddressSpace::migrate).
//! - [`Vm`] and [`AddressSpace`] own these parts. `gather` collects the pages and tables that an
//!   operation removes, flushes, and only then frees.
//! - `ops` has the operations, one per file.

#![no_std]
#![warn(clippy::pedantic)]
#![allow(
    clippy::module_name_repetitions,
    clippy::must_use_candidate,
    clippy::cast_possible_truncation,
    reason = "names are read with their module; a method has its effect; indices are small"
)]

extern crate alloc;
#[cfg(test)]
extern crate std;

// In reading order.
mod platform;
mod sync;
mod rules;
mod coherence;
mod error;
mod file;
mod area;
mod area_index;
mod placement;
mod areas;
mod locked_areas;
mod format;
mod table;
mod system;
mod deferred;
mod discarded;
mod sharers;
mod worth;
mod replicas;
mod flushing;
mod mappings;
mod discard_registry;
mod reclaim;
mod vm;
mod space;
mod gather;
mod ops;

pub use area::{Access, Area, Backing, Folios, Protection, Sharing};
pub use coherence::{
    Batching, Cause, Change, CleanPages, Coherence, Defer, Discards, DynCoherence, EmptyTables,
    ErasedBatch, ErasedCoherence, ExecuteLoss, ExtraFlushes, FaultLock, FirstUse, Flush, Freed,
    Later, Lifetimes, PREDICTED_IN_VAIN_MAX, PageRecords, Placement, Policy, RECLAIM_PAGES,
    ReclaimFlush, Refault, Replication, Retired, Scheduling, UnmapLock, WriteGrant, ZeroPage,
};
pub use deferred::tables::{QUARANTINED_TABLES_MAX, QuarantineStats};
pub use discard_registry::DiscardStats;
pub use error::{BadRange, FaultError, MapError, RangeError, RemapError};
pub use file::File;
pub use format::aarch64::Aarch64;
pub use format::loongarch64::LoongArch64;
pub use format::riscv::{RiscV, Sv39, Sv48};
pub use format::x86_64::X86_64;
pub use format::{Bits, EMPTY, Format, Leaf, Marks};
pub use ops::{Advice, Moves, Place};
pub use platform::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform, Work};
pub use reclaim::Reclaimed;
pub use space::{AddressSpace, Stats};
pub use system::System;
pub use vm::Vm;

/// The size of a page, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// The size of a large page that [`collapse`](AddressSpace::collapse) makes, in bytes.
pub const LARGE_PAGE_BYTES: u64 = 512 * PAGE_BYTES;
