//! The engine's [`Processor`](crate::Processor) on `LoongArch64`, by `INVTLB`, CSRs and barriers.
//! It serves any kernel that runs at PLV0, allocates nothing, and keeps only the features that it
//! has detected.
//!
//! "Manual" is the `LoongArch` Reference Manual, volume 1, with the names of its sections.
//!
//! # The TLB
//!
//! Each CPU has its own TLB, which no other CPU's instruction reaches. There is no broadcast, so
//! other CPUs are notified by interrupts. The TLB is filled by software (`TLBFILL` in the refill
//! handler), or by a hardware walker (HPTW, from the 3A6000 on). An entry holds a *pair*: an even
//! page and the next page, loaded together. This has four consequences:
//!
//! - `INVTLB` of a page also drops the other page of its pair. Two neighbours cost one instruction.
//!   An invalidation of one page costs at most a refill for its neighbour.
//! - A translation may be cached for a page that was never accessed, as if by speculation.
//! - A pair stays cached even if one or both of its pages are not valid: the TLB records that a
//!   page was *not* mapped. The page-fault handler calls `Processor::forget_refused` for the page
//!   before the access is tried again. No flush is needed when a page is first mapped.
//! - A pair has only one G bit. Linux takes it as the G of both pages, and therefore also sets G
//!   for kernel pages that are not mapped (`set_pte`). QEMU uses the G of the even page alone.
//!
//! # Tags
//!
//! An ASID has 10 bits. Linux counts ASIDs up on each CPU, gives a space a new ASID instead of
//! flushing it (`drop_mmu_context`), and empties the TLB when all ASIDs are used: these are
//! [renamed](shootdown::Tagging::Renamed) tags. Here, tags are [per
//! CPU](shootdown::Tagging::PerCpu) and few. Renaming is for machines that cannot drop one tag, and
//! `INVTLB` can (op 4). A renamed space leaves its dead pairs in the TLB until something evicts
//! them, so dead pairs take room in the TLB's 2112. [Global](shootdown::Tagging::Global) tags are
//! for broadcasts.
//!
//! # Barriers
//!
//! No barriers surround `INVTLB`. According to "Conflicts Caused by Control and Status Registers",
//! hardware keeps the order, and "the software does not need to add barrier-type instructions";
//! Linux has none either (`asm/tlb.h`). [`publish`](crate::Processor::publish), which the caller
//! executes before, orders the change of the page table.

mod encoding;
#[cfg(all(target_arch = "loongarch64", not(test)))]
mod instructions;
#[cfg(test)]
#[path = "tests/instructions.rs"]
pub(crate) mod instructions;
#[cfg(any(target_arch = "loongarch64", test))]
mod ipi;
#[cfg(any(target_arch = "loongarch64", test))]
mod processor;

pub use encoding::{
    ASID_CSR, InvtlbOp, asid_bits, asid_of, asid_operand, interrupts_enabled, pair_addresses,
};
#[cfg(any(target_arch = "loongarch64", test))]
pub use ipi::IocsrIpi;
#[cfg(any(target_arch = "loongarch64", test))]
pub use processor::LoongArch64;
