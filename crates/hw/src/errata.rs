//! Errata of processors that concern translation caches: the rows of each architecture's table, and
//! the workarounds that they select.
//!
//! A table has every erratum for which Linux has a workaround, those included that need nothing
//! here. A test writes the tables to `docs/data/errata.csv`. Each CPU that comes online
//! compares its identity with the table of its architecture
//! ([`Processor::set_up_cpu`](crate::Processor::set_up_cpu)).

use core::fmt;

/// A set of workarounds. The features of a processor contain those that its CPUs need.
///
/// | architecture | workarounds |
/// |---|---|
/// | AArch64 | the first six |
/// | x86-64 | [`SECOND_TLBSYNC`](Self::SECOND_TLBSYNC) to [`LATE_MARKS`](Self::LATE_MARKS) |
/// | RISC-V | [`WHOLE_FENCES`](Self::WHOLE_FENCES) |
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Workarounds(u16);

impl Workarounds {
    /// No workaround.
    pub const NONE: Self = Self(0);
    /// A completed broadcast is followed by one more, of any address, which is also completed.
    pub const REPEATED_COMPLETION: Self = Self(1 << 0);
    /// No write of TTBR0 changes both the ASID and the table.
    pub const ASID_APART: Self = Self(1 << 1);
    /// Each switch to another table invalidates the instruction cache.
    pub const ICACHE_AT_SWITCH: Self = Self(1 << 2);
    /// The hardware's dirty marks are not relied on.
    pub const NO_DIRTY_MARKS: Self = Self(1 << 3);
    /// CPUs that execute SME instructions are interrupted after a broadcast, or there are no
    /// broadcasts.
    pub const SME_INTERRUPT: Self = Self(1 << 4);
    /// *The kernel* flushes an executable user page before the page becomes not executable: clear
    /// the entry, flush, and store the new entry.
    pub const BREAK_EXECUTABLE: Self = Self(1 << 5);
    /// A second `TLBSYNC` completes a broadcast.
    pub const SECOND_TLBSYNC: Self = Self(1 << 6);
    /// The flush filter is switched off.
    pub const NO_FLUSH_FILTER: Self = Self(1 << 7);
    /// A CPU must not cache translations of two page sizes for one address.
    pub const ONE_PAGE_SIZE: Self = Self(1 << 8);
    /// The hardware may set accessed and dirty marks in an entry that is no longer valid: its marks
    /// are not relied on, and *the kernel* ignores both bits in entries that are not valid.
    pub const LATE_MARKS: Self = Self(1 << 9);
    /// Tags are not used.
    pub const NO_TAGS: Self = Self(1 << 10);
    /// `INVLPGB` is not used.
    pub const NO_INVLPGB: Self = Self(1 << 11);
    /// Each fence drops all translations.
    pub const WHOLE_FENCES: Self = Self(1 << 12);

    const NAMES: [&str; 13] = [
        "REPEATED_COMPLETION",
        "ASID_APART",
        "ICACHE_AT_SWITCH",
        "NO_DIRTY_MARKS",
        "SME_INTERRUPT",
        "BREAK_EXECUTABLE",
        "SECOND_TLBSYNC",
        "NO_FLUSH_FILTER",
        "ONE_PAGE_SIZE",
        "LATE_MARKS",
        "NO_TAGS",
        "NO_INVLPGB",
        "WHOLE_FENCES",
    ];

    /// Returns the workarounds that are in either set.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the workarounds of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns `true` if all workarounds of the other set are in this one.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// Shows the names, separated by ` | `.
impl fmt::Debug for Workarounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().enumerate().filter(|(bit, _)| self.0 >> bit & 1 != 0);
        let mut separator = "";
        for (_, name) in names {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// Whether an erratum is worked around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// This crate has a workaround, or a fact by which the kernel learns of its duty.
    Yes,
    /// It is not worked around.
    No,
    /// This crate does nothing that the erratum affects.
    NotApplicable,
}

/// A row of a table: an erratum, and its CPUs of type `C`.
#[derive(Clone, Copy, Debug)]
pub struct Erratum<C: 'static> {
    /// The vendor's numbers, and the CVE number.
    pub numbers: &'static str,
    /// What goes wrong.
    pub effect: &'static str,
    /// The CPUs, with their revisions.
    pub cpus: &'static [C],
    /// What else must be true, or the CPUs if none are listed. May be empty.
    pub condition: &'static str,
    /// What Linux does.
    pub linux: &'static str,
    /// Whether this crate has a workaround.
    pub answer: Answer,
    /// What this crate does, or the reason why it does nothing.
    pub here: &'static str,
    /// A public source of these facts.
    pub source: &'static str,
    /// The workarounds that the CPUs need.
    pub needs: Workarounds,
}

impl<C> Erratum<C> {
    /// A row that selects no workaround.
    pub(crate) const UNAFFECTED: Self = Self {
        numbers: "",
        effect: "",
        cpus: &[],
        condition: "",
        linux: "",
        answer: Answer::NotApplicable,
        here: "",
        source: "",
        needs: Workarounds::NONE,
    };
}

/// The workarounds that a CPU needs by a table. `is_affected` compares the CPU with those of a row.
pub(crate) fn needs<C>(table: &[Erratum<C>], is_affected: impl Fn(&C) -> bool) -> Workarounds {
    let rows = table.iter().filter(|row| row.cpus.iter().any(&is_affected));
    rows.fold(Workarounds::NONE, |needed, row| needed.with(row.needs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn workarounds_are_shown_by_name() {
        let two = Workarounds::SECOND_TLBSYNC.with(Workarounds::ASID_APART);
        assert_eq!(format!("{two:?}"), "ASID_APART | SECOND_TLBSYNC");
        assert_eq!(format!("{:?}", two.without(two)), "none");
        assert_eq!(format!("{:?}", Workarounds::WHOLE_FENCES), "WHOLE_FENCES");
        assert!(two.contains(Workarounds::NONE) && !Workarounds::ASID_APART.contains(two));
    }
}
