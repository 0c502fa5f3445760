//! Virtual CPUs under KVM: the guest's end of *steal time*, with which a flush skips virtual CPUs
//! that do not run.
//!
//! KVM records in memory of the guest whether each virtual CPU runs. A flush that finds a CPU
//! preempted sets a bit beside that record. Before it runs the CPU again, KVM reads and clears both
//! in one exchange, and empties the CPU's TLB if the bit is set. The layout and the numbers are
//! those of the Linux documentation, "KVM-specific MSRs" and "KVM CPUID bits". Linux's guest does
//! this in `kvm_flush_tlb_multi`.
//!
//! A kernel has a [`StealTime`] for each CPU, [registers](StealTime::msr_value) it on that CPU, and
//! answers [`Kernel::is_away`](crate::Kernel::is_away) by [`StealTime::defer_flush`]:
//!
//! ```
//! # use shootdown_hw::x86_64::kvm::StealTime;
//! # use shootdown::CpuId;
//! static STEAL_TIME: [StealTime; 64] = [const { StealTime::new() }; 64];
//!
//! fn is_away(cpu: CpuId) -> bool {
//!     STEAL_TIME[cpu.index()].defer_flush()
//! }
//! # assert!(!is_away(CpuId(3)));
//! ```
//!
//! If a CPU walks page tables by software while it may be preempted, mark its walks
//! ([`PinnedCpu::begin_walk`](shootdown::PinnedCpu::begin_walk)).
//!
//! The tests here play the hypervisor in threads of the host. They cannot show that a hypervisor
//! keeps its promise: QEMU's own emulation, without KVM, offers no steal time.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::identity::Source;

/// `KVM_CPUID_SIGNATURE`: "KVMKVMKVM" in EBX, ECX and EDX.
const SIGNATURE_LEAF: u32 = 0x4000_0000;
const SIGNATURE: [u32; 3] = [0x4b4d_564b, 0x564b_4d56, 0x4d];
/// `KVM_CPUID_FEATURES`.
const FEATURES_LEAF: u32 = 0x4000_0001;
/// `KVM_FEATURE_STEAL_TIME` in EAX.
const STEAL_TIME: u32 = 1 << 5;
/// `KVM_FEATURE_PV_TLB_FLUSH` in EAX.
const PV_TLB_FLUSH: u32 = 1 << 9;
/// `KVM_HINTS_REALTIME` in EDX: virtual CPUs are never preempted for long.
const REALTIME: u32 = 1 << 0;

/// `MSR_KVM_STEAL_TIME`: the register that holds the [address](StealTime::msr_value) of this CPU's
/// record.
pub const MSR_STEAL_TIME: u32 = 0x4b56_4d03;
/// The bit of the register that enables it.
const ENABLE: u64 = 1;

/// `KVM_VCPU_PREEMPTED`: the CPU does not run.
const PREEMPTED: u8 = 1;
/// `KVM_VCPU_FLUSH_TLB`: the TLB is emptied before the CPU runs again.
const FLUSH_TLB: u8 = 2;

/// Returns `true` if this is a guest of a KVM that empties the TLBs of preempted CPUs on request,
/// and that may preempt them. If `false`, answer `false` to every
/// [`is_away`](crate::Kernel::is_away).
///
/// Call this only if a hypervisor is present (CPUID 1, ECX bit 31).
#[must_use]
pub fn can_defer_flushes(source: &impl Source) -> bool {
    let signature = source.cpuid(SIGNATURE_LEAF);
    // An old KVM returns 0 in EAX, where the highest leaf belongs.
    let highest = if signature.eax == 0 { FEATURES_LEAF } else { signature.eax };
    if [signature.ebx, signature.ecx, signature.edx] != SIGNATURE || highest < FEATURES_LEAF {
        return false;
    }
    let features = source.cpuid(FEATURES_LEAF);
    features.eax & (STEAL_TIME | PV_TLB_FLUSH) == STEAL_TIME | PV_TLB_FLUSH
        && features.edx & REALTIME == 0
}

/// The record of one virtual CPU, `struct kvm_steal_time`, which the guest and KVM share.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct StealTime {
    steal_ns: AtomicU64,
    version: AtomicU32,
    flags: AtomicU32,
    preempted: AtomicU8,
    _padding: [u8; 47],
}

impl StealTime {
    /// A record that no hypervisor writes yet. Its CPU counts as running.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            steal_ns: AtomicU64::new(0),
            version: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            preempted: AtomicU8::new(0),
            _padding: [0; 47],
        }
    }

    /// The value of [`MSR_STEAL_TIME`] that registers the record at this physical address on the
    /// CPU that writes the register. 0 in the register ends it.
    ///
    /// # Panics
    ///
    /// If the address is not a multiple of 64.
    #[must_use]
    pub const fn msr_value(physical_address: u64) -> u64 {
        assert!(physical_address % 64 == 0, "KVM needs an alignment to 64 bytes");
        physical_address | ENABLE
    }

    /// Requests that KVM empties the CPU's TLB before it runs the CPU again. Returns `false` if the
    /// CPU runs: then there is no request. This is an implementation of
    /// [`Kernel::is_away`](crate::Kernel::is_away).
    #[inline]
    pub fn defer_flush(&self) -> bool {
        // Relaxed: a hint, which the exchange below confirms.
        let mut found = self.preempted.load(Ordering::Relaxed);
        while found & PREEMPTED != 0 {
            // Exchanged even if there is a request already, as in the engine's `VcpuWord`, which
            // has the argument for both orderings. A locked instruction on x86 has both.
            let wanted = PREEMPTED | FLUSH_TLB;
            let word = &self.preempted;
            match word.compare_exchange(found, wanted, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => found = newer,
            }
        }
        false
    }
}

