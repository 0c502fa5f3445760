//! The processor, and the kernel's promises about it.

#![expect(unsafe_code, reason = "declares constructors with promises")]

use shootdown::{Extent, NotifyCosts, PageSize};

use crate::aarch64::domains::DomainMap;
use crate::aarch64::features::Features;
use crate::aarch64::operation::{Operation, Scope};
use crate::aarch64::plan::Plan;
use crate::errata::Workarounds;

/// An `AArch64` processor.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(any(target_arch = "aarch64", test)),
    expect(dead_code, reason = "only the instructions read some fields")
)]
pub struct Aarch64 {
    pub(super) features: Features,
    /// The largest leaves of users' tables and of the kernel's.
    largest_leaves: [PageSize; 2],
    pub(super) costs: NotifyCosts,
    pub(super) flush_interrupt: FlushInterrupt,
    broadcasts: Broadcasts,
    pub(super) domains: Option<DomainMap>,
    /// See [`Self::with_sme_interrupt`].
    pub(super) interrupt_sme: Option<extern "C" fn()>,
}

/// The kind of exception by which the kernel takes the flush interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInterrupt {
    /// An IRQ, masked by `PSTATE.I`.
    Irq,
    /// An FIQ, masked by `PSTATE.F`, as the interrupts between Apple's CPUs.
    Fiq,
}

