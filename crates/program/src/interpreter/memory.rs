//! The meaning of operations on memory.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;

use shootdown_vm::{
    self as vm, AddressSpace, Advice, Backing, FaultError, File, MapError, OutOfMemory, PAGE_BYTES,
    Place, Platform, Protection, RangeError, RemapError, Sharing, System, Vm,
};

use super::change::{Change, Ended, FileKey, Shown};
use super::process::Process;
use crate::StepError;
use crate::operation::{Access, AreaId, FileId, Folios, Mapping, Moves, OnFault, Permission};

/// The number of faults after which an access is [stuck](StepError::Stuck). Between a fault and the
/// next attempt of the access, reclaim may take the page or another CPU may claim it, but never
/// this often.
pub const FAULTS_MAX: u32 = 100_000;

/// The part of a host that performs accesses and observes changes of memory.
///
/// The calling thread runs in the given process. It is in user mode, except between
/// [`enter_kernel`](Self::enter_kernel) and [`return_to_user`](Self::return_to_user).
pub trait MemoryHost {
    /// The parts of the memory manager.
    type System: System;
    /// Data of the host for each process.
    type ProcessData;
    /// A change that the host observes.
    type UnderWay;

    /// Returns the memory manager.
    fn vm(&self) -> &Vm<Self::System>;

    /// Returns the consequence of refused accesses and changes.
    fn on_fault(&self) -> OnFault;

    /// Returns the file with a number, or a new file without one, and the key by which changes name
    /// the file.
    fn file(&self, file: Option<FileId>) -> (FileKey, Arc<File<PlatformOf<Self>>>);

    /// Gives a number to the area that was mapped at `start`.
    fn name_area(&self, process: &ProcessOf<Self>, area: AreaId, start: u64, shown: Shown);

    /// Records that the area with a number has moved to `start`.
    fn move_area(&self, process: &ProcessOf<Self>, area: AreaId, start: u64);

    /// Returns the address of the area with a number.
    fn area_start(&self, process: &ProcessOf<Self>, area: AreaId) -> Option<u64>;

    /// Reads or writes a word at an address, in user mode, and resolves the faults. `area` is the
    /// area that the operation named.
    ///
    /// # Errors
    ///
    /// Returns the fault that cannot be resolved, or [`StepError::Stuck`].
    fn touch(
        &self,
        process: &ProcessOf<Self>,
        area: Option<AreaId>,
        address: u64,
        access: Access,
    ) -> Result<(), StepError>;

    /// Waits for a moment for other CPUs.
    fn wait_hint(&self);

    /// Enters the kernel with a system call of the calling thread. Hosts whose threads are in the
    /// kernel unless they touch memory or compute keep the default, which does nothing.
    fn enter_kernel(&self) {}

    /// Returns the calling thread to user mode.
    fn return_to_user(&self, process: &ProcessOf<Self>) {
        let _ = process;
    }

    /// Observes the beginning of a change. `area` is the area that the operation named.
    fn change_begins(
        &self,
        process: &ProcessOf<Self>,
        area: Option<AreaId>,
        change: Change,
    ) -> Self::UnderWay;

    /// Observes the end of a change.
    fn change_ends(&self, under_way: Self::UnderWay, ended: Ended);

    /// Observes the end of a [`Change::Fork`] that succeeded. Returns the data of the child.
    fn fork_ends(&self, parent: &ProcessOf<Self>, under_way: Self::UnderWay) -> Self::ProcessData;

    /// Observes a change that failed, and that the run survived. A part of it may be done.
    fn change_survived(&self, process: &ProcessOf<Self>) {
        let _ = process;
    }
}

/// An address space of a host.
pub type SpaceOf<H> = AddressSpace<<H as MemoryHost>::System>;
/// A process of a host.
pub type ProcessOf<H> = Process<<H as MemoryHost>::System, <H as MemoryHost>::ProcessData>;
/// The platform of a host.
pub(super) type PlatformOf<H> = <<H as MemoryHost>::System as System>::Platform;

/// The memory of the calling thread's process.
#[expect(missing_debug_implementations, reason = "a pair of references to parts of the host")]
pub struct ProcessMemory<'a, H: MemoryHost> {
    pub(super) host: &'a H,
    pub(super) process: &'a ProcessOf<H>,
}

/// The contents of a new mapping, for the memory manager and for the host.
pub(super) struct BackingSpec<P: Platform> {
    sharing: Sharing,
    backing: Backing<P>,
    /// As if the mapping began at address 0.
    shown: Shown,
}

impl<P: Platform> BackingSpec<P> {
    pub(super) const fn anonymous() -> Self {
        let (sharing, backing) = (Sharing::Private, Backing::Anonymous);
        Self { sharing, backing, shown: Shown::Anonymous }
    }
}

