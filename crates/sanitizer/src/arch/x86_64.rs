//! x86-64. Sources are sections of Intel's SDM, volume 3.

use shootdown_profile::{LoadsWithoutTags, Profile};

use super::{
    Architecture, Context, Effect, Facts, Half, Instruction, Operand, Operation, Privilege, Read,
    Step,
};
use crate::invalidation::{Invalidation, Tags};
use crate::translation::Access;

/// x86-64 in long mode, with four or five levels.
#[derive(Debug)]
pub(super) struct X86_64;

const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_PGE: u64 = 1 << 7;
const CR4_LA57: u64 = 1 << 12;
const CR4_PCIDE: u64 = 1 << 17;
const CR4_SMEP: u64 = 1 << 20;
const EFER_LMA: u64 = 1 << 10;
/// The bit of a value for CR3 that keeps the entries of the PCID.
const NO_FLUSH: u64 = 1 << 63;
const PCID: u64 = 0xfff;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;

/// Address bits of a page of the last level, and of the largest page.
const PAGE_SHIFT: u8 = 12;
const LARGEST_SHIFT: u8 = 30;

fn access(entry: u64) -> Access {
    let writable = Access::WRITE.when(entry & WRITABLE != 0);
    let user = Access::USER.when(entry & USER != 0);
    Access::READ | writable | user | Access::EXECUTE.when(entry & NO_EXECUTE == 0)
}

/// "Operations that Invalidate TLBs and Paging-Structure Caches": a write of CR0, CR3 or CR4.
fn write_control(number: u8, value: u64, context: &Context) -> Option<Invalidation> {
    let [cr0, cr4] = context.control;
    match number {
        0 if cr0 & !value & CR0_PG != 0 => Some(Invalidation::whole(Tags::All)),
        3 if cr4 & CR4_PCIDE == 0 => match FACTS.profile.loads_without_tags {
            LoadsWithoutTags::Drop => Some(Invalidation::whole(Tags::AllButGlobal)),
            LoadsWithoutTags::Keep => None,
        },
        3 if value & NO_FLUSH == 0 => Some(Invalidation::whole(Tags::One((value & PCID) as u32))),
        4 => {
            let (changed, set) = (cr4 ^ value, value & !cr4);
            let cleared = cr4 & !value;
            if changed & CR4_PGE != 0 || cleared & CR4_PCIDE != 0 {
                Some(Invalidation::whole(Tags::All))
            } else if changed & CR4_PAE != 0 || set & CR4_SMEP != 0 {
                Some(Invalidation::whole(Tags::OneAndGlobal(context.tag)))
            } else {
                None
            }
        }
        _ => None,
    }
}

/// "INVPCID—Invalidate Process-Context Identifier" (volume 2).
fn invalidate_pcid(kind: u64, descriptor: u64, read: Read<'_>) -> Option<Invalidation> {
    let pcid = (read(descriptor)? & PCID) as u32;
    match kind {
        0 => {
            let address = read(descriptor + 8)?;
            Some(Invalidation::page(Tags::One(pcid), address, X86_64.pointers_with_page()))
        }
        1 => Some(Invalidation::whole(Tags::One(pcid))),
        2 => Some(Invalidation::whole(Tags::All)),
        3 => Some(Invalidation::whole(Tags::AllButGlobal)),
        _ => None,
    }
}

/// The memory operand after the opcode: `ModRM`, SIB and displacement. `rest` begins with `ModRM`,
/// and `next` is the address of the next instruction.
fn memory(rest: &[u8], rex: u8, segment: Option<&'static str>, next: u64) -> Option<Operand> {
    let modrm = *rest.first()?;
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let mut at = 1;
    let mut base = Some(rm | (rex & 1) << 3);
    let mut index = None;
    if rm == 4 {
        let sib = *rest.get(1)?;
        at = 2;
        let number = (sib >> 3) & 7 | (rex & 2) << 2;
        index = (number != 4).then_some((number, sib >> 6));
        base = (sib & 7 != 5 || mode != 0).then_some(sib & 7 | (rex & 1) << 3);
    }
    let displacement = match mode {
        0 if rm == 5 || base.is_none() => {
            let value = i32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?);
            i64::from(value)
        }
        0 => 0,
        1 => i64::from(*rest.get(at)? as i8),
        2 => i64::from(i32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?)),
        _ => return None,
    };
    if mode == 0 && rm == 5 {
        // Relative to the next instruction.
        let address = next.wrapping_add_signed(displacement) as i64;
        return Some(Operand::Address { base: None, index: None, displacement: address, segment });
    }
    Some(Operand::Address { base, index, displacement, segment })
}

