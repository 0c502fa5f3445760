//! The operations on memory that system calls and page faults make.

use core::ops::Range;

use shootdown_program::operation::{
    Access, Entry, FileId, Filling, Mapping, Permission, RawAddress,
};
use shootdown_recording::record::FaultCode;

use super::linux;

/// Returns the changes of memory by `exec`: the new program's stack, with its arguments, is made at
/// the end of the address space, and moved to an address that is chosen at random. (Linux:
/// `setup_arg_pages`.)
pub(super) fn stack_of_new_program() -> [RawAddress; 3] {
    const PAGES: u64 = 2;
    const MADE_AT: u64 = (0x7fff_ffff_0000 / PAGE_BYTES) - PAGES;
    /// 8 GiB, half of the largest distance, which is always in another table of 1 GiB.
    const MOVED_BY: u64 = (8 << 30) / PAGE_BYTES;
    let (from, to) = (MADE_AT..MADE_AT + PAGES, MADE_AT - MOVED_BY);
    let (permission, filling) = (Permission::ReadWrite, Filling::OnDemand);
    [
        RawAddress::Map { pages: from.clone(), permission, mapping: Mapping::Anonymous, filling },
        RawAddress::Populate { pages: from.clone(), access: Access::Write },
        RawAddress::Move { from, to: to..to + PAGES },
    ]
}

pub(super) fn map(address: u64, length: u64, protection: u32, flags: u32) -> RawAddress {
    let is_shared = flags & linux::MAP_SHARED != 0;
    let mapping = match (flags & linux::MAP_ANONYMOUS != 0, is_shared) {
        (true, false) => Mapping::Anonymous,
        (false, false) => Mapping::PrivateFile(FileId(0)),
        (_, true) => Mapping::SharedFile(FileId(0)),
    };
    let filling = match flags & linux::MAP_POPULATE {
        0 => Filling::OnDemand,
        _ => Filling::AtOnce,
    };
    let pages = pages(address, length);
    RawAddress::Map { pages, permission: permission(protection), mapping, filling }
}

pub(super) const fn fault(address: u64, code: FaultCode) -> RawAddress {
    RawAddress::Fault {
        page: address / PAGE_BYTES,
        access: if code.is_write() { Access::Write } else { Access::Read },
        entry: if code.was_present() { Entry::Refusing } else { Entry::Absent },
    }
}

pub(super) const fn permission(protection: u32) -> Permission {
    match protection {
        0 => Permission::None,
        _ if protection & linux::PROT_WRITE != 0 => Permission::ReadWrite,
        _ => Permission::Read,
    }
}

const PAGE_BYTES: u64 = 4096;

pub(super) const fn page_after(address: u64) -> u64 {
    address.div_ceil(PAGE_BYTES)
}

pub(super) const fn pages(address: u64, length: u64) -> Range<u64> {
    address / PAGE_BYTES..page_after(address.saturating_add(length))
}
