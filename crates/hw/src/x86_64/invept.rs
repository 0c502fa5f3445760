//! The operands of `INVEPT` and `INVVPID`, with which a hypervisor drops translations of guests.
//!
//! See Intel's manual, volume 3C, "INVEPT" and "INVVPID".

/// The operands of `INVEPT` (SDM, "INVEPT"): the type, and the EPTP of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invept {
    /// The register operand.
    pub kind: u64,
    /// The memory operand.
    pub descriptor: [u64; 2],
}

impl Invept {
    /// Drops the mappings of one EPTP.
    #[must_use]
    pub const fn single(eptp: u64) -> Self {
        Self { kind: 1, descriptor: [eptp, 0] }
    }

    /// Drops the mappings of every EPTP.
    pub const ALL: Self = Self { kind: 2, descriptor: [0, 0] };
}

/// The operands of `INVVPID` (SDM, "INVVPID"): the type, and the VPID of the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invvpid {
    /// The register operand.
    pub kind: u64,
    /// The memory operand: the VPID in bits 15:0, and an address in bits 127:64.
    pub descriptor: [u64; 2],
}

impl Invvpid {
    /// Drops the mappings of one VPID, which is not 0.
    #[must_use]
    pub const fn single(vpid: u16) -> Self {
        Self { kind: 1, descriptor: [vpid as u64, 0] }
    }

    /// Drops the mappings of every VPID except 0.
    pub const ALL: Self = Self { kind: 2, descriptor: [0, 0] };
}
