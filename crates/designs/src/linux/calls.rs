//! Calls to other CPUs, as `smp_call_function_many_cond` makes them.
//!
//! One call object per sender and target. The target's queue is a list with one head; an interrupt
//! is sent only to a CPU whose queue was empty. The sender waits until each target has unlocked its
//! call object. What it costs is the lines that travel: call object, queue head, and the flush's
//! description, which each target reads.

use core::cell::{OnceCell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::{Sim, SimWord};

use super::{CachePadded, FlushInfo};

/// All CPUs' queues and call objects.
#[derive(Debug)]
pub(crate) struct Calls<I = FlushInfo> {
    cpus: Vec<CallCpu<I>>,
}

#[derive(Debug)]
struct CallCpu<I> {
    /// How many calls are queued; the list itself is the host's.
    head: CachePadded<SimWord>,
    queue: RefCell<VecDeque<Call<I>>>,
    /// The line of what this CPU sends (`flush_tlb_info`).
    info: CachePadded<SimWord>,
    /// The call objects by which it calls others: 1 while the call is not done.
    objects: OnceCell<Vec<CachePadded<SimWord>>>,
}

#[derive(Debug)]
struct Call<I> {
    from: usize,
    info: Rc<I>,
}

impl<I> Calls<I> {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpu = |_| CallCpu {
            head: CachePadded(SimWord::with(0)),
            queue: RefCell::default(),
            info: CachePadded(SimWord::with(0)),
            objects: OnceCell::new(),
        };
        Self { cpus: (0..cpus).map(cpu).collect() }
    }

    /// Sends a flush to CPUs, runs `meanwhile`, and waits until all have done it.
    pub(crate) fn call(
        &self,
        sim: &Sim,
        targets: &[usize],
        info: &Rc<I>,
        meanwhile: impl FnOnce(),
    ) {
        let from = sim.cpu();
        self.cpus[from].info.0.store(1, Relaxed);
        let mut quiet = Vec::new();
        for &target in targets {
            self.object(from, target).store(1, Relaxed);
            let cpu = &self.cpus[target];
            let was_empty = cpu.head.0.fetch_add(1, Relaxed) == 0;
            cpu.queue.borrow_mut().push_back(Call { from, info: Rc::clone(info) });
            if was_empty {
                quiet.push(target);
            }
        }
        sim.count_coalesced(targets.len() - quiet.len());
        sim.send_flush_interrupt(quiet);
        sim.flush_sent();
        meanwhile();
        for &target in targets {
            while self.object(from, target).load(Relaxed) != 0 {
                sim.spin_hint();
            }
        }
    }

    /// The interrupt's handler: does each queued call by `flush`.
    pub(crate) fn serve(&self, sim: &Sim, mut flush: impl FnMut(&I)) {
        let me = sim.cpu();
        let cpu = &self.cpus[me];
        cpu.head.0.swap(0, Relaxed);
        let queue = core::mem::take(&mut *cpu.queue.borrow_mut());
        for call in queue {
            let object = self.object(call.from, me);
            object.load(Relaxed);
            self.cpus[call.from].info.0.load(Relaxed);
            flush(&call.info);
            object.store(0, Relaxed);
        }
    }

    fn object(&self, from: usize, target: usize) -> &SimWord {
        let objects = self.cpus[from]
            .objects
            .get_or_init(|| (0..self.cpus.len()).map(|_| CachePadded(SimWord::with(0))).collect());
        &objects[target].0
    }
}
