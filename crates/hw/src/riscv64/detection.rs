//! Detects the features of the CPU that runs this.

#![expect(unsafe_code, reason = "probes a register")]

use crate::riscv64::encoding::{Mode, asid_bits, with_longest_asid};
use crate::riscv64::errata::{self, Identity};
use crate::riscv64::features::Features;
use crate::riscv64::instructions as run;
use crate::riscv64::sbi;

impl Features {
    /// Detects the format of page tables and the length of ASIDs on this CPU, which must have a
    /// root loaded. The firmware tells the identity of the hart. Extensions are
    /// [added](Features::with_extensions).
    ///
    /// # Panics
    ///
    /// If `satp` has no format of page tables.
    #[must_use]
    pub fn detect() -> Self {
        Self::detect_as(identity())
    }

    /// As [`detect`](Self::detect), for a hart of this identity, which M-mode has read: calls no
    /// firmware.
    ///
    /// # Panics
    ///
    /// If `satp` has no format of page tables.
    #[must_use]
    pub fn detect_as(identity: Option<Identity>) -> Self {
        let satp = run::satp();
        let mode = Mode::of(satp).expect("addresses are translated");
        // SAFETY: the root stays the same, so this code stays mapped. Entries that are cached
        // under the longest ASID are dropped below.
        let probed = unsafe {
            run::set_satp(with_longest_asid(satp));
            let probed = run::satp();
            run::set_satp(satp);
            probed
        };
        run::drop_all();
        let workarounds = errata::needed_by(identity);
        Self { mode, asid_bits: asid_bits(probed), has_svinval: false, workarounds }
    }
}

/// The identity of this hart; `None` if the firmware does not tell it.
fn identity() -> Option<Identity> {
    let register = |index| run::call_firmware(sbi::Call::identity(index)).ok();
    Some(Identity {
        vendor: register(0)?,
        architecture: register(1)?,
        implementation: register(2)?,
    })
}
