//! Page tables and stacks for modes without a memory manager: pages are allocated from the bottom
//! of memory upwards and never freed.

#![expect(unsafe_code, reason = "creates values in memory that nothing else uses")]

use shootdown::Root;
use shootdown_vm::{Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use core::sync::atomic::Ordering;

use crate::kernel::arch::{Arch, Architecture, Boot};
use crate::kernel::memory::page;

type Tables = <Arch as Architecture>::Format;

const STACK_BYTES: u64 = 64 << 10;

/// The physical memory that is still free.
pub(crate) struct BootMemory {
    next: u64,
    end: u64,
}

impl BootMemory {
    pub(crate) fn new(boot: &Boot) -> Self {
        Self { next: boot.memory.start, end: boot.memory.end }
    }

    /// Allocates a frame filled with zeros.
    pub(crate) fn frame(&mut self) -> Frame {
        self.frames(1)
    }

    /// Allocates adjacent frames filled with zeros, and returns the first of them.
    fn frames(&mut self, count: u64) -> Frame {
        let first = self.next.div_ceil(PAGE_BYTES);
        self.next = (first + count) * PAGE_BYTES;
        assert!(self.next <= self.end, "too little memory");
        (first..first + count).map(Frame).for_each(page::clear);
        Frame(first)
    }

    /// Allocates a frame that begins with `bytes`, at most a page of them; the rest is zeros.
    pub(crate) fn frame_with(&mut self, bytes: &[u8]) -> Frame {
        let frame = self.frame();
        page::fill(frame, bytes);
        frame
    }

    /// Allocates `count` values that live for ever and never move.
    pub(crate) fn keep<T>(&mut self, count: usize, value: impl FnMut(usize) -> T) -> &'static [T] {
        const { assert!(align_of::<T>() <= PAGE_BYTES as usize) };
        let bytes = (size_of::<T>() * count) as u64;
        let place = page::phys_to_virt::<T>(self.frames(bytes.div_ceil(PAGE_BYTES)));
        for (index, value) in (0..count).map(value).enumerate() {
            // SAFETY: the frames have room for `count` values, and only this function uses them.
            unsafe { place.add(index).write(value) };
        }
        // SAFETY: the loop has written all values, and nothing else uses the frames.
        unsafe { core::slice::from_raw_parts(place, count) }
    }

    /// Allocates a stack and returns its end, the highest address.
    pub(crate) fn stack_end(&mut self) -> usize {
        let first = self.frames(STACK_BYTES / PAGE_BYTES);
        page::phys_to_virt::<u8>(first) as usize + STACK_BYTES as usize
    }

    /// Allocates an empty root of a guest's second stage: four pages, on RISC-V, at a multiple of
    /// their size.
    #[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
    pub(crate) fn guest_root(&mut self) -> Frame {
        self.next = self.next.next_multiple_of(4 * PAGE_BYTES);
        self.frames(4)
    }

    /// Allocates a root that maps the kernel, and the code of user threads at `address`.
    pub(crate) fn root_with_code(&mut self, address: usize) -> Frame {
        let (root, code) = (self.frame(), self.frame_with(Arch::user_code()));
        Arch::prepare_root(Root(root.address()));
        self.map(root, address, code, Protection::READ | Protection::EXECUTE);
        root
    }

    /// Maps a page in the page tables of `root`.
    pub(crate) fn map(
        &mut self,
        root: Frame,
        address: usize,
        frame: Frame,
        protection: Protection,
    ) {
        let leaf = Tables::leaf(Leaf { frame, protection, marks: Marks::empty() });
        set_entry(self.last_table(root, address), address, 0, leaf);
    }

    /// Returns the table of level 0 for `address`, and allocates the tables that are missing.
    pub(crate) fn last_table(&mut self, root: Frame, address: usize) -> Frame {
        (1..Tables::LEVELS).rev().fold(root, |table, level| {
            Tables::as_table(entry(table, address, level)).unwrap_or_else(|| {
                let new = self.frame();
                set_entry(table, address, level, Tables::table(new));
                new
            })
        })
    }
}

/// Reads the entry for `address` in a table of this level.
pub(crate) fn entry(table: Frame, address: usize, level: usize) -> u64 {
    page::word_at(table, Tables::index(address as u64, level)).load(Ordering::Acquire)
}

/// Writes the entry for `address` in a table of this level.
pub(crate) fn set_entry(table: Frame, address: usize, level: usize, value: u64) {
    page::word_at(table, Tables::index(address as u64, level)).store(value, Ordering::Release);
}
