//! The instruction `TLBI` at EL2, for guests and for the hypervisor's own pages.
//!
//! As [`super::super::operation`], whose operands it uses: arithmetic, with the sections of DDI
//! 0487 that are named there. All are `SYS #<op1>, C8, C<CRm>, #<op2>, <Xt>`.

use crate::aarch64::operation::{Domain, Levels, Operation, PageOperand, RangeOperand};

/// One `TLBI` of a hypervisor, in any domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestOperation {
    /// `ALLE1`: all translations of all guests, of both stages.
    AllGuests,
    /// `VMALLS12E1`: all translations of the loaded guest, of both stages.
    Guest,
    /// `VMALLE1`: the translations of the loaded guest that are of stage 1, or combined.
    Combined,
    /// `IPAS2E1`, `IPAS2LE1`: one leaf of stage 2 of the loaded guest.
    Page(Levels, PageOperand),
    /// `RIPAS2E1`, `RIPAS2LE1`: a range of leaves of stage 2 of the loaded guest.
    Range(Levels, RangeOperand),
    /// `ALLE2`: all translations of the hypervisor's own pages.
    Own,
    /// `VAE2`, `VALE2`: one leaf of the hypervisor's own pages.
    OwnPage(Levels, PageOperand),
    /// `RVAE2`, `RVALE2`: a range of leaves of the hypervisor's own pages.
    OwnRange(Levels, RangeOperand),
}

impl GuestOperation {
    /// The operation on stage 2 of the loaded guest that corresponds to one on a space.
    #[must_use]
    pub const fn of_guest(operation: Operation) -> Self {
        match operation {
            Operation::All | Operation::Tag(_) | Operation::TagInDomain(..) => Self::Guest,
            Operation::Page(_, levels, page) => Self::Page(levels, page),
            Operation::Range(_, levels, range) => Self::Range(levels, range),
        }
    }

    /// The operation on the hypervisor's own pages that corresponds to one on a kernel's.
    #[must_use]
    pub const fn of_own(operation: Operation) -> Self {
        match operation {
            Operation::All | Operation::Tag(_) | Operation::TagInDomain(..) => Self::Own,
            Operation::Page(_, levels, page) => Self::OwnPage(levels, page),
            Operation::Range(_, levels, range) => Self::OwnRange(levels, range),
        }
    }

    /// Returns `true` if the operation leaves combined entries.
    #[must_use]
    pub const fn leaves_combined(self) -> bool {
        matches!(self, Self::Page(..) | Self::Range(..))
    }

    /// The fields op1, `CRm` and op2 of the instruction.
    #[must_use]
    pub const fn code(self, domain: Domain) -> (u8, u8, u8) {
        const fn last(levels: Levels) -> u8 {
            if matches!(levels, Levels::Last) { 4 } else { 0 }
        }
        let is_shared = matches!(domain, Domain::InnerShareable);
        let stage_2 = if is_shared { 0 } else { 4 };
        let range = if is_shared { 2 } else { 6 };
        let other = if is_shared { 3 } else { 7 };
        match self {
            Self::AllGuests => (4, other, 4),
            Self::Guest => (4, other, 6),
            Self::Combined => (0, other, 0),
            Self::Page(levels, _) => (4, stage_2, 1 + last(levels)),
            Self::Range(levels, _) => (4, stage_2, 2 + last(levels)),
            Self::Own => (4, other, 0),
            Self::OwnPage(levels, _) => (4, other, 1 + last(levels)),
            Self::OwnRange(levels, _) => (4, range, 1 + last(levels)),
        }
    }

