//! What is done with the memory of a process, and told to the model of its contents, if there is
//! one.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

use shootdown_sim::{PageFault, Touch};
use shootdown_vm::{
    Advice, Backing, File, Format as _, MapError, OutOfMemory, PAGE_BYTES, Place, Protection,
    RangeError, RemapError, Sharing, X86_64,
};

use crate::by_address::FRESH;
use crate::contents::{Change, MemoryId, Model, Shown, UnderWay};
use crate::platform::SimPlatform;
use crate::process::{Process, Space, Vm};
use shootdown_program::operation::{Access, FileId, Permission};
use shootdown_program::step::StepError;

/// What a mapping is to show, as the memory manager and as the model have it.
pub(crate) struct Backed {
    sharing: Sharing,
    backing: Backing<SimPlatform>,
    /// If it began at address 0.
    shown: Shown,
}

impl Backed {
    pub(crate) const fn anonymous() -> Self {
        let (sharing, backing) = (Sharing::Private, Backing::Anonymous);
        Self { sharing, backing, shown: Shown::Anonymous }
    }

    pub(crate) const fn file(sharing: Sharing, file: Arc<File<SimPlatform>>, shown: Shown) -> Self {
        Self { sharing, backing: Backing::File { file, first_page: 0 }, shown }
    }
}

/// Changes.
impl Vm {
    pub(crate) fn map(
        &self,
        process: &Process,
        place: Place,
        permission: Permission,
        backed: Backed,
    ) -> Result<u64, MapError> {
        self.map_as(process, place, permission.into(), backed)
    }

    pub(crate) fn map_as(
        &self,
        process: &Process,
        place: Place,
        protection: Protection,
        Backed { sharing, backing, shown }: Backed,
    ) -> Result<u64, MapError> {
        let (change, length) = match &place {
            Place::Anywhere { length } => {
                (Change::MapAnywhere { pages: length / PAGE_BYTES, shown }, *length)
            }
            Place::Fixed(range) => {
                let range = pages(range);
                let shown = shown.moved(range.start);
                (Change::Map { range, shown }, 0)
            }
        };
        let is_anywhere = length != 0;
        let under_way = self.begin(process, change);
        let mapped = process.space().map(place, protection, sharing, backing);
        match mapped {
            Ok(start) if is_anywhere => self.tell(under_way, |model, under_way| {
                model.end_at(under_way, pages(&(start..start + length)));
            }),
            _ => self.end(under_way, &mapped),
        }
        mapped
    }

    pub(crate) fn unmap(&self, process: &Process, range: Range<u64>) -> Result<(), RangeError> {
        let under_way = self.begin(process, Change::Unmap(pages(&range)));
        let unmapped = process.space().unmap(range);
        self.end(under_way, &unmapped);
        unmapped
    }

    pub(crate) fn discard(&self, process: &Process, range: Range<u64>) -> Result<(), RangeError> {
        let change = Change::Discard(pages(&range));
        self.advise(process, range, Advice::DontNeed, change)
    }

    pub(crate) fn offer(&self, process: &Process, range: Range<u64>) -> Result<(), RangeError> {
        let change = Change::Offer(pages(&range));
        self.advise(process, range, Advice::Free, change)
    }

    fn advise(
        &self,
        process: &Process,
        range: Range<u64>,
        advice: Advice,
        change: Change,
    ) -> Result<(), RangeError> {
        let under_way = self.begin(process, change);
        let advised = process.space().advise(range, advice);
        match advised {
            // It was taken all the same.
            Err(RangeError::NoArea) => self.end(under_way, &Ok::<_, RangeError>(())),
            _ => self.end(under_way, &advised),
        }
        advised
    }

    pub(crate) fn remap(
        &self,
        process: &Process,
        from: Range<u64>,
        to: Range<u64>,
    ) -> Result<(), RemapError> {
        let (old, new) = (pages(&from), pages(&to));
        let change = if old.start != new.start {
            Change::Move { from: old, to: new }
        } else if old.end < new.end {
            Change::Grow(old.end..new.end)
        } else {
            Change::Unmap(new.end..old.end)
        };
        let under_way = self.begin(process, change);
        let moved = process.space().remap(from, to);
        self.end(under_way, &moved);
        moved
    }

    pub(crate) fn fork_space(
        &self,
        process: &Process,
    ) -> Result<(Space, Option<MemoryId>), OutOfMemory> {
        let under_way = self.begin(process, Change::Fork);
        let forked = process.space().fork();
        let (Some(contents), Some(fork)) = (&self.contents, under_way) else {
            return Ok((forked?, None));
        };
        match forked {
            Ok(child) => Ok((child, Some(contents.borrow_mut().end_fork(fork)))),
            Err(error) => {
                contents.borrow_mut().cancel(fork);
                Err(error)
            }
        }
    }

