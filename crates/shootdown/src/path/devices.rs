//! The commands of a flush to devices.

use core::slice;

use crate::base::rules::Rule;
use crate::parts::extent::Extent;
use crate::path::pending::{Elsewhere, Pending};
use crate::state::machine::Machine;
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<'e, M: Machine> PinnedCpu<'e, M> {
    /// Begins to invalidate the extents of a flush on the devices of the space, if it has any.
    ///
    /// Call this after [`Rule::FlushFence`], where the CPU mask may have devices. See
    /// [`Rule::AttachFence`].
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_devices(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        pending: &mut Pending<'e, M>,
    ) {
        let machine = self.machine();
        if space.has_devices(machine) && !machine.breaks(Rule::FlushDevices) {
            self.issue_to_devices(space, extents, &mut pending.elsewhere);
        }
    }

    /// Begins to invalidate extents on devices, for which `elsewhere` waits from then on.
    #[cold]
    #[inline(never)]
    pub(crate) fn issue_to_devices(
        &self,
        space: &Space<M>,
        extents: &[Extent],
        elsewhere: &mut Elsewhere,
    ) {
        let whole = extents.iter().find(|extent| extent.is_long()).map(|it| it.without_long());
        let extents = whole.as_ref().map_or(extents, slice::from_ref);
        elsewhere.add_devices(self.machine().issue_to_devices(space, extents));
    }
}
