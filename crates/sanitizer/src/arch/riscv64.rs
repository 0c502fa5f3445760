//! RISC-V with Sv39, Sv48 or Sv57. Sources are sections of the privileged architecture.

use shootdown_profile::Profile;

use super::{
    Architecture, Context, Effect, Facts, Half, Instruction, Operand, Operation, Privilege, Read,
    Step,
};
use crate::invalidation::{Invalidation, Pages, Pointers, Tags};
use crate::translation::Access;

/// RISC-V without the hypervisor extension.
#[derive(Debug)]
pub(super) struct Riscv64;

const PAGE_SHIFT: u8 = 12;
const SYSTEM: u32 = 0x73;
const SATP: u32 = 0x180;

const VALID: u64 = 1;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXECUTE: u64 = 1 << 3;
const USER: u64 = 1 << 4;
const GLOBAL: u64 = 1 << 5;

static FACTS: Facts = Facts {
    target: "riscv64",
    profile: Profile::RISCV,
    general: &[
        "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "fp", "s1", "a0", "a1", "a2", "a3", "a4",
        "a5", "a6", "a7", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4",
        "t5", "t6",
    ],
    arguments: &[10, 11, 12, 13, 14, 15, 16, 17],
    context: &["satp"],
    pc: "pc",
    stack: ("sp", Some("ra")),
    privilege: "priv",
};

impl Architecture for Riscv64 {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    /// JAL and JALR that link in `ra`, and C.JALR.
    fn is_call(&self, [.., a, b, c, d]: [u8; 8]) -> bool {
        let (word, half) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([c, d]));
        matches!(word & 0xfff, 0x0ef | 0x0e7) || half & 0xf07f == 0x9002 && half & 0xf80 != 0
    }

    /// "Supervisor Address Translation and Protection (satp) Register".
    fn context(&self, registers: &[u64]) -> Context {
        let &[satp] = registers else { return Context::default() };
        let bits = match satp >> 60 {
            8 => 39,
            9 => 48,
            10 => 57,
            _ => 0,
        };
        let root = (satp & ((1 << 44) - 1)) << PAGE_SHIFT;
        let half = Half { root, bits, page_shift: PAGE_SHIFT };
        let tag = (satp >> 44 & 0xffff) as u32;
        Context { is_on: bits != 0, tag, halves: [half; 2], control: [0; 2] }
    }

    fn privilege(&self, register: u64) -> Privilege {
        match register {
            0 => Privilege::User,
            1 => Privilege::Kernel,
            _ => Privilege::Other,
        }
    }

    fn decode(&self, bytes: &[u8], _: u64) -> Option<Instruction> {
        let word = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
        if word & 0x7f != SYSTEM {
            return None;
        }
        let function = word >> 12 & 7;
        let [to, first, second] = [7, 15, 20].map(|at| (word >> at & 31) as u8);
        if function != 0 {
            // A read alone (`csrrs x0`) costs another read of the registers, and no more.
            let is_satp = word >> 20 == SATP;
            let operation = Operation::SelectTables;
            return is_satp.then_some(Instruction { operation, operands: [Operand::Zero; 2] });
        }
        // SFENCE.VMA and SINVAL.VMA. SFENCE.W.INVAL and SFENCE.INVAL.IR only order.
        if to != 0 || !matches!(word >> 25, 0b000_1001 | 0b000_1011) {
            return None;
        }
        let operand = |number| if number == 0 { Operand::Zero } else { Operand::Register(number) };
        let operation = Operation::Fence { has_page: first != 0, has_tag: second != 0 };
        Some(Instruction { operation, operands: [operand(first), operand(second)] })
    }

    /// "Supervisor Memory-Management Fence Instruction". With an address, the fence is for leaf
    /// entries; with an ASID, it leaves global pages.
    fn execute(
        &self,
        operation: Operation,
        [address, tag]: [u64; 2],
        _: &Context,
        _: Read<'_>,
    ) -> Effect {
        match operation {
            Operation::Fence { has_page, has_tag } => {
                let tags = if has_tag { Tags::One((tag & 0xffff) as u32) } else { Tags::All };
                let (pages, pointers) = if has_page {
                    (Pages::Range(address, address), self.pointers_with_page())
                } else {
                    (Pages::All, Pointers::All)
                };
                Effect::local(Invalidation { tags, pages, pointers, only_shift: None })
            }
            Operation::SelectTables => Effect { selects_tables: true, ..Effect::NONE },
            _ => Effect::NONE,
        }
    }

    fn step(&self, value: u64, address: u64, shift: u8, _: &Half) -> Step {
        if value & VALID == 0 {
            return Step::Nothing;
        }
        let frame = (value >> 10 & ((1 << 44) - 1)) << PAGE_SHIFT;
        let is_global = value & GLOBAL != 0;
        if value & (READ | WRITE | EXECUTE) == 0 {
            return Step::Table { table: frame, limit: Access::ALL, is_global };
        }
        let bit = |bit, access: Access| access.when(value & bit != 0);
        let access = bit(READ, Access::READ) | bit(WRITE, Access::WRITE);
        let access = access | bit(EXECUTE, Access::EXECUTE) | bit(USER, Access::USER);
        // Svnapot: each page of the range is an entry of its own here.
        let is_napot = value >> 63 != 0 && shift == PAGE_SHIFT;
        let frame = if is_napot { frame & !0xffff | address & 0xf000 } else { frame };
        Step::Page { frame, access, is_global }
    }
}
