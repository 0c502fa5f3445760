//! Features of a processor: the format of its page tables and the bits of an ASID, which it has in
//! a register, and extensions, which only the device tree or ACPI lists.

use crate::errata::Workarounds;
use crate::riscv64::encoding::Mode;

/// Features of a processor, and the kernel's settings for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The format of page tables that the kernel has chosen.
    pub mode: Mode,
    /// Number of bits of an ASID: 0, if there are no ASIDs, to 16.
    pub asid_bits: u32,
    /// `true` if several invalidations can share their barriers (Svinval).
    pub has_svinval: bool,
    /// The workarounds that the processor needs.
    pub workarounds: Workarounds,
}

impl Features {
    /// Adds the extensions of a list that a device tree has: the string of the property
    /// `riscv,isa`, with underscores between extensions, or the strings of `riscv,isa-extensions`,
    /// with a zero byte after each.
    #[must_use]
    pub fn with_extensions(self, isa: &[u8]) -> Self {
        Self { has_svinval: self.has_svinval || has_extension(isa, b"svinval"), ..self }
    }

    /// The features that two processors have in common, for machines whose CPUs differ.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            asid_bits: self.asid_bits.min(other.asid_bits),
            has_svinval: self.has_svinval && other.has_svinval,
            workarounds: self.workarounds.with(other.workarounds),
            ..self
        }
    }
}

/// Returns `true` if a list of extensions, as in [`Features::with_extensions`], contains the
/// extension of this name, which has more than one letter. A version that follows the name
/// (`svinval1p0`) is ignored, and so is case.
#[must_use]
pub fn has_extension(isa: &[u8], name: &[u8]) -> bool {
    isa.split(|byte| matches!(byte, b'_' | 0)).any(|listed| {
        let (listed_name, version) = listed.split_at(name.len().min(listed.len()));
        listed_name.eq_ignore_ascii_case(name) && version.first().is_none_or(u8::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Features = Features {
        mode: Mode::Sv48,
        asid_bits: 16,
        has_svinval: false,
        workarounds: Workarounds::NONE,
    };

    #[test]
    fn extensions_are_found_in_both_lists() {
        for isa in [
            &b"rv64imafdch_zicsr_svinval_svnapot\0"[..],
            b"i\0m\0svinval\0zicsr\0",
            b"rv64imac_SvInval1p0_zba",
        ] {
            assert!(NONE.with_extensions(isa).has_svinval, "{}", isa.escape_ascii());
        }
        for isa in [&b""[..], b"rv64imac", b"rv64i_svinvalx", b"rv64i_xsvinval", b"rv64i_svinva"] {
            assert!(!NONE.with_extensions(isa).has_svinval, "{}", isa.escape_ascii());
        }
        assert!(has_extension(b"rv64i_sstc\0", b"sstc"));
    }

    #[test]
    fn common_features_are_the_lesser_ones() {
        let short = Features { asid_bits: 9, has_svinval: true, ..NONE };
        assert_eq!(NONE.common(short), Features { asid_bits: 9, ..NONE });
        assert_eq!(short.common(short), short);
        let broken = Features { workarounds: Workarounds::WHOLE_FENCES, ..NONE };
        assert_eq!((NONE.common(broken), broken.common(NONE)), (broken, broken));
    }
}
