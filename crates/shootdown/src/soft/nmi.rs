//! NMIs of the software machine.

use core::sync::atomic::Ordering::Relaxed;

use super::{Platform, Soft, Touch};
use crate::parts::presence::Presence;
use crate::state::machine::Machine;

impl<P: Platform, const WORDS: usize> Soft<P, WORDS> {
    /// Number of stale translations that [NMIs](super::Answers::EarlyWithNmis) have used.
    pub fn stale_nmis(&self) -> u64 {
        self.stale_nmis.load(Relaxed)
    }

    /// An NMI on the CPU that this thread is.
    pub(super) fn take_nmi(&self) {
        let state = self.state(P::cpu());
        let Presence::Active(space) = state.presence(self) else { return };
        if !state.nmi_may_touch_user(self, space) {
            return;
        }
        let touch = |page| self.tlb(|tlb| tlb.touch(&self.tables, page));
        let uses = (0..self.config.pages).filter(|&page| touch(page) == Touch::Stale).count();
        self.stale_nmis.fetch_add(uses as u64, Relaxed);
    }
}
