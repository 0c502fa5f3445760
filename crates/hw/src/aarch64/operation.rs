//! The instruction `TLBI`: its encodings and operands.
//!
//! This module is arithmetic and runs on any host. Sections are those of Arm's manual, DDI 0487:
//! the instructions are in C5.5 ("A64 System instructions for TLB maintenance"), and their effects
//! in chapter D8 ("TLB maintenance"), whose section numbers differ between issues.
//!
//! Some assembler names need extensions that not every target has. So all instructions are written
//! as the `SYS` instructions whose aliases they are: `SYS #0, C8, C<CRm>, #<op2>, <Xt>`.

use shootdown::Tag;

use crate::aarch64::granule::Granule;

/// The CPUs that an operation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// The CPU that executes it.
    Local,
    /// All CPUs in the inner shareable domain: all that run one kernel.
    InnerShareable,
}

/// The levels of a walk whose entries are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    /// The last level, the leaves. Entries of upper levels stay cached and are not walked again.
    Last,
    /// Every level, because tables will be freed.
    All,
}

/// The tags whose translations are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Translations with this ASID, and global ones.
    Tag(Tag),
    /// Translations with every ASID, and global ones.
    AllTags,
}

/// One `TLBI`, in any domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `VMALLE1`: all translations.
    All,
    /// `ASIDE1`: translations of an ASID that are not global.
    Tag(Tag),
    /// `ASIDE1IS` with the number of a TLBI domain (`FEAT_TLBID`): as `Tag`, on the CPUs of that
    /// domain only. Use it with [`Domain::InnerShareable`].
    TagInDomain(Tag, TlbiDomain),
    /// `VAE1`, `VALE1`, `VAAE1`, `VAALE1`: one leaf.
    Page(Scope, Levels, PageOperand),
    /// `RVAE1`, `RVALE1`, `RVAAE1`, `RVAALE1`: a range of leaves (`FEAT_TLBIRANGE`).
    Range(Scope, Levels, RangeOperand),
}

/// The number of a TLBI domain: the field TLBID. Number 0 is that of software which knows of no
/// domains, and names every CPU of the shareability domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlbiDomain(pub u16);

/// The leaf that a page operation names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOperand {
    /// Any address in the leaf.
    pub address: u64,
    /// The level of the leaf, for `FEAT_TTL`; `None` if the processor must look at all levels.
    ///
    /// With a wrong hint, "the TLB maintenance instruction is not required to remove any entries".
    pub level: Option<LevelHint>,
}

/// The leaves that a range operation names: `(number + 1) << (5 * scale + 1)` granules from
/// `address` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeOperand {
    /// Address of the first granule.
    pub address: u64,
    /// The granule by which the address is translated. With another granule, the operation need not
    /// remove any entries.
    pub granule: Granule,
    /// The scale, 0 to 3.
    pub scale: u64,
    /// The number, 0 to 31.
    pub number: u64,
    /// The level of all leaves, or `None`: see [`PageOperand`].
    pub level: Option<LevelHint>,
}

/// The level of a leaf: the TTL field (translation table level).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelHint {
    /// The granule of the translation.
    pub granule: Granule,
    /// The level, from 1 to 3, where 3 is the last.
    pub level: u64,
}

impl Operation {
    /// `CRm` and `op2` of the `SYS` instruction.
    #[must_use]
    pub const fn code(self, domain: Domain) -> (u8, u8) {
        let operation = match self {
            Self::All => 0,
            Self::Tag(_) | Self::TagInDomain(..) => 2,
            Self::Page(scope, levels, _) | Self::Range(scope, levels, _) => {
                let all_tags = matches!(scope, Scope::AllTags) as u8;
                let last = matches!(levels, Levels::Last) as u8;
                1 | all_tags << 1 | last << 2
            }
        };
        let is_range = matches!(self, Self::Range(..));
        let group = match (domain, is_range) {
            (Domain::InnerShareable, true) => 2,
            (Domain::InnerShareable, false) => 3,
            (Domain::Local, true) => 6,
            (Domain::Local, false) => 7,
        };
        (group, operation)
    }

