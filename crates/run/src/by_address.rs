//! Operations on memory that is named by its address, which take it as they find it.

use core::ops::Range;
use std::sync::Arc;

use shootdown_vm::{
    FaultError, File, PAGE_BYTES, Place, Platform as _, Protection, RemapError, Sharing,
};

use crate::checked::Backed;
use crate::contents::Shown;
use crate::process::{Process, Vm};
use shootdown_program::operation::{
    Access, ByAddress, Entry, FILLED_MAX, Filling, LOWEST_PAGE, Mapping, Permission,
};
use shootdown_program::step::StepError;

/// Files without a name are numbered from here on.
pub(crate) const FRESH: u64 = 1 << 32;

impl Vm {
    /// Does what can be done of an operation. The calling thread is in user mode.
    pub(crate) fn perform_by_address(
        &self,
        process: &Process,
        operation: ByAddress,
    ) -> Result<(), StepError> {
        if let ByAddress::Fault { page, access, entry } = operation {
            return self.use_page(process, page, access, entry);
        }
        self.enter_kernel();
        let fill = self.change(process, operation)?;
        self.return_to_user(process);
        for page in fill {
            self.use_page(process, page, Access::Write, Entry::Absent)?;
        }
        Ok(())
    }

    /// Returns the pages that must be there at once.
    fn change(&self, process: &Process, operation: ByAddress) -> Result<Range<u64>, StepError> {
        let space = process.space();
        // What is no range of user addresses is nothing that can be changed, here as there.
        match operation {
            ByAddress::Map { pages, permission, mapping, filling } => {
                // The kernel that is simulated would have found another place, had the program
                // left it that choice.
                while !space.is_settled(&addresses(&pages)) {
                    self.sim().relax();
                }
                let place = Place::Fixed(addresses(&pages));
                let backing = self.fresh_backing(mapping);
                let mapped = self.map(process, place, permission, backing).is_ok();
                let is_filled = filling == Filling::AtOnce && pages.end - pages.start <= FILLED_MAX;
                if mapped && is_filled && permission == Permission::ReadWrite {
                    return Ok(pages);
                }
            }
            ByAddress::Unmap(pages) => {
                let _ = self.unmap(process, addresses(&pages));
            }
            ByAddress::Protect { pages, permission } => {
                let _ = space.protect_existing(addresses(&pages), permission.into());
            }
            ByAddress::Discard(pages) => {
                let _ = self.discard(process, addresses(&pages));
            }
            ByAddress::Offer(pages) => {
                let _ = self.offer(process, addresses(&pages));
            }
            // What is in the pages stays as it is.
            ByAddress::Collapse(pages) => {
                let _ = space.collapse(addresses(&pages));
            }
            ByAddress::MovePages { pages, node } => {
                let _ = self.migrate(process, addresses(&pages), node);
            }
            ByAddress::Move { from, to } => {
                match self.remap(process, addresses(&from), addresses(&to)) {
                    Err(RemapError::OutOfMemory) => return Err(StepError::OutOfMemory),
                    // Part of it was mapped by nobody whom the recording shows.
                    Err(_) => self.move_what_is_there(process, &from, &to),
                    Ok(()) => {}
                }
            }
            ByAddress::Fault { .. } => {}
        }
        Ok(0..0)
    }

    /// As if the contents had been moved: the pages fault in again.
    fn move_what_is_there(&self, process: &Process, from: &Range<u64>, to: &Range<u64>) {
        let _ = self.unmap(process, addresses(from));
        let place = Place::Fixed(addresses(to));
        let _ = self.map(process, place, Permission::ReadWrite, Backed::anonymous());
    }

    fn use_page(
        &self,
        process: &Process,
        page: u64,
        access: Access,
        entry: Entry,
    ) -> Result<(), StepError> {
        let space = process.space();
        let address = page.saturating_mul(PAGE_BYTES);
        if !self.platform().user_addresses().contains(&address) {
            return Ok(());
        }
        if entry == Entry::Refusing && space.translation(address).is_none() {
            self.use_address(process, address, Access::Read)?;
        }
        self.use_address(process, address, access)
    }

    fn use_address(
        &self,
        process: &Process,
        address: u64,
        access: Access,
    ) -> Result<(), StepError> {
        loop {
            match self.touch(process, address, access) {
                Err(StepError::Fault(FaultError::NoArea)) => {
                    if address < LOWEST_PAGE * PAGE_BYTES {
                        return Ok(());
                    }
                    // By a system call, in which the thread may have to wait for the areas.
                    self.enter_kernel();
                    let page = Place::Fixed(address..address.saturating_add(PAGE_BYTES));
                    let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
                    let mapped = self.map_as(process, page, all, Backed::anonymous());
                    self.return_to_user(process);
                    if mapped.is_err() {
                        return Ok(());
                    }
                }
                // The program got a signal, then as now.
                Err(StepError::Fault(FaultError::NotPermitted)) => return Ok(()),
                other => return other,
            }
        }
    }

    /// Every file is one of its own: who else maps it, a recording does not say.
    #[expect(clippy::arc_with_non_send_sync, reason = "a simulation stays on its thread")]
    fn fresh_backing(&self, mapping: Mapping) -> Backed {
        let new = || {
            let number = self.fresh_files.get();
            self.fresh_files.set(number + 1);
            (Arc::new(File::new(self.platform().clone())), FRESH + number, 0)
        };
        match mapping {
            Mapping::Anonymous => Backed::anonymous(),
            Mapping::PrivateFile(_) => {
                let (new, file, offset) = new();
                Backed::file(Sharing::Private, new, Shown::Private { file, offset })
            }
            Mapping::SharedFile(_) => {
                let (new, file, offset) = new();
                Backed::file(Sharing::Shared, new, Shown::Shared { file, offset })
            }
        }
    }
}

fn addresses(pages: &Range<u64>) -> Range<u64> {
    pages.start.saturating_mul(PAGE_BYTES)..pages.end.saturating_mul(PAGE_BYTES)
}
