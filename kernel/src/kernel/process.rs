//! Processes: their memory, and what threads do that they must not.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use shootdown_program::StepError;
use shootdown_program::operation::AreaId;
use shootdown_vm::{AddressSpace, PAGE_BYTES};

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::coherence::Engine;
use crate::kernel::contents::{Holds, Known};
use crate::kernel::platform::ThisMachine;
use crate::kernel::sync::Mutex;

type Tables = <Arch as Architecture>::Format;

/// The memory manager on this machine.
pub(crate) type Vm = shootdown_vm::Vm<(ThisMachine, Engine, Tables)>;
/// The memory of a process.
pub(crate) type Space = AddressSpace<(ThisMachine, Engine, Tables)>;

/// A process.
pub(crate) struct Process {
    /// From 0 on, in the order of their creation.
    pub(crate) number: u32,
    /// Whose words it may find in its own memory: its own number, and those of whom it is a copy.
    pub(crate) lineage: Vec<u32>,
    /// Whether anything was moved, in it or in whom it is a copy of: its words may be elsewhere.
    pub(crate) has_moved: AtomicBool,
    pub(crate) threads: AtomicU32,
    space: Space,
    areas: Mutex<BTreeMap<AreaId, NamedArea>>,
}

/// An area that the workload has a name for.
#[derive(Debug)]
pub(crate) struct NamedArea {
    pub(crate) start: u64,
    pub(crate) holds: Holds,
    pub(crate) known: Known,
}

impl Process {
    pub(crate) fn new(number: u32, space: Space) -> Self {
        Self {
            number,
            lineage: Vec::from([number]),
            has_moved: AtomicBool::new(false),
            threads: AtomicU32::new(0),
            space,
            areas: Mutex::new(BTreeMap::new()),
        }
    }

    /// A copy, with the given space.
    pub(crate) fn copy(&self, number: u32, space: Space) -> Self {
        let lineage = [self.lineage.as_slice(), &[number]].concat();
        let has_moved = AtomicBool::new(self.has_moved.load(Ordering::Relaxed));
        let copy = |(&id, area): (&AreaId, &NamedArea)| {
            let NamedArea { start, holds, ref known } = *area;
            (id, NamedArea { start, holds, known: known.copy() })
        };
        let areas = Mutex::new(self.areas.lock().iter().map(copy).collect());
        Self { number, lineage, has_moved, threads: AtomicU32::new(0), space, areas }
    }

    pub(crate) const fn space(&self) -> &Space {
        &self.space
    }

    /// From now on an area has this name.
    pub(crate) fn name(&self, id: AreaId, area: NamedArea) {
        self.areas.lock().insert(id, area);
    }

    /// Calls `f` with the area that has this name.
    pub(crate) fn with_area<R>(
        &self,
        id: AreaId,
        f: impl FnOnce(&mut NamedArea) -> R,
    ) -> Result<R, StepError> {
        self.areas.lock().get_mut(&id).map(f).ok_or(StepError::UnknownArea(id))
    }

    /// From now on, nothing is known of what is in any area.
    pub(crate) fn knows_nothing(&self) {
        self.areas.lock().values_mut().for_each(|area| area.known = Known::nothing());
    }

    /// The addresses of some pages of an area.
    pub(crate) fn addresses(
        &self,
        id: AreaId,
        pages: &Range<u64>,
    ) -> Result<Range<u64>, StepError> {
        let address = |page: u64| page.saturating_mul(PAGE_BYTES);
        let start = self.with_area(id, |area| area.start)?;
        Ok(start.saturating_add(address(pages.start))..start.saturating_add(address(pages.end)))
    }
}
