//! The meaning of operations on memory that is named by its address.

use core::ops::Range;

use shootdown_vm::{
    FaultError, LARGE_PAGE_BYTES, PAGE_BYTES, Place, Platform as _, Protection, RemapError,
};

use super::memory::{BackingSpec, MemoryHost, ProcessMemory, addresses};
use crate::StepError;
use crate::operation::{
    Access, Entry, FILLED_MAX, Filling, LOWEST_PAGE, Mapping, Permission, RawAddress,
};

impl<H: MemoryHost> ProcessMemory<'_, H> {
    /// Performs the possible part of an operation: a change skips addresses that are not mapped,
    /// and addresses outside of user space. The calling thread is in user mode.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory left, or an access is stuck.
    pub fn perform_raw(&self, operation: RawAddress) -> Result<(), StepError> {
        match operation {
            RawAddress::Fault { page, access, entry } => self.use_page(page, access, entry),
            RawAddress::Map { pages, permission, mapping, filling } => {
                let is_filled = self.system_call(|| {
                    Ok(self.map_fixed(&pages, permission, mapping)
                        && filling == Filling::AtOnce
                        && pages.end - pages.start <= FILLED_MAX
                        && permission == Permission::ReadWrite)
                })?;
                let filled = if is_filled { pages } else { 0..0 };
                filled
                    .into_iter()
                    .try_for_each(|page| self.use_page(page, Access::Write, Entry::Absent))
            }
            RawAddress::UseFolios { pages, folios } => {
                self.try_to(|| self.space().use_folios(addresses(&pages), folios.into()))
            }
            RawAddress::Unmap(pages) => self.try_to(|| self.unmap(None, addresses(&pages))),
            RawAddress::Protect { pages, permission } => {
                self.try_to(|| self.space().protect_existing(addresses(&pages), permission.into()))
            }
            RawAddress::Discard(pages) => self.try_to(|| self.discard(None, addresses(&pages))),
            RawAddress::Offer(pages) => self.try_to(|| self.offer(addresses(&pages))),
            RawAddress::Cool(pages) => self.try_to(|| self.cool(addresses(&pages))),
            RawAddress::PageOut(pages) => self.try_to(|| self.page_out(addresses(&pages))),
            RawAddress::Sync(pages) => self.try_to(|| self.space().write_back(addresses(&pages))),
            RawAddress::Populate { pages, access } => self.populate(&pages, access),
            RawAddress::Collapse(pages) => self.try_to(|| self.space().collapse(addresses(&pages))),
            RawAddress::MovePages { pages, node } => {
                self.try_to(|| self.migrate(addresses(&pages), node))
            }
            RawAddress::Move { from, to } => self.system_call(|| self.move_pages(&from, &to)),
        }
    }

    /// Performs a change in the kernel, and ignores its error.
    fn try_to<T, E>(&self, change: impl FnOnce() -> Result<T, E>) -> Result<(), StepError> {
        self.in_kernel(|| drop(change()))
    }

    /// Returns whether the pages were mapped.
    fn map_fixed(&self, pages: &Range<u64>, permission: Permission, mapping: Mapping) -> bool {
        // The recorded kernel chose an address that no flush was under way for. If the program
        // chose it, the simulated kernel may still flush it.
        while !self.space().is_flushed(&addresses(pages)) {
            self.host.wait_hint();
        }
        let place = Place::Fixed(addresses(pages));
        // Every file is new, because a recording does not show which mappings share one. Its pages
        // lie so that folios can be mapped.
        let first_page = pages.start % (LARGE_PAGE_BYTES / PAGE_BYTES);
        let backing = self.backing(mapping, first_page, |_| None);
        self.map(place, permission.into(), backing).is_ok()
    }

    /// Maps pages until one cannot be mapped.
    fn populate(&self, pages: &Range<u64>, access: Access) -> Result<(), StepError> {
        let end = pages.end.min(pages.start.saturating_add(FILLED_MAX));
        self.in_kernel(|| {
            let map = |page| self.space().fault(page, access.into());
            let _ = addresses(&(pages.start..end)).step_by(PAGE_BYTES as usize).try_for_each(map);
        })
    }

    fn move_pages(&self, from: &Range<u64>, to: &Range<u64>) -> Result<(), StepError> {
        match self.remap(addresses(from), addresses(to)) {
            Ok(()) => Ok(()),
            Err(RemapError::OutOfMemory) => Err(StepError::OutOfMemory),
            // The recording does not show the call that mapped a part of the range. The pages lose
            // their contents, and fault in again.
            Err(RemapError::BadRange | RemapError::NoArea | RemapError::NoRoom) => {
                let _ = self.unmap(None, addresses(from));
                let place = Place::Fixed(addresses(to));
                let _ = self.map(place, Permission::ReadWrite.into(), BackingSpec::anonymous());
                Ok(())
            }
        }
    }

    fn use_page(&self, page: u64, access: Access, entry: Entry) -> Result<(), StepError> {
        let address = page.saturating_mul(PAGE_BYTES);
        if !self.host.vm().platform().user_addresses().contains(&address) {
            return Ok(());
        }
        if entry == Entry::Refusing && self.space().translation(address).is_none() {
            self.use_address(address, Access::Read)?;
        }
        self.use_address(address, access)
    }

    fn use_address(&self, address: u64, access: Access) -> Result<(), StepError> {
        loop {
            match self.host.touch(self.process, None, address, access) {
                Err(StepError::Fault(FaultError::NoArea)) => {
                    if address < LOWEST_PAGE * PAGE_BYTES {
                        return Ok(());
                    }
                    let page = Place::Fixed(address..address.saturating_add(PAGE_BYTES));
                    let all = Protection::READ | Protection::WRITE | Protection::EXECUTE;
                    // In a system call, because the thread may have to wait for the lock of the
                    // areas.
                    let is_mapped = self.system_call(|| {
                        Ok(self.map(page, all, BackingSpec::anonymous()).is_ok())
                    })?;
                    if !is_mapped {
                        return Ok(());
                    }
                }
                // The recorded program handled the signal.
                Err(StepError::Fault(FaultError::NotPermitted)) => return Ok(()),
                touched => return touched,
            }
        }
    }
}
