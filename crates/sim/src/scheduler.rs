//! The scheduler: threads, a queue of ready threads for each CPU, and the idle loop.
//!
//! It is the same for every design. A thread stays on its CPU. A thread that wakes goes to an idle
//! CPU if its own is busy, the nearest first. An idle CPU takes a thread from the longest queue.
//! There are no priorities. The machine's [`Policy`] decides which thread of a queue runs next, and
//! whether a thread that wakes preempts the running one.

use std::io;

use crate::causes::Cause;
use crate::clock::Vector;
use crate::eevdf::Virtual;
use crate::machine::{Idle, Policy, TlbInIdle};
use crate::sim::{Sim, SwitchedTo, with_running};
use crate::thread_id::ThreadId;
use crate::threads::{Affinity, NextState, State, Thread, ThreadSpec, WaitMode};
use crate::time::Time;

impl Sim {
    /// Creates a thread that is ready to run `body`.
    ///
    /// # Errors
    ///
    /// If no stack is left; [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) if as many threads
    /// exist as the simulation was created for.
    pub fn spawn(&self, spec: ThreadSpec, body: impl FnOnce() + 'static) -> io::Result<ThreadId> {
        let context = self.contexts.create(move || {
            // The code that switched to this thread had masked interrupts.
            with_running(Self::end_switch);
            body();
            with_running(|sim| sim.leave_cpu(NextState::Done));
        })?;
        let id = {
            let mut scheduler = self.scheduler.borrow_mut();
            let id = ThreadId(scheduler.threads.len() as u32);
            let cpu = match spec.affinity {
                Affinity::Cpu(cpu) => cpu,
                Affinity::Any => id.0 as usize % scheduler.cpus.len(),
            };
            scheduler.threads.push(Thread {
                space: spec.space,
                affinity: spec.affinity,
                context,
                cpu,
                state: State::Blocked,
                keeps_cpu: false,
                spin_locks: 0,
                times: Virtual::default(),
            });
            scheduler.unfinished += 1;
            id
        };
        self.wake(id);
        Ok(id)
    }

    /// Makes a blocked thread ready. Does nothing if it is neither blocked nor about to block.
    pub fn wake(&self, id: ThreadId) {
        self.spend(self.machine.kernel.wake);
        let mut scheduler = self.scheduler.borrow_mut();
        let thread = scheduler.thread_mut(id);
        match thread.state {
            State::WaitingOnCpu => {
                drop(scheduler);
                self.resume_on_cpu(id);
            }
            State::Leaving(NextState::Blocked) => thread.state = State::Leaving(NextState::Ready),
            State::Blocked => {
                drop(scheduler);
                let target = self.enqueue(id);
                self.preempt(target, id);
                self.kick(target);
            }
            _ => {}
        }
    }

    /// Makes a blocked thread ready, on an idle CPU or on this one. Without this, a thread that
    /// finds no idle CPU runs where it last ran. (Linux: `wake_affine`.)
    pub fn wake_near(&self, id: ThreadId) {
        let cpu = self.cpu();
        let mut scheduler = self.scheduler.borrow_mut();
        let thread = scheduler.thread_mut(id);
        if thread.state == State::Blocked {
            thread.cpu = cpu;
        }
        drop(scheduler);
        self.wake(id);
    }

    /// Blocks the calling thread until it is [woken](Self::wake). The thread that wakes it must be
    /// able to find it before it blocks.
    pub fn block(&self) {
        let keeps_cpu = |id| self.scheduler.borrow().thread(id).keeps_cpu;
        if self.current_thread().is_some_and(keeps_cpu) {
            self.wait_on_cpu(WaitMode::Busy, None);
        } else {
            self.leave_cpu(NextState::Blocked);
        }
    }

    /// Makes the calling thread keep its CPU from now on, even while it waits. The thread
    /// represents all activity of the CPU: it [switches spaces](Self::switch_space) itself,
    /// according to a given schedule.
    pub fn keep_cpu(&self) {
        if let Some(id) = self.current_thread() {
            self.scheduler.borrow_mut().thread_mut(id).keeps_cpu = true;
        }
    }

