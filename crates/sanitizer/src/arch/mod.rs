//! The architectures: which instructions invalidate and what, which registers select page tables,
//! and the format of page tables. Rules of what a TLB may keep are those of [`Profile`].

mod aarch64;
mod radix;
mod riscv64;
mod x86_64;

use shootdown_profile::{Profile, UpperLevels};

use crate::invalidation::{Invalidation, Pointers};
use crate::translation::{POINTERS_MAX, Pointer, Translation};

pub use radix::{Half, Step};

/// Reads a word of physical memory, if there is memory.
pub type Read<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// The privilege of a CPU, as far as it decides about translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// User mode.
    User,
    /// The kernel.
    Kernel,
    /// A mode whose addresses are not translated by the kernel's tables: firmware, a hypervisor.
    Other,
}

/// The page tables that a CPU uses, by its registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// `true` if addresses are translated.
    pub is_on: bool,
    /// The tag; 0 without tags.
    pub tag: u32,
    /// The tables for the lower and the upper half of addresses.
    pub halves: [Half; 2],
    /// Registers that a later write is compared with.
    pub control: [u64; 2],
}

/// An operand of an instruction, before it is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Operand {
    /// The number 0.
    #[default]
    Zero,
    /// A general register, by its number.
    Register(u8),
    /// The address of memory.
    Address {
        /// The base, if there is one.
        base: Option<u8>,
        /// The index and the logarithm of its scale, if there is one.
        index: Option<(u8, u8)>,
        /// A constant.
        displacement: i64,
        /// The system register with the base of the segment.
        segment: Option<&'static str>,
    },
}

/// An instruction that concerns TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// The operation.
    pub operation: Operation,
    /// Its operands.
    pub operands: [Operand; 2],
}

/// The operations, those of all architectures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// A write of a register that selects page tables, and no invalidation.
    SelectTables,
    /// x86: a write of CR0, CR3 or CR4, by its number.
    WriteControl(u8),
    /// x86: INVLPG; the operand is the address.
    InvalidatePage,
    /// x86: INVPCID; the operands are the type, and the address of the descriptor.
    InvalidatePcid,
    /// RISC-V: SFENCE.VMA or SINVAL.VMA.
    Fence {
        /// `true` if the first operand is an address.
        has_page: bool,
        /// `true` if the second operand is an ASID.
        has_tag: bool,
    },
    /// Arm: TLBI.
    Tlbi(aarch64::Tlbi),
}

/// The effect of an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The invalidation.
    pub invalidation: Option<Invalidation>,
    /// `true` if it is executed on all CPUs.
    pub is_broadcast: bool,
    /// `true` if the registers must be read again after the instruction.
    pub selects_tables: bool,
}

impl Effect {
    const NONE: Self = Self { invalidation: None, is_broadcast: false, selects_tables: false };

    fn local(invalidation: Invalidation) -> Self {
        Self { invalidation: Some(invalidation), ..Self::NONE }
    }
}

/// The facts of an architecture. Registers have QEMU's names.
#[derive(Debug)]
pub struct Facts {
    /// QEMU's name of the target.
    pub target: &'static str,
    /// The rules of what a TLB may keep.
    pub profile: Profile,
    /// The general registers, by number.
    pub general: &'static [&'static str],
    /// The numbers of the registers with the first arguments of a call.
    pub arguments: &'static [u8],
    /// The registers that [`Architecture::context`] reads.
    pub context: &'static [&'static str],
    /// The program counter.
    pub pc: &'static str,
    /// The register that has the privilege.
    pub privilege: &'static str,
}

/// An architecture.
pub trait Architecture: Sync + std::fmt::Debug {
    /// Its names, and the rules of what a TLB may keep.
    fn facts(&self) -> &'static Facts;

    /// The page tables that these registers select.
    fn context(&self, registers: &[u64]) -> Context;

    /// The privilege that the register has.
    fn privilege(&self, register: u64) -> Privilege;

    /// Decodes an instruction at `pc`. Returns `None` for most: they do not concern TLBs.
    fn decode(&self, bytes: &[u8], pc: u64) -> Option<Instruction>;

    /// The effect of an instruction with these operands. `read` reads *virtual* memory.
    fn execute(
        &self,
        operation: Operation,
        operands: [u64; 2],
        context: &Context,
        read: Read<'_>,
    ) -> Effect;

    /// The address that tables translate: without tags in its upper bits.
    fn canonical(&self, address: u64) -> u64 {
        address
    }

    /// The page-table entry `value`, for a translation of `shift` bits of `address` in `half`.
    fn step(&self, value: u64, address: u64, shift: u8, half: &Half) -> Step;

    /// Translates an address. Returns the path with the translation.
    fn walk(&self, context: &Context, address: u64, read: Read<'_>) -> Option<Translation> {
        let half = &context.halves[(address >> 63) as usize];
        self.walk_from(half, context.tag, address, read, &mut Default::default())
    }

    /// Translates an address by the tables of `half`, and writes the pointers on the way.
    fn walk_from(
        &self,
        half: &Half,
        tag: u32,
        address: u64,
        read: Read<'_>,
        pointers: &mut [Pointer; POINTERS_MAX],
    ) -> Option<Translation> {
        radix::walk(half, tag, address, read, pointers, |value, shift| {
            self.step(value, address, shift, half)
        })
    }

    /// The cached pointers that an invalidation of a page drops under its tags.
    fn pointers_with_page(&self) -> Pointers {
        match self.facts().profile.upper_levels {
            UpperLevels::DroppedWithPages => Pointers::All,
            UpperLevels::DroppedIfAsked => Pointers::Kept,
        }
    }
}

/// The architectures.
pub static ALL: [&dyn Architecture; 3] = [&x86_64::X86_64, &aarch64::Aarch64, &riscv64::Riscv64];

/// Returns the architecture with QEMU's name.
pub fn named(name: &str) -> Option<&'static dyn Architecture> {
    ALL.into_iter().find(|arch| arch.facts().target == name)
}
