//! The sequences of instructions that errata change: the completion of broadcasts, and a switch.

#![expect(unsafe_code, reason = "loads roots")]

use shootdown::{Root, Tag};

use crate::aarch64::instruction;
use crate::aarch64::operation::{Domain, Levels, Operation, PageOperand, Scope};
use crate::aarch64::settings::Aarch64;
use crate::errata::Workarounds;

/// Position of the ASID in TTBR0.
pub(super) const TAG_SHIFT: u32 = 48;

/// The value of `TTBR0_EL1` or `VTTBR_EL2` for a table under a tag. Bits 51:48 of the table's
/// address are in bits 5:2, as with 52-bit addresses (`FEAT_LPA`, `FEAT_LPA2`). `CnP` is 0.
pub(super) fn base_register(root: Root, tag: Tag) -> u64 {
    debug_assert!(root.0 >> 52 == 0, "an address of a table has 52 bits: {root:?}");
    root.0 & 0xffff_ffff_fffe | root.0 >> 46 & 0x3c | u64::from(tag.0) << TAG_SHIFT
}

/// The operation that repeats a completion: `VALE1` of address 0 under the kernel's ASID, under
/// which nothing is cached.
pub(super) const REPEATED: Operation =
    Operation::Page(Scope::Tag(Tag::KERNEL), Levels::Last, PageOperand { address: 0, level: None });

impl Aarch64 {
    /// Converts ticks of the counter to nanoseconds. Returns 0 if the frequency is unknown.
    pub(super) fn ns_of(&self, ticks: u64) -> u64 {
        // The product saturates after 10 s at 1 GHz.
        ticks.saturating_mul(1_000_000_000).checked_div(self.features.counter_hz).unwrap_or(0)
    }

    /// Completes this CPU's broadcasts, and returns the time that it took. `repeat` issues a
    /// broadcast of any address.
    ///
    /// With [`Workarounds::REPEATED_COMPLETION`], accesses by the dropped entries may be incomplete
    /// after the first `dsb`, and are complete after a second broadcast and its `dsb`, whatever
    /// that broadcast names. (Linux: `__repeat_tlbi_sync`.)
    pub(super) fn complete_broadcasts(&self, repeat: impl FnOnce()) -> u64 {
        let start = instruction::counter();
        instruction::complete_shared();
        if self.needs(Workarounds::REPEATED_COMPLETION) {
            repeat();
            instruction::complete_shared();
        }
        if self.needs(Workarounds::SME_INTERRUPT) {
            if let Some(interrupt) = self.interrupt_sme {
                interrupt();
            }
        }
        self.ns_of(instruction::counter() - start)
    }

    /// The ASID under which nothing is cached that is used, if the processor needs one: see
    /// [`Self::set_ttbr0`].
    pub(super) fn passage(&self) -> Option<Tag> {
        let longest = Tag((1_u32 << self.features.tag_bits).wrapping_sub(1) as u16);
        self.needs(Workarounds::ASID_APART).then_some(longest)
    }

    /// Makes a table current under a tag.
    ///
    /// With [`Workarounds::ASID_APART`], a write that changes both would let walks of one table
    /// fill entries under the other tag. Three writes change one at a time, and lead through an
    /// ASID that no space has (Linux 4.10: `pre_ttbr0_update_workaround`). Under that ASID, the
    /// CPU may have cached entries of tables that were freed since, so they are dropped first:
    /// otherwise, a walk in between could begin at one of them.
    ///
    /// # Safety
    ///
    /// As [`Processor::load`].
    #[inline]
    pub(super) unsafe fn set_ttbr0(&self, root: Root, tag: Tag) {
        let value = base_register(root, tag);
        if let Some(passage) = self.passage() {
            const TABLE: u64 = (1 << TAG_SHIFT) - 1;
            let passage_asid = u64::from(passage.0) << TAG_SHIFT;
            instruction::tlbi(Operation::Tag(passage), Domain::Local);
            instruction::complete_local();
            for table in [instruction::ttbr0() & TABLE, value & TABLE] {
                // SAFETY: the old table is loaded, and the caller promises the new one.
                unsafe { instruction::set_ttbr0(table | passage_asid) };
                instruction::synchronize();
            }
        }
        // SAFETY: the caller's promise.
        unsafe { instruction::set_ttbr0(value) };
        instruction::synchronize();
        if self.needs(Workarounds::ICACHE_AT_SWITCH) {
            instruction::invalidate_instructions();
            instruction::complete_local();
            instruction::synchronize();
        }
    }
}
