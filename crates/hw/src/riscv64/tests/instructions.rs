//! A stand-in for the instructions in tests. It records them in order instead of executing them.

use std::cell::{Cell, RefCell};
use std::vec::Vec;

use crate::riscv64::sbi::Call;

/// An instruction that would have been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    SetSatp(u64),
    SetHgatp(u64),
    DropAllGuests,
    DropGuest(u64),
    /// The operand and the VMID.
    DropGuestPage(u64, u64),
    DropGuestsOwn,
    DropAll,
    DropAsid(u64),
    /// The address, and the ASID if it names one.
    DropPage(u64, Option<u64>),
    BeginInvalidations,
    InvalidatePage(u64, Option<u64>),
    EndInvalidations,
    FenceStores,
    FenceMemory,
    FenceAll,
    Firmware(Call),
    /// The address and the value.
    StoreToDevice(usize, u32),
    /// Clears `sip.SSIP`.
    ClearSoftwareInterrupt,
}

std::thread_local! {
    static STEPS: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    static FIRMWARE: Cell<FirmwareState> = const {
        Cell::new(FirmwareState { stopped: 0, is_strict: false })
    };
    static SATP: Cell<u64> = const { Cell::new(0) };
    static HGATP: Cell<u64> = const { Cell::new(0) };
    static IDENTITY: Cell<Option<[u64; 3]>> = const { Cell::new(Some([0; 3])) };
    /// Bits of `satp` that the processor has.
    static SATP_MASK: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// The instructions that `f` executes, in order.
pub(crate) fn steps_of<R>(f: impl FnOnce() -> R) -> Vec<Step> {
    STEPS.take();
    f();
    STEPS.take()
}

/// Makes this a processor with ASIDs of this length, and loads `satp`.
pub(crate) fn set_up(asid_bits: u32, satp: u64) {
    let missing = 0xffff_u64 & !((1 << asid_bits) - 1);
    SATP_MASK.set(!(missing << 44));
    SATP.set(satp & SATP_MASK.get());
}

fn record(step: Step) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

pub(crate) fn satp() -> u64 {
    SATP.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_satp(value: u64) {
    SATP.set(value & SATP_MASK.get());
    record(Step::SetSatp(value));
}

pub(crate) fn hgatp() -> u64 {
    HGATP.get()
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn set_hgatp(value: u64) {
    HGATP.set(value);
    record(Step::SetHgatp(value));
}

pub(crate) fn drop_all_guests() {
    record(Step::DropAllGuests);
}

pub(crate) fn drop_guest(vmid: u64) {
    record(Step::DropGuest(vmid));
}

pub(crate) fn drop_guest_page(shifted: u64, vmid: u64) {
    record(Step::DropGuestPage(shifted, vmid));
}

pub(crate) fn drop_guests_own() {
    record(Step::DropGuestsOwn);
}

pub(crate) fn interrupts_masked() -> bool {
    true
}

pub(crate) fn drop_all() {
    record(Step::DropAll);
}

pub(crate) fn drop_asid(asid: u64) {
    record(Step::DropAsid(asid));
}

pub(crate) fn drop_page(address: u64, asid: Option<u64>) {
    record(Step::DropPage(address, asid));
}

pub(crate) fn begin_invalidations() {
    record(Step::BeginInvalidations);
}

pub(crate) fn invalidate_page(address: u64, asid: Option<u64>) {
    record(Step::InvalidatePage(address, asid));
}

pub(crate) fn end_invalidations() {
    record(Step::EndInvalidations);
}

pub(crate) fn fence_stores() {
    record(Step::FenceStores);
}

pub(crate) fn fence_memory() {
    record(Step::FenceMemory);
}

pub(crate) fn fence_all() {
    record(Step::FenceAll);
}

/// The firmware of a test, with harts 0 to 63.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirmwareState {
    /// One bit for each hart that has stopped.
    pub(crate) stopped: u64,
    /// `true` if a call that names a stopped hart is an error, and reaches no hart (OpenSBI 1.7 to
    /// 1.8.1). Otherwise the call reaches the others.
    pub(crate) is_strict: bool,
}

/// Calls `f` with this firmware.
pub(crate) fn with_firmware<R>(firmware: FirmwareState, f: impl FnOnce() -> R) -> R {
    FIRMWARE.set(firmware);
    let result = f();
    FIRMWARE.set(FirmwareState::default());
    result
}

/// Firmware that refuses calls for harts 62 and 63, although they have not stopped, and does not
/// know the state of hart 63. It has the identity that [`set_identity`] has set.
pub(crate) fn call_firmware(call: Call) -> Result<u64, i64> {
    if call.extension == Call::BASE {
        return IDENTITY.get().map(|identity| identity[call.function as usize - 4]).ok_or(-2);
    }
    record(Step::Firmware(call));
    let (firmware, named) = (FIRMWARE.get(), call.arguments[0]);
    if call.extension == Call::HART_STATES {
        return if named == 63 { Err(-2) } else { Ok(firmware.stopped >> named & 1) };
    }
    let is_refused = named >> 62 != 0 || firmware.is_strict && named & firmware.stopped != 0;
    if is_refused { Err(-3) } else { Ok(0) }
}

/// Makes this a hart with these values of `mvendorid`, `marchid` and `mimpid`; `None` if the
/// firmware does not tell.
pub(crate) fn set_identity(identity: Option<[u64; 3]>) {
    IDENTITY.set(identity);
}

#[expect(unsafe_code, reason = "as unsafe as the instruction")]
pub(crate) unsafe fn store_to_device(address: usize, value: u32) {
    record(Step::StoreToDevice(address, value));
}

pub(crate) fn clear_software_interrupt() {
    record(Step::ClearSoftwareInterrupt);
}