impl Default for StealTime {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use core::mem::{offset_of, size_of};
    use std::thread;

    use super::*;
    use crate::x86_64::identity::Registers;

    /// A hypervisor with these features and hints, and this highest leaf.
    struct Hypervisor {
        signature: [u32; 3],
        highest: u32,
        features: u32,
        hints: u32,
    }

    const KVM: Hypervisor = Hypervisor {
        signature: SIGNATURE,
        highest: FEATURES_LEAF,
        features: STEAL_TIME | PV_TLB_FLUSH,
        hints: 0,
    };

    impl Source for Hypervisor {
        fn cpuid(&self, leaf: u32) -> Registers {
            let [ebx, ecx, edx] = self.signature;
            match leaf {
                SIGNATURE_LEAF => Registers { eax: self.highest, ebx, ecx, edx },
                FEATURES_LEAF => {
                    Registers { eax: self.features, edx: self.hints, ..Registers::default() }
                }
                _ => unreachable!("leaf {leaf:#x}"),
            }
        }

        fn microcode(&self) -> u32 {
            unreachable!("only real processors are asked")
        }
    }

    /// KVM's end: stops and runs the CPU.
    impl StealTime {
        /// Does nothing if the CPU is preempted already (Linux, `kvm_steal_time_set_preempted`,
        /// since b043138246a4): a store would lose the request of a flush.
        fn preempt(&self) {
            if self.preempted.load(Ordering::Relaxed) & PREEMPTED == 0 {
                self.preempted.store(PREEMPTED, Ordering::Release);
            }
        }

        fn run(&self) -> bool {
            self.preempted.swap(0, Ordering::AcqRel) & FLUSH_TLB != 0
        }
    }

    #[test]
    fn signature_is_kvm() {
        let bytes: std::vec::Vec<u8> =
            SIGNATURE.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(bytes, b"KVMKVMKVM\0\0\0");
    }

    #[test]
    fn flushes_are_deferred_where_kvm_can() {
        assert!(can_defer_flushes(&KVM));
        assert!(can_defer_flushes(&Hypervisor { highest: 0, ..KVM }), "an old KVM");
        for other in [
            Hypervisor { signature: [0; 3], ..KVM },
            Hypervisor { highest: SIGNATURE_LEAF, ..KVM },
            Hypervisor { features: STEAL_TIME, ..KVM },
            Hypervisor { features: PV_TLB_FLUSH, ..KVM },
            Hypervisor { hints: REALTIME, ..KVM },
        ] {
            assert!(!can_defer_flushes(&other));
        }
    }

    /// Linux, `arch/x86/include/uapi/asm/kvm_para.h`.
    #[test]
    fn layout_is_that_of_kvm() {
        assert_eq!((size_of::<StealTime>(), align_of::<StealTime>()), (64, 64));
        assert_eq!(offset_of!(StealTime, preempted), 16);
        assert_eq!(StealTime::msr_value(0x12_3440), 0x12_3441);
    }

    #[test]
    #[should_panic(expected = "an alignment")]
    fn unaligned_record_panics() {
        let _ = StealTime::msr_value(0x1020);
    }

    #[test]
    fn request_holds_for_one_preemption() {
        let record = StealTime::new();
        assert!(!record.defer_flush(), "the CPU runs");
        for flushes in 0..3 {
            record.preempt();
            assert!((0..flushes).all(|_| record.defer_flush()));
            record.preempt();
            assert_eq!(record.run(), flushes > 0);
            assert!(!record.defer_flush() && !record.run(), "the CPU runs again");
        }
    }

    /// Each deferred flush is found by the CPU's next return: none is lost, and none made up.
    #[test]
    fn no_deferred_flush_is_lost() {
        let (record, flushed) = (StealTime::new(), AtomicU64::new(0));
        let deferred = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    record.preempt();
                    flushed.fetch_add(u64::from(record.run()), Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                for _ in 0..20_000 {
                    // Relaxed: the counters are compared only after both threads have ended.
                    let before = flushed.load(Ordering::Relaxed);
                    if record.defer_flush() {
                        deferred.fetch_add(1, Ordering::Relaxed);
                        while flushed.load(Ordering::Relaxed) == before {
                            thread::yield_now();
                        }
                    }
                }
            });
        });
        assert!(!record.run());
        assert_eq!(flushed.into_inner(), deferred.into_inner());
    }
}
