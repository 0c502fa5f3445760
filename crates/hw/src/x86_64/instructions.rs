//! The instructions. Each is privileged unless its documentation says otherwise.

#![expect(unsafe_code, reason = "executes instructions that change address translation")]

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use crate::errata::Workarounds;
use crate::x86_64::features::Features;
use crate::x86_64::identity::{Registers, Source};
use crate::x86_64::invept::{Invept, Invvpid};
use crate::x86_64::invlpgb;

/// CR4: global pages stay cached when a root is loaded.
const PGE: u64 = 1 << 7;
/// CR4: the lower bits of CR3 are a tag.
const PCIDE: u64 = 1 << 17;

/// The type of `INVPCID` that drops all entries, global pages included.
const INVPCID_ALL: u64 = 2;

/// HWCR of AMD's K8, and its bit FFDIS, which switches the filter of flushes off.
const HWCR: u32 = 0xc001_0015;
const FFDIS: u64 = 1 << 6;

/// `IA32_BIOS_SIGN_ID`, which holds the revision of the microcode after CPUID was executed.
const BIOS_SIGN_ID: u32 = 0x8b;

/// The CPU that runs this code.
struct ThisCpu;

impl Source for ThisCpu {
    fn cpuid(&self, leaf: u32) -> Registers {
        // (The function is unsafe in some versions of Rust that we support.)
        #[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
        // SAFETY: all x86-64 processors have CPUID, and it accesses no memory.
        let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } = unsafe { __cpuid(leaf) };
        Registers { eax, ebx, ecx, edx }
    }

    fn microcode(&self) -> u32 {
        // SAFETY: only Intel's processors are asked, which have this register. It does not affect
        // memory. CPUID sets it if it was 0 before (SDM 3A, section 10.11.7.1).
        let sign_id = unsafe {
            wrmsr(BIOS_SIGN_ID, 0);
            __cpuid(1);
            rdmsr(BIOS_SIGN_ID)
        };
        (sign_id >> 32) as u32
    }
}