    /// The value of the register operand; 0 if the operation has none.
    #[must_use]
    pub const fn operand(self) -> u64 {
        match self {
            Self::AllGuests | Self::Guest | Self::Combined | Self::Own => 0,
            Self::Page(_, page) | Self::OwnPage(_, page) => page.operand(),
            Self::Range(_, range) | Self::OwnRange(_, range) => range.operand(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aarch64::granule::Granule;
    use crate::aarch64::operation::{LevelHint, Scope};
    use shootdown::Tag;

    const PAGE: PageOperand = PageOperand { address: 0x0000_0123_4567_8abc, level: None };
    const RANGE: RangeOperand = RangeOperand {
        address: 0x0000_0123_4567_8000,
        granule: Granule::Size4K,
        scale: 1,
        number: 3,
        level: None,
    };

    /// C5.5, the table "Accessing" of each instruction: `CRn` is 8 in all.
    #[test]
    fn instruction_codes_match_manual() {
        use GuestOperation::*;
        let check = |operation: GuestOperation, local, shared| {
            assert_eq!(operation.code(Domain::Local), local, "{operation:?}");
            assert_eq!(operation.code(Domain::InnerShareable), shared, "{operation:?}");
        };
        check(AllGuests, (4, 7, 4), (4, 3, 4)); // ALLE1, ALLE1IS
        check(Guest, (4, 7, 6), (4, 3, 6)); // VMALLS12E1
        check(Combined, (0, 7, 0), (0, 3, 0)); // VMALLE1
        check(Page(Levels::All, PAGE), (4, 4, 1), (4, 0, 1)); // IPAS2E1
        check(Page(Levels::Last, PAGE), (4, 4, 5), (4, 0, 5)); // IPAS2LE1
        check(Range(Levels::All, RANGE), (4, 4, 2), (4, 0, 2)); // RIPAS2E1
        check(Range(Levels::Last, RANGE), (4, 4, 6), (4, 0, 6)); // RIPAS2LE1
        check(Own, (4, 7, 0), (4, 3, 0)); // ALLE2
        check(OwnPage(Levels::All, PAGE), (4, 7, 1), (4, 3, 1)); // VAE2
        check(OwnPage(Levels::Last, PAGE), (4, 7, 5), (4, 3, 5)); // VALE2
        check(OwnRange(Levels::All, RANGE), (4, 6, 1), (4, 2, 1)); // RVAE2
        check(OwnRange(Levels::Last, RANGE), (4, 6, 5), (4, 2, 5)); // RVALE2
    }

    /// C5.5 "TLBI IPAS2E1": TTL in 47:44, IPA[51:12] in 39:0. "TLBI RIPAS2E1": TG in 47:46, SCALE
    /// in 45:44, NUM in 43:39, TTL in 38:37, `BaseADDR` in 36:0. Neither has a VMID.
    #[test]
    fn operands_have_address_and_no_tag() {
        let level = Some(LevelHint { granule: Granule::Size4K, level: 3 });
        let hinted = PageOperand { level, ..PAGE };
        assert_eq!(GuestOperation::Page(Levels::All, PAGE).operand(), 0x1234_5678);
        assert_eq!(GuestOperation::Page(Levels::Last, hinted).operand(), 0x7000_1234_5678);
        let range = 1 << 46 | 1 << 44 | 3 << 39 | 0x1234_5678;
        assert_eq!(GuestOperation::Range(Levels::All, RANGE).operand(), range);
        for operation in [GuestOperation::AllGuests, GuestOperation::Guest] {
            assert_eq!(operation.operand(), 0);
        }
    }

    #[test]
    fn operations_on_spaces_become_operations_on_guests() {
        let scope = Scope::Tag(Tag(7));
        let page = Operation::Page(scope, Levels::Last, PAGE);
        assert_eq!(GuestOperation::of_guest(page), GuestOperation::Page(Levels::Last, PAGE));
        assert_eq!(GuestOperation::of_own(page), GuestOperation::OwnPage(Levels::Last, PAGE));
        let range = Operation::Range(scope, Levels::All, RANGE);
        assert_eq!(GuestOperation::of_guest(range), GuestOperation::Range(Levels::All, RANGE));
        assert_eq!(GuestOperation::of_own(range), GuestOperation::OwnRange(Levels::All, RANGE));
        let leaves = |operation| GuestOperation::of_guest(operation).leaves_combined();
        assert!(leaves(page) && leaves(range) && !leaves(Operation::Tag(Tag(7))));
    }
}
