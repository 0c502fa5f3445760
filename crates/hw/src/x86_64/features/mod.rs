//! Features of a processor, from CPUID.
//!
//! See Intel's manual, volume 2A, "CPUID", and AMD's, volume 3, appendix E. Features with known
//! [errata](super::errata) are removed here.

use crate::errata::Workarounds;
use crate::x86_64::errata;
use crate::x86_64::identity::{Identity, Registers, Source};

/// The features that matter for translation caches. They must be the same on all CPUs. If CPUs
/// differ, use the features that they have [in common](Self::common).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `true` if there are process-context identifiers, which are tags (CPUID 1, ECX bit 17).
    pub has_pcid: bool,
    /// `true` if there is `INVPCID` (CPUID 7, EBX bit 10). Some processors with tags lack it.
    pub has_invpcid: bool,
    /// Number of pages that one `INVLPGB` names (CPUID 8000_0008, EBX bit 3; EDX bits 15:0, plus
    /// 1). `None` if there is no such instruction, or no tags that it could name.
    pub invlpgb_pages: Option<u32>,
    /// The workarounds that the processor needs.
    pub workarounds: Workarounds,
}

impl Features {
    /// No features, as the first x86-64 processors: each load of a root discards all entries.
    pub const NONE: Self = Self {
        has_pcid: false,
        has_invpcid: false,
        invlpgb_pages: None,
        workarounds: Workarounds::NONE,
    };

    /// Decodes the features of a processor.
    #[must_use]
    pub fn of(source: &impl Source) -> Self {
        // For a leaf above the highest, Intel's processors return the highest leaf.
        let leaf = |number: u32| {
            let highest = source.cpuid(number & 0x8000_0000).eax;
            if number <= highest { source.cpuid(number) } else { Registers::default() }
        };
        let (basic, structured, capacity) = (leaf(1), leaf(7), leaf(0x8000_0008));
        let identity = Identity::new(leaf(0), basic, leaf(0x8000_0021));
        let needed = errata::needed_by(&identity, source);
        let has_pcid = basic.ecx & PCID != 0 && !needed.contains(Workarounds::NO_TAGS);
        let has_invlpgb =
            has_pcid && capacity.ebx & INVLPGB != 0 && !needed.contains(Workarounds::NO_INVLPGB);
        // Features that are not used need no workaround.
        let unused = Workarounds::NO_TAGS.with(Workarounds::NO_INVLPGB);
        let unused = if has_invlpgb { unused } else { unused.with(Workarounds::SECOND_TLBSYNC) };
        Self {
            has_pcid,
            has_invpcid: structured.ebx & INVPCID != 0,
            invlpgb_pages: has_invlpgb.then_some((capacity.edx & 0xffff) + 1),
            workarounds: needed.without(unused),
        }
    }

    /// Returns the features that this processor and another have in common.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            has_pcid: self.has_pcid && other.has_pcid,
            has_invpcid: self.has_invpcid && other.has_invpcid,
            invlpgb_pages: self.invlpgb_pages.min(other.invlpgb_pages),
            workarounds: self.workarounds.with(other.workarounds),
        }
    }

    /// Checks that these features are right on a CPU that has the features `cpu`.
    ///
    /// # Panics
    ///
    /// If they are not.
    pub fn admit(self, cpu: Self) {
        let common = self.common(cpu);
        // Without broadcasts, none is completed.
        let ignored = match self.invlpgb_pages {
            Some(_) => Workarounds::NONE,
            None => Workarounds::SECOND_TLBSYNC,
        };
        assert!(
            Self { workarounds: common.workarounds.without(ignored), ..common }
                == Self { workarounds: self.workarounds.without(ignored), ..self },
            "the engine's features are not right on this CPU: the engine uses {self:?}, and the \
             CPU has {cpu:?}. Create the processor with Features::common of all CPUs",
        );
    }
}

/// Leaf 1, ECX.
const PCID: u32 = 1 << 17;
/// Leaf 7, EBX.
const INVPCID: u32 = 1 << 10;
/// Leaf 8000_0008, EBX.
const INVLPGB: u32 = 1 << 3;

#[cfg(test)]
mod tests;
