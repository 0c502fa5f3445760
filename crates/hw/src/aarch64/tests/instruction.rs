//! A stand-in for the instructions in tests. It records them in order instead of executing them.

use std::cell::{Cell, RefCell};
use std::vec::Vec;

use crate::aarch64::features::Features;
use crate::aarch64::features::tests::V8_0;
use crate::aarch64::operation::{Domain, Operation};
use crate::aarch64::settings::FlushInterrupt;
use crate::aarch64::stage2::GuestOperation;

/// An instruction that would have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tlbi(Operation, Domain),
    TlbiEl2(GuestOperation, Domain),
    /// `dsb ishst`.
    Publish,
    /// `dsb nsh`.
    CompleteLocal,
    /// `dsb ish`.
    CompleteShared,
    /// `isb`.
    Synchronize,
    /// `ic iallu`.
    InvalidateInstructions,
    /// The kernel's interrupt to CPUs with SME.
    InterruptSme,
    SetTtbr0(u64),
    /// `dsb sy`.
    CompleteSystem,
    SetSgi1r(u64),
    SetEoir1(u64),
    SetVttbr(u64),
}

std::thread_local! {
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    static TTBR0: Cell<u64> = const { Cell::new(0) };
    static VTTBR: Cell<u64> = const { Cell::new(0) };
    static TICKS: Cell<u64> = const { Cell::new(0) };
    static DAIF: Cell<u64> = const { Cell::new(1 << 7) };
    static CPU: Cell<Features> = const { Cell::new(V8_0) };
}

/// Makes this a CPU with these features.
pub(crate) fn set_cpu(features: Features) {
    CPU.set(features);
}

/// Sets the mask of interrupts: the bits of `DAIF`.
pub(crate) fn set_daif(value: u64) {
    DAIF.set(value);
}

impl Features {
    pub(crate) fn detect() -> Self {
        CPU.get()
    }

    pub(crate) fn detect_stage_2() -> Self {
        CPU.get()
    }
}

/// A function of the kernel, for `Aarch64::with_sme_interrupt`.
pub(crate) extern "C" fn interrupt_sme() {
    step(Step::InterruptSme);
}

/// The instructions that `f` executes, in order.
pub(crate) fn steps_of<R>(f: impl FnOnce() -> R) -> Vec<Step> {
    STEPS.take();
    f();
    STEPS.take()
}

fn step(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

pub(crate) fn tlbi(operation: Operation, domain: Domain) {
    step(Step::Tlbi(operation, domain));
}

pub(crate) fn tlbi_el2(operation: GuestOperation, domain: Domain) {
    step(Step::TlbiEl2(operation, domain));
}

pub(crate) fn publish() {
    step(Step::Publish);
}

pub(crate) fn complete_local() {
    step(Step::CompleteLocal);
}

pub(crate) fn complete_shared() {
    step(Step::CompleteShared);
}

pub(crate) fn synchronize() {
    step(Step::Synchronize);
}

pub(crate) fn invalidate_instructions() {
    step(Step::InvalidateInstructions);
}

pub(crate) fn spin_hint() {}

pub(crate) fn prefetch(_: *const u64) {}
pub(crate) fn prefetch_for_write(_: *const u64) {}

pub(crate) fn ttbr0() -> u64 {
    TTBR0.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_ttbr0(value: u64) {
    TTBR0.set(value);
    step(Step::SetTtbr0(value));
}

pub(crate) fn vttbr() -> u64 {
    VTTBR.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_vttbr(value: u64) {
    VTTBR.set(value);
    step(Step::SetVttbr(value));
}

pub(crate) fn interrupts_masked(kind: FlushInterrupt) -> bool {
    DAIF.get() & kind.daif() != 0
}

/// The counter. Between two reads, a millisecond passes at the frequency of the tests' features.
pub(crate) fn counter() -> u64 {
    synchronize();
    TICKS.replace(TICKS.get() + 62_500)
}

pub(crate) fn complete_system() {
    step(Step::CompleteSystem);
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_sgi1r(value: u64) {
    step(Step::SetSgi1r(value));
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_eoir1(number: u64) {
    step(Step::SetEoir1(number));
}
