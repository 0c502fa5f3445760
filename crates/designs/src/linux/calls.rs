//! Calls to other CPUs, as in `smp_call_function_many_cond`.
//!
//! There is one call object per sender and target. The target's queue is a list with one head, and
//! only a CPU whose queue was empty is interrupted. The sender waits until each target has unlocked
//! its call object. The cost is the transfer of lines: the call object, the queue's head, and the
//! description of the flush, which each target reads.
//!
//! Since Linux 7.3, the sender can be preempted while it waits. The call objects still belong to
//! the CPU on which it sent the calls. Another thread of that CPU that calls the same target waits
//! until the object is unlocked (`csd_lock`). If the first thread looks only after that, it waits
//! for the second call as well. The description is on the sender's stack, because each thread needs
//! its own.

use core::cell::{OnceCell, RefCell};
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::rc::Rc;

use shootdown::Word;
use shootdown_sim::{Cause, PairWord, Sim, SimWord, ThreadId};

use super::{CachePadded, FlushInfo};

/// Number of call objects that a waiting CPU reads ahead: the loads are independent, and an x86 CPU
/// overlaps them as soon as its branch predictor has seen a target that is done.
const READ_AHEAD: usize = 10;

/// The queues and call objects of all CPUs.
#[derive(Debug)]
pub(crate) struct Calls<I = FlushInfo> {
    cpus: Vec<CallCpu<I>>,
    /// The lines of the threads' descriptions; `None` if senders keep their CPU while they wait.
    stacks: Option<RefCell<HashMap<ThreadId, InfoLine>>>,
    object_lock: ObjectLock,
}

/// The line of a description of a flush (`flush_tlb_info`).
type InfoLine = Rc<CachePadded<SimWord>>;

/// What a sender does if a thread that was preempted has its call object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectLock {
    /// `csd_lock`.
    Waits,
    /// Nothing, for tests.
    Broken,
}

#[derive(Debug)]
struct CallCpu<I> {
    /// Number of queued calls. The list itself is not simulated.
    head: CachePadded<SimWord>,
    queue: RefCell<Vec<Queued<I>>>,
    /// The line of this CPU's description.
    info: InfoLine,
    /// The call objects for calls to each other CPU: set until the call is complete.
    objects: OnceCell<Vec<PairWord>>,
}

/// A call in a target's queue.
#[derive(Debug)]
struct Queued<I> {
    from: u16,
    info: Rc<I>,
    line: InfoLine,
}

impl<I> Calls<I> {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpu = |_| CallCpu {
            head: CachePadded(SimWord::with(0)),
            queue: RefCell::default(),
            info: Rc::new(CachePadded(SimWord::with(0))),
            objects: OnceCell::new(),
        };
        let cpus = (0..cpus).map(cpu).collect();
        Self { cpus, stacks: None, object_lock: ObjectLock::Waits }
    }

    /// Returns these calls, whose senders can be preempted while they wait.
    pub(crate) fn preemptible(self, object_lock: ObjectLock) -> Self {
        Self { stacks: Some(RefCell::default()), object_lock, ..self }
    }

    /// Sends a flush to CPUs, runs `local` at the same time, and waits until all have flushed.
    pub(crate) fn call(&self, sim: &Sim, targets: &[usize], info: &Rc<I>, local: impl FnOnce()) {
        let from = sim.cpu();
        let line = self.info_line(sim);
        line.0.store(1, Relaxed);
        let mut quiet = Vec::new();
        for &target in targets {
            let object = self.object(from, target);
            if object.is_set() && self.object_lock == ObjectLock::Waits {
                assert!(self.stacks.is_some(), "a CPU waits for its call before it makes another");
                object.wait_until_clear(sim, target);
            }
            object.store(sim, target, true);
            let cpu = &self.cpus[target];
            let was_empty = cpu.head.0.fetch_add(1, Relaxed) == 0;
            let (info, line) = (Rc::clone(info), Rc::clone(&line));
            cpu.queue.borrow_mut().push(Queued { from: from as u16, info, line });
            if was_empty {
                quiet.push(target);
            }
        }
        sim.count_coalesced(targets.len() - quiet.len());
        sim.send_flush_interrupt(quiet);
        sim.flush_sent();
        local();
        sim.attribute(Cause::FlushWait, || self.wait(sim, from, targets));
    }

    /// Waits until the targets have unlocked their call objects of CPU `from`.
    fn wait(&self, sim: &Sim, from: usize, targets: &[usize]) {
        for (index, &target) in targets.iter().enumerate() {
            let object = self.object(from, target);
            if self.stacks.is_some() {
                object.wait_preemptibly(sim, from, target);
            } else {
                object.wait_until_clear(sim, target);
            }
            if index % READ_AHEAD == 0 && sim.cpu() == from {
                let next = targets[index + 1..].iter().take(READ_AHEAD);
                next.for_each(|&next| self.object(from, next).prefetch(sim, next));
            }
        }
    }

    /// The line in which the caller describes its flush: its CPU's, or its thread's.
    fn info_line(&self, sim: &Sim) -> InfoLine {
        let cpu = &self.cpus[sim.cpu()].info;
        match (&self.stacks, sim.current_thread()) {
            (Some(stacks), Some(thread)) => {
                let new = || Rc::new(CachePadded(SimWord::with(0)));
                Rc::clone(stacks.borrow_mut().entry(thread).or_insert_with(new))
            }
            _ => Rc::clone(cpu),
        }
    }

    /// Handles the interrupt: calls `flush` for each queued call.
    pub(crate) fn handle_calls(&self, sim: &Sim, mut flush: impl FnMut(&I)) {
        let me = sim.cpu();
        let cpu = &self.cpus[me];
        cpu.head.0.swap(0, Relaxed);
        let queue = cpu.queue.take();
        for Queued { from, info, line } in queue {
            let object = self.object(from.into(), me);
            let _ = object.load(sim, from.into());
            line.0.load(Relaxed);
            flush(&info);
            object.store(sim, from.into(), false);
        }
    }

    fn object(&self, from: usize, target: usize) -> &PairWord {
        let cpus = self.cpus.len();
        let new = || (0..cpus).map(|_| PairWord::default()).collect();
        &self.cpus[from].objects.get_or_init(new)[target]
    }
}
