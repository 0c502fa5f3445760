//! Errata of RISC-V harts, by `mvendorid`, `marchid` and `mimpid`, and of the firmware.

use core::fmt;

use crate::errata::{Answer, Erratum, Workarounds, needs};

/// The identity of a hart, which the firmware reads from its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `mvendorid`: the manufacturer.
    pub vendor: u64,
    /// `marchid`: the microarchitecture.
    pub architecture: u64,
    /// `mimpid`: the revision.
    pub implementation: u64,
}

/// Harts of one manufacturer.
#[derive(Clone, Copy, Debug)]
pub struct Harts {
    name: &'static str,
    vendor: u64,
    architectures: &'static [u64],
    has_implementation: fn(u64) -> bool,
}

impl Harts {
    fn contains(&self, hart: Identity) -> bool {
        hart.vendor == self.vendor
            && self.architectures.contains(&hart.architecture)
            && (self.has_implementation)(hart.implementation)
    }
}

/// Shows the name.
impl fmt::Display for Harts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The workarounds that a hart needs. A hart whose firmware does not tell its identity may be one
/// of SiFive's first, and needs theirs.
#[must_use]
pub fn needed_by(hart: Option<Identity>) -> Workarounds {
    hart.map_or(Workarounds::WHOLE_FENCES, |hart| needs(TABLE, |harts| harts.contains(hart)))
}

/// The errata, those of the processors first.
pub const TABLE: &[Erratum<Harts>] = &[
    Erratum {
        numbers: "SiFive CIP-1200",
        effect: "`SFENCE.VMA` of an address does not drop its entry",
        cpus: &[Harts {
            name: "U54, U74, S7 of FU540 and FU740",
            vendor: 0x489,
            architectures: &[0x8000_0000_0000_0007, 1],
            has_implementation: |mimpid| mimpid & 0xff_ffff <= 0x20_0630 && mimpid != 0x0120_0626,
        }],
        condition: "mimpid[23:0] up to 0x200630, except 0x01200626; and harts of unknown identity",
        linux: "each fence is `SFENCE.VMA x0, x0`",
        answer: Answer::Yes,
        here: "the same, and no remote fences, because the firmware would name addresses",
        source: "Linux, `errata_cip_1200_check_func`",
        needs: Workarounds::WHOLE_FENCES,
    },
    Erratum {
        numbers: "SiFive CIP-453",
        effect: "the address of an instruction page fault is not sign-extended",
        condition: "FU540, FU740",
        linux: "the handler extends it",
        here: "the kernel's handler of faults",
        source: "Linux, `errata_cip_453_check_func`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "T-Head C9xx",
        effect: "a stale entry is used in M-mode, unless a trap begins with `SFENCE.VMA`",
        condition: "C906, C910",
        linux: "nothing",
        here: "the trap handler of OpenSBI executes it",
        source: "OpenSBI, `THEAD_QUIRK_TLB_FLUSH_FIXUP`",
        ..Erratum::UNAFFECTED
    },
    Erratum {
        numbers: "OpenSBI 37eaca4a, fixed by 110f2851",
        effect: "a call that names a stopped hart is an error, and reaches no hart",
        condition: "OpenSBI 1.7 to 1.8.1",
        linux: "prints the error",
        answer: Answer::Yes,
        here: "interrupts instead of a refused fence; harts are interrupted one by one, without \
               those that have stopped",
        source: "OpenSBI 110f2851",
        ..Erratum::UNAFFECTED
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux, `errata_cip_1200_check_func`.
    #[test]
    fn cip_1200_ends_at_its_revision() {
        let is_affected = |vendor, architecture, implementation| {
            let identity = Identity { vendor, architecture, implementation };
            needed_by(Some(identity)) == Workarounds::WHOLE_FENCES
        };
        let u74 = 0x8000_0000_0000_0007;
        for (mimpid, expected) in [
            (0, true),
            (0x2018_1004, true),
            (0x2020_0630, true),
            (0x2020_0631, false),
            (0x0120_0626, false),
            (0x0120_0625, true),
            (0x0220_0626, true),
        ] {
            assert_eq!(is_affected(0x489, u74, mimpid), expected, "{mimpid:#x}");
            assert_eq!(is_affected(0x489, 1, mimpid), expected, "{mimpid:#x}");
        }
        assert!(!is_affected(0x489, 2, 0) && !is_affected(0x489, 7, 0));
        assert!(!is_affected(0x488, u74, 0) && !is_affected(0, 0, 0));
    }

    #[test]
    fn unknown_identity_is_taken_as_affected() {
        assert_eq!(needed_by(None), Workarounds::WHOLE_FENCES);
    }
}
