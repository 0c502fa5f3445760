//! The instructions themselves. Each is privileged, unless it says otherwise.

#![expect(unsafe_code, reason = "executes what changes how memory is translated")]

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use crate::x86_64::features::{Features, Registers, Source};
use crate::x86_64::invlpgb;
use crate::x86_64::invpcid;

/// CR4: global pages stay when a root is loaded.
const PGE: u64 = 1 << 7;
/// CR4: the lower bits of CR3 are a tag.
const PCIDE: u64 = 1 << 17;

/// `IA32_BIOS_SIGN_ID`: the revision of the microcode, once CPUID has been executed.
const BIOS_SIGN_ID: u32 = 0x8b;

/// The processor that runs this.
struct ThisCpu;

impl Source for ThisCpu {
    fn cpuid(&self, leaf: u32) -> Registers {
        // (Not all versions of Rust that we support take it to be safe.)
        #[allow(unused_unsafe, reason = "it is safe since Rust 1.94")]
        // SAFETY: all x86-64 processors have CPUID, and it reads nothing of ours.
        let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } = unsafe { __cpuid(leaf) };
        Registers { eax, ebx, ecx, edx }
    }

    fn microcode(&self) -> u32 {
        let revision: u32;
        // SAFETY: asked of Intel's only, which have this register; it does not affect memory. It
        // is filled by CPUID, if it was 0 before (SDM 3A, section 10.11.7.1).
        unsafe {
            asm!("wrmsr", in("ecx") BIOS_SIGN_ID, in("eax") 0, in("edx") 0, options(nostack));
            __cpuid(1);
            asm!("rdmsr", in("ecx") BIOS_SIGN_ID, out("eax") _, out("edx") revision);
        }
        revision
    }
}

/// What this CPU can do. Executes CPUID, which is not privileged; and, on some models of Intel's
/// that are at fault until their microcode is new, RDMSR and WRMSR, which are.
#[must_use]
pub fn detect() -> Features {
    Features::of(&ThisCpu)
}

/// Sets up this CPU: global pages (`CR4.PGE`) and, if the features have them, tags (`CR4.PCIDE`).
///
/// # Safety
///
/// In ring 0 and 64-bit mode, with interrupts masked, on each CPU before it uses a
/// [`X86_64`](super::X86_64), and with no more features than it [has](detect). Bits 11 to 0 of CR3
/// must be 0, else setting `CR4.PCIDE` faults. Nobody else changes these two bits, save that a
/// kernel which wakes a CPU from a sleep that lost CR4 calls this again.
pub unsafe fn enable(features: Features) {
    let mut cr4 = read_cr4() | PGE;
    if features.has_pcid() {
        cr4 |= PCIDE;
    }
    // SAFETY: as our caller promises. A change of PGE drops everything, so nothing is found that
    // was cached by other rules.
    unsafe { write_cr4(cr4) };
}

/// A barrier that an x2APIC register needs before it is written, which no fence or locked operation
/// alone holds back (SDM 3A, section "MSR Access in x2APIC Mode"): all earlier stores are visible
/// before an interrupt that is sent thereafter. Not privileged. (Linux: `weak_wrmsr_fence`.)
///
/// Without it, the target may take the interrupt, look into the sender's memory and find nothing to
/// do, while the store that says what still sits in the sender's store buffer.
#[inline]
pub fn order_before_x2apic_write() {
    // SAFETY: barriers. `mfence` has the stores done; `lfence` has WRMSR wait for `mfence`.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
}

/// Waits until all earlier loads and stores are done and seen. Not privileged.
///
/// A locked operation on what is in the cache anyway, the stack: some 20 cycles, where `mfence`
/// takes 33 and more, for it orders also what is not cached. Below the stack's end, so that no
/// `ret` that is about to read its address must wait for it; it writes what is there. (Linux:
/// `__smp_mb`.)
#[inline]
pub(crate) fn fence() {
    // SAFETY: memory stays as it is. A page below the stack, were it a guard, is not touched but
    // by who has used up the stack.
    unsafe { asm!("lock or dword ptr [rsp - 4], 0", options(nostack)) };
}