    /// Makes the calling thread, which [keeps its CPU](Self::keep_cpu), wait there until it is
    /// [woken](Self::wake) or [resumed](Self::resume_on_cpu), or until the given time. Interrupts
    /// are taken while it waits.
    pub fn wait_on_cpu(&self, mode: WaitMode, until: Option<Time>) {
        let Some(id) = self.current_thread() else { return };
        self.scheduler.borrow_mut().thread_mut(id).state = State::WaitingOnCpu;
        let is_time = || until.is_some_and(|until| self.now() >= until);
        while self.scheduler.borrow().thread(id).state == State::WaitingOnCpu && !is_time() {
            match mode {
                WaitMode::Busy => self.attribute(Cause::User, || self.wait_for_event(until)),
                WaitMode::Idle => self.wait_for_work(until),
            }
            // Takes interrupts that have arrived.
            self.spend(Time::ZERO);
        }
        self.scheduler.borrow_mut().thread_mut(id).state = State::Running;
        self.set_tick();
    }

    /// Resumes a thread that [waits on its CPU](Self::wait_on_cpu), at no simulated cost: what the
    /// thread waited for is not part of the simulation.
    pub fn resume_on_cpu(&self, id: ThreadId) {
        let at = self.now() + Time::TICK;
        let mut scheduler = self.scheduler.borrow_mut();
        let thread = scheduler.thread_mut(id);
        if thread.state == State::WaitingOnCpu {
            thread.state = State::Running;
            let target = thread.cpu;
            drop(scheduler);
            self.clock.borrow_mut().wake_at(target, at);
        }
    }

    /// Switches from the calling thread's space to another, or to none, while the thread
    /// [keeps its CPU](Self::keep_cpu).
    pub fn switch_space(&self, space: Option<u64>) {
        let Some(id) = self.current_thread() else { return };
        let cpu = self.cpu();
        self.mask();
        self.set_cause(Cause::Kernel);
        self.scheduler.borrow_mut().cpus[cpu].switching = true;
        self.count(|counts| counts.switches += 1);
        self.spend(self.machine.kernel.context_switch);
        self.scheduler.borrow_mut().thread_mut(id).space = space;
        self.load_space_of(Some(id));
        let now = self.now();
        {
            let queue = &mut self.scheduler.borrow_mut().cpus[cpu];
            (queue.switching, queue.switched_at) = (false, now);
        }
        self.end_switch();
    }

    /// Blocks the calling thread for `time`.
    pub fn sleep(&self, time: Time) {
        let Some(id) = self.current_thread() else { return };
        let until = self.now() + time;
        self.set_timer(id, until);
        while self.now() < until {
            self.block();
        }
    }

    /// Lets other ready threads of this CPU run.
    pub fn yield_now(&self) {
        let alone = self.scheduler.borrow().cpus[self.cpu()].ready.is_empty();
        match (self.machine.scheduler, self.current_thread()) {
            _ if alone => {}
            (Policy::RoundRobin, _) | (_, None) => self.leave_cpu(NextState::Ready),
            (_, Some(id)) => {
                let slice = self.machine.kernel.timeslice;
                self.scheduler.borrow_mut().yield_slice(id, slice);
                self.reschedule(id);
            }
        }
    }

    /// Gives the CPU to the ready thread that should run instead of the calling thread, if there is
    /// one.
    fn reschedule(&self, id: ThreadId) {
        let (cpu, now) = (self.cpu(), self.now());
        let is_replaced = {
            let mut scheduler = self.scheduler.borrow_mut();
            scheduler.charge(cpu, now);
            scheduler.cpus[cpu].must_reschedule = false;
            let rest = scheduler.rest_of_slice(id, self.machine.kernel.timeslice);
            scheduler.cpus[cpu].slice_ends = now + rest;
            scheduler.successor(cpu, self.machine.scheduler).is_some()
        };
        if is_replaced {
            self.leave_cpu(NextState::Ready);
        }
    }

