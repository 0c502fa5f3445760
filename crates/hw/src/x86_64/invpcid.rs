//! What `INVPCID` is given.
//!
//! Intel's manual, volume 2A, "INVPCID"; AMD's, volume 3.

use shootdown::Tag;

/// What is to be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A page under a tag, not if it is global. The address must be canonical, else it faults;
    /// `INVLPG`, which ignores such, serves wherever the tag is loaded.
    Page(Tag, u64),
    /// All that is cached under a tag, but for global pages.
    Tag(Tag),
    /// Everything, under every tag, global pages included.
    Everything,
    /// All under every tag, but for global pages.
    NotGlobal,
}

/// The operands: a type, in a register, and a descriptor, in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// The register operand.
    pub kind: u64,
    /// The memory operand: the tag, then the address.
    pub descriptor: Descriptor,
}

/// 128 bits in memory, for which no alignment is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Descriptor {
    /// Bits 11:0; the others are reserved, and fault where they are set.
    pub pcid: u64,
    /// Bits 127:64 of the descriptor.
    pub address: u64,
}

impl Scope {
    /// What the instruction is given. Where `CR4.PCIDE` is clear, there is no tag but
    /// [`Tag::KERNEL`], and any other faults.
    ///
    /// # Panics
    ///
    /// If the tag is no PCID: only with debug assertions.
    #[must_use]
    pub const fn operands(self) -> Operands {
        let (kind, tag, address) = match self {
            Self::Page(tag, address) => (0, tag, address),
            Self::Tag(tag) => (1, tag, 0),
            Self::Everything => (2, Tag::KERNEL, 0),
            Self::NotGlobal => (3, Tag::KERNEL, 0),
        };
        debug_assert!((tag.0 as usize) < crate::x86_64::cr3::PCID_COUNT, "no such PCID");
        Operands { kind, descriptor: Descriptor { pcid: tag.0 as u64, address } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operands(scope: Scope) -> (u64, u64, u64) {
        let Operands { kind, descriptor: Descriptor { pcid, address } } = scope.operands();
        (kind, pcid, address)
    }

    /// SDM 2A, INVPCID: types 0 individual address, 1 single context, 2 all contexts including
    /// global translations, 3 all contexts.
    #[test]
    fn types_are_those_of_the_manual() {
        assert_eq!(operands(Scope::Page(Tag(7), 0x1000)), (0, 7, 0x1000));
        assert_eq!(operands(Scope::Tag(Tag(4095))), (1, 4095, 0));
        assert_eq!(operands(Scope::Everything), (2, 0, 0));
        assert_eq!(operands(Scope::NotGlobal), (3, 0, 0));
    }

    /// SDM 2A, figure "INVPCID Descriptor": bits 11:0 PCID, 63:12 reserved, 127:64 linear address.
    #[test]
    fn the_descriptor_is_that_of_the_manual() {
        let descriptor = Scope::Page(Tag(0xfed), 0xffff_8000_0000_2000).operands().descriptor;
        assert_eq!(core::mem::offset_of!(Descriptor, pcid), 0);
        assert_eq!(core::mem::offset_of!(Descriptor, address), 8);
        assert_eq!(size_of::<Descriptor>(), 16);
        assert_eq!((descriptor.pcid, descriptor.address), (0xfed, 0xffff_8000_0000_2000));
    }

    #[test]
    #[should_panic(expected = "no such PCID")]
    fn reserved_bits_are_not_set() {
        let _ = Scope::Tag(Tag(4096)).operands();
    }
}