/// Whether interrupts are masked: RFLAGS.IF. Not privileged.
#[inline]
pub(crate) fn interrupts_masked() -> bool {
    const INTERRUPTS: u64 = 1 << 9;
    let flags: u64;
    // SAFETY: reads.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & INTERRUPTS == 0
}

/// Calls `f` with interrupts masked, for what reads a control register and writes it back.
#[inline]
fn masked<R>(f: impl FnOnce() -> R) -> R {
    let were_masked = interrupts_masked();
    if !were_masked {
        // SAFETY: until below. Nothing is moved across, for the compiler must take it to use
        // memory.
        unsafe { asm!("cli", options(nostack)) };
    }
    let result = f();
    if !were_masked {
        // SAFETY: as they were.
        unsafe { asm!("sti", options(nostack)) };
    }
    result
}

fn read_cr4() -> u64 {
    let value;
    // SAFETY: reads.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nostack, preserves_flags)) };
    value
}

/// # Safety
///
/// What the bits mean must be right for the memory that is used.
unsafe fn write_cr4(value: u64) {
    // SAFETY: as our caller promises.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// # Safety
///
/// The root must map the kernel as the one before does.
#[inline]
pub(crate) unsafe fn write_cr3(value: u64) {
    // SAFETY: as our caller promises. It is serialising, and so has taken effect.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Loads the current root again, and so drops all that is cached under its tag, but for global
/// pages. Faster than `INVPCID` of the tag (some 200 cycles against 400 and more), and everywhere.
///
/// Masked, lest the handler of a flush load another root between the two instructions, and we load
/// one again that was left for good.
#[inline]
pub(crate) fn reload_cr3() {
    masked(|| {
        let root: u64;
        // SAFETY: what was there; bit 63 is never read as set.
        unsafe {
            asm!("mov {}, cr3", out(reg) root, options(nostack, preserves_flags));
            write_cr3(root);
        }
    });
}

/// Drops everything, under all tags and global pages, by changing `CR4.PGE` (SDM 3A, section
/// 4.10.4.1). Whether it was set does not matter.
///
/// Masked, lest a handler change another bit of CR4 between, which we would change back.
pub(crate) fn toggle_global_pages() {
    masked(|| {
        let cr4 = read_cr4();
        // SAFETY: what is global is walked for once more, and that is all.
        unsafe {
            write_cr4(cr4 ^ PGE);
            write_cr4(cr4);
        }
    });
}

/// Drops a page under the loaded tag, and if it is global; all that is cached of upper levels under
/// the loaded tag; and a page of any size as a whole (SDM 3A, section 4.10.4.1). With AMD's
/// `EFER.TCE`, of upper levels only those above the page, which is all that is asked for.
///
/// It is serialising, and so has taken effect. An address that is not canonical is ignored.
#[inline]
pub(crate) fn invlpg(address: u64) {
    // SAFETY: drops what can be found again. It reads nothing there.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// # Panics
///
/// As [`invpcid::Scope::operands`].
#[inline]
pub(crate) fn invpcid(scope: invpcid::Scope) {
    let invpcid::Operands { kind, descriptor } = scope.operands();
    // SAFETY: drops what can be found again, and reads the descriptor.
    unsafe {
        asm!(
            "invpcid {}, [{}]",
            in(reg) kind,
            in(reg) &raw const descriptor,
            options(nostack, preserves_flags),
        );
    }
}

/// Begins; see [`tlbsync`].
#[inline]
pub(crate) fn invlpgb(operands: invlpgb::Operands) {
    let invlpgb::Operands { rax, ecx, edx } = operands;
    // SAFETY: drops what can be found again.
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

/// Waits until each `INVLPGB` of this CPU has been done by every CPU.
#[inline]
pub(crate) fn tlbsync() {
    // SAFETY: waits.
    unsafe { asm!("tlbsync", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not privileged can be executed here.
    #[test]
    fn a_process_is_interrupted_and_fenced() {
        assert!(!interrupts_masked());
        fence();
        order_before_x2apic_write();
    }

    /// SDM 3A, section 2.5: CR4 bit 7 PGE, bit 17 PCIDE.
    #[test]
    fn bits_of_cr4_are_the_manuals() {
        assert_eq!((PGE, PCIDE), (0x80, 0x2_0000));
    }
}