    /// Makes a CPU replace its thread by one that has just become ready there, if the policy says
    /// so (Linux: `wakeup_preempt`).
    fn preempt(&self, target: usize, woken: ThreadId) {
        let (now, policy) = (self.now(), self.machine.scheduler);
        let preempts = {
            let mut scheduler = self.scheduler.borrow_mut();
            let queue = &scheduler.cpus[target];
            let is_busy = queue.current.is_some() && !queue.switching && !queue.must_reschedule;
            if policy == Policy::RoundRobin || !is_busy {
                return;
            }
            scheduler.charge(target, now);
            let preempts = scheduler.successor(target, policy) == Some(woken);
            scheduler.cpus[target].must_reschedule = preempts;
            preempts
        };
        self.count(|counts| {
            counts.preemption_checks += 1;
            counts.preemptions += u64::from(preempts);
        });
        if preempts && target != self.cpu() {
            self.spend(self.machine.interrupt.send);
            self.deliver(target, Vector::Reschedule);
        }
    }

    /// Returns `true` if the thread of a CPU should leave it where it returns to user mode
    /// (`need_resched`).
    pub(crate) fn must_reschedule(&self, cpu: usize) -> bool {
        self.scheduler.borrow().cpus[cpu].must_reschedule
    }

    /// Lets time pass until the end of the timeslice, or until the thread is preempted, and returns
    /// the remaining time.
    pub fn spend_in_slice(&self, time: Time) -> Time {
        let cpu = self.cpu();
        let slice_ends = self.scheduler.borrow().cpus[cpu].slice_ends;
        let part = time.min(slice_ends.saturating_sub(self.now()));
        self.clock.borrow_mut().cpus[cpu].computes = true;
        let left = self.advance((self.now() + part).min(Time::END));
        self.clock.borrow_mut().cpus[cpu].computes = false;
        time - part + left
    }

    /// Gives the CPU to another ready thread if the timeslice is over. Call this where a thread
    /// returns to user mode.
    pub fn preemption_point(&self) {
        let now = self.now();
        let (is_over, must_leave) = {
            let queue = &self.scheduler.borrow().cpus[self.cpu()];
            (now >= queue.slice_ends, queue.must_reschedule)
        };
        if self.machine.scheduler != Policy::RoundRobin {
            if let Some(id) = self.current_thread().filter(|_| is_over || must_leave) {
                self.reschedule(id);
            }
        } else if is_over {
            self.yield_now();
            let slice_ends = self.now() + self.machine.kernel.timeslice;
            self.scheduler.borrow_mut().cpus[self.cpu()].slice_ends = slice_ends;
        }
    }

    /// Moves the calling thread to a CPU, where it stays until it is moved again
    /// (`sched_setaffinity`).
    pub fn migrate(&self, cpu: usize) {
        let Some(id) = self.current_thread() else { return };
        self.scheduler.borrow_mut().thread_mut(id).affinity = Affinity::Cpu(cpu);
        if cpu != self.cpu() {
            // A kernel thread on the old CPU moves it: Linux's stopper.
            self.spend(self.machine.kernel.migrate + self.machine.kernel.context_switch);
            self.leave_cpu(NextState::Ready);
        }
    }

    /// Changes the calling thread's address space and loads it.
    pub fn set_space(&self, space: Option<u64>) {
        let Some(id) = self.current_thread() else { return };
        self.scheduler.borrow_mut().thread_mut(id).space = space;
        self.mask();
        self.set_cause(Cause::Kernel);
        self.load_space_of(Some(id));
        self.end_switch();
    }

    /// Gives this CPU to the next thread, or to none.
    fn leave_cpu(&self, next_state: NextState) {
        let cpu = self.cpu();
        let Some(id) = self.current_thread() else { return };
        self.mask();
        // The thread is in the kernel: the cause of its wait, or its way there from user mode.
        let cause = match self.set_cause(Cause::Kernel) {
            Cause::User => Cause::Kernel,
            cause => cause,
        };
        let next = {
            let mut scheduler = self.scheduler.borrow_mut();
            let (policy, slice) = (self.machine.scheduler, self.machine.kernel.timeslice);
            if policy != Policy::RoundRobin {
                scheduler.charge(cpu, self.now());
                if next_state != NextState::Ready {
                    scheduler.block_current(cpu, id, slice);
                }
            }
            scheduler.thread_mut(id).state = State::Leaving(next_state);
            scheduler.pick(cpu, policy, slice)
        };
        self.owner_leaves(id);
        self.switch_to(next);
        if next_state != NextState::Done {
            self.suspend();
            self.set_cause(cause);
            // The thread runs again, perhaps on another CPU, whose `switch_to` masked interrupts.
            self.end_switch();
        }
    }

