//! The queues of the CPUs, and the placement of threads.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::thread::{Affinity, Stack, State, Thread, ThreadId};
use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::counts;
use crate::kernel::load::Settings;
use crate::kernel::sync::{Mutex, masked};

pub(super) static QUEUES: Mutex<Option<Queues>> = Mutex::new(None);

/// The kind of code that a CPU runs after a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A thread of a space.
    Space,
    /// The idle loop, or a kernel thread.
    NoSpace,
}

/// Creates the queues. Call this once, on the first CPU, before any other function of the
/// scheduler. A CPU calls `after_switch` after each switch, with interrupts enabled.
pub(crate) fn set_up(settings: Settings, after_switch: fn(Next)) {
    *QUEUES.lock() = Some(Queues::new(settings, after_switch));
}

/// Calls `f` with the queues locked and interrupts masked.
pub(super) fn with_queues<R>(f: impl FnOnce(&mut Queues) -> R) -> R {
    masked(|| f(QUEUES.lock().as_mut().expect("`set_up` has run")))
}

/// All threads, and the queues of the CPUs.
pub(super) struct Queues {
    pub(super) settings: Settings,
    pub(super) after_switch: fn(Next),
    threads: Vec<Thread>,
    cpus: Vec<PerCpu>,
    /// Number of threads that have not ended.
    pub(super) unfinished: usize,
}

/// The threads of a CPU.
#[derive(Default)]
pub(super) struct PerCpu {
    pub(super) current: Option<ThreadId>,
    pub(super) ready: VecDeque<ThreadId>,
    /// Sleeping threads with their times, the next to wake last.
    sleepers: Vec<(u64, ThreadId)>,
    pub(super) slice_ends_ns: u64,
    /// Stack pointer of the idle loop while a thread runs.
    pub(super) idle_stack_pointer: usize,
    /// Stack of a thread that has ended here. It is freed when another stack is in use.
    pub(super) dead_stack: Option<Stack>,
}

impl PerCpu {
    /// Returns `true` if the CPU runs no thread and has none to run.
    fn is_idle(&self) -> bool {
        self.current.is_none() && self.ready.is_empty()
    }
}

/// The longest time between two timer interrupts of the first CPU, which runs the watchdog.
const WATCH_NS: u64 = 500_000_000;

impl Queues {
    fn new(settings: Settings, after_switch: fn(Next)) -> Self {
        let cpus = (0..settings.cpus).map(|_| PerCpu::default()).collect();
        Self { settings, after_switch, threads: Vec::new(), cpus, unfinished: 0 }
    }

