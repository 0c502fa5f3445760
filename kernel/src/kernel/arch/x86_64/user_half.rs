//! The roots and PCIDs of user mode. With the feature `kpti`, they are not those of the kernel.
//!
//! Each CPU has a root for user mode, into which it copies the loaded root before each stay there
//! (Xen does so for its guests). The copy maps the whole kernel: it shows that two halves stay
//! coherent, and hides nothing. Other CPUs may fill empty entries of the loaded root meanwhile:
//! user mode then faults, and comes back with a new copy. Full entries do not change while a space
//! lives.

use shootdown_hw::x86_64::X86_64;

pub(super) use choice::{Processor, enter, leave, processor};

#[cfg(not(feature = "kpti"))]
mod choice {
    use super::X86_64;

    pub(in super::super) type Processor = X86_64;

    pub(in super::super) const fn processor(processor: X86_64) -> Processor {
        processor
    }

    pub(in super::super) const fn enter() {}

    pub(in super::super) const fn leave() {}
}

#[cfg(feature = "kpti")]
mod choice {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use shootdown::Root;
    use shootdown_hw::x86_64::{Kpti, UserMarks};

    use super::super::cpu::{CPUS_MAX, cpu};
    use super::super::{X86_64 as Arch, paging};
    use super::X86_64;
    use crate::kernel::arch::contract::Architecture as _;

    pub(in super::super) type Processor = Kpti;

    const ENTRIES: usize = 512;

    /// The user half of a CPU, which no other CPU accesses.
    #[repr(C, align(4096))]
    struct UserHalf {
        root: [AtomicU64; ENTRIES],
        /// The value of CR3 for the return to the kernel.
        kernel: AtomicU64,
        marks: UserMarks,
    }

    static HALVES: [UserHalf; CPUS_MAX] = [const {
        UserHalf {
            root: [const { AtomicU64::new(0) }; ENTRIES],
            kernel: AtomicU64::new(0),
            marks: UserMarks::new(),
        }
    }; CPUS_MAX];

    fn this_cpu() -> &'static UserHalf {
        &HALVES[cpu() as usize]
    }

    pub(in super::super) fn processor(processor: X86_64) -> Processor {
        // SAFETY: `enter` is called before each stay in user mode, and `leave` is the first step
        // after it. The kernel's pages are global and do not change.
        unsafe { Kpti::new(processor, || &this_cpu().marks) }
    }

    /// Loads the user half. Call this with interrupts masked, as the last step before user mode.
    pub(in super::super) fn enter() {
        let this = this_cpu();
        let loaded = paging::phys_to_virt::<[AtomicU64; ENTRIES]>(paging::loaded_root());
        // SAFETY: the root is a table, and all accesses to it are atomic.
        for (copy, entry) in this.root.iter().zip(unsafe { &*loaded }) {
            copy.store(entry.load(Relaxed), Relaxed);
        }
        let root = Root(paging::image_to_phys(&raw const this.root));
        // SAFETY: interrupts are masked until user mode, and `write_cr3` follows. The copy maps
        // what the loaded root maps.
        unsafe {
            let halves = Arch::processor().halves(root);
            this.kernel.store(halves.kernel, Relaxed);
            paging::write_cr3(halves.user);
        }
    }

    /// Loads the kernel half again. Call this as the first step after user mode.
    pub(in super::super) fn leave() {
        // SAFETY: the space was loaded before user mode, and stays loaded.
        unsafe { paging::write_cr3(this_cpu().kernel.load(Relaxed)) };
    }
}
