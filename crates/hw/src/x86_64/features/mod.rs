//! Features of a processor, from CPUID.
//!
//! See Intel's manual, volume 2A, "CPUID", and AMD's, volume 3, appendix E. Features with known
//! errata are removed here, as in Linux.

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

/// The features that matter for translation caches. They must be the same on all CPUs. If CPUs
/// differ, use the features that they have [in common](Self::common).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// `true` if there are process-context identifiers, which are tags (CPUID 1, ECX bit 17).
    pub has_pcid: bool,
    /// `true` if there is `INVPCID` (CPUID 7, EBX bit 10). Some processors with tags lack it.
    pub has_invpcid: bool,
    /// Number of pages that one `INVLPGB` names (CPUID 8000_0008, EBX bit 3; EDX bits 15:0, plus
    /// 1). `None` if there is no such instruction, or no tags that it could name.
    pub invlpgb_pages: Option<u32>,
}

impl Features {
    /// No features, as the first x86-64 processors: each load of a root discards all entries.
    pub const NONE: Self = Self { has_pcid: false, has_invpcid: false, invlpgb_pages: None };

    /// Decodes the features of a processor.
    #[must_use]
    pub fn of(source: &impl Source) -> Self {
        // For a leaf above the highest, Intel's processors return the highest leaf.
        let leaf = |number: u32| {
            let highest = source.cpuid(number & 0x8000_0000).eax;
            if number <= highest { source.cpuid(number) } else { Registers::default() }
        };
        let (basic, structured, capacity) = (leaf(1), leaf(7), leaf(0x8000_0008));
        let identity = Identity::new(leaf(0), basic);
        let has_pcid = basic.ecx & PCID != 0 && !identity.has_invlpg_erratum(source);
        let has_invlpgb = has_pcid && capacity.ebx & INVLPGB != 0 && !identity.lacks_invlpgb();
        Self {
            has_pcid,
            has_invpcid: structured.ebx & INVPCID != 0,
            invlpgb_pages: has_invlpgb.then_some((capacity.edx & 0xffff) + 1),
        }
    }

    /// Returns the features that this processor and another have in common.
    #[must_use]
    pub fn common(self, other: Self) -> Self {
        Self {
            has_pcid: self.has_pcid && other.has_pcid,
            has_invpcid: self.has_invpcid && other.has_invpcid,
            invlpgb_pages: self.invlpgb_pages.min(other.invlpgb_pages),
        }
    }
}

/// Leaf 1, ECX.
const PCID: u32 = 1 << 17;
/// Leaf 1, ECX: set by hypervisors, never by a processor.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 7, EBX.
const INVPCID: u32 = 1 << 10;
/// Leaf 8000_0008, EBX.
const INVLPGB: u32 = 1 << 3;

/// EBX, EDX and ECX of leaf 0.
const INTEL: [[u8; 4]; 3] = [*b"Genu", *b"ineI", *b"ntel"];
const AMD: [[u8; 4]; 3] = [*b"Auth", *b"enti", *b"cAMD"];

/// Models of Intel's family 6 with an erratum, and the first microcode that fixes it.
///
/// If PCIDs are enabled, their `INVLPG` may not drop a *global* page's translation. Only dropping
/// all entries then drops a kernel page, so PCIDs stay disabled, as in Linux (`invlpg_miss_ids`;
/// Alder Lake and Raptor Lake, fixed in March 2024).
const GLOBAL_INVLPG_FIXED: [(u32, u32); 6] =
    [(0x97, 0x34), (0x9a, 0x432), (0xbe, 0x15), (0xb7, 0x122), (0xba, 0x4121), (0xbf, 0x34)];

/// AMD's family 17h, model 47h: its CPUID has `INVLPGB`, but the instruction does not work (Linux:
/// `init_amd_zen2`).
const NO_INVLPGB: (u32, u32) = (0x17, 0x47);

/// The vendor and model of a processor.
struct Identity {
    vendor: [[u8; 4]; 3],
    family: u32,
    model: u32,
    is_virtual: bool,
}

impl Identity {
    /// Decodes leaves 0 and 1 (SDM 2A, figure "Version Information Returned by CPUID in EAX").
    fn new(vendor: Registers, basic: Registers) -> Self {
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
        }
    }

    /// Returns `true` if `INVLPG` may not drop a global page. A guest is not affected, and the
    /// microcode revision that it reads is not reliable.
    fn has_invlpg_erratum(&self, source: &impl Source) -> bool {
        let affected = GLOBAL_INVLPG_FIXED.iter().find(|(model, _)| *model == self.model);
        match affected {
            Some(&(_, fixed)) if self.vendor == INTEL && self.family == 6 && !self.is_virtual => {
                source.microcode() < fixed
            }
            _ => false,
        }
    }

    fn lacks_invlpgb(&self) -> bool {
        self.vendor == AMD && (self.family, self.model) == NO_INVLPGB
    }
}

#[cfg(test)]
mod tests;
