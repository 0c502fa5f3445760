//! A stand-in for the instructions in tests. It records them in order instead of executing them.

use std::cell::{Cell, RefCell};
use std::vec::Vec;

/// An instruction that would have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    WriteAsid(u64),
    WriteRoot(u64),
    /// The operation, the ASID and the address.
    Invtlb(u32, u64, u64),
    /// `DBAR 0`.
    CompleteAll,
    /// The register and the value.
    WriteIocsr(u64, u64),
}

std::thread_local! {
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    /// CSR.ASID, with 10 bits for ASIDs.
    static ASID: Cell<u64> = const { Cell::new(10 << 16) };
}

/// The instructions that `f` executes, in order.
pub(crate) fn steps_of<R>(f: impl FnOnce() -> R) -> Vec<Step> {
    STEPS.take();
    f();
    STEPS.take()
}

fn record(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// CSR.CRMD, with interrupts masked.
pub(crate) fn read_mode() -> u64 {
    0
}

pub(crate) fn read_asid() -> u64 {
    ASID.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn write_asid(operand: u64) {
    ASID.set(ASID.get() & !0x3ff | operand);
    record(Step::WriteAsid(operand));
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn write_root(root: u64) {
    record(Step::WriteRoot(root));
}

pub(crate) fn invtlb<const OP: u32>(asid: u64, address: u64) {
    record(Step::Invtlb(OP, asid, address));
}

pub(crate) fn complete_all() {
    record(Step::CompleteAll);
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn write_iocsr(register: u64, value: u64) {
    record(Step::WriteIocsr(register, value));
}
