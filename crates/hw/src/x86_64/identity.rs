//! The vendor and model of a processor, from CPUID.

/// The result of CPUID for a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// A source of CPUID results.
pub trait Source {
    /// Executes CPUID, with the leaf in EAX and 0 in ECX.
    fn cpuid(&self, leaf: u32) -> Registers;

    /// The revision of the microcode: `IA32_BIOS_SIGN_ID`, bits 63:32. Called only for Intel's
    /// processors.
    fn microcode(&self) -> u32;
}

/// EBX, EDX and ECX of leaf 0.
pub(super) type Vendor = [[u8; 4]; 3];

pub(super) const INTEL: Vendor = [*b"Genu", *b"ineI", *b"ntel"];
pub(super) const AMD: Vendor = [*b"Auth", *b"enti", *b"cAMD"];

/// Leaf 1, ECX: set by hypervisors, never by a processor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 8000_0021, EAX: one `TLBSYNC` completes a broadcast (Linux: `TLBSYNC_SFW_NO`).
const ONE_TLBSYNC: u32 = 1 << 4;

/// The vendor and model of a processor.
pub(super) struct Identity {
    pub(super) vendor: Vendor,
    pub(super) family: u32,
    pub(super) model: u32,
    pub(super) is_virtual: bool,
    pub(super) completes_by_one_tlbsync: bool,
}

impl Identity {
    /// Decodes leaves 0, 1 and 8000_0021 (SDM 2A, figure "Version Information Returned by CPUID in
    /// EAX").
    pub(super) fn new(vendor: Registers, basic: Registers, amd: Registers) -> Self {
        let bits = |shift: u32, mask: u32| basic.eax >> shift & mask;
        let (family, is_extended) = match bits(8, 0xf) {
            0xf => (0xf + bits(20, 0xff), true),
            family => (family, family == 6),
        };
        let extended_model = if is_extended { bits(16, 0xf) << 4 } else { 0 };
        Self {
            vendor: [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes),
            family,
            model: extended_model | bits(4, 0xf),
            is_virtual: basic.ecx & HYPERVISOR != 0,
            completes_by_one_tlbsync: amd.eax & ONE_TLBSYNC != 0,
        }
    }
}