    /// Makes `next` the current thread of this CPU. Interrupts must be masked; the context that
    /// runs next unmasks them. The caller must suspend or end its context.
    fn switch_to(&self, next: Option<ThreadId>) {
        let cpu = self.cpu();
        self.scheduler.borrow_mut().cpus[cpu].switching = true;
        self.count(|counts| counts.switches += 1);
        self.spend(self.machine.kernel.context_switch);
        self.load_space_of(next);
        let now = self.now();
        let mut slice_ends = now + self.machine.kernel.timeslice;
        let mut scheduler = self.scheduler.borrow_mut();
        if let Some(id) = next {
            let thread = scheduler.thread_mut(id);
            thread.state = State::Running;
            if core::mem::replace(&mut thread.cpu, cpu) != cpu {
                drop(scheduler);
                self.count(|counts| counts.migrations += 1);
                scheduler = self.scheduler.borrow_mut();
            }
        }
        if let Some(id) = next.filter(|_| self.machine.scheduler != Policy::RoundRobin) {
            slice_ends = now + scheduler.begin_slice(id, self.machine.kernel.timeslice);
        }
        let queue = &mut scheduler.cpus[cpu];
        (queue.must_reschedule, queue.charged_until) = (false, now);
        (queue.current, queue.switching, queue.slice_ends) = (next, false, slice_ends);
        queue.switched_at = now;
        drop(scheduler);
        if next.is_some() {
            self.set_tick();
        }
        self.yield_turn();
    }

    fn load_space_of(&self, thread: Option<ThreadId>) {
        self.classify_synchronisation();
        let Some(kernel) = self.kernel() else { return };
        let scheduler = self.scheduler.borrow();
        let space = thread.and_then(|id| scheduler.thread(id).space);
        drop(scheduler);
        match space {
            Some(space) => kernel.switch(space),
            None => kernel.enter_lazy(),
        }
    }

    /// Unmasks interrupts after a switch, and lets the kernel do deferred work.
    fn end_switch(&self) {
        self.unmask();
        if let Some(kernel) = self.kernel() {
            let runs = self.scheduler.borrow().runs_user_thread(self.cpu());
            kernel.after_switch(if runs { SwitchedTo::Space } else { SwitchedTo::Nothing });
        }
    }

    /// Lets other CPUs run a thread that left the CPU, after its context was suspended.
    pub(crate) fn finish_switch(&self, cpu: usize, before: Option<ThreadId>) {
        let Some(id) = before else { return };
        let mut scheduler = self.scheduler.borrow_mut();
        if scheduler.cpus[cpu].current == before {
            return;
        }
        let thread = scheduler.thread_mut(id);
        let State::Leaving(next) = thread.state else { return };
        match next {
            NextState::Blocked => thread.state = State::Blocked,
            NextState::Done => {
                thread.state = State::Done;
                scheduler.unfinished -= 1;
            }
            NextState::Ready => {
                drop(scheduler);
                let target = self.enqueue(id);
                self.kick_uncharged(target);
            }
        }
    }

    /// Puts a thread into the queue of the CPU on which it should run, and returns that CPU.
    fn enqueue(&self, id: ThreadId) -> usize {
        let mut scheduler = self.scheduler.borrow_mut();
        let policy = self.machine.scheduler;
        let target = scheduler.place(id, &self.machine.topology, policy);
        if policy != Policy::RoundRobin {
            scheduler.charge(target, self.now());
            let thread = scheduler.thread(id);
            let was_preempted = matches!(thread.state, State::Leaving(_));
            let from = was_preempted.then_some(thread.cpu);
            scheduler.enter(id, target, from, self.machine.kernel.timeslice);
        }
        scheduler.thread_mut(id).state = State::Ready;
        scheduler.movable += usize::from(scheduler.is_movable(id));
        scheduler.cpus[target].ready.push_back(id);
        target
    }

