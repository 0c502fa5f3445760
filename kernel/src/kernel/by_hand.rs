//! Page tables and stacks by hand, for what runs before there is a memory manager.

#![expect(unsafe_code, reason = "physical memory is where the architecture says")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown_vm::{Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use crate::kernel::arch::{Arch, Architecture, Boot};

type Tables = <Arch as Architecture>::Format;

const STACK_BYTES: usize = 64 << 10;

/// Physical memory, from the bottom up, and never back.
pub(crate) struct Memory {
    next: u64,
    end: u64,
}

impl Memory {
    pub(crate) fn new(boot: &Boot) -> Self {
        Self { next: boot.memory.start, end: boot.memory.end }
    }

    pub(crate) fn frame(&mut self) -> Frame {
        self.frames(1)
    }

    /// Some in a row, all zeros.
    pub(crate) fn frames(&mut self, count: u64) -> Frame {
        let frame = Frame(self.next.div_ceil(PAGE_BYTES));
        self.next = (frame.0 + count) * PAGE_BYTES;
        assert!(self.next <= self.end, "too little memory");
        // SAFETY: it is nobody's.
        unsafe { seen(frame).write_bytes(0, (count * PAGE_BYTES) as usize) };
        frame
    }

    /// Values that stay, and never move.
    pub(crate) fn keep<T>(&mut self, count: usize, value: impl FnMut(usize) -> T) -> &'static [T] {
        const { assert!(align_of::<T>() <= PAGE_BYTES as usize) };
        let bytes = (size_of::<T>() * count) as u64;
        let place = seen(self.frames(bytes.div_ceil(PAGE_BYTES))).cast::<T>();
        for (index, value) in (0..count).map(value).enumerate() {
            // SAFETY: there is room for so many, which is ours.
            unsafe { place.add(index).write(value) };
        }
        // SAFETY: all have been written, and nobody else has them.
        unsafe { core::slice::from_raw_parts(place, count) }
    }

    pub(crate) fn stack_end(&mut self) -> usize {
        let frames = STACK_BYTES as u64 / PAGE_BYTES;
        seen(self.frames(frames)) as usize + STACK_BYTES
    }

    /// Maps a page in the tables of a root.
    pub(crate) fn map(
        &mut self,
        root: Frame,
        address: usize,
        frame: Frame,
        protection: Protection,
    ) {
        let table = self.last_table(root, address);
        set_entry(
            table,
            address,
            0,
            Tables::leaf(Leaf { frame, protection, marks: Marks::empty() }),
        );
    }

    /// The table of level 0 for an address, made where there is none.
    pub(crate) fn last_table(&mut self, root: Frame, address: usize) -> Frame {
        let mut table = root;
        for level in (1..Tables::LEVELS).rev() {
            let next = entry(table, address, level);
            table = Tables::as_table(next).unwrap_or_else(|| {
                let new = self.frame();
                set_entry(table, address, level, Tables::table(new));
                new
            });
        }
        table
    }
}

/// Where the kernel sees a frame.
pub(crate) fn seen(frame: Frame) -> *mut u8 {
    (Arch::PHYSICAL_MEMORY + frame.address() as usize) as *mut u8
}

/// The same, as words.
pub(crate) fn words_of(frame: Frame) -> *mut u64 {
    (Arch::PHYSICAL_MEMORY + frame.address() as usize) as *mut u64
}

/// The entry of a table for an address.
pub(crate) fn entry(table: Frame, address: usize, level: usize) -> u64 {
    place(table, address, level).load(Ordering::Acquire)
}

pub(crate) fn set_entry(table: Frame, address: usize, level: usize, value: u64) {
    place(table, address, level).store(value, Ordering::Release);
}

fn place(table: Frame, address: usize, level: usize) -> &'static AtomicU64 {
    let index = Tables::index(address as u64, level);
    // SAFETY: tables have as many entries, are never given back, and are changed by atomic
    // operations alone.
    unsafe { &*words_of(table).cast::<AtomicU64>().add(index) }
}
