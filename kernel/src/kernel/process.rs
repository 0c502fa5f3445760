//! Processes: their memory, and the kernel's record of its contents.

#![expect(unsafe_code, reason = "switching to a space is unsafe, and forwards its contract")]

use alloc::collections::BTreeMap;

use shootdown_program::StepError;
use shootdown_program::interpreter;
use shootdown_program::operation::AreaId;

use crate::kernel::arch::{Arch, Architecture};
use crate::kernel::coherence::Engine;
use crate::kernel::contents::{Allowed, KnownContents, Words};
use crate::kernel::platform::KernelPlatform;
use crate::kernel::scheduler::ThreadSpace;
use crate::kernel::sync::Mutex;

/// The type parameters of the memory manager.
pub(crate) type System = (KernelPlatform, Engine, <Arch as Architecture>::Format);
pub(crate) type Vm = shootdown_vm::Vm<System>;
pub(crate) type Process = interpreter::Process<System, ProcessData>;

impl ThreadSpace for Process {
    unsafe fn switch_here(&self) {
        // SAFETY: the caller fulfils the same contract.
        unsafe { self.space().switch_here() };
    }
}

/// The kernel's data for a process.
pub(crate) struct ProcessData {
    pub(crate) words: Words,
    areas: Mutex<BTreeMap<AreaId, NamedArea>>,
}

/// An area for which the workload has a number.
#[derive(Debug)]
pub(crate) struct NamedArea {
    pub(crate) start: u64,
    pub(crate) allowed: Allowed,
    pub(crate) known: KnownContents,
}

impl ProcessData {
    /// Data of a process that was not forked.
    pub(crate) fn new(number: u32) -> Self {
        Self { words: Words::new(number), areas: Mutex::new(BTreeMap::new()) }
    }

    /// Data of a process that is forked from this one.
    pub(crate) fn copy(&self, number: u32) -> Self {
        let copy = |(&id, area): (&AreaId, &NamedArea)| {
            let NamedArea { start, allowed, ref known } = *area;
            (id, NamedArea { start, allowed, known: known.copy() })
        };
        let areas = Mutex::new(self.areas.lock().iter().map(copy).collect());
        Self { words: self.words.copy(number), areas }
    }

    /// Records the number of an area.
    pub(crate) fn name(&self, id: AreaId, area: NamedArea) {
        self.areas.lock().insert(id, area);
    }

    /// Calls `f` with the area of this number.
    pub(crate) fn with_area<R>(
        &self,
        id: AreaId,
        f: impl FnOnce(&mut NamedArea) -> R,
    ) -> Result<R, StepError> {
        self.areas.lock().get_mut(&id).map(f).ok_or(StepError::UnknownArea(id))
    }

    /// Marks the contents of all areas as unknown.
    pub(crate) fn forget_contents(&self) {
        self.areas.lock().values_mut().for_each(|area| area.known = KnownContents::unknown());
    }
}