impl<'a, H: MemoryHost> ProcessMemory<'a, H> {
    /// Returns the memory of `process`, in which the calling thread runs.
    pub const fn new(host: &'a H, process: &'a ProcessOf<H>) -> Self {
        Self { host, process }
    }

    pub(super) fn space(&self) -> &'a SpaceOf<H> {
        self.process.space()
    }

    /// Returns the addresses of pages of an area.
    pub(super) fn addresses(
        &self,
        area: AreaId,
        pages: &Range<u64>,
    ) -> Result<Range<u64>, StepError> {
        let start = self.host.area_start(self.process, area);
        let start = start.ok_or(StepError::UnknownArea(area))?;
        let Range { start: first, end } = addresses(pages);
        Ok(start.saturating_add(first)..start.saturating_add(end))
    }

    /// Performs an operation in the kernel. The thread stays there if the operation fails.
    pub(super) fn system_call<T>(
        &self,
        operation: impl FnOnce() -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        self.host.enter_kernel();
        let result = operation()?;
        self.host.return_to_user(self.process);
        Ok(result)
    }

    /// Performs an operation in the kernel on pages of an area.
    pub(super) fn at(
        &self,
        area: AreaId,
        pages: &Range<u64>,
        operation: impl FnOnce(Range<u64>) -> Result<(), StepError>,
    ) -> Result<(), StepError> {
        self.system_call(|| operation(self.addresses(area, pages)?))
    }

    /// Performs an operation in the kernel that cannot fail.
    pub(super) fn in_kernel(&self, operation: impl FnOnce()) -> Result<(), StepError> {
        self.system_call(|| {
            operation();
            Ok(())
        })
    }

    /// Returns the contents of a mapping, which begins at page `first_page` of its file.
    pub(super) fn backing(
        &self,
        mapping: Mapping,
        first_page: u64,
        file: impl Fn(FileId) -> Option<FileId>,
    ) -> BackingSpec<PlatformOf<H>> {
        let (sharing, id) = match mapping {
            Mapping::Anonymous => return BackingSpec::anonymous(),
            Mapping::PrivateFile(id) => (Sharing::Private, id),
            Mapping::SharedFile(id) => (Sharing::Shared, id),
        };
        let (key, opened) = self.host.file(file(id));
        let backing = Backing::File { file: opened, first_page };
        let shown = match sharing {
            Sharing::Private => Shown::Private { file: key, offset: first_page },
            Sharing::Shared => Shown::Shared { file: key, offset: first_page },
        };
        BackingSpec { sharing, backing, shown }
    }
}

