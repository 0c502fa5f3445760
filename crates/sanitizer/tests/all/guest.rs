//! A guest: memory with page tables for x86-64, and CPUs that the test drives.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use shootdown_sanitizer::Use;
use shootdown_sanitizer::arch::{self, Architecture};
use shootdown_sanitizer::invalidation::{Invalidation, Pages, Pointers, Tags};
use shootdown_sanitizer::report::{Line, Mode, Report};
use shootdown_sanitizer::sanitizer::{Event, Host, Options, Sanitizer};

/// Memory, and the reports.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    words: Mutex<HashMap<u64, u64>>,
    faults: Mutex<Vec<Report>>,
    refused: Mutex<Vec<String>>,
}

impl Memory {
    pub(crate) fn write(&self, address: u64, value: u64) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).insert(address, value);
    }
}

impl Host for Memory {
    fn read(&self, address: u64) -> Option<u64> {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        Some(words.get(&address).copied().unwrap_or(0))
    }

    fn attend(&self, _: usize) {}

    fn callers(&self, _: &dyn Architecture, cpu: usize, _: u64) -> Vec<u64> {
        vec![CALLER + cpu as u64]
    }

    fn print(&self, line: &Line) {
        match line {
            Line::Fault(report) => self.faults.lock().expect("no panic").push((**report).clone()),
            Line::Refused { cause } => self.refused.lock().expect("no panic").push(cause.clone()),
            _ => {}
        }
    }
}

/// The caller of everything that CPU 0 does.
pub(crate) const CALLER: u64 = 0xffff_ffff_8100_0000;

/// Bits of entries: present, writable, user.
pub(crate) const MAPPED: u64 = 7;
pub(crate) const READ_ONLY: u64 = 5;
pub(crate) const LARGE: u64 = 1 << 7;
pub(crate) const GLOBAL: u64 = 1 << 8;

/// The kernel's addresses of all memory.
const DIRECT: u64 = 0xffff_8880_0000_0000;
pub(crate) const ROOT: u64 = 0x1000;
/// The tables of the path to [`PAGE`], and the last of them.
pub(crate) const TABLES: [u64; 3] = [0x2000, 0x3000, 0x4000];
/// A page of user mode, its frame, and another frame.
pub(crate) const PAGE: u64 = 0x40_0000;
pub(crate) const FRAME: u64 = 0x10_0000;
pub(crate) const OTHER: u64 = 0x20_0000;
/// A page of the kernel, which [`Guest::map_kernel_page`] maps.
pub(crate) const KERNEL_PAGE: u64 = 0xffff_c900_0000_0000;
/// The address of the entry of [`PAGE`].
pub(crate) const ENTRY: u64 = TABLES[2];
/// The address of the entry that points to the last table.
pub(crate) const UPPER: u64 = TABLES[1] + 2 * 8;

pub(crate) struct Guest {
    pub(crate) sanitizer: Sanitizer<Memory>,
}

fn event(cpu: usize, in_user_mode: bool) -> Event {
    Event { cpu, pc: if in_user_mode { PAGE } else { DIRECT }, in_user_mode }
}

impl Guest {
    /// A guest of two CPUs that run one space, in which [`PAGE`] is mapped to [`FRAME`], and whose
    /// kernel maps memory by a page of 1 GiB.
    pub(crate) fn new(modes: &[Mode]) -> Self {
        let guest = Self::of("x86_64", modes);
        let memory = guest.sanitizer.host();
        memory.write(ROOT, TABLES[0] | MAPPED);
        memory.write(TABLES[0], TABLES[1] | MAPPED);
        memory.write(UPPER, TABLES[2] | MAPPED);
        memory.write(ENTRY, FRAME | MAPPED);
        memory.write(ROOT + (DIRECT >> 39 & 511) * 8, 0x5000 | 3);
        memory.write(0x5000, 3 | LARGE);
        for cpu in 0..2 {
            guest.load_root(cpu, ROOT);
        }
        guest
    }

    /// A guest of two CPUs, whose memory is empty.
    pub(crate) fn of(arch: &str, modes: &[Mode]) -> Self {
        let (modes, limit) = (modes.to_vec(), 100);
        let options = Options { modes, limit, settles: true, infers: true };
        let arch = arch::named(arch).expect("it is known");
        let guest = Self { sanitizer: Sanitizer::new(arch, Memory::default(), options) };
        for cpu in 0..2 {
            guest.sanitizer.add_cpu(cpu);
        }
        guest
    }

    /// The kernel maps a page of its own, beside the mapping of all memory.
    pub(crate) fn map_kernel_page(&self, frame: u64) {
        let memory = self.sanitizer.host();
        memory.write(ROOT + (KERNEL_PAGE >> 39 & 511) * 8, 0x6000 | 3);
        for (table, next) in [(0x6000, 0x7000), (0x7000, 0x8000), (0x8000, frame)] {
            memory.write(table, next | 3);
        }
    }

    /// The CPU's registers select a root, without an invalidation.
    pub(crate) fn load_root(&self, cpu: usize, root: u64) {
        let registers = [1 << 31, root, 1 << 17, 1 << 10];
        self.sanitizer.select_tables(cpu, self.arch().context(&registers));
    }

    pub(crate) fn arch(&self) -> &'static dyn Architecture {
        self.sanitizer.arch()
    }

    pub(crate) fn access(&self, cpu: usize, address: u64, wanted: Use) {
        if !self.sanitizer.is_fast(cpu, address, wanted) {
            self.sanitizer.access(event(cpu, address >> 63 == 0), address, 8, wanted);
        }
    }

    /// A CPU of the kernel stores into physical memory, which the kernel maps.
    pub(crate) fn store(&self, cpu: usize, physical: u64, value: u64) {
        self.sanitizer.host().write(physical, value);
        self.access(cpu, DIRECT + physical, Use::Store);
    }

    pub(crate) fn invalidate(&self, cpu: usize, invalidation: Invalidation) {
        self.sanitizer.invalidate(event(cpu, false), &invalidation, false);
    }

    /// The CPU begins to load a root.
    pub(crate) fn load(&self, cpu: usize, invalidation: Invalidation) {
        self.sanitizer.load_root(event(cpu, false), &invalidation);
    }

    pub(crate) fn invalidate_page(&self, cpu: usize, address: u64) {
        let page = Invalidation::page(Tags::OneAndGlobal(0), address, Pointers::All);
        self.invalidate(cpu, page);
    }

    pub(crate) fn reuse(&self, cpu: usize, frame: u64) {
        self.sanitizer.reuse(event(cpu, false), frame, 1, 0);
    }

    pub(crate) fn settle(&self, cpu: usize) {
        self.sanitizer.settle(event(cpu, false), 1);
    }

    /// The CPU executes a block of user mode, or of the kernel.
    pub(crate) fn run(&self, cpu: usize, in_user_mode: bool) {
        self.sanitizer.fetch(event(cpu, in_user_mode));
    }

    /// The causes for which the guest was refused.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.sanitizer.host().refused.lock().expect("no panic").clone()
    }

    /// The distinct faults so far.
    pub(crate) fn faults(&self) -> Vec<Report> {
        self.sanitizer.host().faults.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A whole invalidation under these tags.
pub(crate) fn whole(tags: Tags) -> Invalidation {
    Invalidation::whole(tags)
}

/// An invalidation of last levels only.
pub(crate) fn last_level(address: u64) -> Invalidation {
    let pages = Pages::Range(address, address);
    Invalidation { tags: Tags::All, pages, pointers: Pointers::Kept, only_shift: None }
}
