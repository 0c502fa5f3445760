//! Threads, and the queues of ready threads.

use std::collections::VecDeque;

use crate::context::ContextId;
use crate::eevdf::Virtual;
use crate::machine::{Distance, Policy, Topology};
use crate::thread_id::ThreadId;
use crate::time::Time;

/// The CPUs on which a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// All CPUs.
    Any,
    /// One CPU.
    Cpu(usize),
}

/// Parameters of a thread.
#[derive(Clone, Copy, Debug)]
pub struct ThreadSpec {
    /// The thread's address space, as passed to [`Kernel::switch`](crate::Kernel::switch); `None`
    /// for a kernel thread.
    pub space: Option<u64>,
    /// The CPUs on which it may run.
    pub affinity: Affinity,
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) space: Option<u64>,
    pub(crate) affinity: Affinity,
    pub(crate) context: ContextId,
    /// The CPU on which it runs, or ran last.
    pub(crate) cpu: usize,
    pub(crate) state: State,
    /// The thread stays on its CPU while it waits: see [`Sim::keep_cpu`](crate::Sim::keep_cpu).
    pub(crate) keeps_cpu: bool,
    /// Number of spin locks and locks of page tables that the thread holds.
    pub(crate) spin_locks: u32,
    pub(crate) times: Virtual,
}

/// Activity of a CPU while its thread [waits](crate::Sim::wait_on_cpu).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// The CPU computes.
    Busy,
    /// The CPU is idle, in states that get deeper with time.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Running,
    /// About to leave its CPU, and then to enter the given state. Until its context is suspended,
    /// no other CPU may execute it.
    Leaving(NextState),
    Blocked,
    WaitingOnCpu,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextState {
    Ready,
    Blocked,
    Done,
}

/// All threads, and the queue of each CPU.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    pub(crate) threads: Vec<Thread>,
    pub(crate) cpus: Vec<CpuQueue>,
    pub(crate) unfinished: usize,
    /// Number of ready threads that may run on any CPU. If it is 0, an idle CPU searches no queue.
    pub(crate) movable: usize,
}

#[derive(Debug, Default)]
pub(crate) struct CpuQueue {
    pub(crate) idle_context: Option<ContextId>,
    pub(crate) current: Option<ThreadId>,
    pub(crate) switching: bool,
    /// Time of the last switch.
    pub(crate) switched_at: Time,
    pub(crate) ready: VecDeque<ThreadId>,
    pub(crate) slice_ends: Time,
    /// The runtime of the current thread contains the time until then.
    pub(crate) charged_until: Time,
    /// The virtual time when it was last computed.
    pub(crate) virtual_time: i64,
    /// Set if another thread should replace the current one, before its slice ends.
    pub(crate) must_reschedule: bool,
}

impl Scheduler {
    pub(crate) fn new(cpus: usize) -> Self {
        let cpus = (0..cpus).map(|_| CpuQueue::default()).collect();
        Self { cpus, ..Self::default() }
    }

    pub(crate) fn current(&self, cpu: usize) -> Option<ThreadId> {
        self.cpus[cpu].current
    }

    pub(crate) fn context_of(&self, cpu: usize) -> ContextId {
        let idle = || self.cpus[cpu].idle_context.expect("created with the simulation");
        self.current(cpu).map_or_else(idle, |thread| self.thread(thread).context)
    }

    pub(crate) fn runs_user_thread(&self, cpu: usize) -> bool {
        self.current(cpu).is_some_and(|thread| self.thread(thread).space.is_some())
    }

    pub(crate) fn thread(&self, id: ThreadId) -> &Thread {
        &self.threads[id.0 as usize]
    }

    pub(crate) fn thread_mut(&mut self, id: ThreadId) -> &mut Thread {
        &mut self.threads[id.0 as usize]
    }

    /// The CPU on which a thread that becomes ready should run.
    pub(crate) fn place(&self, id: ThreadId, topology: &Topology, policy: Policy) -> usize {
        let thread = self.thread(id);
        let own = match thread.affinity {
            Affinity::Cpu(cpu) => return cpu,
            Affinity::Any => thread.cpu,
        };
        let is_idle = |cpu: &usize| {
            let queue = &self.cpus[*cpu];
            queue.current.is_none() && queue.ready.is_empty() && !queue.switching
        };
        if is_idle(&own) {
            return own;
        }
        let all = 0..self.cpus.len();
        let key = |&cpu: &usize| {
            let distance = topology.distance(own, cpu);
            // Linux prefers a core whose threads are all idle among those that share the cache
            // (`select_idle_sibling`). It finds other caches when it balances, here at once.
            let is_core_busy = || !topology.within(cpu, Distance::Core).all(|it| is_idle(&it));
            let is_second = policy != Policy::RoundRobin && is_core_busy();
            (distance > Distance::Cluster, is_second, distance)
        };
        all.filter(is_idle).min_by_key(key).unwrap_or(own)
    }

    /// Returns `true` if a thread may run on any CPU, which does not change while it is queued.
    pub(crate) fn is_movable(&self, id: ThreadId) -> bool {
        self.thread(id).affinity == Affinity::Any
    }

    /// Takes a thread that may run on any CPU from the longest queue.
    fn steal(&mut self, thief: usize, policy: Policy, slice: Time) -> Option<ThreadId> {
        if self.movable == 0 {
            return None;
        }
        let movable = |id: &ThreadId| self.is_movable(*id);
        let longest = (0..self.cpus.len())
            .filter(|&cpu| cpu != thief && self.cpus[cpu].ready.iter().any(movable))
            .max_by_key(|&cpu| (self.cpus[cpu].ready.len(), core::cmp::Reverse(cpu)))?;
        let at = self.cpus[longest].ready.iter().position(movable)?;
        if policy != Policy::RoundRobin {
            let id = self.cpus[longest].ready[at];
            self.enter(id, thief, Some(longest), slice);
        }
        self.cpus[longest].ready.remove(at)
    }

    pub(crate) fn pick(&mut self, cpu: usize, policy: Policy, slice: Time) -> Option<ThreadId> {
        let place = match policy {
            Policy::RoundRobin => Some(0),
            Policy::Eevdf | Policy::EevdfNoRunToParity => self.first_eligible(cpu),
        };
        let own = place.and_then(|place| self.cpus[cpu].ready.remove(place));
        let id = own.or_else(|| self.steal(cpu, policy, slice))?;
        self.movable -= usize::from(self.is_movable(id));
        Some(id)
    }
}