    fn begin(&self, process: &Process, change: Change) -> Option<UnderWay> {
        let (contents, memory) = self.contents.as_ref().zip(process.memory)?;
        Some(contents.borrow_mut().begin(memory, change))
    }

    fn end<T, E>(&self, under_way: Option<UnderWay>, result: &Result<T, E>) {
        self.tell(under_way, |model, under_way| match result {
            Ok(_) => model.end(under_way),
            Err(_) => model.cancel(under_way),
        });
    }

    fn tell(&self, under_way: Option<UnderWay>, tell: impl FnOnce(&mut Model, UnderWay)) {
        if let (Some(contents), Some(under_way)) = (&self.contents, under_way) {
            tell(&mut contents.borrow_mut(), under_way);
        }
    }
}

/// Accesses.
impl Vm {
    /// What the machine, and what the memory manager, is asked for.
    pub(crate) fn next_touch(&self, access: Access) -> (Touch, shootdown_vm::Access) {
        match access {
            Access::Read => (Touch::Read, shootdown_vm::Access::Read),
            Access::Write => {
                self.stamp.set(self.stamp.get() + 1);
                (Touch::Write(self.stamp.get()), shootdown_vm::Access::Write)
            }
        }
    }

    /// One try of an access, after so many `faults`.
    pub(crate) fn touch_checked(
        &self,
        process: &Process,
        address: u64,
        touch: Touch,
        faults: u32,
    ) -> Result<u64, PageFault> {
        let Some((contents, memory)) = self.contents.as_ref().zip(process.memory) else {
            return self.sim().touch(address, touch);
        };
        let (page, is_write) = (address / PAGE_BYTES, matches!(touch, Touch::Write(_)));
        let touched = self.sim().touch_seen(address, touch, |word| {
            let mut model = contents.borrow_mut();
            if !is_write {
                return model.read(memory, page, word);
            }
            if faults != 0 {
                model.write_ends(memory, page);
            }
            model.wrote(memory, page, word);
        });
        if touched.is_err() && is_write && faults == 0 {
            contents.borrow_mut().write_begins(memory, page);
        }
        touched
    }

    /// The access, which had faulted, is given up.
    pub(crate) fn give_up(&self, process: &Process, address: u64, touch: Touch) {
        if let Some((contents, memory)) = self.contents.as_ref().zip(process.memory)
            && matches!(touch, Touch::Write(_))
        {
            contents.borrow_mut().write_ends(memory, address / PAGE_BYTES);
        }
    }
}

/// What is left.
impl Vm {
    /// Looks at all that a process has, which runs no more.
    pub(crate) fn check_at_end(&self, process: &Process) {
        let Some((contents, memory)) = self.contents.as_ref().zip(process.memory) else { return };
        let pages = self.pages_of(process.space());
        contents.borrow_mut().end_process(memory, &pages);
    }

    /// Looks at every page of a file that was ever used. To be called by a thread, when there is no
    /// process any more.
    ///
    /// # Errors
    ///
    /// If there is no memory for that.
    pub(crate) fn check_files(&self) -> Result<(), StepError> {
        let Some(contents) = &self.contents else { return Ok(()) };
        let used = contents.borrow().file_pages();
        for (file, page) in used.into_iter().filter(|(file, _)| *file < FRESH) {
            let word = self.content_of(FileId(file as u32), page)?;
            contents.borrow_mut().end_file(file, page, word);
        }
        Ok(())
    }

    /// What is in a page of a file, which is read in if need be.
    fn content_of(&self, file: FileId, page: u64) -> Result<u64, StepError> {
        let space = self.space()?;
        let backing = Backing::File { file: self.file(file), first_page: page };
        let place = Place::Anywhere { length: PAGE_BYTES };
        let start = space.map(place, Protection::READ, Sharing::Shared, backing)?;
        loop {
            space.fault(start, shootdown_vm::Access::Read)?;
            // At once: it may be taken again.
            if let Some((_, &word)) = self.pages_of(&space).first_key_value() {
                space.exit();
                return Ok(word);
            }
        }
    }

    /// The pages in the tables of a space, with what they hold.
    fn pages_of(&self, space: &Space) -> BTreeMap<u64, u64> {
        let held = |entry| X86_64::as_leaf(entry).map(|leaf| leaf.frame.0);
        let pages = self.sim().pages_below(space.root().0 / PAGE_BYTES, held);
        let content = |(address, frame)| (address / PAGE_BYTES, self.sim().page_content(frame));
        pages.into_iter().map(content).collect()
    }
}

fn pages(addresses: &Range<u64>) -> Range<u64> {
    addresses.start / PAGE_BYTES..addresses.end / PAGE_BYTES
}
