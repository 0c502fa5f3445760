//! Designs by name.

use std::fmt;
use std::str::FromStr;

use shootdown_vm::{CleanPages, Policy, Replication};

use crate::design::{Design, Purpose};
use crate::engine::{HandoffAtReuse, NotifyBy, POLICY, sized, sized_for};
use crate::linux;
use crate::linux::arc::Arc;
use crate::linux::arm64::Arm64;
use crate::linux::lifetime::{EXIT_FLUSH, ExitFlush};
use crate::linux::riscv::Riscv;
use crate::linux::v4_12::Linux412;
use crate::linux::v4_12::latr::Latr;
use crate::linux::v4_14::Linux414;
use crate::linux::v7_0::Linux70;
use crate::naive::Naive;
use crate::variant::with_batches_of;

/// Defines the designs, each with its name, its purpose, and its setup on a machine.
macro_rules! designs {
    ($($(#[$doc:meta])* $design:ident = $name:literal for $purpose:ident: $make:expr;)*) => {
        impl Design {
            $($(#[$doc])* pub const $design: Self = Self::new($name, Purpose::$purpose, $make);)*
        }

        /// Every design.
        const ALL: &[Design] = &[$(Design::$design),*];
    };
}

// In the order in which lists show them.
designs! {
    /// Linux on ARC, whose `munmap` flushes the whole space.
    ARC_3_9 = "arc-3.9" for OtherHardware: |sim| Arc::by_space(sim).into();
    /// Linux on ARC, whose `munmap` flushes ranges.
    ARC_RANGED = "arc-ranged" for OtherHardware: |sim| Arc::by_area(sim).into();
    /// Linux on arm64.
    ARM64 = "arm64" for OtherHardware: |sim| Arm64::stock(sim).into();
    /// Linux on arm64 before its batches: reclaim and migration flush each page that they unmap.
    ARM64_PER_PAGE = "arm64(1)" for Reclaim: |sim| with_batches_of(Arm64::stock(sim).into(), 1);
    /// Linux on arm64 until the end of 2025, which also flushed pages that a fault reuses.
    ARM64_5_6 = "arm64-5.6" for OtherHardware: |sim| Arm64::reusing(sim).into();
    /// Linux on arm64 that skips broadcasts if no other CPU is active.
    ARM64_SKIP = "arm64-skip" for OtherHardware: |sim| Arm64::skip(sim).into();
    /// Linux on arm64 with TLBI domains: a flush of a whole space reaches the domains of the CPUs
    /// that have run it.
    ARM64_TLBID = "arm64-tlbid" for OtherHardware: |sim| Arm64::in_domains(sim).into();
    /// Linux on RISC-V.
    RISCV = "riscv" for OtherHardware: |sim| Riscv::new(sim).into();
    /// Linux on RISC-V before its batches: reclaim and migration flush each page that they unmap.
    RISCV_PER_PAGE = "riscv(1)" for Reclaim: |sim| with_batches_of(Riscv::new(sim).into(), 1);
    /// Linux 7.0, with INVLPGB where the machine has it. The last flush
    /// interrupts, as on x86, unless INVLPGB broadcasts it.
    LINUX_INVLPGB = "linux-7.0-invlpgb" for OtherHardware:
        |sim| Linux70::invlpgb(sim, ExitFlush::Interrupts).into();
    /// Linux today, as a guest of KVM. The same as `linux-7.0` where no CPU is stopped.
    LINUX_7_0_PV = "linux-7.0-pv" for OtherHardware: |sim| Linux70::paravirtual(sim).into();
    /// Linux today, with LUF.
    LINUX_LUF = "linux-7.0-luf" for Research: |sim| Linux70::luf(sim).into();
    /// The engine, which notifies other CPUs by interrupts alone.
    SHOOTDOWN_INTERRUPTS = "shootdown-interrupts" for OtherHardware:
        |sim| sized(sim, NotifyBy::Interrupts, POLICY);
    /// The engine, which notifies other CPUs by broadcasts where the machine has them.
    SHOOTDOWN_BROADCASTS = "shootdown-broadcasts" for OtherHardware:
        |sim| sized(sim, NotifyBy::Broadcasts, POLICY);
    /// The engine, with the policy of Linux 7.0, whose CPUs answer before they invalidate pages.
    SHOOTDOWN_EARLY_ANSWERS = "shootdown-early-answers" for Research:
        |sim| sized(sim, NotifyBy::EarlyAnswers, linux::POLICY);
    /// The engine with its own policy, which flushes the pages of files that reclaim has unmapped,
    /// and that no CPU can write, when their frames are reused.
    SHOOTDOWN_REUSE = "shootdown-reuse" for Research:
        |sim| {
            let policy = Policy { clean_pages: CleanPages::AtReuse, ..POLICY };
            sized_for::<HandoffAtReuse>(sim, NotifyBy::Chosen, policy)
        };
    /// Linux before batched reclaim: pages that reclaim unmaps are flushed one by one.
    UNMAP_4_2 = "unmap-4.2" for Reclaim: |sim| Linux412::new(sim).into();
    /// Linux with batched reclaim: one interrupt for each CPU and batch of pages.
    UNMAP_BATCHED = "unmap-batched" for Reclaim: |sim| Linux412::batched(sim).into();
    /// Linux with batched reclaim whose `munmap` notifies no CPU: LATR, in its safe configuration.
    LATR = "latr" for Research: |sim| Latr::new(sim).into();
    /// Linux with ABIS.
    ABIS = "abis" for Research: |sim| Linux412::abis(sim, None).into();
    /// The engine, with upper page tables for each CPU of every space, whether or not they are
    /// worth their cost.
    SHOOTDOWN_REPLICAS = "shootdown-replicas" for Research:
        |sim| {
            let policy = Policy { replication: Replication::Always, ..POLICY };
            sized(sim, NotifyBy::Chosen, policy)
        };
    /// Every flush interrupts all CPUs and waits.
    NAIVE = "naive" for General: |sim| Naive::new(sim).into();
    /// Linux before TLB generations.
    LINUX_4_12 = "linux-4.12" for General: |sim| Linux412::new(sim).into();
    /// Linux with TLB generations, as first merged.
    LINUX_4_14 = "linux-4.14" for General: |sim| Linux414::new(sim).into();
    /// Linux 6.12, which is the kernel of many recordings.
    LINUX_6_12 = "linux-6.12" for Recorded: |sim| Linux70::clearing_at_switch(sim).into();
    /// Linux today.
    LINUX_7_0 = "linux-7.0" for General: |sim| Linux70::counted(sim, ExitFlush::Interrupts).into();
    /// Linux 7.3, whose flushes wait preemptibly.
    LINUX_7_3 = "linux-7.3" for Recorded: |sim| Linux70::waiting_preemptibly(sim, None).into();
    /// Linux today, without the count of the CPUs that are lazy on a space.
    LINUX_UNCOUNTED = "linux-7.0-uncounted" for General: |sim| Linux70::uncounted(sim).into();
    /// Linux 7.0 with lazy CPUs counted, as on powerpc before it interrupted them at exit.
    POWERPC_COUNTED = "powerpc-counted" for General: |sim| Linux70::counted(sim, EXIT_FLUSH).into();
    /// Linux 7.0 with lazy CPUs interrupted at exit, as on powerpc.
    POWERPC_SHOOT = "powerpc-shoot" for General: |sim| Linux70::shoot(sim, EXIT_FLUSH).into();
    /// Linux 7.0 with lazy CPUs found by hazard pointers, as proposed.
    LINUX_HAZARD = "linux-hazard" for General: |sim| Linux70::hazard(sim, EXIT_FLUSH).into();
    /// The engine, with the policy of Linux 7.0.
    SHOOTDOWN_ALONE = "shootdown-alone" for General:
        |sim| sized(sim, NotifyBy::Chosen, linux::POLICY);
    /// The engine with its own policy.
    SHOOTDOWN = "shootdown" for General: |sim| sized(sim, NotifyBy::Chosen, POLICY);
}

/// All designs that have a name.
#[must_use]
pub fn registry() -> &'static [Design] {
    ALL
}

/// The designs of one purpose, in the order of the registry.
pub fn designs_for(purpose: Purpose) -> impl Iterator<Item = Design> + Clone {
    ALL.iter().copied().filter(move |design| design.purpose == purpose)
}

/// The error for a name that no design has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownDesign(pub String);

impl fmt::Display for UnknownDesign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no design `{}`", self.0.escape_debug())
    }
}

impl std::error::Error for UnknownDesign {}

impl FromStr for Design {
    type Err = UnknownDesign;

    fn from_str(text: &str) -> Result<Self, UnknownDesign> {
        let found = ALL.iter().copied().find(|design| design.name() == text);
        found.ok_or_else(|| UnknownDesign(text.to_owned()))
    }
}