impl FlushInterrupt {
    /// The bit of the register `DAIF` that masks it.
    #[must_use]
    pub const fn daif(self) -> u64 {
        match self {
            Self::Irq => 1 << 7,
            Self::Fiq => 1 << 6,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broadcasts {
    ByCost,
    Never,
}

/// Estimates for one socket, from the lab's machines `ampere-emag-32` and `arm64-2s`, which have
/// the source of each number.
///
/// An interrupt takes about 50 ns to send, 300 to deliver, 250 to enter and 60 to acknowledge. Each
/// further target costs its sending, and 460 that it loses with the return. A broadcast costs the
/// measured 350 ns by which an `mprotect` with its flush is slower than without. Further operations
/// are only passed to the interconnect. The engine [measures] the time in its queue.
///
/// [measures]: shootdown::Broadcaster::complete
const COSTS: NotifyCosts = NotifyCosts {
    interrupt_ns: 660,
    interrupt_each_ns: 510,
    broadcast_ns: 350,
    broadcast_each_ns: 0,
    operation_ns: 10,
};

/// The costs with [`Workarounds::REPEATED_COMPLETION`]: not measured, but twice a broadcast of one
/// operation, because the second `TLBI` and `DSB` wait for the same CPUs by the same messages.
/// Further operations are not repeated.
const COSTS_OF_REPEATED_COMPLETION: NotifyCosts =
    NotifyCosts { broadcast_ns: 2 * COSTS.broadcast_ns, ..COSTS };

impl Aarch64 {
    /// A processor with these features.
    ///
    /// # Safety
    ///
    /// - The features are those that all CPUs have in [common](Features::common), or fewer. Tags of
    ///   too many bits give two spaces one ASID; a missing workaround leaves stale translations.
    ///   [`set_up_cpu`](crate::Processor::set_up_cpu) panics on a CPU of which this is not true, so
    ///   call it on each CPU before the CPU comes online.
    /// - The kernel keeps the [requirements](super#requirements-for-the-kernels-set-up).
    #[must_use]
    pub const unsafe fn new(features: Features) -> Self {
        let costs = if features.workarounds.contains(Workarounds::REPEATED_COMPLETION) {
            COSTS_OF_REPEATED_COMPLETION
        } else {
            COSTS
        };
        Self {
            features,
            largest_leaves: [
                features.largest_leaf(features.granule),
                features.largest_leaf(features.kernel_granule),
            ],
            costs,
            flush_interrupt: FlushInterrupt::Irq,
            broadcasts: Broadcasts::ByCost,
            domains: None,
            interrupt_sme: None,
        }
    }

    /// Declares that no page table of the kernel or of users has a leaf larger than `largest_leaf`.
    ///
    /// Operations on leaves of this size can then have a level hint (`FEAT_TTL`). Without this
    /// promise, they cannot: an [`Extent`] has the size of its *smallest* page, and an operation
    /// with that level may leave larger leaves cached.
    ///
    /// # Safety
    ///
    /// The declaration is true for ever. With a wrong hint, an operation need not drop anything.
    #[must_use]
    pub const unsafe fn with_leaves_up_to(self, largest_leaf: PageSize) -> Self {
        Self { largest_leaves: [largest_leaf; 2], ..self }
    }

    /// Sets the measured costs of notification.
    #[must_use]
    pub const fn with_costs(self, costs: NotifyCosts) -> Self {
        Self { costs, ..self }
    }

    /// Declares how the kernel takes the flush interrupt. The default is [`FlushInterrupt::Irq`].
    ///
    /// A wrong declaration is a deadlock of two CPUs that wait for each other, or an assertion.
    #[must_use]
    pub const fn notified_by(self, flush_interrupt: FlushInterrupt) -> Self {
        Self { flush_interrupt, ..self }
    }

    /// Switches broadcasts off: every flush, of kernel pages too, notifies by interrupts.
    #[must_use]
    pub const fn without_broadcasts(self) -> Self {
        Self { broadcasts: Broadcasts::Never, ..self }
    }

    /// Lets flushes reach the CPUs of some TLBI domains only (`FEAT_TLBID`), where that costs less.
    ///
    /// # Safety
    ///
    /// The map keeps its [promise](DomainMap#promise).
    ///
    /// # Panics
    ///
    /// If the map names a domain that the [features](Features::domain_bits) do not have.
    #[must_use]
    pub const unsafe fn with_domains(self, domains: DomainMap) -> Self {
        let mut cpu = 0;
        while cpu < domains.of_cpus.len() {
            let is_known = (domains.of_cpus[cpu].0 as u32) < 1 << self.features.domain_bits;
            assert!(is_known, "a CPU is in a TLBI domain whose number has too many bits");
            cpu += 1;
        }
        Self { domains: Some(domains), ..self }
    }

    /// Lets CPUs with [`Workarounds::SME_INTERRUPT`] use broadcasts, which they otherwise do not.
    /// Each completion calls `interrupt` after its `DSB`.
    ///
    /// # Safety
    ///
    /// `interrupt` interrupts each other CPU that may execute SME instructions of a program, and
    /// returns when each has taken the interrupt or has left user mode since the call. (Linux:
    /// `sme_do_dvmsync`.) A CPU that leaves user mode clears its mark for that, and one that
    /// returns to user mode sets it, both with a full barrier. `interrupt` does not wait for CPUs
    /// in the kernel: they may mask the interrupt and wait for this one. It does not use the
    /// engine, and may be called with interrupts masked.
    #[must_use]
    pub const unsafe fn with_sme_interrupt(self, interrupt: extern "C" fn()) -> Self {
        Self { interrupt_sme: Some(interrupt), ..self }
    }

    pub(super) const fn needs(&self, workaround: Workarounds) -> bool {
        self.features.workarounds.contains(workaround)
    }

    /// Returns `true` if a flush may use broadcasts.
    #[must_use]
    pub const fn has_broadcasts(&self) -> bool {
        let waits_for_sme = !self.needs(Workarounds::SME_INTERRUPT) || self.interrupt_sme.is_some();
        waits_for_sme && matches!(self.broadcasts, Broadcasts::ByCost)
    }

    /// Checks that this processor is right on a CPU that has the features `cpu`.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn admit(&self, cpu: Features) {
        let unused = if self.has_broadcasts() {
            Workarounds::NONE
        } else {
            Workarounds::REPEATED_COMPLETION.with(Workarounds::SME_INTERRUPT)
        };
        let unused = if self.features.marks_writes {
            unused
        } else {
            unused.with(Workarounds::NO_DIRTY_MARKS)
        };
        let missing = cpu.workarounds.without(unused).without(self.features.workarounds);
        assert!(
            missing == Workarounds::NONE,
            "this CPU needs workarounds that the engine does not use: {missing:?}. Create the \
             processor with Features::common of all CPUs, or with Features::for_mixed_cores",
        );
        // The others cannot have larger leaves, so no table has any.
        let cpu = Features {
            has_large_leaves: self.features.has_large_leaves,
            workarounds: self.features.workarounds,
            ..cpu
        };
        let granules = |features: &Features| (features.granule, features.kernel_granule);
        assert!(
            self.features.common(cpu) == self.features
                && granules(&self.features) == granules(&cpu),
            "this CPU lacks features that the engine uses: it has {cpu:?}, and the engine uses \
             {:?}. Create the processor with Features::common of all CPUs",
            self.features,
        );
    }

    /// The operations that drop an extent, in order; at least one.
    pub fn operations(&self, scope: Scope, extent: Extent) -> impl Iterator<Item = Operation> {
        self.plan(scope, extent)
    }

    #[inline(always)]
    pub(super) fn plan(&self, scope: Scope, extent: Extent) -> Plan {
        let [of_users, of_kernel] = self.largest_leaves;
        let largest = match scope {
            Scope::Tag(_) => of_users,
            Scope::AllTags => of_kernel,
        };
        Plan::new(&self.features, largest, scope, extent)
            .unwrap_or_else(|| Plan::of_everything(scope))
    }
}

#[cfg(test)]
#[path = "tests/settings.rs"]
mod tests;
