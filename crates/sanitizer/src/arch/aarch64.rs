//! `AArch64` at EL1 and EL0. Sources are sections of the Arm Architecture Reference Manual.

use shootdown_profile::Profile;

use super::{
    Architecture, Context, Effect, Facts, Half, Instruction, Operand, Operation, Privilege, Read,
    Step,
};
use crate::invalidation::{Invalidation, Pages, Pointers, Tags};
use crate::translation::Access;

/// `AArch64` without a hypervisor.
#[derive(Debug)]
pub(super) struct Aarch64;

/// The entries that a TLBI names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Named {
    All,
    Tag,
    Page,
    Range,
}

/// A TLBI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tlbi {
    named: Named,
    /// `true` if entries of all ASIDs are invalidated.
    all_tags: bool,
    last_level_only: bool,
    is_broadcast: bool,
}

/// Returns the TLBI with this encoding ("A64 instructions that are defined as aliases": SYS). Those
/// of stage 2 are left out, and those of EL2 and EL3 that do not concern EL1.
fn tlbi(op1: u32, crm: u32, op2: u32) -> Option<Tlbi> {
    let (is_range, is_broadcast) = match crm {
        7 => (false, false),
        1 | 3 => (false, true),
        6 => (true, false),
        2 | 5 => (true, true),
        _ => return None,
    };
    let of = |named, all_tags, last_level_only| {
        Some(Tlbi { named, all_tags, last_level_only, is_broadcast })
    };
    let page = if is_range { Named::Range } else { Named::Page };
    match (op1, op2) {
        (0, 1) => of(page, false, false),
        (0, 3) => of(page, true, false),
        (0, 5) => of(page, false, true),
        (0, 7) => of(page, true, true),
        // VMALLE1 and, at EL2, ALLE1 and VMALLS12E1.
        (0, 0) | (4, 4 | 6) if !is_range => of(Named::All, true, false),
        (0, 2) if !is_range => of(Named::Tag, false, false),
        _ => None,
    }
}

/// The number of address bits within the smallest page, for a granule field of a range or of a TTL.
const fn granule_shift(field: u64) -> Option<u8> {
    match field & 3 {
        1 => Some(12),
        2 => Some(14),
        3 => Some(16),
        _ => None,
    }
}

/// The page size that a level hint (`FEAT_TTL`) names.
fn hinted_shift(ttl: u64) -> Option<u8> {
    let page_shift = granule_shift(ttl >> 2)?;
    let above = 3 - (ttl & 3) as u8;
    // With granules of 4 KiB, level 0 is reserved: no hint. With others, that is level 0 as well.
    (ttl & 3 != 0).then(|| page_shift + above * (page_shift - 3))
}

/// "TLB range maintenance instructions".
fn range(operand: u64, page_shift: u8) -> Option<(u64, u64)> {
    let [number, scale, granule] =
        [(39, 31), (44, 3), (46, 3)].map(|(at, mask)| operand >> at & mask);
    let shift = granule_shift(granule).unwrap_or(page_shift);
    let first = sign_extended((operand & ((1 << 37) - 1)) << shift, 37 + shift);
    let bytes = ((number + 1) << (5 * scale + 1)) << shift;
    Some((first, first.checked_add(bytes - 1)?))
}

const fn sign_extended(value: u64, bits: u8) -> u64 {
    let above = 64 - bits as u32;
    ((value << above) as i64 >> above) as u64
}

const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
const READ_ONLY: u64 = 1 << 7;
const USER: u64 = 1 << 6;
const NOT_GLOBAL: u64 = 1 << 11;
const KERNEL_NO_EXECUTE: u64 = 1 << 53;
const USER_NO_EXECUTE: u64 = 1 << 54;
/// DBM: hardware clears the read-only bit on the first write.
const DIRTY_MANAGED: u64 = 1 << 51;

static FACTS: Facts = Facts {
    target: "aarch64",
    profile: Profile::ARM64,
    general: &[
        "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13",
        "x14", "x15", "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26",
        "x27", "x28", "x29", "x30",
    ],
    arguments: &[0, 1, 2, 3, 4, 5, 6, 7],
    context: &["SCTLR", "TTBR0_EL1", "TTBR1_EL1", "TCR_EL1"],
    pc: "pc",
    stack: ("sp", Some("x30")),
    privilege: "cpsr",
};

impl Architecture for Aarch64 {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    /// BL, and BLR in its forms.
    fn is_call(&self, [.., a, b, c, d]: [u8; 8]) -> bool {
        let word = u32::from_le_bytes([a, b, c, d]);
        word >> 26 == 0x25 || word & 0xfedf_f000 == 0xd61f_0000 && word >> 21 & 1 == 1
    }