    /// Makes an idle CPU look at its queue, and a CPU that spins also.
    fn kick(&self, target: usize) {
        self.notify_spinner(target);
        let is_waiting = self.is_idle(target);
        if is_waiting && matches!(self.machine.idle, Idle::States(_)) {
            self.spend(self.machine.interrupt.send);
            self.deliver(target, Vector::Reschedule);
        } else {
            self.kick_uncharged(target);
        }
    }

    /// Makes an idle CPU look at its queue, at no cost to this CPU.
    fn kick_uncharged(&self, target: usize) {
        let is_waiting = self.is_idle(target);
        match self.machine.idle {
            _ if !is_waiting || target == self.cpu() => {}
            Idle::States(_) => self.deliver(target, Vector::Reschedule),
            Idle::Poll => {
                let at = self.now() + self.line_time(target) + Time::TICK;
                self.clock.borrow_mut().wake_at(target, at);
            }
        }
    }

    fn is_idle(&self, cpu: usize) -> bool {
        let clock = self.clock.borrow();
        clock.cpus[cpu].is_waiting && !clock.cpus[cpu].is_spinning
    }

    /// Creates the idle loop of each CPU.
    pub(crate) fn start_idle_loops(&self) -> io::Result<()> {
        for cpu in 0..self.machine.cpu_count() {
            let context = self.contexts.create(|| {
                with_running(Self::idle_loop);
            })?;
            self.scheduler.borrow_mut().cpus[cpu].idle_context = Some(context);
            self.clock.borrow_mut().wake_at(cpu, Time::ZERO);
        }
        Ok(())
    }

    fn idle_loop(&self) {
        if let Some(kernel) = self.kernel() {
            self.outside_time(|| kernel.online());
        }
        loop {
            let (policy, slice) = (self.machine.scheduler, self.machine.kernel.timeslice);
            let next = self.scheduler.borrow_mut().pick(self.cpu(), policy, slice);
            if next.is_some() {
                self.mask();
                self.switch_to(next);
                self.suspend();
                self.end_switch();
            } else {
                self.wait_for_work(None);
            }
        }
    }

    /// Waits in idle states that get deeper, until the given time at most.
    fn wait_for_work(&self, until: Option<Time>) {
        let start = self.now();
        let before = self.set_cause(Cause::Idle);
        self.clock.borrow_mut().cpus[self.cpu()].idle_since = Some(start);
        let mut exit = Time::ZERO;
        if let Idle::States(states) = &self.machine.idle {
            for (state, next) in states.iter().zip(states.iter().skip(1).map(Some).chain([None])) {
                exit = state.exit;
                if state.tlb == TlbInIdle::Lost {
                    self.mask();
                    if let Some(kernel) = self.kernel() {
                        self.attribute(Cause::Kernel, || kernel.leave_space());
                    }
                    self.tlbs.borrow_mut()[self.cpu()].invalidate_all(self.next_invalidation());
                    self.end_switch();
                    // That took time, in which no CPU kicked this one, because it was not waiting.
                    if self.has_work() {
                        break;
                    }
                }
                let deeper = next.map(|next| start + next.after);
                self.wait_for_event(deeper.into_iter().chain(until).min());
                if self.has_work() || deeper.is_none_or(|deeper| self.now() < deeper) {
                    break;
                }
            }
        } else {
            self.wait_for_event(until);
        }
        let idle = self.now() - start;
        self.clock.borrow_mut().cpus[self.cpu()].idle_since = None;
        self.count(|counts| counts.idle += idle);
        self.spend(exit);
        self.set_cause(before);
    }

    fn has_work(&self) -> bool {
        let cpu = self.cpu();
        let scheduler = self.scheduler.borrow();
        let resumed = scheduler
            .current(cpu)
            .is_some_and(|id| scheduler.thread(id).state != State::WaitingOnCpu);
        let clock = self.clock.borrow();
        let now = clock.cpus[cpu].now;
        // A timer for a later time is no work.
        let mut arrivals = clock.cpus[cpu].arrivals.iter();
        resumed
            || !scheduler.cpus[cpu].ready.is_empty()
            || arrivals.any(|arrival| arrival.at <= now || !arrival.is_timer())
    }
}
