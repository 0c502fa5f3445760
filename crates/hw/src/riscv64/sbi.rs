//! Calls of the firmware (SBI): interrupts to other harts, and remote fences.
//!
//! A call names harts by a mask of 64 bits and the number of the mask's first hart, so several
//! calls are needed for harts whose numbers are far apart.
//!
//! A CPU may go offline and stop its hart after another CPU has decided to notify it. Some firmware
//! then refuses the whole call, and reaches none of its harts (OpenSBI 1.7 to 1.8.1: 37eaca4a,
//! fixed by 110f2851). A refused interrupt is sent hart by hart, to those that have
//! not stopped. A refused fence is an error, for which the engine interrupts the CPUs.

use shootdown::{Extent, Tag};

use crate::ipi::for_each_group;

/// Harts of one call: bit *n* of `mask` is hart `base + n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HartMask {
    /// One bit for each hart.
    pub mask: u64,
    /// The number of the first hart, or [`u64::MAX`] for all harts.
    pub base: u64,
}

impl HartMask {
    /// All harts.
    pub const ALL: Self = Self { mask: 0, base: u64::MAX };
    const HARTS: u64 = 64;
}

/// Calls `call` once for each block of 64 hart numbers that has harts, and more often only if there
/// are more than eight blocks whose harts come in turns.
pub fn for_each_mask(harts: impl Iterator<Item = u64>, mut call: impl FnMut(HartMask)) {
    let place = |hart: u64| (hart - hart % HartMask::HARTS, 1 << (hart % HartMask::HARTS));
    for_each_group(harts.map(place), |base, mask| call(HartMask { mask, base }));
}

/// First address and number of bytes of a remote fence. All of the address space has 0 and
/// [`u64::MAX`].
///
/// With other values, the firmware executes `SFENCE.VMA` for addresses, which drops leaves alone.
/// So an extent that frees tables is all of the address space.
#[must_use]
pub const fn fenced(extent: Extent) -> (u64, u64) {
    if extent.is_whole() || extent.frees_tables() {
        return (0, u64::MAX);
    }
    (extent.start(), (extent.page_count() as u64) << extent.page_size().shift())
}

/// A call: the numbers of its extension and function, and its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the extension (`a7`).
    pub extension: u64,
    /// Number of the function (`a6`).
    pub function: u64,
    /// Arguments, from `a0` on.
    pub arguments: [u64; 5],
}

impl Call {
    /// `sbi_send_ipi`: sets the software interrupt (`sip.SSIP`) of these harts.
    #[must_use]
    pub const fn send_ipi(harts: HartMask) -> Self {
        Self { extension: 0x73_5049, function: 0, arguments: [harts.mask, harts.base, 0, 0, 0] }
    }

    /// `sbi_remote_sfence_vma_asid`, or `sbi_remote_sfence_vma` for all ASIDs if `tag` is `None`.
    #[must_use]
    pub fn remote_fence(harts: HartMask, tag: Option<Tag>, extent: Extent) -> Self {
        const ALL_ASIDS: u64 = 1;
        const ONE_ASID: u64 = 2;
        let (start, bytes) = fenced(extent);
        let (function, asid) = tag.map_or((ALL_ASIDS, 0), |tag| (ONE_ASID, u64::from(tag.0)));
        let arguments = [harts.mask, harts.base, start, bytes, asid];
        Self { extension: Self::REMOTE_FENCES, function, arguments }
    }

    /// `sbi_remote_hfence_gvma_vmid`, for guest physical addresses under one VMID.
    #[must_use]
    pub fn remote_guest_fence(harts: HartMask, vmid: Tag, extent: Extent) -> Self {
        let (start, bytes) = fenced(extent);
        let arguments = [harts.mask, harts.base, start, bytes, u64::from(vmid.0)];
        Self { extension: Self::REMOTE_FENCES, function: 3, arguments }
    }

    /// `sbi_hart_get_status`: the state of the first hart of a mask.
    #[must_use]
    pub const fn hart_state(hart: HartMask) -> Self {
        let number = hart.base + hart.mask.trailing_zeros() as u64;
        Self { extension: Self::HART_STATES, function: 2, arguments: [number, 0, 0, 0, 0] }
    }

    /// The extension that starts and stops harts: "HSM".
    pub const HART_STATES: u64 = 0x48_534d;

    /// `sbi_get_mvendorid`, `sbi_get_marchid` or `sbi_get_mimpid`: 0, 1 or 2.
    #[must_use]
    pub const fn identity(index: u64) -> Self {
        Self { extension: Self::BASE, function: 4 + index, arguments: [0; 5] }
    }