/// Changes.
impl<H: MemoryHost> ProcessMemory<'_, H> {
    pub(super) fn map_area(
        &self,
        area: AreaId,
        pages: u64,
        permission: Permission,
        mapping: Mapping,
    ) -> Result<(), StepError> {
        let place = Place::Anywhere { length: pages.saturating_mul(PAGE_BYTES) };
        let backing = self.backing(mapping, 0, Some);
        let shown = backing.shown;
        let start = self.map(place, permission.into(), backing)?;
        self.host.name_area(self.process, area, start, shown);
        Ok(())
    }

    pub(super) fn map(
        &self,
        place: Place,
        protection: Protection,
        spec: BackingSpec<PlatformOf<H>>,
    ) -> Result<u64, MapError> {
        let BackingSpec { sharing, backing, shown } = spec;
        let (change, length) = match &place {
            Place::Anywhere { length } => {
                (Change::MapAnywhere { pages: length / PAGE_BYTES, shown }, Some(*length))
            }
            Place::Fixed(range) => {
                let range = pages(range);
                (Change::Map { shown: shown.moved(range.start), range }, None)
            }
        };
        let under_way = self.host.change_begins(self.process, None, change);
        let mapped = self.space().map(place, protection, sharing, backing);
        let ended = match (mapped, length) {
            (Ok(start), Some(length)) => Ended::At(pages(&(start..start + length))),
            (Ok(_), None) => Ended::Done,
            (Err(_), _) => Ended::Failed,
        };
        self.host.change_ends(under_way, ended);
        mapped
    }

    /// Performs a change that its host observes.
    fn change<E>(
        &self,
        area: Option<AreaId>,
        change: Change,
        perform: impl FnOnce() -> Result<(), E>,
        is_done: impl FnOnce(&E) -> bool,
    ) -> Result<(), E> {
        let under_way = self.host.change_begins(self.process, area, change);
        let result = perform();
        let is_done = result.as_ref().err().is_none_or(is_done);
        self.host.change_ends(under_way, if is_done { Ended::Done } else { Ended::Failed });
        result
    }

    pub(super) fn unmap(&self, area: Option<AreaId>, range: Range<u64>) -> Result<(), RangeError> {
        let change = Change::Unmap(pages(&range));
        self.change(area, change, || self.space().unmap(range), |_| false)
    }

    pub(super) fn discard(
        &self,
        area: Option<AreaId>,
        range: Range<u64>,
    ) -> Result<(), RangeError> {
        let change = Change::Discard(pages(&range));
        self.advise(area, change, range, Advice::DontNeed)
    }

    /// Discards every `step`-th page of a range, with one flush.
    pub(super) fn discard_each(
        &self,
        area: AreaId,
        range: Range<u64>,
        step: u64,
    ) -> Result<(), RangeError> {
        let step = step.max(1).saturating_mul(PAGE_BYTES) as usize;
        let starts = range.step_by(step);
        let ranges: Vec<_> = starts.map(|start| start..start.saturating_add(PAGE_BYTES)).collect();
        let begin = |range| {
            self.host.change_begins(self.process, Some(area), Change::Discard(pages(range)))
        };
        let under_way: Vec<_> = ranges.iter().map(begin).collect();
        let result = self.space().advise_ranges(&ranges, Advice::DontNeed);
        let is_done = result.as_ref().err().is_none_or(|error| *error == RangeError::NoArea);
        for change in under_way {
            self.host.change_ends(change, if is_done { Ended::Done } else { Ended::Failed });
        }
        result
    }

    pub(super) fn offer(&self, range: Range<u64>) -> Result<(), RangeError> {
        self.advise(None, Change::Offer(pages(&range)), range, Advice::Free)
    }

    /// Marks pages as not used recently, without a change of contents.
    pub(super) fn cool(&self, range: Range<u64>) -> Result<(), RangeError> {
        self.space().advise(range, Advice::Cold)
    }

    fn advise(
        &self,
        area: Option<AreaId>,
        change: Change,
        range: Range<u64>,
        advice: Advice,
    ) -> Result<(), RangeError> {
        let perform = || self.space().advise(range, advice);
        // Holes are an error, but the areas between them have taken the advice.
        self.change(area, change, perform, |error| *error == RangeError::NoArea)
    }

    pub(super) fn remap(&self, from: Range<u64>, to: Range<u64>) -> Result<(), RemapError> {
        let change = remapped(&from, &to);
        self.change(None, change, || self.space().remap(from, to), |_| false)
    }

    /// Changes the size of an area from one number of pages to another, and moves it if it must
    /// move.
    pub(super) fn remap_area(
        &self,
        area: AreaId,
        size: Range<u64>,
        moves: Moves,
    ) -> Result<(), StepError> {
        let length = size.end.saturating_mul(PAGE_BYTES);
        self.at(area, &(0..size.start), |from| {
            let start = self.remap_anywhere(&from, length, moves)?;
            self.host.move_area(self.process, area, start);
            Ok(())
        })
    }

    fn remap_anywhere(
        &self,
        from: &Range<u64>,
        length: u64,
        moves: Moves,
    ) -> Result<u64, RemapError> {
        let mut under_way = None;
        let begin = |to: &Range<u64>| {
            let change = remapped(from, to);
            under_way = Some(self.host.change_begins(self.process, None, change));
        };
        let remapped = self.space().remap_anywhere(from.clone(), length, moves.into(), begin);
        if let Some(change) = under_way {
            let ended = if remapped.is_ok() { Ended::Done } else { Ended::Failed };
            self.host.change_ends(change, ended);
        }
        remapped
    }

    /// Reclaims pages of files, without a change of contents.
    pub(super) fn page_out(&self, range: Range<u64>) -> Result<(), StepError> {
        self.check_recorded()?;
        Ok(self.space().advise(range, Advice::PageOut)?)
    }

    /// Sets the permission of pages.
    pub(super) fn protect(
        &self,
        range: Range<u64>,
        permission: Permission,
    ) -> Result<(), StepError> {
        Ok(self.space().protect(range, permission.into())?)
    }

    /// Removes the pages of a file from page `first` on.
    pub(super) fn truncate(&self, file: FileId, first: u64) -> Result<(), StepError> {
        self.check_recorded()?;
        let (file, opened) = self.host.file(Some(file));
        self.in_kernel(|| {
            let change = Change::Truncate { file, first };
            let under_way = self.host.change_begins(self.process, None, change);
            self.host.vm().truncate(&opened, first);
            self.host.change_ends(under_way, Ended::Done);
        })
    }

    /// Makes the next access to each page a fault.
    pub(super) fn hint(&self, range: Range<u64>) -> Result<(), StepError> {
        // The range is that of an area.
        Ok(self.space().hint(range).map_err(RangeError::from)?)
    }

    /// Replaces small pages by large ones.
    pub(super) fn collapse(&self, range: Range<u64>) -> Result<(), StepError> {
        // Without memory for a large page, the small ones stay.
        let _ = self.space().collapse(range);
        Ok(())
    }

    /// Makes first writes map large pages.
    pub(super) fn use_large_pages(&self, range: Range<u64>) -> Result<(), StepError> {
        // The range is that of an area.
        Ok(self.space().use_large_pages(range).map_err(RangeError::from)?)
    }

    /// Writes out pages of files, without a change of contents.
    pub(super) fn sync(&self, range: Range<u64>) -> Result<(), StepError> {
        self.check_recorded()?;
        Ok(self.space().write_back(range)?)
    }

    /// Checks that the memory manager records where pages are mapped. It would find none otherwise.
    fn check_recorded(&self) -> Result<(), StepError> {
        if self.host.vm().has_reclaim() { Ok(()) } else { Err(StepError::NotRecorded) }
    }

    /// Moves pages to a node, without a change of contents.
    pub(super) fn migrate(&self, range: Range<u64>, node: usize) -> Result<(), StepError> {
        self.check_recorded()?;
        if node >= self.host.vm().platform().node_count() {
            return Err(StepError::NoNode(node));
        }
        self.space().migrate(range, node)?;
        Ok(())
    }

    /// Copies the process, without its threads.
    ///
    /// # Errors
    ///
    /// Fails if there is no memory for the copy.
    pub fn fork(&self) -> Result<ProcessOf<H>, OutOfMemory> {
        let under_way = self.host.change_begins(self.process, None, Change::Fork);
        match self.space().fork() {
            Ok(space) => Ok(Process::new(space, self.host.fork_ends(self.process, under_way))),
            Err(error) => {
                self.host.change_ends(under_way, Ended::Failed);
                Err(error)
            }
        }
    }
}

