//! A stand-in for the instructions in tests. It records privileged instructions in order instead of
//! executing them. The others are executed on an x86-64 host, and the fence is also recorded.

use std::cell::{Cell, RefCell};
use std::vec::Vec;

use crate::x86_64::features::Features;
#[cfg(target_arch = "x86_64")]
use crate::x86_64::instructions;
use crate::x86_64::invept::{Invept, Invvpid};
use crate::x86_64::invlpgb;

/// An instruction that was executed, or would have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A full barrier.
    Fence,
    /// `mov cr3`.
    WriteCr3(u64),
    /// Both instructions that load the current root again.
    ReloadCr3,
    /// Both writes of `CR4.PGE`.
    ToggleGlobalPages,
    Invlpg(u64),
    InvpcidAll,
    Invlpgb(invlpgb::Operands),
    Tlbsync,
    Invept(Invept),
    Invvpid(Invvpid),
    OrderBeforeX2ApicWrite,
    Enable(Features),
    /// The register and the value.
    Wrmsr(u32, u64),
    LoadFromDevice(usize),
    /// The address and the value.
    StoreToDevice(usize, u32),
    /// Begin and end of a part with interrupts masked.
    Masked,
    Unmasked,
}

std::thread_local! {
    /// CR3, with PCIDs.
    static CR3: Cell<u64> = const { Cell::new(0) };
    /// The features of the CPU; `None` if it has those that are asked for.
    static CPU: Cell<Option<Features>> = const { Cell::new(None) };
    /// `CR4.PCIDE`.
    static PCIDE: Cell<bool> = const { Cell::new(true) };
    static IS_RECORDING: Cell<bool> = const { Cell::new(false) };
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
}

/// The instructions that `f` executes, in order.
pub(crate) fn steps_of<R>(f: impl FnOnce() -> R) -> Vec<Step> {
    STEPS.take();
    IS_RECORDING.set(true);
    f();
    IS_RECORDING.set(false);
    STEPS.take()
}

/// Makes this a CPU with these features.
pub(crate) fn set_cpu(features: Features) {
    CPU.set(Some(features));
}

/// By default, a CPU with all features.
pub(crate) fn detect() -> Features {
    let all = Features { has_pcid: true, has_invpcid: true, ..Features::NONE };
    CPU.get().unwrap_or(Features { invlpgb_pages: Some(1 << 16), ..all })
}

#[inline]
fn record(step: Step) {
    if IS_RECORDING.get() {
        STEPS.with_borrow_mut(|steps| steps.push(step));
    }
}

/// Records the fence and executes it, because another test observes its effect on two threads.
#[inline]
pub(crate) fn fence() {
    record(Step::Fence);
    #[cfg(target_arch = "x86_64")]
    instructions::fence();
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

pub(crate) fn prefetch_for_write(_: *const u64) {}

/// While instructions are recorded, a test plays a CPU with interrupts masked.
pub(crate) fn interrupts_masked() -> bool {
    IS_RECORDING.get() || {
        #[cfg(target_arch = "x86_64")]
        let are_masked = instructions::interrupts_masked();
        #[cfg(not(target_arch = "x86_64"))]
        let are_masked = false;
        are_masked
    }
}

/// Sets CR3 without a step: another CPU runs.
pub(crate) fn set_cr3(value: u64) {
    CR3.set(value & !(1 << 63));
}

pub(crate) fn read_cr3() -> u64 {
    CR3.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn write_cr3(value: u64) {
    set_cr3(value);
    record(Step::WriteCr3(value));
}

pub(crate) fn reload_cr3() {
    record(Step::ReloadCr3);
}

pub(crate) fn toggle_global_pages() {
    record(Step::ToggleGlobalPages);
}

pub(crate) fn invlpg(address: u64) {
    record(Step::Invlpg(address));
}

pub(crate) fn invpcid_all() {
    record(Step::InvpcidAll);
}

pub(crate) fn invlpgb(operands: invlpgb::Operands) {
    record(Step::Invlpgb(operands));
}

pub(crate) fn tlbsync() {
    record(Step::Tlbsync);
}

pub(crate) fn invept(operands: Invept) {
    record(Step::Invept(operands));
}

pub(crate) fn invvpid(operands: Invvpid) {
    record(Step::Invvpid(operands));
}

pub(crate) fn order_before_x2apic_write() {
    record(Step::OrderBeforeX2ApicWrite);
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn wrmsr(register: u32, value: u64) {
    record(Step::Wrmsr(register, value));
}

#[expect(unsafe_code, reason = "as unsafe as the instructions")]
pub(crate) unsafe fn enable(features: Features) {
    record(Step::Enable(features));
}

pub(crate) fn tags_are_enabled() -> bool {
    PCIDE.get()
}

/// Changes `CR4.PCIDE`.
pub(crate) fn set_pcide(is_set: bool) {
    PCIDE.set(is_set);
}

/// A device whose registers are 0.
#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn load_from_device(address: usize) -> u32 {
    record(Step::LoadFromDevice(address));
    0
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn store_to_device(address: usize, value: u32) {
    record(Step::StoreToDevice(address, value));
}

pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    record(Step::Masked);
    let result = f();
    record(Step::Unmasked);
    result
}