    /// The extension that every firmware has: "Base".
    pub const BASE: u64 = 0x10;
    /// The extension of remote fences: "RFNC".
    pub const REMOTE_FENCES: u64 = 0x5246_4e43;
}

#[cfg(any(target_arch = "riscv64", test))]
pub use with_firmware::{SbiIpi, remote_fence, remote_guest_fence, send_ipis};

#[cfg(any(target_arch = "riscv64", test))]
mod with_firmware {
    #![expect(unsafe_code, reason = "implements the contract of interrupts between CPUs")]

    use super::{Call, HartMask, for_each_mask};
    use crate::Ipi;
    use crate::riscv64::instructions::{call_firmware, clear_software_interrupt, fence_all};
    use shootdown::{Extent, Refused, Tag};

    impl HartMask {
        /// Each hart of the mask alone.
        fn each(self) -> impl Iterator<Item = Self> {
            let bits = (0..Self::HARTS).map(|hart| 1_u64 << hart);
            bits.filter(move |&bit| self.mask & bit != 0).map(move |mask| Self { mask, ..self })
        }
    }

    /// Number of attempts to interrupt a hart that has not stopped. The firmware may refuse one
    /// that is about to suspend, for less than a millisecond; a call takes about 0.4 µs.
    const ATTEMPTS: u32 = 10_000;

