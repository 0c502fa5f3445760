//! Page faults: the page that an access needs, as late as can be.

use alloc::sync::Arc;

use crate::PAGE_BYTES;
use crate::area::{Access, Area, Backing, Protection, Sharing};
use crate::coherence::{Batching, Change, Flush, Refault, ZeroPage};
use crate::error::FaultError;
use crate::file::File;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::mappings::Mappings;
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::Slot;

impl<S: System> AddressSpace<S> {
    /// Sees to it that an access at `address`, which the MMU has refused, can be tried again.
    ///
    /// It may be refused again, and is to be brought here again then, if another CPU was at the
    /// same page. Nothing may be wrong at all: a CPU may have held a translation that allowed less
    /// than the page tables do.
    ///
    /// # Errors
    ///
    /// If the areas do not allow the access, or there is no memory for it.
    pub fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        let page = address & !(PAGE_BYTES - 1);
        self.vm.platform.work(Work::Fault, 1);
        let areas = self.mappings.areas.read();
        let area = areas.find(page).ok_or(FaultError::NoArea)?;
        if !area.protection.contains(access.needs()) {
            return Err(FaultError::NotPermitted);
        }
        let Slot { at, level } = self.vm.make_entry(&self.mappings.tables, page)?;
        let entry = self.vm.platform.load(at);
        if entry == EMPTY && level == 0 {
            return Ok(self.install(area, page, access, at)?);
        }
        let Some(leaf) = S::Format::as_leaf_at(entry, level) else {
            // Claimed by a fault on another CPU, which waits for a flush before it lets anyone
            // write. To try again is to wait for it, with interrupts on. Or a large page that
            // another call has just discarded: next time, the way does not end there.
            return Ok(());
        };
        if leaf.protection.contains(access.needs()) {
            return Ok(());
        }
        // A large page is never shared.
        if area.sharing == Sharing::Private && access == Access::Write && level == 0 {
            return Ok(self.make_private(page, at, entry, leaf)?);
        }
        // Whoever changes the protection of an area changes its entries, so that this is not
        // reached; but nothing would be wrong with it.
        let allowed = Leaf { protection: leaf.protection | first_protection(area, access), ..leaf };
        let _ = self.vm.platform.compare_exchange(at, entry, S::Format::leaf_at(allowed, level));
        Ok(())
    }

    /// The first access to a page.
    fn install(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
        at: EntryAt,
    ) -> Result<(), OutOfMemory> {
        let access = match self.vm.policy.zero_page {
            ZeroPage::Shared => access,
            ZeroPage::Predicted => self.zero_page_predictor.expected(area, access),
        };
        self.read_ahead(area, page);
        let frame = self.first_frame(area, page, access)?;
        if self.vm.rmap.is_some() && mapped_file_page(area, page, access).is_none() {
            self.flush_if_pending(page);
        }
        self.install_frame(area, page, frame, access, at);
        self.map_around(area, page, access, at);
        Ok(())
    }

    /// Maps `frame`, which is counted once for it, where nothing was, as far as `access` needs it.
    pub(crate) fn install_frame(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        frame: Frame,
        access: Access,
        at: EntryAt,
    ) {
        self.add_mapping(frame, mapped_file_page(area, page, access), page);
        let leaf = Leaf {
            frame,
            protection: first_protection(area, access),
            // Spares the MMU the marking.
            marks: if access == Access::Write {
                Marks::ACCESSED | Marks::DIRTY
            } else {
                Marks::ACCESSED
            },
        };
        // No flush: nobody remembers that there was nothing.
        if self.vm.platform.compare_exchange(at, EMPTY, S::Format::leaf(leaf)).is_err() {
            // Another CPU was faster. What it has put there may do; if not, we come back.
            self.remove_mapping(frame, page);
            self.vm.release(frame);
        }
    }

    /// Has every CPU forget the page that reclaim may just have taken from `page`: another one is
    /// about to be mapped there, and what one CPU writes to that, another must not look for in the
    /// old one. [`Refault::Unflushed`] leaves that out.
    fn flush_if_pending(&self, page: u64) {
        if self.vm.policy.refault == Refault::Unflushed {
            return;
        }
        let Mappings { in_flight, coherent, .. } = &*self.mappings;
        let is_flushed = in_flight.overlapping(&(page..page + PAGE_BYTES), None).is_none()
            && !self.vm.coherence.is_batched(coherent);
        if !is_flushed {
            self.vm.coherence.wait(self.flush(&Change::reclaimed(page)));
        }
    }

    /// The page to map, counted once for the entry.
    fn first_frame(
        &self,
        area: &Area<S::Platform>,
        page: u64,
        access: Access,
    ) -> Result<Frame, OutOfMemory> {
        let platform = &self.vm.platform;
        match &area.backing {
            Backing::Anonymous if access == Access::Write => {
                let own = self.vm.allocate(FrameUse::Page)?;
                platform.clear_page(own);
                Ok(own)
            }
            Backing::Anonymous => Ok(self.vm.zero_page),
            Backing::File { file, first_page } => {
                let allocate = || self.vm.allocate(FrameUse::Page);
                let cached =
                    file.page(first_page + (page - area.range.start) / PAGE_BYTES, allocate)?;
                if mapped_file_page(area, page, access).is_some() {
                    return Ok(cached);
                }
                let own = allocate();
                if let Ok(own) = own {
                    platform.copy_page(cached, own);
                }
                platform.release(cached);
                own
            }
        }
    }
}

/// What the entry for a page allows that `access` is the first to use: writing to a private page
/// only when it is written, for until then it is shared.
fn first_protection<P: Platform>(area: &Area<P>, access: Access) -> Protection {
    if area.sharing == Sharing::Private && access != Access::Write {
        area.protection - Protection::WRITE
    } else {
        area.protection
    }
}

/// The file, and its page, that the first access to a page is shown; `None` if that is a page of
/// its own.
fn mapped_file_page<P: Platform>(
    area: &Area<P>,
    page: u64,
    access: Access,
) -> Option<(&Arc<File<P>>, u64)> {
    match &area.backing {
        Backing::File { file, first_page }
            if area.sharing == Sharing::Shared || access != Access::Write =>
        {
            Some((file, first_page + (page - area.range.start) / PAGE_BYTES))
        }
        _ => None,
    }
}
