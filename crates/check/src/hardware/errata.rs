//! Defects of processors: TLBs that keep more than their architecture allows, or keep it longer.

use super::{Cached, Hardware, HardwareCpu, Violation};
use crate::memory::Memory;
use crate::profile::{Again, Erratum};

/// The broadcasts that a CPU's wait completes on other CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completion {
    /// All that the CPU has issued.
    All,
    /// Those that an earlier wait has completed too early. The others are now such.
    Earlier,
    /// None. All are now completed too early.
    None,
}

impl Completion {
    /// Returns `true` if a broadcast is now complete. `has_waited` if its CPU waited for it before.
    pub(crate) fn includes(self, has_waited: bool) -> bool {
        match self {
            Self::All => true,
            Self::Earlier => has_waited,
            Self::None => false,
        }
    }
}

impl Hardware {
    /// Returns `true` if an invalidation of a page or a tag does nothing.
    pub(super) fn ignores_names(&self) -> bool {
        self.profile.erratum == Some(Erratum::NamesIgnored)
    }

    /// Records that a CPU has issued a broadcast.
    pub(crate) fn note_broadcast(&mut self, cpu: usize) {
        if let Some(Erratum::CompletesEarly(_)) = self.profile.erratum {
            self.issuers |= 1 << cpu;
        }
    }

    /// Returns what a CPU's wait for its broadcasts completes.
    pub(crate) fn completion(&mut self, cpu: usize) -> Completion {
        let has_issued = self.issuers >> cpu & 1 == 1;
        self.issuers &= !(1 << cpu);
        match self.profile.erratum {
            Some(Erratum::CompletesEarly(Again::Always)) => Completion::Earlier,
            Some(Erratum::CompletesEarly(Again::AfterOperation)) if has_issued => {
                Completion::Earlier
            }
            Some(Erratum::CompletesEarly(Again::AfterOperation)) => Completion::None,
            _ => Completion::All,
        }
    }

    /// After a CPU has changed from a root and a tag to others: it may cache the entries of either
    /// root under the other tag.
    pub(super) fn mix_tags(&mut self, memory: &Memory, cpu: usize, before: (Option<usize>, u16)) {
        let HardwareCpu { root, tag, .. } = self.cpus[cpu];
        let is_mixed = before.0 != root && before.1 != tag;
        if !is_mixed || self.profile.erratum != Some(Erratum::TagsMixed) {
            return;
        }
        for mixed in [(before.0, tag), (root, before.1)] {
            (self.cpus[cpu].root, self.cpus[cpu].tag) = mixed;
            // The kernel uses no page of a space here, and both roots are still in use.
            let _: Option<Violation> = self.fill(memory, cpu);
        }
        (self.cpus[cpu].root, self.cpus[cpu].tag) = (root, tag);
    }

    /// Before a broadcast removes entries of pages under the loaded tag of a CPU: accesses in user
    /// mode may still use them. A device is not affected.
    pub(super) fn keep_late(&mut self, cpu: usize, pages: impl Fn(usize) -> bool) {
        let is_device = cpu + 1 == self.cpus.len();
        let HardwareCpu { tag, is_in_user_mode, cached, late, .. } = &mut self.cpus[cpu];
        if !is_device && *is_in_user_mode && self.profile.erratum == Some(Erratum::UserAccessesLate)
        {
            let cached = cached.get(tag).into_iter().flat_map(Cached::held);
            late.extend(cached.filter(|leaf| pages(leaf.page)));
        }
    }
}