/// Accesses.
impl<H: MemoryHost> ProcessMemory<'_, H> {
    pub(super) fn touch_area(
        &self,
        area: AreaId,
        pages: &Range<u64>,
        access: Access,
    ) -> Result<(), StepError> {
        for address in self.addresses(area, pages)?.step_by(PAGE_BYTES as usize) {
            match self.host.touch(self.process, Some(area), address, access) {
                // The signal handler returns to the next access.
                Err(error) if error.is_survived(self.host.on_fault()) => {
                    self.in_kernel(|| ())?;
                }
                touched => touched?,
            }
        }
        Ok(())
    }

    /// Performs a write that must be refused. The kernel finds that the area forbids it; the signal
    /// handler returns by a system call.
    pub(super) fn segfault(&self, area: AreaId, page: u64) -> Result<(), StepError> {
        let address = self.addresses(area, &(page..page.saturating_add(1)))?.start;
        match self.host.touch(self.process, None, address, Access::Write) {
            Err(StepError::Fault(FaultError::NotPermitted)) => self.in_kernel(|| ()),
            Ok(()) => Err(StepError::NotRefused),
            Err(error) => Err(error),
        }
    }
}

/// Returns the addresses of pages that are counted from address 0.
pub(super) const fn addresses(pages: &Range<u64>) -> Range<u64> {
    pages.start.saturating_mul(PAGE_BYTES)..pages.end.saturating_mul(PAGE_BYTES)
}

const fn pages(addresses: &Range<u64>) -> Range<u64> {
    addresses.start / PAGE_BYTES..addresses.end / PAGE_BYTES
}

/// Returns the change that moves, grows or shrinks the mappings of a range of addresses.
fn remapped(from: &Range<u64>, to: &Range<u64>) -> Change {
    let (from, to) = (pages(from), pages(to));
    if from.start != to.start {
        Change::Move { from, to }
    } else if from.end < to.end {
        Change::Grow(from.end..to.end)
    } else {
        Change::Unmap(to.end..from.end)
    }
}

impl From<Moves> for vm::Moves {
    fn from(moves: Moves) -> Self {
        match moves {
            Moves::IfNecessary => Self::IfNecessary,
            Moves::Always => Self::Always,
        }
    }
}

impl From<Access> for vm::Access {
    fn from(access: Access) -> Self {
        match access {
            Access::Read => Self::Read,
            Access::Write => Self::Write,
        }
    }
}

impl From<Folios> for vm::Folios {
    fn from(folios: Folios) -> Self {
        match folios {
            Folios::Small => Self::Small,
            Folios::Large => Self::Large,
            Folios::LargeTracked => Self::LargeTracked,
        }
    }
}

impl From<Permission> for Protection {
    fn from(permission: Permission) -> Self {
        match permission {
            Permission::None => Self::empty(),
            Permission::Read => Self::READ,
            Permission::ReadWrite => Self::READ | Self::WRITE,
        }
    }
}
