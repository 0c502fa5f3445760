//! Processes as shells and dynamic linkers create them: the writes after a fork, and the operations
//! between `exec` and `main`.
//!
//! The order of mappings and the numbers of pages that are used were observed under Linux 6.18 on
//! x86-64 (Debian 12: bash 5.2, glibc 2.36), with `strace` and with the trace points of page
//! faults. uClibc could not be run: its order of mappings is that of its source, and its numbers of
//! pages are assumed. Numbers of pages without another source are constants of the modules that use
//! this module.
//!
//! On that machine, a fault maps up to 16 neighbours of a page of a file; here, a fault maps one
//! page. The numbers of pages that are read here are therefore those of the observed faults. No
//! flush depends on this.

use shootdown_program::operation::{
    Access, AreaId, Entry, FileId, Filling, Mapping, Operation, Permission, ProgramId, RawAddress,
};

/// A program, with its linker and libraries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// Number of the program's file. The other objects' files have the next numbers.
    pub(super) file: u32,
    /// The program itself, the linker, and the libraries.
    pub(super) objects: &'static [Object],
    pub(super) linker: Linker,
    /// Pages of its heap that the program has written before its own work begins.
    pub(super) heap_pages: u64,
}

/// A file that is mapped for execution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    /// Pages of code and constants.
    pub(super) text_pages: u64,
    /// Number of these pages that are used.
    pub(super) used_pages: u64,
    /// Pages of data. Relocation writes them.
    pub(super) data_pages: u64,
    /// Number of these pages that are read-only after relocation (`PT_GNU_RELRO`).
    pub(super) sealed_pages: u64,
    /// Number of the other data pages that are read before they are written. The write then flushes
    /// the page on every CPU.
    pub(super) read_first_pages: u64,
    /// Pages of zeros after the data, of which one is written.
    pub(super) zero_pages: u64,
}

/// The dynamic linker of a C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Linker {
    /// The linker searches libraries in a file, which it maps and unmaps at the end
    /// (`/etc/ld.so.cache`). It reads the libraries' headers to its stack, and makes data read-only
    /// after relocation.
    Glibc,
    /// The linker reads the header of each library into a page, which it maps before and unmaps
    /// after it loads the library. It has no cache, and leaves all data writable.
    Uclibc,
}

/// The heap: the one mapping that a program has for its own use.
pub(super) const HEAP: AreaId = AreaId(1000);
/// The lowest area that a program may use for its own purposes.
pub(super) const OWN: u32 = 2000;
const CACHE: AreaId = AreaId(1001);
const THREAD: AreaId = AreaId(1002);
const CACHE_FILE: FileId = FileId(u32::MAX);

const AREAS_PER_OBJECT: u32 = 5;

/// The page above the stack at the beginning of `exec`.
const STACK_TOP: u64 = 0x7_ffff_f000;
/// Number of pages by which `exec` then moves the stack (`setup_arg_pages`, `shift_arg_pages`).
/// Linux uses a random number. The number here is constant, and large enough to need another page
/// table.
const STACK_SHIFT: u64 = 801;
/// The page above the stack when the program begins.
const STACK_END: u64 = STACK_TOP - STACK_SHIFT;
/// Number of pages of the stack's initial size (`setup_arg_pages`: 128 KiB).
const STACK_PAGES: u64 = 32;

/// Writes the highest `pages` pages of the stack, which were written before.
pub(super) fn write_stack(pages: u64) -> impl Iterator<Item = Operation> {
    (STACK_END - pages..STACK_END).rev().map(|page| use_stack(page, Access::Write))
}

/// Forks; the parent then writes pages of its stack and of its heap.
pub(super) fn fork(child: ProgramId, writes: [u64; 2]) -> impl Iterator<Item = Operation> {
    [Operation::Fork(child)].into_iter().chain(write_after_fork(writes))
}

/// Writes numbers of pages of the stack and of the heap, which a fork has shared.
pub(super) fn write_after_fork([stack, heap]: [u64; 2]) -> impl Iterator<Item = Operation> {
    write_stack(stack).chain([Operation::write(HEAP, 0..heap)])
}

const fn use_stack(page: u64, access: Access) -> Operation {
    Operation::RawAddress(RawAddress::Fault { page, access, entry: Entry::Absent })
}

impl Program {
    /// Returns the steps from `exec` to `main`, for a process that has memory.
    pub(super) fn exec(&self) -> Vec<Operation> {
        [vec![Operation::Exec], self.begin()].concat()
    }

    /// Returns the steps from the end of `exec` to `main`, for a process that has no memory yet.
    pub(super) fn begin(&self) -> Vec<Operation> {
        let mut steps = Vec::from(stack());
        let indices = 0..self.objects.len() as u32;
        let libraries = indices.clone().skip(2);
        // The kernel maps the program and its linker. The linker relocates itself and maps the
        // rest.
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

    fn object(&self, index: u32) -> Object {
        self.objects[index as usize]
    }

    /// Loads a library. To place the parts together, the linker maps room for the whole library
    /// first, and then maps text and data over it (`MAP_FIXED`). No page of the room is ever used.
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

/// Returns the operations of `exec` on the stack: it writes the arguments to the top of the stack,
/// moves the stack to its final address, and extends it.
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

/// Returns the areas of an object's text, data and zeros.
const fn areas(index: u32) -> [AreaId; 3] {
    let first = AREAS_PER_OBJECT * index;
    [AreaId(first), AreaId(first + 1), AreaId(first + 2)]
}
