//! Operations on memory that is named by its address, which take it as they find it: the same as on
//! the simulated machine.

use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::Ordering;

use shootdown_program::StepError;
use shootdown_program::operation::{
    ByAddress, Entry, FILLED_MAX, Filling, LOWEST_PAGE, Mapping, Permission,
};
use shootdown_vm::{
    Access, Advice, Backing, FaultError, File, PAGE_BYTES, Place, Platform as _, Protection,
    RemapError, Sharing,
};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::contents::{self, Holds};
use crate::kernel::operations::Backed;
use crate::kernel::platform::ThisMachine;
use crate::kernel::process::Process;
use crate::kernel::scheduler;
use crate::kernel::user::touch;

/// Does what can be done of an operation.
pub(crate) fn perform(process: &Process, operation: ByAddress) -> Result<(), StepError> {
    if let ByAddress::Fault { page, access, entry } = operation {
        return use_page(process, page, access.into(), entry);
    }
    // The same may have a name, too.
    process.knows_nothing();
    for page in change(process, operation)? {
        use_page(process, page, Access::Write, Entry::Absent)?;
    }
    Ok(())
}

/// Returns the pages that must be there at once.
fn change(process: &Process, operation: ByAddress) -> Result<Range<u64>, StepError> {
    let space = process.space();
    // What is no range of user addresses is nothing that can be changed, here as there.
    match operation {
        ByAddress::Map { pages, permission, mapping, filling } => {
            // The kernel that was recorded would have found another place, had the program left it
            // that choice.
            while !space.is_settled(&addresses(&pages)) {
                scheduler::yield_now();
                Arch::relax();
            }
            let place = Place::Fixed(addresses(&pages));
            let (sharing, backing) = fresh_backing(mapping);
            let mapped = space.map(place, permission.into(), sharing, backing).is_ok();
            let is_filled = filling == Filling::AtOnce && pages.end - pages.start <= FILLED_MAX;
            if mapped && is_filled && permission == Permission::ReadWrite {
                return Ok(pages);
            }
        }
        ByAddress::Unmap(pages) => {
            let _ = space.unmap(addresses(&pages));
        }
        ByAddress::Protect { pages, permission } => {
            let _ = space.protect_existing(addresses(&pages), permission.into());
        }
        ByAddress::Discard(pages) => {
            let _ = space.advise(addresses(&pages), Advice::DontNeed);
        }
        ByAddress::Offer(pages) => {
            let _ = space.advise(addresses(&pages), Advice::Free);
        }
        ByAddress::Collapse(pages) => {
            let _ = space.collapse(addresses(&pages));
        }
        ByAddress::MovePages { pages, node } => {
            // A node that is not there has no room, and there is but one.
            if node == 0 {
                let _ = space.migrate(addresses(&pages), node);
            }
        }
        ByAddress::Move { from, to } => {
            process.has_moved.store(true, Ordering::Relaxed);
            match space.remap(addresses(&from), addresses(&to)) {
                Err(RemapError::OutOfMemory) => return Err(StepError::OutOfMemory),
                // Part of it was mapped by nobody whom the recording shows.
                Err(_) => move_what_is_there(process, &from, &to),
                Ok(()) => {}
            }
        }
        ByAddress::Fault { .. } => {}
    }
    Ok(0..0)
}

/// As if the contents had been moved: the pages fault in again.
fn move_what_is_there(process: &Process, from: &Range<u64>, to: &Range<u64>) {
    let space = process.space();
    let _ = space.unmap(addresses(from));
    let (place, all) = (Place::Fixed(addresses(to)), Permission::ReadWrite.into());
    let _ = space.map(place, all, Sharing::Private, Backing::Anonymous);
}

fn use_page(process: &Process, page: u64, access: Access, entry: Entry) -> Result<(), StepError> {
    let address = page.saturating_mul(PAGE_BYTES);
    if !ThisMachine.user_addresses().contains(&address) {
        return Ok(());
    }
    if entry == Entry::Refusing && process.space().translation(address).is_none() {
        use_address(process, address, Access::Read)?;
    }
    use_address(process, address, access)
}

fn use_address(process: &Process, address: u64, access: Access) -> Result<(), StepError> {
    loop {
        match touch(process, address, access) {
            Ok(found) => {
                contents::check(process, address, Holds::AnyWords, None, found);
                return Ok(());
            }
            Err(StepError::Fault(FaultError::NoArea)) => {
                if address < LOWEST_PAGE * PAGE_BYTES {
                    return Ok(());
                }
                // By a system call, in which the thread may have to wait for the areas.
                let page = Place::Fixed(address..address.saturating_add(PAGE_BYTES));
                let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
                let mapped = process.space().map(page, all, Sharing::Private, Backing::Anonymous);
                if mapped.is_err() {
                    return Ok(());
                }
            }
            // The program got a signal, then as now.
            Err(StepError::Fault(FaultError::NotPermitted)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Every file is one of its own: who else maps it, a recording does not say.
fn fresh_backing(mapping: Mapping) -> Backed {
    let file = || Backing::File { file: Arc::new(File::new(ThisMachine)), first_page: 0 };
    match mapping {
        Mapping::Anonymous => (Sharing::Private, Backing::Anonymous),
        Mapping::PrivateFile(_) => (Sharing::Private, file()),
        Mapping::SharedFile(_) => (Sharing::Shared, file()),
    }
}

fn addresses(pages: &Range<u64>) -> Range<u64> {
    pages.start.saturating_mul(PAGE_BYTES)..pages.end.saturating_mul(PAGE_BYTES)
}
