//! Threads of one process that read a page in user mode, and then sleep.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use ostd::irq::DisabledLocalIrqGuard;
use ostd::mm::VmSpace;
use ostd::user::{ReturnReason, UserModeHooks};

use crate::gate::Gate;
use crate::measurement::{add_stale_reads, spin};
use crate::process::{POISON, SHARED, mapped};
use crate::{scheduler, user};

/// The state that the readers of one process share with the scenario.
#[derive(Default)]
struct Shared {
    entered: Gate,
    parks: AtomicBool,
    parked: Gate,
    /// The readers sleep behind this gate.
    end: Gate,
    ended: Gate,
    faults: AtomicUsize,
}

/// Readers of a process, one on each of some CPUs.
pub struct Readers {
    shared: Arc<Shared>,
    count: usize,
}

struct Hooks<'a> {
    shared: &'a Shared,
    has_entered: AtomicBool,
}

impl UserModeHooks for Hooks<'_> {
    fn has_kernel_event(&self) -> bool {
        self.shared.parks.load(SeqCst)
    }

    fn pre_user_run(&self, _: &DisabledLocalIrqGuard) {
        if !self.has_entered.swap(true, SeqCst) {
            self.shared.entered.arrive_quietly();
        }
    }
}

fn read(space: &VmSpace, shared: &Shared) {
    let mut user = user::reader(SHARED, POISON);
    let hooks = Hooks { shared, has_entered: AtomicBool::new(false) };
    loop {
        match user.execute(&hooks) {
            ReturnReason::KernelEvent => break,
            ReturnReason::UserSyscall => add_stale_reads(1),
            ReturnReason::UserException => {
                shared.faults.fetch_add(1, SeqCst);
                user.context_mut().take_exception();
                while mapped(space, SHARED).is_none() && !shared.parks.load(SeqCst) {
                    core::hint::spin_loop();
                }
            }
        }
    }
    shared.parked.arrive_quietly();
    shared.end.wait_for(1);
    shared.ended.arrive();
}

impl Readers {
    /// Starts readers, and returns when all are in user mode.
    pub fn start(space: &Arc<VmSpace>, cpus: &[usize]) -> Self {
        let shared = Arc::new(Shared::default());
        for &cpu in cpus {
            let (space_of_reader, shared) = (space.clone(), shared.clone());
            scheduler::spawn(cpu, Some(space), move || read(&space_of_reader, &shared));
        }
        shared.entered.spin_until(cpus.len());
        Self { shared, count: cpus.len() }
    }

    /// Lets the readers sleep, and returns when their CPUs idle.
    pub fn park(&self) {
        /// Enough for a CPU to schedule its idle task and halt.
        const UNTIL_IDLE: u64 = 3_000_000;
        self.shared.parks.store(true, SeqCst);
        self.shared.parked.spin_until(self.count);
        spin(UNTIL_IDLE);
    }

    /// Ends the readers. Returns the number of faults that they have taken.
    pub fn end(self) -> usize {
        self.shared.parks.store(true, SeqCst);
        self.shared.parked.spin_until(self.count);
        self.shared.end.arrive();
        self.shared.ended.wait_for(self.count);
        self.shared.faults.load(SeqCst)
    }
}
