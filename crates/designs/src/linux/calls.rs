//! Calls to other CPUs, as in `smp_call_function_many_cond`.
//!
//! There is one call object per sender and target. The target's queue is a list with one head, and
//! only a CPU whose queue was empty is interrupted. The sender waits until each target has unlocked
//! its call object. The cost is the transfer of lines: the call object, the queue's head, and the
//! description of the flush, which each target reads.

use core::cell::{OnceCell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::VecDeque;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::{Cause, Sim, SimWord};

use super::{CachePadded, FlushInfo};

/// Number of call objects that a waiting CPU reads ahead: the loads are independent, and an x86 CPU
/// overlaps them as soon as its branch predictor has seen a target that is done.
const READ_AHEAD: usize = 10;

/// The queues and call objects of all CPUs.
#[derive(Debug)]
pub(crate) struct Calls<I = FlushInfo> {
    cpus: Vec<CallCpu<I>>,
}

#[derive(Debug)]
struct CallCpu<I> {
    /// Number of queued calls. The list itself is not simulated.
    head: CachePadded<SimWord>,
    queue: RefCell<VecDeque<Call<I>>>,
    /// The line of this CPU's description of a flush (`flush_tlb_info`).
    info: CachePadded<SimWord>,
    /// The call objects for calls to each other CPU: 1 until the call is complete.
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

    /// Sends a flush to CPUs, runs `local` at the same time, and waits until all have flushed.
    pub(crate) fn call(&self, sim: &Sim, targets: &[usize], info: &Rc<I>, local: impl FnOnce()) {
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
        local();
        sim.attribute(Cause::FlushWait, || {
            for (index, &target) in targets.iter().enumerate() {
                while self.object(from, target).load(Relaxed) != 0 {
                    sim.flush_wait_hint();
                }
                if index % READ_AHEAD == 0 {
                    let next = targets[index + 1..].iter().take(READ_AHEAD);
                    next.for_each(|&next| self.object(from, next).prefetch());
                }
            }
        });
    }

    /// Handles the interrupt: calls `flush` for each queued call.
    pub(crate) fn handle_calls(&self, sim: &Sim, mut flush: impl FnMut(&I)) {
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
