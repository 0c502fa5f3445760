//! Processes: their memory, and what the kernel knows of its contents.

use alloc::collections::BTreeMap;

use shootdown_program::StepError;
use shootdown_program::interpreter;
use shootdown_program::operation::AreaId;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::coherence::Engine;
use crate::kernel::contents::{Holds, Known, Words};
use crate::kernel::platform::ThisMachine;
use crate::kernel::sync::Mutex;

/// The parts of the memory manager.
pub(crate) type System = (ThisMachine, Engine, <Arch as Architecture>::Format);
/// The memory manager on this machine.
pub(crate) type Vm = shootdown_vm::Vm<System>;
/// A process.
pub(crate) type Process = interpreter::Process<System, ProcessData>;

/// The kernel's data of a process.
pub(crate) struct ProcessData {
    pub(crate) words: Words,
    areas: Mutex<BTreeMap<AreaId, NamedArea>>,
}

/// An area that the workload has a number for.
#[derive(Debug)]
pub(crate) struct NamedArea {
    pub(crate) start: u64,
    pub(crate) holds: Holds,
    pub(crate) known: Known,
}

impl ProcessData {
    /// Data of a process that is not a copy.
    pub(crate) fn new(number: u32) -> Self {
        Self { words: Words::new(number), areas: Mutex::new(BTreeMap::new()) }
    }

    /// Data of a copy of the process.
    pub(crate) fn copy(&self, number: u32) -> Self {
        let copy = |(&id, area): (&AreaId, &NamedArea)| {
            let NamedArea { start, holds, ref known } = *area;
            (id, NamedArea { start, holds, known: known.copy() })
        };
        let areas = Mutex::new(self.areas.lock().iter().map(copy).collect());
        Self { words: self.words.copy(number), areas }
    }

    /// Gives an area a number.
    pub(crate) fn name(&self, id: AreaId, area: NamedArea) {
        self.areas.lock().insert(id, area);
    }

    /// Calls `f` with the area that has this number.
    pub(crate) fn with_area<R>(
        &self,
        id: AreaId,
        f: impl FnOnce(&mut NamedArea) -> R,
    ) -> Result<R, StepError> {
        self.areas.lock().get_mut(&id).map(f).ok_or(StepError::UnknownArea(id))
    }

    /// Forgets the contents of all areas.
    pub(crate) fn forget_contents(&self) {
        self.areas.lock().values_mut().for_each(|area| area.known = Known::nothing());
    }
}