    /// "Translation Control Register (EL1)".
    fn context(&self, registers: &[u64]) -> Context {
        let &[sctlr, ttbr0, ttbr1, tcr] = registers else { return Context::default() };
        let half = |ttbr: u64, size: u64, disabled: u64, page_shift: u8| {
            let bits = if disabled != 0 { 0 } else { 64 - (size & 63) as u8 };
            Half { root: ttbr & ADDRESS & !1, bits, page_shift }
        };
        let lower_shift = [12, 16, 14, 12][(tcr >> 14 & 3) as usize];
        let upper_shift = [12, 14, 12, 16][(tcr >> 30 & 3) as usize];
        let halves = [
            half(ttbr0, tcr, tcr >> 7 & 1, lower_shift),
            half(ttbr1, tcr >> 16, tcr >> 23 & 1, upper_shift),
        ];
        let tagged = if tcr >> 22 & 1 != 0 { ttbr1 } else { ttbr0 };
        let mask = if tcr >> 36 & 1 != 0 { 0xffff } else { 0xff };
        Context {
            is_on: sctlr & 1 != 0,
            tag: (tagged >> 48 & mask) as u32,
            halves,
            control: [0; 2],
        }
    }

    fn privilege(&self, register: u64) -> Privilege {
        match register >> 2 & 3 {
            0 => Privilege::User,
            1 => Privilege::Kernel,
            _ => Privilege::Other,
        }
    }

    fn decode(&self, bytes: &[u8], _: u64) -> Option<Instruction> {
        let word = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        let [op1, crn, crm, op2] =
            [(16, 7), (12, 15), (8, 15), (5, 7)].map(|(at, mask)| word >> at & mask);
        let register = (word & 31) as u8;
        let operand = if register == 31 { Operand::Zero } else { Operand::Register(register) };
        let operation = match word >> 19 {
            // SYS.
            0b1_1010_1010_0001 if matches!(crn, 8 | 9) => Operation::Tlbi(tlbi(op1, crm, op2)?),
            // MSR to SCTLR_EL1, TTBR0_EL1, TTBR1_EL1 or TCR_EL1.
            0b1_1010_1010_0011
                if op1 == 0 && matches!((crn, crm, op2), (1 | 2, 0, 0) | (2, 0, 1 | 2)) =>
            {
                Operation::SelectTables
            }
            _ => return None,
        };
        Some(Instruction { operation, operands: [operand, Operand::Zero] })
    }

    fn execute(
        &self,
        operation: Operation,
        [operand, _]: [u64; 2],
        context: &Context,
        _: Read<'_>,
    ) -> Effect {
        let tlbi = match operation {
            Operation::Tlbi(tlbi) => tlbi,
            Operation::SelectTables => return Effect { selects_tables: true, ..Effect::NONE },
            _ => return Effect::NONE,
        };
        let tag = (operand >> 48) as u32;
        let tags = match (tlbi.named, tlbi.all_tags) {
            (_, true) => Tags::All,
            // By ASID alone, global entries stay.
            (Named::Tag, _) => Tags::One(tag),
            _ => Tags::OneAndGlobal(tag),
        };
        let page_shift = context.halves[0].page_shift;
        let (pages, only_shift) = match tlbi.named {
            Named::All | Named::Tag => (Pages::All, None),
            Named::Page => {
                let page = sign_extended((operand & ((1 << 44) - 1)) << 12, 56);
                let last = page + ((1 << page_shift) - 1);
                (Pages::Range(page, last), hinted_shift(operand >> 44 & 15))
            }
            Named::Range => match range(operand, page_shift) {
                Some((first, last)) => (Pages::Range(first, last), None),
                None => return Effect::NONE,
            },
        };
        let pointers = match (pages, tlbi.last_level_only) {
            (Pages::All, _) => Pointers::All,
            // "Entries from any level" of the page's own walk.
            (_, false) => Pointers::OnTheWay,
            (_, true) => self.pointers_with_page(),
        };
        let invalidation = Some(Invalidation { tags, pages, pointers, only_shift });
        Effect { invalidation, is_broadcast: tlbi.is_broadcast, selects_tables: false }
    }

    fn canonical(&self, address: u64) -> u64 {
        // The top byte may be a tag of the program. Bit 55 selects the half.
        sign_extended(address, 56)
    }

    fn step(&self, value: u64, _: u64, shift: u8, half: &Half) -> Step {
        let address = value & ADDRESS & (u64::MAX << half.page_shift);
        let is_last = shift == half.page_shift;
        match (value & 3, is_last) {
            (3, false) => {
                let limit = Access::ALL
                    .without(Access::WRITE.when(value >> 62 & 1 != 0))
                    .without(Access::USER.when(value >> 61 & 1 != 0));
                Step::Table { table: address, limit, is_global: false }
            }
            (3, true) | (1, false) => {
                let frame = address & (u64::MAX << shift);
                let is_writable = value & READ_ONLY == 0 || value & DIRTY_MANAGED != 0;
                let executes = value & (KERNEL_NO_EXECUTE | USER_NO_EXECUTE)
                    != KERNEL_NO_EXECUTE | USER_NO_EXECUTE;
                let access = Access::READ
                    | Access::WRITE.when(is_writable)
                    | Access::USER.when(value & USER != 0)
                    | Access::EXECUTE.when(executes);
                Step::Page { frame, access, is_global: value & NOT_GLOBAL == 0 }
            }
            _ => Step::Nothing,
        }
    }
}
