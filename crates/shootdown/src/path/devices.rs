//! The commands of a flush to devices.

use core::slice;

use crate::base::ids::DeviceTicket;
use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Begins to invalidate the extents of a flush on the devices of the space, if it has any. The
    /// flush waits for the ticket that is returned.
    ///
    /// Call this after [`Rule::FlushFence`], where the CPU mask may have devices. See
    /// [`Rule::AttachFence`].
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_devices(&self, space: &Space<M>, extents: &[Extent]) -> DeviceTicket {
        let machine = self.machine();
        if space.has_devices(machine) && !machine.breaks(Rule::FlushDevices) {
            self.issue_to_devices(space, extents)
        } else {
            DeviceTicket::DONE
        }
    }

    /// Begins to invalidate extents on devices.
    #[cold]
    #[inline(never)]
    pub(crate) fn issue_to_devices(&self, space: &Space<M>, extents: &[Extent]) -> DeviceTicket {
        let whole = extents.iter().find(|extent| extent.is_long()).map(|it| it.without_long());
        self.machine().issue_to_devices(space, whole.as_ref().map_or(extents, slice::from_ref))
    }
}
