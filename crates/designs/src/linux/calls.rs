//! Calls to other CPUs, as in `smp_call_function_many_cond`.
//!
//! There is one call object per sender and target. The target's queue is a list with one head, and
//! only a CPU whose queue was empty is interrupted. The sender waits until each target has unlocked
//! its call object. The cost is the transfer of lines: the call object, the queue's head, and the
//! description of the flush, which each target reads.

use core::cell::{OnceCell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::{Cause, PairWord, Sim, SimWord};

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
    queue: RefCell<Vec<u16>>,
    /// The line of this CPU's description of a flush (`flush_tlb_info`).
    info: CachePadded<SimWord>,
    /// The description, while this CPU waits.
    current: RefCell<Option<Rc<I>>>,
    /// The call objects for calls to each other CPU: set until the call is complete.
    objects: OnceCell<Vec<PairWord>>,
}

impl<I> Calls<I> {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpu = |_| CallCpu {
            head: CachePadded(SimWord::with(0)),
            queue: RefCell::default(),
            info: CachePadded(SimWord::with(0)),
            current: RefCell::default(),
            objects: OnceCell::new(),
        };
        Self { cpus: (0..cpus).map(cpu).collect() }
    }

    /// Sends a flush to CPUs, runs `local` at the same time, and waits until all have flushed.
    pub(crate) fn call(&self, sim: &Sim, targets: &[usize], info: &Rc<I>, local: impl FnOnce()) {
        let from = sim.cpu();
        let me = &self.cpus[from];
        me.info.0.store(1, Relaxed);
        let before = me.current.replace(Some(Rc::clone(info)));
        assert!(before.is_none(), "a CPU waits for its call before it makes another");
        let mut quiet = Vec::new();
        for &target in targets {
            self.object(from, target).store(sim, target, true);
            let cpu = &self.cpus[target];
            let was_empty = cpu.head.0.fetch_add(1, Relaxed) == 0;
            cpu.queue.borrow_mut().push(from as u16);
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
                self.object(from, target).wait_until_clear(sim, target);
                if index % READ_AHEAD == 0 {
                    let next = targets[index + 1..].iter().take(READ_AHEAD);
                    next.for_each(|&next| self.object(from, next).prefetch(sim, next));
                }
            }
        });
        me.current.take();
    }

    /// Handles the interrupt: calls `flush` for each queued call.
    pub(crate) fn handle_calls(&self, sim: &Sim, mut flush: impl FnMut(&I)) {
        let me = sim.cpu();
        let cpu = &self.cpus[me];
        cpu.head.0.swap(0, Relaxed);
        let queue = cpu.queue.take();
        for from in queue.into_iter().map(usize::from) {
            let object = self.object(from, me);
            let _ = object.load(sim, from);
            let sender = &self.cpus[from];
            sender.info.0.load(Relaxed);
            let info = sender.current.borrow().clone().expect("the sender waits");
            flush(&info);
            object.store(sim, from, false);
        }
    }

    fn object(&self, from: usize, target: usize) -> &PairWord {
        let cpus = self.cpus.len();
        let new = || (0..cpus).map(|_| PairWord::default()).collect();
        &self.cpus[from].objects.get_or_init(new)[target]
    }
}
