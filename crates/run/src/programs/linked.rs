//! Processes as shells and dynamic linkers make them: what a fork writes, and what happens between
//! `exec` and `main`.
//!
//! What is mapped in which order, and how many pages are used, was seen under Linux 6.18 on x86-64
//! (Debian 12: bash 5.2, glibc 2.36) with `strace`, and with the trace points of page faults; for
//! uClibc, which could not be run, its source says the former, and the latter is assumed. Numbers
//! of pages that come from nowhere else are in the constants of those who use this module.
//!
//! A fault there brings up to 16 neighbours of a page of a file along, and here one page, so that
//! pages which are read are as many here as faults were there. No flush depends on it.

use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Filling, Mapping, Operation, Permission, RawAddress,
};

/// A program, with its linker and libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// The number of its file; those of other objects follow.
    pub(super) file: u32,
    /// Itself, the linker, and libraries.
    pub(super) objects: &'static [Object],
    pub(super) linker: Linker,
    /// Pages of its own that it has written before it begins with what it is there for.
    pub(super) heap_pages: u64,
}

/// A file that is mapped to be executed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    /// Pages of code and constants.
    pub(super) text_pages: u64,
    /// How many of those are used.
    pub(super) used_pages: u64,
    /// Pages of data, which relocation writes.
    pub(super) data_pages: u64,
    /// How many of those are read-only after relocation (`PT_GNU_RELRO`).
    pub(super) sealed_pages: u64,
    /// How many of the others are read before they are written, and so taken away from every CPU.
    pub(super) read_first_pages: u64,
    /// Pages of zeros after the data, of which one is written.
    pub(super) zero_pages: u64,
}

/// Whose linker it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linker {
    /// Looks libraries up in a file that it maps and unmaps at the end (`/etc/ld.so.cache`), reads
    /// their headers to its stack, and seals data after relocation.
    Glibc,
    /// Reads the header of each library into a page that it maps, and unmaps when it is done with
    /// that library; no cache, nothing sealed.
    Uclibc,
}

/// The one mapping in a process that its program has for itself.
pub(super) const HEAP: AreaId = AreaId(1000);
/// The first of those that a program may name as it likes.
pub(super) const OWN: u32 = 2000;
const CACHE: AreaId = AreaId(1001);
const THREAD: AreaId = AreaId(1002);
const CACHE_FILE: FileId = FileId(u32::MAX);

const AREAS_PER_OBJECT: u32 = 5;

/// The page above the stack, as `exec` first has it.
const STACK_TOP: u64 = 0x7_ffff_f000;
/// By how many pages `exec` then moves it: a random number, here always the same, and large enough
/// for another page table (`setup_arg_pages`, `shift_arg_pages`).
const STACK_SHIFT: u64 = 801;
/// The page above the stack, as the program has it.
const STACK_END: u64 = STACK_TOP - STACK_SHIFT;
/// How much room it is given at once (`setup_arg_pages`: 128 KiB).
const STACK_PAGES: u64 = 32;

/// Writes to the last so many pages of the stack: those that were written before.
pub(super) fn write_stack(pages: u64) -> impl Iterator<Item = Operation> {
    (STACK_END - pages..STACK_END).rev().map(|page| use_stack(page, Access::Write))
}

const fn use_stack(page: u64, access: Access) -> Operation {
    Operation::RawAddress(RawAddress::Fault { page, access, entry: Entry::Absent })
}

impl Program {
    /// From `exec` to `main`, for a process that has memory.
    pub(super) fn exec(&self) -> Vec<Operation> {
        let mut steps = vec![Operation::Exec];
        steps.extend(self.begin());
        steps
    }

