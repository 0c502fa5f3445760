//! What a processor can do, by what CPUID says of it.
//!
//! Intel's manual, volume 2A, "CPUID"; AMD's, volume 3, appendix E. What a processor says and does
//! not do well is taken away here, as Linux does.

/// What CPUID returns for a leaf.
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

/// A processor as it describes itself.
pub trait Source {
    /// CPUID, with the leaf in EAX and 0 in ECX.
    fn cpuid(&self, leaf: u32) -> Registers;

    /// The revision of its microcode: `IA32_BIOS_SIGN_ID`, bits 63:32. Asked of Intel's only.
    fn microcode(&self) -> u32;
}

/// What matters to translation caches. They must be the same on all CPUs: of a mixed lot, take
/// what [all have](Self::both).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    has_pcid: bool,
    has_invpcid: bool,
    /// How many pages one `INVLPGB` names; 0 where there is none.
    invlpgb_pages: u32,
}

impl Features {
    /// None of them, as the first x86-64 processors: each load of a root discards.
    pub const NONE: Self = Self { has_pcid: false, has_invpcid: false, invlpgb_pages: 0 };

    /// What a processor can do.
    #[must_use]
    pub fn of(source: &impl Source) -> Self {
        // Of a leaf above the highest, Intel's return what the highest has.
        let leaf = |number: u32| {
            let highest = source.cpuid(number & 0x8000_0000).eax;
            if number <= highest { source.cpuid(number) } else { Registers::default() }
        };
        let (basic, structured, capacity) = (leaf(1), leaf(7), leaf(0x8000_0008));
        let identity = Identity::new(leaf(0), basic);
        let has_pcid = basic.ecx & PCID != 0 && !identity.misses_global_invlpg(source);
        let has_invlpgb = has_pcid && capacity.ebx & INVLPGB != 0 && !identity.has_no_invlpgb();
        Self {
            has_pcid,
            has_invpcid: structured.ebx & INVPCID != 0,
            invlpgb_pages: if has_invlpgb { (capacity.edx & 0xffff) + 1 } else { 0 },
        }
    }

    /// Whether there are process-context identifiers: tags (CPUID 1, ECX bit 17).
    #[must_use]
    pub const fn has_pcid(self) -> bool {
        self.has_pcid
    }

    /// Whether there is `INVPCID` (CPUID 7, EBX bit 10); some processors with tags have none.
    #[must_use]
    pub const fn has_invpcid(self) -> bool {
        self.has_invpcid
    }

    /// How many pages one `INVLPGB` names; `None` if there is no such instruction (CPUID 8000_0008,
    /// EBX bit 3; EDX bits 15:0 and one more), or no tag to give to it.
    #[must_use]
    pub const fn invlpgb_pages(self) -> Option<u32> {
        if self.invlpgb_pages == 0 { None } else { Some(self.invlpgb_pages) }
    }

    /// The same, but without tags, nor what needs them (Linux: `nopcid`).
    #[must_use]
    pub const fn without_pcid(self) -> Self {
        Self { has_pcid: false, ..self.without_invlpgb() }
    }

    /// The same, but without `INVPCID` (Linux: `noinvpcid`).
    #[must_use]
    pub const fn without_invpcid(self) -> Self {
        Self { has_invpcid: false, ..self }
    }

    /// The same, but without broadcasts.
    #[must_use]
    pub const fn without_invlpgb(self) -> Self {
        Self { invlpgb_pages: 0, ..self }
    }

    /// What this processor and another can do.
    #[must_use]
    pub const fn both(self, other: Self) -> Self {
        Self {
            has_pcid: self.has_pcid && other.has_pcid,
            has_invpcid: self.has_invpcid && other.has_invpcid,
            invlpgb_pages: if self.invlpgb_pages < other.invlpgb_pages {
                self.invlpgb_pages
            } else {
                other.invlpgb_pages
            },
        }
    }
}

/// Leaf 1, ECX.
const PCID: u32 = 1 << 17;
/// Leaf 1, ECX: never set by a processor, always by what pretends to be one.
const HYPERVISOR: u32 = 1 << 31;
/// Leaf 7, EBX.
const INVPCID: u32 = 1 << 10;
/// Leaf 8000_0008, EBX.
const INVLPGB: u32 = 1 << 3;

/// EBX, EDX and ECX of leaf 0.
const INTEL: [[u8; 4]; 3] = [*b"Genu", *b"ineI", *b"ntel"];
const AMD: [[u8; 4]; 3] = [*b"Auth", *b"enti", *b"cAMD"];

/// Intel's family 6: models, and from which microcode on they are well.
///
/// With PCIDs on, their `INVLPG` may leave a *global* page's translation where it is. Nothing then
/// drops a page of the kernel's but to drop everything, so PCIDs stay off, as in Linux
/// (`invlpg_miss_ids`; Alder Lake and Raptor Lake, mended in March 2024).
const GLOBAL_INVLPG_MENDED: [(u32, u32); 6] =
    [(0x97, 0x34), (0x9a, 0x432), (0xbe, 0x15), (0xb7, 0x122), (0xba, 0x4121), (0xbf, 0x34)];

/// AMD's family 17h, model 47h says that it has `INVLPGB`, and goes wrong when it is used (Linux:
/// `init_amd_zen2`).
const NO_INVLPGB: (u32, u32) = (0x17, 0x47);

/// Which one it is.
struct Identity {
    vendor: [[u8; 4]; 3],
    family: u32,
    model: u32,
    is_virtual: bool,
}

impl Identity {
    /// By leaves 0 and 1 (SDM 2A, figure "Version Information Returned by CPUID in EAX").
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

    /// Whether `INVLPG` may miss a global page. In a guest it does not, and microcode has no number
    /// that can be believed.
    fn misses_global_invlpg(&self, source: &impl Source) -> bool {
        let affected = GLOBAL_INVLPG_MENDED.iter().find(|(model, _)| *model == self.model);
        match affected {
            Some(&(_, mended)) if self.vendor == INTEL && self.family == 6 && !self.is_virtual => {
                source.microcode() < mended
            }
            _ => false,
        }
    }

    fn has_no_invlpgb(&self) -> bool {
        self.vendor == AMD && (self.family, self.model) == NO_INVLPGB
    }
}

#[cfg(test)]
mod tests;