/// Reads a model-specific register.
///
/// # Safety
///
/// The register must exist.
unsafe fn rdmsr(register: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the caller's promise. Reading has no effect.
    unsafe {
        asm!("rdmsr", in("ecx") register, out("eax") low, out("edx") high,
            options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Detects the features of this CPU by CPUID, which is not privileged. On some models of Intel
/// whose errata depend on the microcode, also executes RDMSR and WRMSR, which are privileged.
#[must_use]
pub fn detect() -> Features {
    Features::of(&ThisCpu)
}

/// Enables features on this CPU: global pages (`CR4.PGE`) and, if `features` has them, tags
/// (`CR4.PCIDE`). On AMD's K8, switches the flush filter off.
///
/// # Safety
///
/// - Call this in ring 0 and 64-bit mode, with interrupts masked, on each CPU before it uses an
///   [`X86_64`](super::X86_64).
/// - Each CPU must [have](detect) the features.
/// - Bits 11 to 0 of CR3 must be 0, because otherwise setting `CR4.PCIDE` faults.
/// - No other code may change these two bits. If a CPU lost CR4 in a sleep state, call this again.
pub unsafe fn enable(features: Features) {
    let (cr4, hwcr) = bits_of(features);
    // SAFETY: the caller's promise. The change of PGE drops all entries, so no entry stays that was
    // cached in another mode.
    unsafe { write_cr4(read_cr4() | cr4) };
    if hwcr != 0 {
        // SAFETY: K8 has the register (AMD's BKDG 32559), and the bit only costs time.
        unsafe { wrmsr(HWCR, rdmsr(HWCR) | hwcr) };
    }
}

/// Returns `true` if tags are enabled on this CPU (`CR4.PCIDE`). Call this in ring 0.
#[must_use]
pub fn tags_are_enabled() -> bool {
    read_cr4() & PCIDE != 0
}

/// The bits of CR4 and HWCR that [`enable`] sets for the features. 0 leaves HWCR alone: only K8 is
/// known to have the register.
const fn bits_of(features: Features) -> (u64, u64) {
    let filter = features.workarounds.contains(Workarounds::NO_FLUSH_FILTER);
    let cr4 = if features.has_pcid { PGE | PCIDE } else { PGE };
    (cr4, if filter { FFDIS } else { 0 })
}

/// A barrier before the write of an x2APIC register: makes all earlier stores visible before an
/// interrupt that the write sends. Not privileged. No fence or locked operation alone orders such a
/// write after earlier stores (SDM 3A, section "MSR Access in x2APIC Mode"; Linux:
/// `weak_wrmsr_fence`).
///
/// It pairs with the load at the beginning of the interrupt's handler. Without it, the target may
/// take the interrupt, load the old value of the sender's word and find nothing to do, while the
/// sender's store is still in its store buffer.
#[inline]
pub fn order_before_x2apic_write() {
    // SAFETY: barriers. `mfence` completes the stores, and WRMSR waits for `lfence`.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
}

/// Writes a model-specific register.
///
/// # Safety
///
/// The register must exist, and the effect of the value must be safe.
#[inline]
pub(crate) unsafe fn wrmsr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's promise. Earlier accesses are not moved after the instruction, because
    // it may access memory as far as the compiler knows.
    unsafe {
        asm!("wrmsr", in("ecx") register, in("eax") low, in("edx") high,
            options(nostack, preserves_flags));
    }
}

/// A full barrier: all earlier loads and stores complete before any later one. Not privileged.
///
/// It is a locked operation on the stack, which is usually in the cache: about 20 cycles. `mfence`
/// takes 33 or more, because it also orders accesses to uncached memory. The word is below the
/// stack pointer, so that no `ret` that is about to load its address waits for it. The operation
/// stores the value that the word has. (Linux: `__smp_mb`.)
#[inline]
pub(crate) fn fence() {
    // SAFETY: the contents of memory do not change. The word is in a guard page only if the stack
    // is used up.
    unsafe { asm!("lock or dword ptr [rsp - 4], 0", options(nostack)) };
}

/// `prefetchw`. Processors of 64 bits that lack it execute a no-op (SDM 2B, `PREFETCHW`).
#[inline]
pub(crate) fn prefetch_for_write(address: *const u64) {
    // SAFETY: a prefetch never faults.
    unsafe {
        asm!("prefetchw [{}]", in(reg) address, options(readonly, nostack, preserves_flags));
    }
}

/// Returns `true` if interrupts are masked (RFLAGS.IF). Not privileged.
#[inline]
pub(crate) fn interrupts_masked() -> bool {
    const INTERRUPTS: u64 = 1 << 9;
    let flags: u64;
    // SAFETY: reading the flags has no effect.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & INTERRUPTS == 0
}

/// Loads from a register of a device.
///
/// # Safety
///
/// The register must exist, and reading it must have no effect.
#[inline]
pub(crate) unsafe fn load_from_device(address: usize) -> u32 {
    let value;
    // SAFETY: the caller's promise.
    unsafe { asm!("mov {:e}, [{}]", out(reg) value, in(reg) address, options(nostack)) };
    value
}

/// Stores to a register of a device, after all earlier stores.
///
/// # Safety
///
/// The register must exist, and the effect of the value must be safe.
#[inline]
pub(crate) unsafe fn store_to_device(address: usize, value: u32) {
    // SAFETY: the caller's promise. Earlier accesses are not moved after the instruction, because
    // it may access memory as far as the compiler knows.
    unsafe { asm!("mov [{}], {:e}", in(reg) address, in(reg) value, options(nostack)) };
}

/// Calls `f` with interrupts masked, for registers that are accessed in two steps.
#[inline]
pub(crate) fn masked<R>(f: impl FnOnce() -> R) -> R {
    let were_masked = interrupts_masked();
    if !were_masked {
        // SAFETY: interrupts are unmasked below. The compiler moves no memory access across,
        // because the instruction may access memory as far as it knows.
        unsafe { asm!("cli", options(nostack)) };
    }
    let result = f();
    if !were_masked {
        // SAFETY: interrupts were unmasked before.
        unsafe { asm!("sti", options(nostack)) };
    }
    result
}

fn read_cr4() -> u64 {
    let value;
    // SAFETY: reading has no effect.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nostack, preserves_flags)) };
    value
}

/// # Safety
///
/// The bits must be correct for the memory that is in use.
unsafe fn write_cr4(value: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
///
/// The root must map the kernel as the current root does.
#[inline]
pub(crate) unsafe fn write_cr3(value: u64) {
    // SAFETY: the caller's promise. The instruction is serialising, so it has taken effect.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Reads CR3. Bit 63 always reads as 0.
#[inline]
pub(crate) fn read_cr3() -> u64 {
    let value: u64;
    // SAFETY: reading has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nostack, preserves_flags)) };
    value
}

/// Loads the current root again, which drops all entries under its tag except global pages. This is
/// faster than `INVPCID` of the tag (about 200 cycles instead of 400 or more), and every processor
/// has it.
///
/// Interrupts are masked. Otherwise, the handler of a flush could load another root between the two
/// instructions, and this function would load a root again that the CPU has left for good.
#[inline]
pub(crate) fn reload_cr3() {
    masked(|| {
        // SAFETY: the value is that of the register.
        unsafe { write_cr3(read_cr3()) };
    });
}

/// Drops all entries, under all tags and global pages, by changing `CR4.PGE` (SDM 3A, section
/// 4.10.4.1). The change drops them whether the bit was set or not.
///
/// Interrupts are masked. Otherwise, a handler could change another bit of CR4 in between, and this
/// function would undo that change.
pub(crate) fn toggle_global_pages() {
    masked(|| {
        let cr4 = read_cr4();
        // SAFETY: the only effect is that translations are walked again.
        unsafe {
            write_cr4(cr4 ^ PGE);
            write_cr4(cr4);
        }
    });
}

/// Drops the translation of a page of any size, under the loaded tag or global, and all entries of
/// upper levels under the loaded tag (SDM 3A, section 4.10.4.1). With AMD's `EFER.TCE`, of upper
/// levels only those above the page, which is enough.
///
/// The instruction is serialising, so it has taken effect on return. It ignores an address that is
/// not canonical.
#[inline]
pub(crate) fn invlpg(address: u64) {
    // SAFETY: a dropped translation is walked again. The instruction reads no memory there.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Drops all entries, under all tags and global pages, by `INVPCID` (Intel's manual, volume 2A;
/// AMD's, volume 3).
#[inline]
pub(crate) fn invpcid_all() {
    // The type ignores the descriptor, whose reserved bits must be 0.
    let descriptor = [0_u64; 2];
    // SAFETY: a dropped translation is walked again. The instruction reads the descriptor.
    unsafe {
        asm!(
            "invpcid {}, [{}]",
            in(reg) INVPCID_ALL,
            in(reg) &raw const descriptor,
            options(nostack, preserves_flags),
        );
    }
}

/// Starts a broadcast; [`tlbsync`] waits for it.
#[inline]
pub(crate) fn invlpgb(operands: invlpgb::Operands) {
    let invlpgb::Operands { rax, ecx, edx } = operands;
    // SAFETY: a dropped translation is walked again.
    unsafe {
        asm!(
            "invlpgb",
            in("rax") rax,
            in("ecx") ecx,
            in("edx") edx,
            options(nostack, preserves_flags),
        );
    }
}

/// Waits until all CPUs have executed each `INVLPGB` of this CPU.
#[inline]
pub(crate) fn tlbsync() {
    // SAFETY: waiting has no effect.
    unsafe { asm!("tlbsync", options(nostack, preserves_flags)) };
}

/// Drops mappings of extended page tables. Needs VMX operation.
///
/// # Panics
///
/// If the processor refuses: it lacks the type, or the EPT pointer is not valid.
pub(crate) fn invept(Invept { kind, descriptor }: Invept) {
    let has_failed: u8;
    // SAFETY: a dropped mapping is walked again. The instruction reads the descriptor, and sets CF
    // or ZF if it fails.
    unsafe {
        asm!(
            "invept {}, [{}]",
            "setbe {}",
            in(reg) kind,
            in(reg) &raw const descriptor,
            out(reg_byte) has_failed,
            options(nostack),
        );
    }
    assert_eq!(has_failed, 0, "INVEPT of type {kind} fails for {descriptor:x?}");
}

/// Drops mappings under VPIDs. Needs VMX operation.
///
/// # Panics
///
/// If the processor refuses: it lacks the type, or the VPID is 0.
pub(crate) fn invvpid(Invvpid { kind, descriptor }: Invvpid) {
    let has_failed: u8;
    // SAFETY: as above.
    unsafe {
        asm!(
            "invvpid {}, [{}]",
            "setbe {}",
            in(reg) kind,
            in(reg) &raw const descriptor,
            out(reg_byte) has_failed,
            options(nostack),
        );
    }
    assert_eq!(has_failed, 0, "INVVPID of type {kind} fails for {descriptor:x?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes the functions that are not privileged.
    #[test]
    fn process_can_execute_fences() {
        assert!(!interrupts_masked());
        fence();
        order_before_x2apic_write();
    }

    /// SDM 3A, section 2.5: CR4 bit 7 PGE, bit 17 PCIDE. SDM 2A, INVPCID: type 2 is all contexts
    /// including global translations, type 3 all contexts without them. AMD's BKDG 32559, HWCR: bit
    /// 6 FFDIS.
    #[test]
    fn constants_match_manual() {
        assert_eq!((PGE, PCIDE), (0x80, 0x2_0000));
        assert_eq!(INVPCID_ALL, 2);
        assert_eq!((HWCR, FFDIS), (0xc001_0015, 0x40));
    }

    #[test]
    fn flush_filter_is_switched_off_on_k8() {
        let bits =
            |workarounds, has_pcid| bits_of(Features { has_pcid, workarounds, ..Features::NONE });
        assert_eq!(bits(Workarounds::NO_FLUSH_FILTER, false), (PGE, FFDIS));
        let others = Workarounds::SECOND_TLBSYNC.with(Workarounds::ONE_PAGE_SIZE);
        assert_eq!(bits(others, false), (PGE, 0));
        assert_eq!(bits(Workarounds::NONE, true), (PGE | PCIDE, 0));
    }
}
