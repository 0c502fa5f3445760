//! The operations of a hypervisor on what combines two stages.

use super::HostileMachine;
use crate::hardware::Hardware;

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

    /// Sets the name of the virtual CPU that this CPU enters next.
    pub fn set_name(&self, name: u16) {
        self.hardware(|hardware, _, cpu| {
            hardware.set_name(cpu, name);
            None
        });
    }
}