    pub(super) fn cpu(&mut self, cpu: u32) -> &mut PerCpu {
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

    /// Adds a blocked thread.
    pub(super) fn add(&mut self, thread: Thread) -> ThreadId {
        let id = ThreadId(self.threads.len() as u32);
        let cpu = match thread.affinity {
            Affinity::Cpu(cpu) => cpu,
            Affinity::Any => id.0 % self.settings.cpus,
        };
        self.threads.push(Thread { cpu, ..thread });
        self.unfinished += 1;
        // Reserve room for all threads: a wake, perhaps in a handler, must not allocate.
        for per_cpu in &mut self.cpus {
            per_cpu.ready.reserve(self.unfinished.saturating_sub(per_cpu.ready.len()));
            per_cpu.sleepers.reserve(self.unfinished.saturating_sub(per_cpu.sleepers.len()));
        }
        id
    }

    /// Makes a thread ready, in the queue of the CPU where it should run. Returns that CPU.
    pub(super) fn enqueue(&mut self, id: ThreadId) -> u32 {
        let target = self.place(id);
        self.thread_mut(id).state = State::Ready;
        self.cpu(target).ready.push_back(id);
        target
    }

    /// Removes the thread that a CPU should run next from its queue.
    pub(super) fn pick(&mut self, cpu: u32) -> Option<ThreadId> {
        self.cpu(cpu).ready.pop_front().or_else(|| self.steal(cpu))
    }

    /// Interrupts another CPU if it idles, so that it checks its queue.
    pub(super) fn kick(&mut self, target: u32) {
        if target != Arch::cpu() && self.cpu(target).current.is_none() {
            counts::this_cpu().wake_interrupts_sent.add(1);
            Arch::send(&mut [target].into_iter(), Interrupt::Wake);
        }
    }

    fn place(&self, id: ThreadId) -> u32 {
        let thread = self.thread(id);
        let own = match thread.affinity {
            Affinity::Cpu(cpu) => return cpu,
            Affinity::Any => thread.cpu,
        };
        let is_idle = |cpu: &u32| self.cpus[*cpu as usize].is_idle();
        if is_idle(&own) {
            return own;
        }
        (0..self.settings.cpus).find(is_idle).unwrap_or(own)
    }

    /// Removes a thread that may run on any CPU from the longest queue of another CPU.
    fn steal(&mut self, thief: u32) -> Option<ThreadId> {
        let movable = |id: &ThreadId| self.thread(*id).affinity == Affinity::Any;
        let longest = (0..self.cpus.len())
            .filter(|&cpu| cpu != thief as usize && self.cpus[cpu].ready.iter().any(movable))
            .max_by_key(|&cpu| (self.cpus[cpu].ready.len(), Reverse(cpu)))?;
        let at = self.cpus[longest].ready.iter().position(movable)?;
        self.cpus[longest].ready.remove(at)
    }

    /// Adds the thread that runs on `cpu` to the sleepers, until `time_ns`.
    pub(super) fn sleep_until(&mut self, cpu: u32, time_ns: u64) {
        let per_cpu = self.cpu(cpu);
        let Some(id) = per_cpu.current else { return };
        let at = per_cpu.sleepers.partition_point(|&(until_ns, _)| until_ns > time_ns);
        per_cpu.sleepers.insert(at, (time_ns, id));
        self.set_timer(cpu);
    }

    /// Removes a thread whose sleep is over.
    pub(super) fn pop_sleeper(&mut self, cpu: u32, now_ns: u64) -> Option<ThreadId> {
        let due = |&mut (until_ns, _): &mut (u64, ThreadId)| until_ns <= now_ns;
        self.cpu(cpu).sleepers.pop_if(due).map(|(_, id)| id)
    }

    /// Sets this CPU's timer to the next time at which it has something to do.
    pub(super) fn set_timer(&mut self, cpu: u32) {
        let (now_ns, tick_ns) = (Arch::now_ns(), self.settings.tick_ns);
        let per_cpu = self.cpu(cpu);
        let mut next_ns = per_cpu.sleepers.last().map_or(u64::MAX, |&(until_ns, _)| until_ns);
        // A thread that stays in the kernel after its timeslice is not interrupted for it again.
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

    /// Returns `true` if no thread can ever run again although some have not ended.
    pub(super) fn is_deadlocked(&self) -> bool {
        let is_still = |cpu: &PerCpu| cpu.is_idle() && cpu.sleepers.is_empty();
        self.unfinished != 0 && self.cpus.iter().all(is_still)
    }

    /// Returns `true` if all threads that have not ended are blocked, and at least one sleeps.
    pub(super) fn only_sleeps(&self) -> bool {
        let sleeps = |cpu: &PerCpu| !cpu.sleepers.is_empty();
        self.cpus.iter().all(PerCpu::is_idle) && self.cpus.iter().any(sleeps)
    }

    /// Makes `next` the current thread of a CPU and begins its timeslice.
    pub(super) fn make_current(&mut self, cpu: u32, next: Option<ThreadId>) {
        let slice_ns = self.settings.slice_ns;
        if let Some(id) = next {
            let thread = self.thread_mut(id);
            thread.state = State::Running;
            if core::mem::replace(&mut thread.cpu, cpu) != cpu {
                counts::this_cpu().migrations.add(1);
            }
        }
        counts::this_cpu().switches.add(1);
        let per_cpu = self.cpu(cpu);
        per_cpu.current = next;
        per_cpu.slice_ends_ns = Arch::now_ns() + slice_ns;
        self.set_timer(cpu);
    }
}