static FACTS: Facts = Facts {
    target: "x86_64",
    profile: Profile::X86,
    general: &[
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ],
    arguments: &[7, 6, 2, 1, 8, 9],
    context: &["cr0", "cr3", "cr4", "efer"],
    pc: "rip",
    stack: ("rsp", None),
    privilege: "cs",
};

impl Architecture for X86_64 {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    /// CALL: with a displacement, or FF /2 of a register or of memory.
    fn is_call(&self, bytes: [u8; 8]) -> bool {
        let indirect = |len: usize, mode: u8| {
            bytes[8 - len] == 0xff && bytes[9 - len] & 0x38 == 0x10 && bytes[9 - len] >> 6 == mode
        };
        bytes[3] == 0xe8 || indirect(2, 3) || indirect(3, 1) || indirect(6, 2) || indirect(6, 0)
    }

    fn context(&self, registers: &[u64]) -> Context {
        let &[cr0, cr3, cr4, efer] = registers else { return Context::default() };
        let bits = if cr4 & CR4_LA57 != 0 { 57 } else { 48 };
        let half = Half { root: cr3 & ADDRESS, bits, page_shift: PAGE_SHIFT };
        let tag = if cr4 & CR4_PCIDE != 0 { (cr3 & PCID) as u32 } else { 0 };
        let is_on = cr0 & CR0_PG != 0 && efer & EFER_LMA != 0;
        Context { is_on, tag, halves: [half; 2], control: [cr0, cr4] }
    }

    fn privilege(&self, register: u64) -> Privilege {
        if register & 3 == 3 { Privilege::User } else { Privilege::Kernel }
    }

    fn decode(&self, bytes: &[u8], pc: u64) -> Option<Instruction> {
        let (mut rest, mut segment, mut rex, mut is_66) = (bytes, None, 0, false);
        loop {
            match *rest.first()? {
                0x64 => segment = Some("fs_base"),
                0x65 => segment = Some("gs_base"),
                0x66 => is_66 = true,
                0x26 | 0x2e | 0x36 | 0x3e | 0x67 | 0xf0 | 0xf2 | 0xf3 => {}
                prefix @ 0x40..=0x4f => rex = prefix,
                0x0f => break,
                _ => return None,
            }
            rest = &rest[1..];
        }
        let next = pc + bytes.len() as u64;
        let register = |modrm: u8| (modrm & 7) | (rex & 1) << 3;
        let (operation, operands) = match rest[1..] {
            [0x22, modrm, ..] => {
                let control = (modrm >> 3) & 7 | (rex & 4) << 1;
                let value = Operand::Register(register(modrm));
                (Operation::WriteControl(control), [value, Operand::Zero])
            }
            // WRMSR: EFER is among the registers.
            [0x30, ..] => (Operation::SelectTables, [Operand::Zero; 2]),
            [0x01, modrm, ..] if modrm >> 6 != 3 && (modrm >> 3) & 7 == 7 => {
                let page = memory(&rest[2..], rex, segment, next)?;
                (Operation::InvalidatePage, [page, Operand::Zero])
            }
            [0x38, 0x82, modrm, ..] if is_66 => {
                let kind = Operand::Register((modrm >> 3) & 7 | (rex & 4) << 1);
                let descriptor = memory(&rest[3..], rex, segment, next)?;
                (Operation::InvalidatePcid, [kind, descriptor])
            }
            _ => return None,
        };
        Some(Instruction { operation, operands })
    }

    fn execute(
        &self,
        operation: Operation,
        [first, second]: [u64; 2],
        context: &Context,
        read: Read<'_>,
    ) -> Effect {
        match operation {
            Operation::WriteControl(number) => Effect {
                invalidation: write_control(number, first, context),
                selects_tables: true,
                is_broadcast: false,
            },
            Operation::InvalidatePage => {
                let tags = Tags::OneAndGlobal(context.tag);
                Effect::local(Invalidation::page(tags, first, self.pointers_with_page()))
            }
            Operation::InvalidatePcid => {
                Effect { invalidation: invalidate_pcid(first, second, read), ..Effect::NONE }
            }
            Operation::SelectTables => Effect { selects_tables: true, ..Effect::NONE },
            _ => Effect::NONE,
        }
    }

    fn step(&self, value: u64, _: u64, shift: u8, _: &Half) -> Step {
        if value & PRESENT == 0 {
            return Step::Nothing;
        }
        let is_page = shift == PAGE_SHIFT || value & LARGE != 0 && shift <= LARGEST_SHIFT;
        if !is_page {
            let table = value & ADDRESS;
            return Step::Table { table, limit: access(value), is_global: false };
        }
        // In an entry of a large page, the bit above the flags selects the memory type.
        let frame = value & ADDRESS & (u64::MAX << shift);
        Step::Page { frame, access: access(value), is_global: value & GLOBAL != 0 }
    }
}
