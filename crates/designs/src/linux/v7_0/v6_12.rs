//! Linux 6.12: the mask of a space has the CPUs that have loaded it, and no others.
//!
//! A CPU that loads another space leaves the mask of the old one. Linux 6.14 and later leave it in
//! the mask until a flush finds it there, because two locked operations at each switch are slow if
//! many CPUs switch (209954cbc7d0). A flush that frees page tables then interrupts CPUs that run
//! another space, and each space's mask is trimmed once a second. Linux 6.12 has neither
//! interrupt, and `MADV_DONTNEED` keeps page tables that it empties. All else is as in `linux-7.0`,
//! also that a lazy CPU stays in the mask.

use std::rc::Rc;

use shootdown_sim::Sim;

use super::Linux70;
use crate::linux::lifetime::ExitFlush;

/// The first version that clears the mask at a flush. Recordings of 6.12 show that it does not, and
/// the source of 6.17 does; of the versions in between, neither was checked.
pub(in crate::linux) const CLEARED_AT_FLUSH: (u32, u32) = (6, 14);

/// The time at which a CPU that runs another space leaves the mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaskClearing {
    AtSwitch,
    AtFlush,
}

impl Linux70 {
    /// Creates the design `linux-6.12` on this machine.
    pub fn clearing_at_switch(sim: Rc<Sim>) -> Self {
        let counted = Self::counted(sim, ExitFlush::Interrupts);
        Self { mask_clearing: MaskClearing::AtSwitch, ..counted }
    }

    /// Leaves the mask of the space that is loaded. Precedes the change of the mask of the next.
    pub(super) fn clear_mask_at_switch(&self) {
        if self.mask_clearing == MaskClearing::AtSwitch
            && let Some(previous) = &*self.me().mm.borrow()
        {
            previous.cpumask.remove(self.cpu());
        }
    }
}
