//! Page faults: the page that an access needs, as late as can be.

use crate::PAGE_BYTES;
use crate::area::{Access, Area, Backing, Protection, Sharing};
use crate::coherence::{Coherence, FirstRead};
use crate::error::FaultError;
use crate::format::{EMPTY, Format, Leaf, Marks};
use crate::platform::{EntryAt, Frame, FrameUse, OutOfMemory, Platform, Work};
use crate::space::AddressSpace;

impl<P: Platform, C: Coherence, F: Format> AddressSpace<P, C, F> {
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
        let areas = self.areas.read();
        let area = areas.find(page).ok_or(FaultError::NoArea)?;
        if !area.protection.contains(access.needs()) {
            return Err(FaultError::NotPermitted);
        }
        let at = self.tables.make(&self.vm.platform, page)?;
        let entry = self.vm.platform.load(at);
        if entry == EMPTY {
            return Ok(self.install(area, page, access, at)?);
        }
        let Some(leaf) = F::as_leaf(entry) else {
            // Claimed by a fault on another CPU, which waits for a flush before it lets anyone
            // write. To try again is to wait for it, with interrupts on.
            return Ok(());
        };
        if leaf.protection.contains(access.needs()) {
            return Ok(());
        }
        if area.sharing == Sharing::Private && access == Access::Write {
            return Ok(self.make_private(page, at, entry, leaf)?);
        }
        // Whoever changes the protection of an area changes its entries, so that this is not
        // reached; but nothing would be wrong with it.
        let allowed = Leaf { protection: leaf.protection | first_protection(area, access), ..leaf };
        let _ = self.vm.platform.compare_exchange(at, entry, F::leaf(allowed));
        Ok(())
    }

    /// The first access to a page.
    fn install(
        &self,
        area: &Area<P>,
        page: u64,
        access: Access,
        at: EntryAt,
    ) -> Result<(), OutOfMemory> {
        let access = match C::FIRST_READ {
            FirstRead::ZeroPage => access,
            FirstRead::Guessed => self.first_reads.expected(area, access),
        };
        let frame = self.first_frame(area, page, access)?;
        self.put_first(area, frame, access, at);
        self.map_around(area, page, access, at);
        Ok(())
    }

    /// Maps `frame`, which is counted once for it, where nothing was, as far as `access` needs it.
    pub(crate) fn put_first(&self, area: &Area<P>, frame: Frame, access: Access, at: EntryAt) {
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
        if self.vm.platform.compare_exchange(at, EMPTY, F::leaf(leaf)).is_err() {
            // Another CPU was faster. What it has put there may do; if not, we come back.
            self.vm.release(frame);
        }
    }

    /// The page to map, counted once for the entry.
    fn first_frame(&self, area: &Area<P>, page: u64, access: Access) -> Result<Frame, OutOfMemory> {
        let platform = &self.vm.platform;
        match &area.backing {
            Backing::Anonymous if access == Access::Write => {
                let own = platform.allocate(FrameUse::Page)?;
                platform.clear_page(own);
                Ok(own)
            }
            Backing::Anonymous => Ok(self.vm.zero_page),
            Backing::File { file, first_page } => {
                let cached = file.page(first_page + (page - area.range.start) / PAGE_BYTES)?;
                if area.sharing == Sharing::Shared || access != Access::Write {
                    return Ok(cached);
                }
                let own = platform.allocate(FrameUse::Page);
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
