//! The operations of a hypervisor on what combines two stages.

use super::{CheckWord, HostileMachine};
use crate::hardware::{Hardware, Violation};

impl HostileMachine {
    /// Invalidates the entries of the loaded guest that combine two stages.
    pub fn invalidate_combined(&self) {
        let text = || "invalidates combined entries".to_owned();
        self.hardware_step(text, Hardware::invalidate_combined);
    }

    /// Invalidates the entries that are cached under the name of a virtual CPU.
    pub fn invalidate_name(&self, name: u16) {
        let text = || format!("invalidates virtual CPU {name}");
        self.hardware_step(text, |hardware, memory, cpu| {
            hardware.invalidate_name(memory, cpu, name)
        });
    }

    /// Returns how often a frame was reused.
    pub fn incarnation(&self, frame: usize) -> u32 {
        self.hardware.borrow().incarnation(frame)
    }

    /// A guest uses a page if its hypervisor's entry maps it: a frame plus 1, or 0. The entry was
    /// made when the frame had been reused `incarnation` times.
    pub fn use_by_guest(&self, entry: &CheckWord, page: usize, incarnation: u32) {
        let text = || format!("lets its guest use page {page}");
        self.hardware_step(text, |hardware, memory, _| {
            let frame = (memory.value(entry.number()) as usize).checked_sub(1)?;
            let is_reused = hardware.incarnation(frame) != incarnation;
            is_reused.then_some(Violation::GuestUsesReused { page })
        });
    }

    /// Sets the name of the virtual CPU that this CPU enters next.
    pub fn set_name(&self, name: u16) {
        self.hardware(|hardware, _, cpu| {
            hardware.set_name(cpu, name);
            None
        });
    }
}
