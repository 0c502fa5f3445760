//! A space on the machine, and the steps of its threads.

use alloc::sync::Arc;
use core::ops::Range;

use loom::thread;

use super::coherence::Present;
use super::machine::{Host, PAGE};
use super::words::run_on;
use crate::area::{Access, Backing, Protection, Sharing};
use crate::coherence::{Policy, ReclaimFlush, Replication, UnmapLock};
use crate::format::riscv::Sv39;
use crate::platform::{Frame, Platform};
use crate::replicas::Replica;
use crate::{AddressSpace, Advice, PAGE_BYTES, Place, Vm};

pub(crate) type System = (Host, Present, Sv39);

/// A page in another table of the last level.
pub(super) const OTHER_PAGE: u64 = 7 << 21;

/// A space with a page at [`PAGE`] and at [`OTHER_PAGE`], which CPU 0 has mapped.
#[derive(Clone)]
pub(crate) struct Process {
    pub(super) host: Host,
    pub(crate) space: Arc<AddressSpace<System>>,
}

pub(super) fn page(start: u64) -> Range<u64> {
    start..start + PAGE_BYTES
}

impl Process {
    /// `configure` completes the memory manager.
    pub(crate) fn new(
        cpus: usize,
        replication: Replication,
        configure: impl FnOnce(Vm<System>) -> Vm<System>,
    ) -> Self {
        run_on(0);
        let policy = Policy {
            replication,
            reclaim_flush: ReclaimFlush::Batched,
            ..Policy::new(UnmapLock::Released)
        };
        let host = Host::new(cpus, policy);
        let coherence = Present { host: host.clone(), last_use: PAGE };
        // Frame 0 is no root: a CPU that has loaded it has loaded nothing.
        host.allocate(crate::FrameUse::Table).unwrap();
        let vm = configure(Vm::new(host.clone(), coherence).unwrap());
        let process = Self { host, space: Arc::new(AddressSpace::new(&vm).unwrap()) };
        for start in [PAGE, OTHER_PAGE] {
            let protection = Protection::READ | Protection::WRITE;
            let place = Place::Fixed(page(start));
            process.space.map(place, protection, Sharing::Private, Backing::Anonymous).unwrap();
            // The kernel writes the page.
            let areas = process.space.mappings.areas.read();
            let area = areas.find(start).unwrap();
            process.space.resolve(area, start, Access::Write).unwrap();
        }
        // Use the lock.
        assert!(process.space.mappings.replicas.all().is_empty());
        process
    }

    /// Makes the replicas of some CPUs, and loads them. Each of the CPUs uses the other page.
    pub(super) fn with_replicas(
        cpus: usize,
        of: &[usize],
        configure: impl FnOnce(Vm<System>) -> Vm<System>,
    ) -> Self {
        let process = Self::new(cpus, Replication::Always, configure);
        for &cpu in of {
            run_on(cpu);
            assert!(process.access(OTHER_PAGE), "CPU {cpu} cannot use the page");
        }
        run_on(0);
        process
    }

    /// As above, where CPU 1 has used the page also.
    pub(super) fn with_user(
        cpus: usize,
        of: &[usize],
        configure: impl FnOnce(Vm<System>) -> Vm<System>,
    ) -> Self {
        let process = Self::with_replicas(cpus, of, configure);
        run_on(1);
        assert!(process.access(PAGE), "CPU 1 cannot use the page");
        run_on(0);
        process
    }

    /// Runs on a CPU, in another thread.
    pub(super) fn spawn(
        &self,
        cpu: usize,
        run: impl FnOnce(&Self) + 'static,
    ) -> thread::JoinHandle<()> {
        let process = self.clone();
        thread::spawn(move || {
            run_on(cpu);
            run(&process);
        })
    }

    /// Accesses a page, with at most one fault. Returns `false` if the retry faults also.
    pub(super) fn access(&self, address: u64) -> bool {
        if self.host.touch(address) {
            return true;
        }
        let _ = self.space.fault(address, Access::Read);
        self.return_to_user();
        self.host.touch(address)
    }

    #[expect(unsafe_code, reason = "the contract is of a kernel's page tables")]
    pub(super) fn return_to_user(&self) {
        // SAFETY: the space and its tables stay for the program.
        unsafe { self.space.switch_here() };
    }

    pub(super) fn discard(&self) {
        self.space.advise(page(PAGE), Advice::DontNeed).unwrap();
    }

    pub(super) fn migrate(&self) {
        self.space.migrate(page(PAGE), 1).unwrap();
    }

    pub(super) fn replica(&self, cpu: usize) -> Arc<Replica<System>> {
        self.space.mappings.replicas.of(cpu).expect("the CPU has a replica")
    }

    pub(super) fn cut(&self, replica: &Replica<System>) {
        replica.cut(self.space.vm.coherence(), &self.host);
    }

    /// The frame that is mapped at an address.
    pub(super) fn frame(&self, address: u64) -> Frame {
        self.space.mappings.tables.leaf(&self.host, address).expect("a page is mapped").frame
    }
}
