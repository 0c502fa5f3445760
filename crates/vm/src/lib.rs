//! A small, real virtual memory system that leaves TLB coherence to whoever it is given.
//!
//! It maps, unmaps, moves, protects, discards, faults in, forks and takes down address spaces,
//! takes pages back when memory is short, moves them between nodes, and makes large ones of them;
//! in page tables of the hardware's own format. It stands on a [`Platform`], which has frames,
//! entries and locks, and drives a [`Coherence`], which makes CPUs forget translations. Neither is
//! known here: the same source runs on a simulated machine whose MMU walks these very tables, and
//! on bare metal.
//!
//! # What it promises
//!
//! - When a call returns, no CPU uses a translation that the call took away, even where another
//!   call, still on its way, had taken it away first.
//! - A page is released only after the flush that makes every CPU forget it, and a page table freed
//!   only when no CPU can walk it. Where nothing was taken away, nothing is flushed.
//! - Calls may be made from any number of CPUs. Faults and [`advise`](AddressSpace::advise) run
//!   side by side, and next to the second half of an [`unmap`](AddressSpace::unmap); entries of
//!   page tables are changed by atomic operations alone.
//! - A call that runs out of memory gives back what it took, and leaves a space that works. Before
//!   that, where memory is [reclaimed](Vm::with_reclaim), it takes pages from whoever can spare
//!   them.
//! - Nothing that was written to a file is lost when its page is taken: it is written out after the
//!   flush, when nobody can write to it unnoticed any more.
//!
//! # Example
//!
//! ```
//! use shootdown_vm::*;
//!
//! fn example<P, C>(platform: P, coherence: C) -> Result<(), Box<dyn std::error::Error>>
//! where
//!     P: Platform + Clone,
//!     C: Coherence + Clone,
//! {
//!     let vm = Vm::new(platform, coherence)?; // one for all spaces
//!     let space: AddressSpace<P, C> = AddressSpace::new(&vm)?;
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
//! last. A [`Coherence`] that leaves such CPUs alone says so, by the horizon of each flush and when
//! a space is [retired](Coherence::retire). Tables are then held back: those of a space that lives
//! until one of its next flushes finds that nobody can walk them; those of a dead one until its
//! last CPU has let go of it, and [buries](Vm::bury) it. That takes a call by the scheduler, on
//! each CPU, where memory can be freed:
//!
//! - whenever it has nothing to run, after it has told the coherence so;
//! - after every switch, too, while the system [holds many](Vm::holds_many).
//!
//! Without it tables wait for the next exit on the same CPU. When
//! [too many](Vm::with_held_tables_max) are held back all the same, whoever adds more has lazy CPUs
//! interrupted. How many they are, and how often that was so, [`Vm::held_tables`] says.
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
//! In this order: [`Platform`] and [`Coherence`] are the two seams; [`Area`] is what user space
//! asked for and `areas` all of them; [`format`](Format) the bits of an entry and `table` the tree
//! of them; [`File`] the page cache. Then what makes removal safe: `flights` knows which flushes
//! are under way, `gather` collects what is to be flushed and only then freed, and `parked` keeps
//! what is flushed later still. Then the space and its operations, a file each:
//! [`map`](AddressSpace::map), [`fault`](AddressSpace::fault) with `cow`, `first_read`,
//! `fault_around` and `read_ahead`, [`unmap`](AddressSpace::unmap),
//! [`remap`](AddressSpace::remap), [`protect`](AddressSpace::protect),
//! [`advise`](AddressSpace::advise), [`collapse`](AddressSpace::collapse) with `large`, in which
//! large pages are split, [`fork`](AddressSpace::fork), [`exit`](AddressSpace::exit); and `held`,
//! the page tables that a CPU may still walk. Last, what comes from the pages' side: `pages` knows
//! where each is mapped, [`reclaim`](Vm::reclaim) takes them when memory is short, and
//! [`migrate`](AddressSpace::migrate) moves them to other memory.

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
mod area;
mod areas;
mod format;
mod table;
mod file;
mod flights;
mod gather;
mod pages;
mod parked;
mod space;
mod map;
mod fault;
mod cow;
mod first_read;
mod fault_around;
mod read_ahead;
mod unmap;
mod remap;
mod protect;
mod advise;
mod large;
mod collapse;
mod fork;
mod exit;
mod reclaim;
mod migrate;
mod held;

pub use advise::Advice;
pub use area::{Access, Area, Backing, Protection, Sharing};
pub use coherence::{
    Cause, Change, Coherence, EmptyTables, ExtraFlushes, FirstRead, Freed, Later, Retired, Taking,
    UnmapLock,
};
pub use error::{BadRange, FaultError, MapError, RangeError, RemapError};
pub use file::File;
pub use format::aarch64::Aarch64;
pub use format::loongarch64::LoongArch64;
pub use format::riscv::{RiscV, Sv39, Sv48};
pub use format::x86_64::X86_64;
pub use format::{EMPTY, Format, Leaf, Marks};
pub use held::{HELD_TABLES_MAX, HeldStats};
pub use map::Place;
pub use platform::{EntryAt, FileId, Frame, FrameUse, OutOfMemory, Platform, Work};
pub use reclaim::{RECLAIM_PAGES, Reclaimed};
pub use space::{AddressSpace, Stats, Vm};

/// The size of a page.
pub const PAGE_BYTES: u64 = 4096;
/// The size of a large page, as [`collapse`](AddressSpace::collapse) makes them.
pub const LARGE_PAGE_BYTES: u64 = 512 * PAGE_BYTES;
