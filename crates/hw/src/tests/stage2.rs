//! Virtual CPUs that move, on a model of what TLBs may hold of a guest's own tables.

#![expect(unsafe_code, reason = "plays a processor")]

use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::vec::Vec;

use proptest::prelude::*;
use shootdown::{Entries, Extent, Memory, NoBroadcaster, Root, Tag, TagSlot};

use super::*;

/// The versions of each virtual CPU's tables that a CPU may hold, with the virtual CPU and the name
/// under which they are cached. A virtual CPU that invalidates makes a new version.
type Tlb = BTreeSet<(u16, u32, u32)>;

/// The TLB of the CPU that runs the test's code. All names are those of one guest.
struct Model<const OWN: bool>(RefCell<Tlb>);

// SAFETY: there is one thread.
unsafe impl<const OWN: bool> Sync for Model<OWN> {}

// SAFETY: as above.
unsafe impl<const OWN: bool> Memory for Model<OWN> {
    type Word = AtomicU64;

    fn fence(&self) {
        core::sync::atomic::fence(Ordering::SeqCst);
    }
}

// SAFETY: no engine uses it.
unsafe impl<const OWN: bool> Processor for Model<OWN> {
    type TagSlots = [TagSlot; 0];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    fn publish(&self) {}
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn tag_count(&self) -> usize {
        0
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {}
    unsafe fn load_kernel(&self, _: Root) {}
    fn invalidate(&self, _: Tag, _: Extent) {}
    fn invalidate_tag(&self, _: Tag) {}
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {}
}

// SAFETY: as above.
unsafe impl<const OWN: bool> Stage2 for Model<OWN> {
    const VCPU_NAMES: VcpuNames = if OWN { VcpuNames::Own } else { VcpuNames::Shared };

    fn invalidate_vcpu(&self, name: u16) {
        self.0.borrow_mut().retain(|&(of, ..)| OWN && of != name);
    }
}

const CPUS: usize = 3;
const VCPUS: usize = 3;

/// Runs virtual CPUs on CPUs, each for a while in which it may invalidate for itself. Returns the
/// number of invalidations by the hypervisor.
fn run<const OWN: bool>(runs: &[(usize, usize, bool)]) -> usize {
    let cpus: Vec<_> = (0..CPUS).map(|_| Model::<OWN>(RefCell::default())).collect();
    let last: Vec<_> = (0..CPUS).map(|_| LastVcpu::new()).collect();
    let name = |vcpu: usize| if OWN { vcpu as u16 + 1 } else { 0 };
    let vcpus: Vec<_> = (0..VCPUS).map(|vcpu| Vcpu::new(vcpu as u32, name(vcpu))).collect();
    let mut versions = [0; VCPUS];
    let mut dropped = 0;
    for &(cpu, vcpu, invalidates) in runs {
        let before = cpus[cpu].0.borrow().len();
        cpus[cpu].enter_vcpu(CpuId(cpu as u32), &vcpus[vcpu], &last[cpu]);
        let mut tlb = cpus[cpu].0.borrow_mut();
        dropped += usize::from(tlb.len() < before);
        for &(of, owner, version) in tlb.iter().filter(|(of, ..)| *of == name(vcpu)) {
            let is_own = (owner, version) == (vcpu as u32, versions[vcpu]);
            assert!(is_own, "virtual CPU {vcpu} finds version {version} of {owner} under {of}");
        }
        if invalidates {
            tlb.retain(|(of, ..)| *of != name(vcpu));
            versions[vcpu] += 1;
        }
        tlb.insert((name(vcpu), vcpu as u32, versions[vcpu]));
    }
    dropped
}

proptest! {
    /// A virtual CPU finds no entry of another one, and none that it has invalidated elsewhere.
    #[test]
    fn virtual_cpu_finds_its_own_entries(
        runs in prop::collection::vec((0..CPUS, 0..VCPUS, any::<bool>()), 1..40)
    ) {
        run::<true>(&runs);
        run::<false>(&runs);
    }
}

#[test]
fn virtual_cpu_that_stays_drops_nothing() {
    let stay = [(0, 0, false), (0, 0, true), (0, 0, false)];
    assert_eq!((run::<true>(&stay), run::<false>(&stay)), (0, 0));
    // Two that take turns on a CPU.
    let turns = [(0, 0, false), (0, 1, false), (0, 0, false), (0, 1, false)];
    assert_eq!((run::<true>(&turns), run::<false>(&turns)), (0, 3));
    let moved = [(0, 0, false), (1, 0, false), (0, 0, false)];
    assert_eq!((run::<true>(&moved), run::<false>(&moved)), (1, 1));
}