    /// The software interrupt, sent by the firmware. The controller's number of a CPU is that of
    /// its hart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SbiIpi {
        private: (),
    }

    impl SbiIpi {
        /// The software interrupt (`sip.SSIP`).
        ///
        /// # Safety
        ///
        /// Each CPU that sends or receives the interrupt runs in S-mode and has a handler of it.
        #[must_use]
        pub const unsafe fn new() -> Self {
            Self { private: () }
        }
    }

    // SAFETY: `send_ipis` orders earlier stores before the interrupt. An interrupt that is sent
    // after it was cleared is pending again.
    unsafe impl Ipi for SbiIpi {
        fn send(&self, targets: impl Iterator<Item = u64>) {
            send_ipis(targets);
        }

        #[inline]
        fn acknowledge(&self) {
            clear_software_interrupt();
            // Observe the sender's stores from before the interrupt.
            fence_all();
        }
    }

    /// Interrupts harts by their software interrupt. Its handler observes all stores of this hart
    /// from before the call. Skips harts that have stopped, whose CPUs have gone offline.
    ///
    /// # Panics
    ///
    /// If the firmware refuses to interrupt a hart that has not stopped: it would never answer.
    pub fn send_ipis(harts: impl Iterator<Item = u64>) {
        // The firmware writes to a device. Without this fence, the interrupt could arrive before
        // earlier stores are visible to its handler.
        fence_all();
        for_each_mask(harts, |harts| {
            if call_firmware(Call::send_ipi(harts)).is_err() {
                harts.each().for_each(send_ipi);
            }
        });
    }

    /// Interrupts one hart, unless it has stopped.
    #[cold]
    fn send_ipi(hart: HartMask) {
        let call = Call::send_ipi(hart);
        for attempt in 1.. {
            let Err(error) = call_firmware(call) else { return };
            // The state is read after the refusal. If the hart has been started again since, it
            // comes online without the flush for which it was interrupted.
            if has_stopped(hart) {
                return;
            }
            assert!(attempt < ATTEMPTS, "the firmware refuses {call:x?} with error {error}");
        }
    }

    /// Returns `true` if a hart has stopped, is stopping, or is starting again. Firmware that
    /// cannot stop harts does not have the call.
    fn has_stopped(hart: HartMask) -> bool {
        const STOPPED: u64 = 1;
        const START_PENDING: u64 = 2;
        const STOP_PENDING: u64 = 3;
        let state = call_firmware(Call::hart_state(hart));
        matches!(state, Ok(STOPPED | START_PENDING | STOP_PENDING))
    }

    /// Drops the pages of an extent, under one tag or under all, on other harts. When it returns,
    /// the harts have dropped them.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the firmware refuses: the harts may keep the pages.
    pub fn remote_fence(harts: HartMask, tag: Option<Tag>, extent: Extent) -> Result<(), Refused> {
        call_firmware(Call::remote_fence(harts, tag, extent)).map_or(Err(Refused), |_| Ok(()))
    }

    /// Drops guest physical pages of an extent under a VMID on other harts, as
    /// [`remote_fence`] drops pages.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the firmware refuses: the harts may keep the pages.
    pub fn remote_guest_fence(harts: HartMask, vmid: Tag, extent: Extent) -> Result<(), Refused> {
        let call = Call::remote_guest_fence(harts, vmid, extent);
        call_firmware(call).map_or(Err(Refused), |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown::PageSize;
    use std::vec::Vec;

    fn masks(harts: &[u64]) -> Vec<(u64, u64)> {
        let mut masks = Vec::new();
        for_each_mask(harts.iter().copied(), |harts| masks.push((harts.base, harts.mask)));
        masks
    }

    #[test]
    fn harts_of_one_block_share_a_call() {
        assert_eq!(masks(&[]), []);
        assert_eq!(masks(&[2, 0, 1, 63]), [(0, 1 << 63 | 0b111)]);
        assert_eq!(masks(&[63, 64, 65, 0x1_0003]), [(0, 1 << 63), (64, 0b11), (0x1_0000, 0b1000)]);
        assert_eq!(masks(&[0, 64, 1]), [(0, 0b11), (64, 1)]);
    }

    /// SBI, "IPI Extension" and "RFENCE Extension".
    #[test]
    fn calls_match_the_specification() {
        let harts = HartMask { mask: 0b110, base: 64 };
        let ipi = Call::send_ipi(harts);
        assert_eq!((ipi.extension, ipi.function), (0x73_5049, 0));
        assert_eq!(ipi.arguments[..2], [0b110, 64]);
        let two = Extent::pages(0x5000, 2, PageSize::SIZE_4K);
        let fence = Call::remote_fence(harts, Some(Tag(7)), two);
        assert_eq!((fence.extension, fence.function), (0x5246_4e43, 2));
        assert_eq!(fence.arguments, [0b110, 64, 0x5000, 0x2000, 7]);
        let fence = Call::remote_guest_fence(harts, Tag(7), two);
        assert_eq!((fence.extension, fence.function), (0x5246_4e43, 3));
        assert_eq!(fence.arguments, [0b110, 64, 0x5000, 0x2000, 7]);
        let fence = Call::remote_fence(HartMask::ALL, None, Extent::whole());
        assert_eq!(fence.function, 1);
        assert_eq!(fence.arguments, [0, u64::MAX, 0, u64::MAX, 0]);
    }

    #[test]
    #[expect(unsafe_code, reason = "plays a kernel with a handler")]
    fn ipi_orders_stores_and_clears_before_handler() {
        use crate::Ipi;
        use crate::riscv64::instructions::Step::{ClearSoftwareInterrupt, FenceAll, Firmware};
        use crate::riscv64::instructions::steps_of;
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { SbiIpi::new() };
        let call = Call::send_ipi(HartMask { mask: 0b1010, base: 0 });
        assert_eq!(steps_of(|| ipi.send([1, 3].into_iter())), [FenceAll, Firmware(call)]);
        assert_eq!(steps_of(|| ipi.acknowledge()), [ClearSoftwareInterrupt, FenceAll]);
    }

    /// The calls for harts 1, 2 and 5, of which hart 2 has just stopped.
    #[test]
    fn stopped_hart_does_not_lose_interrupts_of_others() {
        use crate::riscv64::instructions::Step::{FenceAll, Firmware};
        use crate::riscv64::instructions::{FirmwareState, steps_of, with_firmware};
        let send = |mask| Firmware(Call::send_ipi(HartMask { mask, base: 0 }));
        let steps = |is_strict| {
            let firmware = FirmwareState { stopped: 1 << 2, is_strict };
            with_firmware(firmware, || steps_of(|| send_ipis([1, 2, 5].into_iter())))
        };
        assert_eq!(steps(false), [FenceAll, send(0b10_0110)]);
        let state = Firmware(Call::hart_state(HartMask { mask: 1 << 2, base: 0 }));
        let one_by_one =
            [FenceAll, send(0b10_0110), send(1 << 1), send(1 << 2), state, send(1 << 5)];
        assert_eq!(steps(true), one_by_one);
        let far = Call::hart_state(HartMask { mask: 1 << 3, base: 64 });
        assert_eq!((far.extension, far.function, far.arguments[0]), (0x48_534d, 2, 67));
    }

    /// A hart that does not answer would be waited for in vain.
    #[test]
    fn refused_interrupt_of_running_hart_panics() {
        for refused in [62, 63] {
            let sent = std::panic::catch_unwind(|| send_ipis([1, refused].into_iter()));
            let message = sent.unwrap_err().downcast::<std::string::String>().unwrap();
            assert!(message.contains("the firmware refuses"), "{message}");
        }
    }

    #[test]
    fn freed_tables_fence_all_addresses() {
        assert_eq!(fenced(Extent::page(0x1000).freeing_tables()), (0, u64::MAX));
        assert_eq!(fenced(Extent::pages(0, 3, PageSize::SIZE_2M)), (0, 3 << 21));
    }
}