    /// The same for one that has none yet.
    pub(super) fn begin(&self) -> Vec<Operation> {
        let mut steps = Vec::new();
        steps.extend(stack());
        let indices = 0..self.objects.len() as u32;
        let libraries = indices.clone().skip(2);
        // The kernel maps the program and its linker; that relocates itself, and maps the rest.
        for index in indices.clone().take(2) {
            steps.extend(self.map_object(index));
        }
        if self.linker == Linker::Glibc {
            steps.extend([
                Operation::map(CACHE, 10, Permission::Read, Mapping::PrivateFile(CACHE_FILE)),
                Operation::read(CACHE, 0..3),
            ]);
        }
        for index in libraries {
            steps.extend(self.load_library(index));
        }
        steps.extend([Operation::map_own(THREAD, 3), Operation::write(THREAD, 0..1)]);
        for index in indices {
            steps.extend(self.relocate(index));
        }
        if self.linker == Linker::Glibc {
            steps.push(Operation::unmap(CACHE, 0..10));
        }
        let heap_pages = self.heap_pages;
        steps.extend([
            Operation::map_own(HEAP, 2 * heap_pages),
            Operation::write(HEAP, 0..heap_pages),
        ]);
        steps.extend(write_stack(4));
        steps
    }

    /// How many times that unmaps something that is there.
    pub(super) const fn unmaps(&self) -> u64 {
        match self.linker {
            Linker::Glibc => 1,
            Linker::Uclibc => self.objects.len() as u64 - 2,
        }
    }

    fn object(&self, index: u32) -> Object {
        self.objects[index as usize]
    }

    /// Room for all of it is taken in one piece, to have it together; then text and data are mapped
    /// over that (`MAP_FIXED`), which goes, untouched as it is.
    fn load_library(&self, index: u32) -> Vec<Operation> {
        let Object { text_pages, data_pages, .. } = self.object(index);
        let header = AreaId(AREAS_PER_OBJECT * index + 3);
        let room = AreaId(AREAS_PER_OBJECT * index + 4);
        let all_pages = text_pages + data_pages;
        let mut steps = vec![Operation::SystemCall];
        if self.linker == Linker::Uclibc {
            steps.extend([Operation::map_own(header, 1), Operation::write(header, 0..1)]);
        }
        steps.extend([
            Operation::SystemCall,
            Operation::map(room, all_pages, Permission::None, Mapping::Anonymous),
            Operation::unmap(room, 0..text_pages),
            Operation::unmap(room, text_pages..all_pages),
        ]);
        steps.extend(self.map_object(index));
        if self.linker == Linker::Uclibc {
            steps.push(Operation::unmap(header, 0..1));
        }
        steps
    }

    fn map_object(&self, index: u32) -> Vec<Operation> {
        let object = self.object(index);
        let [text, data, zeros] = areas(index);
        let file = Mapping::PrivateFile(FileId(self.file + index));
        let mut steps = vec![
            Operation::map(text, object.text_pages, Permission::Read, file),
            Operation::map(data, object.data_pages, Permission::ReadWrite, file),
        ];
        if object.zero_pages > 0 {
            steps.push(Operation::map_own(zeros, object.zero_pages));
        }
        steps
    }

    fn relocate(&self, index: u32) -> Vec<Operation> {
        let object = self.object(index);
        let [text, data, zeros] = areas(index);
        let sealed = object.sealed_pages;
        let read_first = sealed..sealed + object.read_first_pages;
        let mut steps = vec![
            Operation::read(text, 0..object.used_pages),
            Operation::read(data, read_first),
            Operation::write(data, 0..object.data_pages),
        ];
        if object.zero_pages > 0 {
            steps.push(Operation::write(zeros, 0..1));
        }
        if sealed > 0 && self.linker == Linker::Glibc {
            steps.push(Operation::protect(data, 0..sealed, Permission::Read));
        }
        steps
    }
}

/// `exec` writes the arguments to the top of the stack before it knows where that is to be, moves
/// it there, and gives it room.
fn stack() -> [Operation; 4] {
    let map = |pages| {
        Operation::RawAddress(RawAddress::Map {
            pages,
            permission: Permission::ReadWrite,
            mapping: Mapping::Anonymous,
            filling: Filling::OnDemand,
        })
    };
    let (from, to) = (STACK_TOP - 1..STACK_TOP, STACK_END - 1..STACK_END);
    let room = to.start - STACK_PAGES..to.start;
    [
        map(from.clone()),
        use_stack(from.start, Access::Write),
        Operation::RawAddress(RawAddress::Move { from, to }),
        map(room),
    ]
}

/// Text, data and zeros.
const fn areas(index: u32) -> [AreaId; 3] {
    let first = AREAS_PER_OBJECT * index;
    [AreaId(first), AreaId(first + 1), AreaId(first + 2)]
}
