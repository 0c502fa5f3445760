//! Who is where.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::thread::{Affinity, Stack, State, Thread, ThreadId};
use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::counts;
use crate::kernel::sync::{Mutex, masked};

pub(super) static QUEUES: Mutex<Option<Queues>> = Mutex::new(None);

/// What was decided when the kernel was started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How many CPUs there are.
    pub(crate) cpus: u32,
    /// After how long a thread gives its CPU up to others.
    pub(crate) slice_ns: u64,
    /// How often a CPU that runs a thread looks up.
    pub(crate) tick_ns: u64,
    /// After how long without progress the run is given up.
    pub(crate) stall_ns: u64,
}

/// What a CPU runs after a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A thread that has a space.
    Space,
    /// The idle loop, or a thread of the kernel alone.
    NoSpace,
}

/// Makes the queues. Once, by the first CPU, before any other uses them. `after_switch` is called
/// on a CPU after each switch, with interrupts let in.
pub(crate) fn set_up(settings: Settings, after_switch: fn(Next)) {
    *QUEUES.lock() = Some(Queues::new(settings, after_switch));
}

/// Calls `f` with the queues, interrupts masked.
pub(super) fn with_queues<R>(f: impl FnOnce(&mut Queues) -> R) -> R {
    masked(|| f(QUEUES.lock().as_mut().expect("they are made before they are used")))
}

/// All threads, and the CPUs' queues.
pub(super) struct Queues {
    pub(super) settings: Settings,
    pub(super) after_switch: fn(Next),
    threads: Vec<Thread>,
    cpus: Vec<PerCpu>,
    /// How many threads are not done.
    pub(super) unfinished: usize,
}

/// What a CPU has to do.
#[derive(Default)]
pub(super) struct PerCpu {
    pub(super) current: Option<ThreadId>,
    pub(super) ready: VecDeque<ThreadId>,
    /// Threads that sleep, the next to wake last.
    sleepers: Vec<(u64, ThreadId)>,
    pub(super) slice_ends_ns: u64,
    /// Of its idle loop, while a thread runs.
    pub(super) idle_stack_pointer: usize,
    /// Of a thread that has ended here, until somebody else's is used.
    pub(super) dead_stack: Option<Stack>,
}

/// The first CPU is interrupted this often at least: it looks whether anything happens.
const WATCH_NS: u64 = 500_000_000;

impl Queues {
    fn new(settings: Settings, after_switch: fn(Next)) -> Self {
        let cpus = (0..settings.cpus).map(|_| PerCpu::default()).collect();
        Self { settings, after_switch, threads: Vec::new(), cpus, unfinished: 0 }
    }

    pub(super) fn of(&mut self, cpu: u32) -> &mut PerCpu {
        &mut self.cpus[cpu as usize]
    }

    pub(super) fn thread(&self, id: ThreadId) -> &Thread {
        &self.threads[id.0 as usize]
    }

    pub(super) fn thread_mut(&mut self, id: ThreadId) -> &mut Thread {
        &mut self.threads[id.0 as usize]
    }

    pub(super) fn threads(&self) -> impl Iterator<Item = (ThreadId, &Thread)> {
        (0..).map(ThreadId).zip(&self.threads)
    }

    /// Adds a thread, which is blocked.
    pub(super) fn add(&mut self, thread: Thread) -> ThreadId {
        let id = ThreadId(self.threads.len() as u32);
        let cpu = match thread.affinity {
            Affinity::Cpu(cpu) => cpu,
            Affinity::Any => id.0 % self.settings.cpus,
        };
        self.threads.push(Thread { cpu, ..thread });
        self.unfinished += 1;
        // Room for all: who wakes a thread, perhaps in a handler, allocates nothing.
        for per_cpu in &mut self.cpus {
            per_cpu.ready.reserve(self.unfinished.saturating_sub(per_cpu.ready.len()));
            per_cpu.sleepers.reserve(self.unfinished.saturating_sub(per_cpu.sleepers.len()));
        }
        id
    }

    /// Puts a thread into the queue of the CPU where it should run, and returns that.
    pub(super) fn enqueue(&mut self, id: ThreadId) -> u32 {
        let target = self.place(id);
        self.thread_mut(id).state = State::Ready;
        self.of(target).ready.push_back(id);
        target
    }

    /// Takes the thread that is to run next on a CPU.
    pub(super) fn pick(&mut self, cpu: u32) -> Option<ThreadId> {
        self.of(cpu).ready.pop_front().or_else(|| self.steal(cpu))
    }

