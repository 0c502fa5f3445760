//! A space, a stored file, and memory that is reclaimed.

use std::ops::Range;
use std::sync::Arc;

use shootdown_vm::{Access, AddressSpace, Backing, FaultError, File, FileId, Place, Sharing};

use crate::platform::*;

pub(crate) type OurSpace<const LOCK: u8> = Space<LOCK, AT_WAIT>;
pub(crate) type Batching = OurSpace<BATCHING>;

pub(crate) const FILE: FileId = FileId(7);
pub(crate) const EVERYTHING: usize = 1000;

pub(crate) struct Fixture<const LOCK: u8> {
    pub(crate) host: Host,
    pub(crate) file: Arc<File<Host>>,
    pub(crate) space: Arc<OurSpace<LOCK>>,
}

impl<const LOCK: u8> Fixture<LOCK> {
    pub(crate) fn new() -> Self {
        Self::with_frames(256)
    }

    pub(crate) fn with_frames(frames: usize) -> Self {
        let host = Host::new(frames, 3);
        let vm = system(&host).with_reclaim();
        let file = Arc::new(File::stored(host.clone(), FILE));
        Self { space: Arc::new(AddressSpace::new(&vm).unwrap()), file, host }
    }

    pub(crate) fn map_file(&self, first: u64, count: u64, sharing: Sharing) {
        let backing = Backing::File { file: Arc::clone(&self.file), first_page: 0 };
        let place = Place::Fixed(pages(first, count));
        self.space.map(place, READ_WRITE, sharing, backing).unwrap();
    }

    pub(crate) fn map_anonymous(&self, first: u64, count: u64) {
        let place = Place::Fixed(pages(first, count));
        self.space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    }

    /// Reclaims all pages that can be reclaimed, and runs `meanwhile` when reclaim waits for its
    /// first flush.
    pub(crate) fn reclaim_while(
        &self,
        concurrent: impl FnOnce(&OurSpace<LOCK>) + Send + 'static,
    ) -> usize {
        let other = Arc::clone(&self.space);
        self.host.when_waiting(move || concurrent(&other));
        let freed = self.reclaim();
        assert!(!self.host.hook_is_set(), "the operation did not wait");
        self.host.check_caches();
        freed
    }

    pub(crate) fn reclaim(&self) -> usize {
        (0..NODES).map(|node| self.space.vm().reclaim(node, EVERYTHING).freed).sum()
    }

    pub(crate) fn end(self) {
        let vm = self.space.vm().clone();
        self.space.exit();
        vm.close(self.file);
        // Pages may wait for their flush.
        vm.reclaim(0, EVERYTHING);
        drop(self.space);
        assert_eq!(self.host.frames_in_use(), 1, "only the page of zeros is in use");
    }
}

pub(crate) fn read<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
) -> Result<u64, FaultError> {
    access(space, cpu, pages(page, 1).start, Access::Read, 0)
}

pub(crate) fn write<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
    value: u64,
) -> Result<u64, FaultError> {
    access(space, cpu, pages(page, 1).start, Access::Write, value)
}

/// Reads pages on a CPU, which then caches them.
pub(crate) fn cache<const LOCK: u8>(space: &OurSpace<LOCK>, cpu: usize, pages: Range<u64>) {
    for page in pages {
        read(space, cpu, page).unwrap();
    }
}

/// Makes one access, with a cached translation or after a walk, and without a fault handler.
pub(crate) fn touch<const LOCK: u8>(
    space: &OurSpace<LOCK>,
    cpu: usize,
    page: u64,
    how: Access,
    value: u64,
) -> Result<u64, PageFault> {
    let host = space.vm().platform();
    host.touch(cpu, space.root(), pages(page, 1).start, how, value)
}