    /// The value of the register operand. [`Operation::All`] ignores it.
    #[must_use]
    pub const fn operand(self) -> u64 {
        match self {
            Self::All => 0,
            Self::Tag(tag) => in_bits(tag.0 as u64, 63, 48),
            Self::TagInDomain(tag, domain) => {
                in_bits(tag.0 as u64, 63, 48) | in_bits(domain.0 as u64, 15, 0)
            }
            Self::Page(scope, _, page) => scope.operand() | page.operand(),
            Self::Range(scope, _, range) => scope.operand() | range.operand(),
        }
    }
}

impl Scope {
    /// The operation that drops all translations of the scope.
    pub(super) const fn everything(self) -> Operation {
        match self {
            Self::Tag(tag) => Operation::Tag(tag),
            Self::AllTags => Operation::All,
        }
    }

    /// The ASID field. If ASIDs have 8 bits, so have tags, and the upper half is 0 as required.
    const fn operand(self) -> u64 {
        match self {
            Self::Tag(tag) => in_bits(tag.0 as u64, 63, 48),
            Self::AllTags => 0,
        }
    }
}

impl PageOperand {
    /// ```text
    ///  63   48 47 44 43                  0
    /// ┌───────┬─────┬─────────────────────┐
    /// │ ASID  │ TTL │ address, bits 55:12 │   lower bits of larger granules are ignored
    /// └───────┴─────┴─────────────────────┘
    /// ```
    pub(super) const fn operand(self) -> u64 {
        let ttl = match self.level {
            Some(LevelHint { granule, level }) => granule.operand() << 2 | level,
            None => 0,
        };
        in_bits(ttl, 47, 44) | in_bits(self.address >> 12, 43, 0)
    }
}

impl RangeOperand {
    /// ```text
    ///  63   48 47 46 45 44 43 39 38 37 36              0
    /// ┌───────┬─────┬─────┬─────┬─────┬─────────────────┐
    /// │ ASID  │ TG  │scale│ num │ TTL │ address/granule │   without FEAT_LPA2's larger addresses
    /// └───────┴─────┴─────┴─────┴─────┴─────────────────┘
    /// ```
    pub(super) const fn operand(self) -> u64 {
        let ttl = match self.level {
            Some(LevelHint { level, .. }) => level,
            None => 0,
        };
        in_bits(self.granule.operand(), 47, 46)
            | in_bits(self.scale, 45, 44)
            | in_bits(self.number, 43, 39)
            | in_bits(ttl, 38, 37)
            | in_bits(self.address >> self.granule.shift(), 36, 0)
    }

    /// Number of granules by which one operation of this scale grows when `number` grows by 1.
    #[must_use]
    pub const fn unit(scale: u64) -> u64 {
        1 << (5 * scale + 1)
    }
}