    /// Interrupts a CPU that idles, so that it looks at its queue.
    pub(super) fn kick(&mut self, target: u32) {
        if target != Arch::cpu() && self.of(target).current.is_none() {
            counts::pin().wake_interrupts_sent.add(1);
            Arch::send(&mut [target].into_iter(), Interrupt::Wake);
        }
    }

    fn place(&self, id: ThreadId) -> u32 {
        let thread = self.thread(id);
        let own = match thread.affinity {
            Affinity::Cpu(cpu) => return cpu,
            Affinity::Any => thread.cpu,
        };
        let is_idle = |cpu: &u32| {
            let per_cpu = &self.cpus[*cpu as usize];
            per_cpu.current.is_none() && per_cpu.ready.is_empty()
        };
        if is_idle(&own) {
            return own;
        }
        (0..self.settings.cpus).find(is_idle).unwrap_or(own)
    }

    /// A thread from the longest queue that may run anywhere.
    fn steal(&mut self, thief: u32) -> Option<ThreadId> {
        let movable = |id: &ThreadId| self.thread(*id).affinity == Affinity::Any;
        let longest = (0..self.cpus.len())
            .filter(|&cpu| cpu != thief as usize && self.cpus[cpu].ready.iter().any(movable))
            .max_by_key(|&cpu| (self.cpus[cpu].ready.len(), Reverse(cpu)))?;
        let at = self.cpus[longest].ready.iter().position(movable)?;
        self.cpus[longest].ready.remove(at)
    }

    /// The thread that this CPU runs is to be woken then.
    pub(super) fn sleep_until(&mut self, cpu: u32, time_ns: u64) {
        let per_cpu = self.of(cpu);
        let Some(id) = per_cpu.current else { return };
        let at = per_cpu.sleepers.partition_point(|&(until_ns, _)| until_ns > time_ns);
        per_cpu.sleepers.insert(at, (time_ns, id));
        self.set_timer(cpu);
    }

    /// A thread that has slept long enough.
    pub(super) fn take_sleeper(&mut self, cpu: u32, now_ns: u64) -> Option<ThreadId> {
        let sleepers = &mut self.of(cpu).sleepers;
        let is_time = sleepers.last().is_some_and(|&(until_ns, _)| until_ns <= now_ns);
        is_time.then(|| sleepers.pop()).flatten().map(|(_, id)| id)
    }

    /// Has the timer interrupt this CPU when it has to do something next.
    pub(super) fn set_timer(&mut self, cpu: u32) {
        let (now_ns, tick_ns) = (Arch::now_ns(), self.settings.tick_ns);
        let per_cpu = self.of(cpu);
        let mut next_ns = per_cpu.sleepers.last().map_or(u64::MAX, |&(until_ns, _)| until_ns);
        // Who is told that it is over, and goes on in the kernel, need not be told again.
        if per_cpu.current.is_some() && per_cpu.slice_ends_ns > now_ns {
            next_ns = next_ns.min(per_cpu.slice_ends_ns);
        }
        if per_cpu.current.is_some() {
            next_ns = next_ns.min(now_ns + tick_ns);
        }
        if cpu == 0 {
            next_ns = next_ns.min(now_ns + WATCH_NS);
        }
        if next_ns != u64::MAX {
            Arch::set_timer_ns(next_ns.saturating_sub(now_ns).max(1));
        }
    }

    /// Whether no thread can ever run again, though some are not done.
    pub(super) fn is_deadlocked(&self) -> bool {
        let is_still = |per_cpu: &PerCpu| {
            per_cpu.current.is_none() && per_cpu.ready.is_empty() && per_cpu.sleepers.is_empty()
        };
        self.unfinished != 0 && self.cpus.iter().all(is_still)
    }

    /// Whether all threads that are not done are blocked, and one of them sleeps.
    pub(super) fn only_sleeps(&self) -> bool {
        let is_still = |per_cpu: &PerCpu| per_cpu.current.is_none() && per_cpu.ready.is_empty();
        self.cpus.iter().all(is_still) && self.cpus.iter().any(|cpu| !cpu.sleepers.is_empty())
    }

    /// Makes `next` the current thread of a CPU, and begins its timeslice.
    pub(super) fn make_current(&mut self, cpu: u32, next: Option<ThreadId>) {
        let slice_ns = self.settings.slice_ns;
        if let Some(id) = next {
            let thread = self.thread_mut(id);
            thread.state = State::Running;
            if core::mem::replace(&mut thread.cpu, cpu) != cpu {
                counts::pin().migrations.add(1);
            }
        }
        counts::pin().switches.add(1);
        let per_cpu = self.of(cpu);
        per_cpu.current = next;
        per_cpu.slice_ends_ns = Arch::now_ns() + slice_ns;
        self.set_timer(cpu);
    }
}
