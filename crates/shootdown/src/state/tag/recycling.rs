//! The ASID of a dead space that only one CPU has run goes back to this CPU's stock.
//!
//! Other CPUs hold no translation under the ASID: they emptied their TLBs before they used an ASID
//! of this epoch, and since then only this CPU has loaded the space. This CPU discards its own when
//! it loads the next space under the ASID (`DiscardReusedTag`). To the rest of the allocator, the
//! next space is the dead one under another name: it gets the ASID in the same epoch, and a CPU
//! that reserves the ASID reserves it for the next space.
//!
//! A CPU that takes such an ASID from its stock loads it in the same operation, or finds the epoch
//! over and empties its TLB for the next one. Only a pin takes an ASID without loading it, and then
//! empties the TLB. So a switch to a space that has its ASID already discards nothing.

use core::sync::atomic::Ordering::Relaxed;

use super::asids::AsidWord;
use crate::base::memory::Word;
use crate::base::rules::Rule;
use crate::state::machine::{Machine, Tagging};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;

impl<M: Machine> PinnedCpu<'_, M> {
    /// Takes back the ASID of a space that is being retired, if no CPU but this one has ever run
    /// it. Does nothing while this CPU has the space loaded: call this again when the CPU has
    /// dropped it.
    pub(crate) fn recycle_asid(&self, space: &Space<M>) {
        let machine = self.machine();
        if machine.tagging() != Tagging::Global || self.has_loaded(space) {
            return;
        }
        // Relaxed: no CPU uses the space, and this call comes after their last uses.
        let word = AsidWord(space.tag.load(Relaxed));
        // A device that has the space pinned may hold translations.
        if word.asid() == 0 || word.is_pinned() {
            return;
        }
        if space.cpumask.has_had_only(machine, self.id) || machine.breaks(Rule::RecycleOwnTag) {
            self.local().stock.recycle(word.allocated_in(), word.asid());
        }
    }
}