/// Puts a value into its field. Cuts off the upper bits of an address, which are its sign.
const fn in_bits(value: u64, last: u32, first: u32) -> u64 {
    let mask = u64::MAX >> (63 - (last - first));
    (value & mask) << first
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Scope = Scope::Tag(Tag(0xabcd));
    const PAGE: PageOperand = PageOperand { address: 0x0000_1234_5678_9abc, level: None };
    const RANGE: RangeOperand = RangeOperand {
        address: 0x0000_1234_5678_9000,
        granule: Granule::Size4K,
        scale: 2,
        number: 0x15,
        level: None,
    };

    /// C5.5, the table "Accessing" of each instruction: op1 is 0 and `CRn` is 8 in all; here are
    /// `CRm` and op2.
    #[test]
    fn instruction_codes_match_manual() {
        let check = |operation: Operation, local, shared| {
            assert_eq!(operation.code(Domain::Local), local, "{operation:?}");
            assert_eq!(operation.code(Domain::InnerShareable), shared, "{operation:?}");
        };
        check(Operation::All, (7, 0), (3, 0)); // VMALLE1, VMALLE1IS
        check(Operation::Tag(Tag(1)), (7, 2), (3, 2)); // ASIDE1
        check(Operation::Page(TAG, Levels::All, PAGE), (7, 1), (3, 1)); // VAE1
        check(Operation::Page(Scope::AllTags, Levels::All, PAGE), (7, 3), (3, 3)); // VAAE1
        check(Operation::Page(TAG, Levels::Last, PAGE), (7, 5), (3, 5)); // VALE1
        check(Operation::Page(Scope::AllTags, Levels::Last, PAGE), (7, 7), (3, 7)); // VAALE1
        check(Operation::Range(TAG, Levels::All, RANGE), (6, 1), (2, 1)); // RVAE1
        check(Operation::Range(Scope::AllTags, Levels::All, RANGE), (6, 3), (2, 3)); // RVAAE1
        check(Operation::Range(TAG, Levels::Last, RANGE), (6, 5), (2, 5)); // RVALE1
        check(Operation::Range(Scope::AllTags, Levels::Last, RANGE), (6, 7), (2, 7)); // RVAALE1
    }

    /// C5.5 "TLBI VAE1": ASID in 63:48, TTL in 47:44, VA[55:12] in 43:0. "TLBI VAAE1" has no ASID;
    /// "TLBI ASIDE1" has nothing else.
    #[test]
    fn page_operand_has_asid_and_address() {
        let page = |scope, page| Operation::Page(scope, Levels::All, page).operand();
        assert_eq!(page(TAG, PAGE), 0xabcd_0001_2345_6789);
        assert_eq!(page(Scope::AllTags, PAGE), 0x0000_0001_2345_6789);
        assert_eq!(Operation::Tag(Tag(0xabcd)).operand(), 0xabcd_0000_0000_0000);
        // The sign of a kernel address must not reach into TTL.
        let kernel = PageOperand { address: 0xffff_8000_0000_1000, ..PAGE };
        assert_eq!(page(Scope::AllTags, kernel), 0x0000_0ff8_0000_0001);
    }

    /// ASID in 63:48, and TLBID in 15:0: see [`domains`](crate::aarch64::domains) for the source.
    /// Only the operations of all entries of a tag or more have the field.
    #[test]
    fn domain_is_in_the_low_half() {
        let operand = |domain| Operation::TagInDomain(Tag(0xabcd), TlbiDomain(domain)).operand();
        assert_eq!(operand(0x8421), 0xabcd_0000_0000_8421);
        assert_eq!(operand(0), Operation::Tag(Tag(0xabcd)).operand(), "0 is every CPU");
        let in_domain = Operation::TagInDomain(Tag(1), TlbiDomain(1));
        assert_eq!(in_domain.code(Domain::InnerShareable), (3, 2));
    }

    /// C5.5 "TLBI VAE1", field TTL: 0b01xx is 4 KiB, 0b10xx 16 KiB, 0b11xx 64 KiB; the lower half
    /// is the level. 0b00xx is no hint.
    #[test]
    fn level_hint_includes_granule() {
        let hint = |granule, level| {
            let level = Some(LevelHint { granule, level });
            let page = PageOperand { address: 0, level };
            Operation::Page(Scope::AllTags, Levels::Last, page).operand() >> 44
        };
        assert_eq!([1, 2, 3].map(|level| hint(Granule::Size4K, level)), [0b0101, 0b0110, 0b0111]);
        assert_eq!([2, 3].map(|level| hint(Granule::Size16K, level)), [0b1010, 0b1011]);
        assert_eq!([2, 3].map(|level| hint(Granule::Size64K, level)), [0b1110, 0b1111]);
    }

    /// C5.5 "TLBI RVAE1": TG in 47:46, SCALE in 45:44, NUM in 43:39, TTL in 38:37; `BaseADDR` in
    /// 36:0 is VA[48:12], VA[50:14] or VA[52:16].
    #[test]
    fn range_operand_counts_granules() {
        let range = |range| Operation::Range(TAG, Levels::All, range).operand();
        let fields = |tg: u64, scale: u64, num: u64, ttl: u64| {
            0xabcd << 48 | tg << 46 | scale << 44 | num << 39 | ttl << 37
        };
        assert_eq!(range(RANGE), fields(1, 2, 0x15, 0) | 0x1_2345_6789);
        let hinted = RangeOperand {
            granule: Granule::Size64K,
            level: Some(LevelHint { granule: Granule::Size64K, level: 2 }),
            ..RANGE
        };
        assert_eq!(range(hinted), fields(3, 2, 0x15, 2) | 0x1234_5678);
        let kernel = RangeOperand { address: 0xffff_8000_0000_0000, scale: 0, number: 0, ..RANGE };
        assert_eq!(range(kernel), fields(1, 0, 0, 0) | 0x18_0000_0000);
    }

    /// Chapter D8, "TLB range maintenance instructions": (NUM + 1) << (5 * SCALE + 1) granules.
    #[test]
    fn range_units_match_manual() {
        assert_eq!([0, 1, 2, 3].map(RangeOperand::unit), [2, 64, 2048, 65536]);
    }
}
