//! The contract of a hypervisor's processor: guests as spaces, and two names for what TLBs hold.
//!
//! A hypervisor has a second engine, in which a *space* is a guest: its root is the guest's table
//! of the second stage, and a CPU uses it while a virtual CPU of the guest runs there. The
//! hypervisor calls [`switch`](shootdown::PinnedCpu::switch) before it enters the guest,
//! [`enter_lazy`](shootdown::PinnedCpu::enter_lazy) after the guest has exited, and
//! [`flush`](shootdown::PinnedCpu::flush) where it unmaps or write-protects guest memory.
//!
//! A TLB holds three kinds of entries of a guest: of stage 1 (the guest's own tables), of stage 2,
//! and of both combined. They have two names:
//!
//! | | a guest's: stage 2, and combined | a virtual CPU's: stage 1, and combined |
//! |---|---|---|
//! | AArch64: `aarch64::Stage2` | VMID: `IPAS2E1`, then `VMALLE1` | the loaded VMID: `VMALLE1` |
//! | Intel: `x86_64::guest::Ept` | EPTP: `INVEPT` | VPID: `INVVPID` |
//! | AMD: `x86_64::guest::Npt` | ASID: `TLB_CONTROL` of `VMRUN` | the same ASID |
//! | RISC-V: `riscv64::Stage2` | VMID: `HFENCE.GVMA` | the loaded VMID: `HFENCE.VVMA` |
//!
//! The methods of [`Processor`] act on the first name: a flush of guest memory drops the entries of
//! stage 2 and whatever was combined from them, on every CPU. The second name is for a guest's own
//! flushes. A guest invalidates by instructions that do not exit, and these act on the CPU that
//! executes them. So its hypervisor must keep a virtual CPU from finding what it has invalidated
//! elsewhere, or what another virtual CPU has cached: [`Stage2::enter_vcpu`].

#![expect(unsafe_code, reason = "declares a contract that the engine's safety rests on")]

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use shootdown::CpuId;

use crate::Processor;

/// The processor of a hypervisor's second engine.
///
/// # Safety
///
/// As [`Processor`], for the accesses and walks of guests: when an `invalidate` method or a `load`
/// that discards has returned, no virtual CPU that runs on this CPU uses what it drops. In
/// addition:
///
/// - each of these methods drops entries of stage 2 *and* those that were combined from them;
/// - [`invalidate_all`](Processor::invalidate_all) and a [`load`](Processor::load) that discards
///   also drop entries of stage 1, because the tag may be another guest's next.
pub unsafe trait Stage2: Processor {
    /// The names under which entries of stage 1 are cached.
    const VCPU_NAMES: VcpuNames;

    /// Drops what a virtual CPU of the loaded guest has cached on this CPU by the guest's own
    /// tables: entries of stage 1, and combined ones. Entries of stage 2 may stay.
    ///
    /// `name` is the hypervisor's name of the virtual CPU on Intel, its VPID, which is not 0. The
    /// others ignore it.
    fn invalidate_vcpu(&self, name: u16);

    /// Call this after the [`switch`](shootdown::PinnedCpu::switch) to the guest, and before a
    /// virtual CPU is entered. Invalidates by the virtual CPU's name if it must not find what is
    /// cached: because it has run on another CPU since it ran here, or another one of the guest has
    /// run here under the same name.
    ///
    /// `last` is the hypervisor's record of the guest on *this* CPU.
    #[inline]
    fn enter_vcpu(&self, cpu: CpuId, vcpu: &Vcpu, last: &LastVcpu) {
        let has_moved = vcpu.cpu_plus_one.swap(cpu.0 + 1, Relaxed) != cpu.0 + 1;
        let is_other = last.number_plus_one.swap(vcpu.number + 1, Relaxed) != vcpu.number + 1;
        if has_moved || is_other && matches!(Self::VCPU_NAMES, VcpuNames::Shared) {
            self.invalidate_vcpu(vcpu.name);
        }
    }
}

/// The names under which a processor caches entries of stage 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuNames {
    /// All virtual CPUs of a guest have one name on a CPU, that of the guest.
    Shared,
    /// Each virtual CPU has its own name. No two of the machine that run on one CPU have the same.
    Own,
}

/// A virtual CPU: the last CPU on which it ran, and its names.
///
/// Only the CPU that is about to run the virtual CPU writes it. The hypervisor's lock or hand-over
/// of the virtual CPU orders the accesses of two CPUs.
#[derive(Debug)]
pub struct Vcpu {
    number: u32,
    name: u16,
    cpu_plus_one: AtomicU32,
}

impl Vcpu {
    /// A virtual CPU that has not run. `number` is its number in its guest, and `name` its VPID,
    /// where virtual CPUs have [names of their own](VcpuNames::Own).
    ///
    /// To give the virtual CPU another name, replace it by a new one.
    #[must_use]
    pub const fn new(number: u32, name: u16) -> Self {
        Self { number, name, cpu_plus_one: AtomicU32::new(0) }
    }
}

/// The virtual CPU of a guest that ran last on a CPU: one record for each guest and CPU.
#[derive(Debug, Default)]
pub struct LastVcpu {
    number_plus_one: AtomicU32,
}

impl LastVcpu {
    /// No virtual CPU of the guest has run on the CPU.
    #[must_use]
    pub const fn new() -> Self {
        Self { number_plus_one: AtomicU32::new(0) }
    }
}

#[cfg(test)]
#[path = "tests/stage2.rs"]
mod tests;
