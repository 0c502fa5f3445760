//! `LoongArch64` for the engine: what [`Processor`](crate::Processor) asks for, by
//! `INVTLB`, CSRs and barriers. For any kernel that runs at PLV0; nothing is allocated, and nothing
//! kept but what was found out at the start.
//!
//! "Manual" is the `LoongArch` Reference Manual, volume 1, by its sections' names.
//!
//! # The TLB
//!
//! It is each CPU's own, and nobody else's instruction reaches it: there is no broadcast, so others
//! are told by interrupts. It is filled by software (`TLBFILL` in the handler of refills), or by a
//! walker (HPTW, from the 3A6000 on). An entry holds a *pair*, an even page and the next one,
//! loaded together. From that follows:
//!
//! - `INVTLB` of a page drops its neighbour, too: neighbours cost one instruction, and whoever
//!   invalidates one page only loses a translation that was not to go.
//! - A translation may be cached of a page that nobody has touched, as if by speculation.
//! - A pair stays though one of its pages, or both, is not valid: a page that was *not* mapped is
//!   remembered. The handler of page faults calls `LoongArch64::drop_pair` for the page before the
//!   access is tried again; elsewhere nothing is flushed when a page is first mapped.
//! - A pair has but one G. Linux takes it to be that of both pages, and so gives G to the kernel's
//!   pages that are not mapped, too (`set_pte`); QEMU looks at the even page's alone.
//!
//! # Tags
//!
//! An ASID has 10 bits. Linux counts them up on each CPU, gives a space a new one instead of
//! flushing it (`drop_mmu_context`), and empties the TLB when they are used up:
//! [renamed](shootdown::Tagging::Renamed) tags. Here they are [per CPU](shootdown::Tagging::PerCpu)
//! and few: renaming is for machines that cannot drop one tag, and `INVTLB` can (op 4). A renamed
//! space leaves its dead pairs behind, each in the way until something evicts it: the TLB's 2112
//! are then for the dead as well as for the living. [Global](shootdown::Tagging::Global) tags are
//! for broadcasts.
//!
//! # Barriers
//!
//! None surround `INVTLB`. "Conflicts Caused by Control and Status Registers": hardware keeps the
//! order, "the software does not need to add barrier-type instructions"; Linux has none either
//! (`asm/tlb.h`). What a page table said before is kept apart from what it says now by
//! [`publish`](crate::Processor::publish), which comes before.

mod encoding;
#[cfg(all(target_arch = "loongarch64", not(test)))]
mod instructions;
#[cfg(test)]
#[path = "tests/instructions.rs"]
mod instructions;
#[cfg(any(target_arch = "loongarch64", test))]
mod processor;

pub use encoding::{
    ASID_CSR, Invalidate, asid_bits, asid_of, asid_operand, interrupts_are_let_in, probes,
};
#[cfg(any(target_arch = "loongarch64", test))]
pub use processor::LoongArch64;
