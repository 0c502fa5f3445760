//! Linux's events become records: threads get the recording's numbers, what concerns nobody is left
//! out, and interrupts that flush are told from those that do not.
//!
//! In reading order: `tasks` knows who a thread is, `calls` what an interrupt is for, and the
//! [`Assembler`] writes what comes of both.

mod calls;
mod tasks;

use std::io;

use super::format::{CPUS_MAX, Ended, Invalid, NAME_BYTES_MAX, Writer};
use super::raw::{During, RawEvent, RawKind, Tid};
use super::record::{Event, FlushReason, Left, Record, TaskId, Waker};
use calls::{Calls, Evidence};
use tasks::{Sight, Tasks};

/// The idle loop of every CPU.
const IDLE: Tid = Tid(0);
/// Where the kernel's half of the addresses begins.
const KERNEL_HALF: u64 = 1 << 63;

/// How long a CPU takes from an interrupt that puts a thread into its queue to the switch to it:
/// 1.3 to 2.5 µs in traces that have both (a virtual machine at 2.1 GHz).
const IDLE_EXIT_NS: u64 = 1500;

/// What was there when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// The threads of the program that is recorded; those that they make are recorded as well.
    pub recorded: Vec<Tid>,
    /// All threads of the machine, as far as they are known.
    pub tasks: Vec<StartTask>,
}

/// A thread that was there when the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartTask {
    /// Which.
    pub tid: Tid,
    /// Linux's number of its process (`tgid`).
    pub process: u32,
    /// Whether it has a space.
    pub kind: TaskKind,
    /// Its name.
    pub name: String,
}

/// Whether a thread has a space of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// A kernel thread, which borrows whatever space is loaded.
    Kernel,
    /// A thread of a program.
    User,
}

/// Makes records of Linux's events, and writes them.
///
/// What a source may get wrong is mended: time that goes backwards stands still, a return without
/// its call and whatever happens on a CPU that cannot be are dropped. Memory is bounded by the
/// number of live threads.
#[derive(Debug)]
pub struct Assembler<W: io::Write> {
    writer: Writer<W>,
    tasks: Tasks,
    cpus: Vec<Cpu>,
    evidence: Evidence,
    /// The time of the first event.
    start_ns: Option<u64>,
    /// The time of the last record.
    time_ns: u64,
    /// When the first of the idle CPUs is to switch, if one is.
    foreseen_ns: u64,
}

/// What is known of a CPU.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// What the recording says that runs.
    running: Option<Running>,
    /// What ran before, from a switch until what was switched to is seen.
    leaves: Option<Tid>,
    /// A thread that an idle CPU is about to switch to, and when it will have.
    next: Option<(u64, Tid)>,
    /// How it is known what runs.
    knowledge: Knowledge,
    calls: Calls,
}

/// How it is known what runs on a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// It was seen.
    #[default]
    Seen,
    /// It was put into the queue of a CPU that was idle.
    Inferred,
}

/// A thread that runs, and what the recording calls it.
#[derive(Clone, Copy, Debug)]
struct Running {
    tid: Tid,
    task: TaskId,
}

/// Whether a record went into the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// It may not have one like it.
    Refused,
}

impl<W: io::Write> Assembler<W> {
    /// An assembler that has seen nothing yet.
    pub fn new(writer: Writer<W>, startup: Startup) -> Self {
        Self {
            writer,
            tasks: Tasks::new(startup),
            cpus: Vec::new(),
            evidence: Evidence::default(),
            start_ns: None,
            time_ns: 0,
            foreseen_ns: u64::MAX,
        }
    }

    /// Tells of a thread that may not have been seen before. What is known of it already stays.
    ///
    /// `process` is Linux's number of its process, if that is known.
    pub fn meet(&mut self, tid: Tid, process: Option<u32>, name: &str) {
        self.tasks.meet(tid, process, name);
    }

    /// Takes the next event.
    ///
    /// # Errors
    ///
    /// What the writer's sink says.
    pub fn event(&mut self, event: RawEvent) -> io::Result<()> {
        if event.cpu >= CPUS_MAX {
            return Ok(());
        }
        let start_ns = *self.start_ns.get_or_insert(event.time_ns);
        let time_ns = self.time_ns.max(event.time_ns.saturating_sub(start_ns));
        self.leave_idle_loops(time_ns)?;
        self.time_ns = time_ns;
        if self.cpus.len() <= event.cpu as usize {
            self.cpus.resize_with(event.cpu as usize + 1, Cpu::default);
        }
        if let RawKind::Lost { count } = event.kind {
            return self.lose(event.cpu, count);
        }
        if self.is_switch_foreseen(&event) {
            return self.happen(event);
        }
        if self.is_amid_switch(&event) {
            // Neither the one thread's doing nor the other's.
            return self.happen(RawEvent { during: During::Interrupt, ..event });
        }
        let here = &mut self.cpus[event.cpu as usize];
        (here.leaves, here.knowledge) = (None, Knowledge::Seen);
        match self.find_running(&event)? {
            Written::Yes => self.happen(event),
            Written::Refused => Ok(()),
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// What the writer's sink says.
    pub fn finish(self, ended: Ended) -> io::Result<W> {
        self.writer.finish(ended)
    }

    fn happen(&mut self, event: RawEvent) -> io::Result<()> {
        let RawEvent { cpu, tid, during, kind, .. } = event;
        let of_task = during == During::Task;
        match kind {
            RawKind::Switch { left, next, next_name } => {
                self.switch(cpu, tid, left, next, &next_name)
            }
            RawKind::Waking { tid: woken } => self.wake(cpu, tid, during, woken),
            RawKind::Queued { tid: queued, target } => {
                self.foresee(cpu, tid, queued, target);
                Ok(())
            }
            RawKind::NewTask { tid: child, clone_flags, name } => {
                let spawn =
                    self.tasks.spawn(tid, child, clone_flags, shorten(&name, NAME_BYTES_MAX));
                self.write_if(cpu, spawn)
            }
            RawKind::Exec { file } => {
                let name = file.rsplit('/').next().unwrap_or_default();
                let exec = self.tasks.exec(tid, shorten(name, NAME_BYTES_MAX));
                self.write_if(cpu, exec)
            }
            RawKind::Exit => {
                let exit = self.tasks.exit(tid).then_some(Event::Exit);
                self.write_if(cpu, exit)
            }
            RawKind::Enter(call) if of_task && self.tasks.enter(tid) => {
                self.write(cpu, Event::Call(call))
            }
            RawKind::Return { value } if of_task && self.tasks.leave(tid) => {
                self.write(cpu, Event::Return { value })
            }
            RawKind::Fault { address, code }
                if of_task && address < KERNEL_HALF && self.tasks.is_recorded(tid) =>
            {
                self.write(cpu, Event::Fault { address, code })
            }
            RawKind::Flush { reason, pages } => {
                if reason == FlushReason::Request {
                    self.cpus[cpu as usize].calls.request(tid);
                }
                self.write(cpu, Event::Flush { reason, pages })
            }
            RawKind::QueueCall { function } => {
                self.evidence = Evidence::Queues;
                self.cpus[cpu as usize].calls.queue(during, function);
                Ok(())
            }
            RawKind::Ipi { targets, site } => {
                let calls = &mut self.cpus[cpu as usize].calls;
                if calls.send(self.evidence, during, tid, site) {
                    self.interrupt(cpu, targets)
                } else {
                    Ok(())
                }
            }
            RawKind::Enter(_)
            | RawKind::Return { .. }
            | RawKind::Fault { .. }
            | RawKind::Lost { .. } => Ok(()),
        }
    }

    fn switch(
        &mut self,
        cpu: u32,
        tid: Tid,
        left: Left,
        next: Tid,
        next_name: &str,
    ) -> io::Result<()> {
        let task = self.identify(next, next_name)?;
        let here = &mut self.cpus[cpu as usize];
        let before = here.running.replace(Running { tid: next, task });
        here.leaves = (tid != next).then_some(tid);
        (here.next, here.knowledge) = (None, Knowledge::Seen);
        if left == Left::Dead && tid != next {
            self.tasks.forget(tid);
        }
        if before.is_some_and(|before| before.task == task) {
            return Ok(());
        }
        self.write(cpu, Event::Switch { next: task, left })
    }

    fn wake(&mut self, cpu: u32, waker: Tid, during: During, woken: Tid) -> io::Result<()> {
        if !self.tasks.is_to_be_recorded(woken) {
            return Ok(());
        }
        let task = self.identify(woken, "")?;
        let by = if during == During::Task && self.tasks.was_recorded(waker) {
            Waker::Running
        } else {
            Waker::Interrupt
        };
        // There are bounds to what is recorded.
        if task == TaskId::KERNEL { Ok(()) } else { self.write(cpu, Event::Wake { task, by }) }
    }

    fn interrupt(&mut self, cpu: u32, mut targets: Vec<u32>) -> io::Result<()> {
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() { Ok(()) } else { self.write(cpu, Event::Interrupts { targets }) }
    }

    /// What ran on a CPU is unknown from here on, and so is what it was about to send.
    fn lose(&mut self, cpu: u32, count: u64) -> io::Result<()> {
        self.cpus[cpu as usize] = Cpu::default();
        self.write(cpu, Event::Lost { count })
    }

    /// Whether an event is still of the switch that its CPU was seen to begin: `sched_switch` is
    /// traced first, and what is done then, such as loading a space, in the name of the thread
    /// before.
    ///
    /// What only a running thread does tells that a switch back is missing.
    fn is_amid_switch(&self, event: &RawEvent) -> bool {
        let may_be = matches!(
            event.kind,
            RawKind::Flush { .. }
                | RawKind::QueueCall { .. }
                | RawKind::Ipi { .. }
                | RawKind::Waking { .. }
                | RawKind::Queued { .. }
        );
        may_be && self.cpus[event.cpu as usize].leaves == Some(event.tid)
    }

    /// An idle CPU finds a thread in its queue, and switches to it, but if it is faster to see
    /// something else there. Some kernels do not trace that switch while another CPU is busy.
    fn foresee(&mut self, cpu: u32, running: Tid, queued: Tid, target: u32) {
        let here = &mut self.cpus[cpu as usize];
        let is_idle = here.running.is_some_and(|running| running.tid == IDLE);
        if cpu == target && running == IDLE && is_idle && queued != IDLE && here.next.is_none() {
            let due_ns = self.time_ns.saturating_add(IDLE_EXIT_NS);
            here.next = Some((due_ns, queued));
            self.foreseen_ns = self.foreseen_ns.min(due_ns);
        }
    }

    /// Has idle CPUs switch that are to have done so by now.
    fn leave_idle_loops(&mut self, now_ns: u64) -> io::Result<()> {
        if self.foreseen_ns > now_ns {
            return Ok(());
        }
        for cpu in 0..self.cpus.len() {
            let here = &mut self.cpus[cpu];
            let Some((due_ns, tid)) = here.next.take_if(|(due_ns, _)| *due_ns <= now_ns) else {
                continue;
            };
            self.time_ns = self.time_ns.max(due_ns);
            self.switch(cpu as u32, IDLE, Left::Runnable, tid, "")?;
            self.cpus[cpu].knowledge = Knowledge::Inferred;
        }
        let due = self.cpus.iter().filter_map(|cpu| cpu.next.map(|(due_ns, _)| due_ns));
        self.foreseen_ns = due.min().unwrap_or(u64::MAX);
        Ok(())
    }

    /// Whether an event is a switch out of the idle loop that was inferred already.
    fn is_switch_foreseen(&self, event: &RawEvent) -> bool {
        matches!(event.kind, RawKind::Switch { .. })
            && event.tid == IDLE
            && self.cpus[event.cpu as usize].knowledge == Knowledge::Inferred
    }

    /// Says what runs on a CPU where the recording does not say it yet, which is what is said first
    /// of any CPU: if it is refused, the recording has no such CPU.
    fn find_running(&mut self, event: &RawEvent) -> io::Result<Written> {
        let &RawEvent { cpu, tid, .. } = event;
        let before = self.cpus[cpu as usize].running;
        if let Some(before) = before.filter(|before| before.tid != tid) {
            let sight = match event.kind {
                RawKind::Switch { left: Left::Dead, .. } => Sight::Death,
                _ => Sight::Life,
            };
            self.tasks.see_renumbered(before.tid, tid, sight);
        }
        let task = self.identify(tid, "")?;
        let here = &mut self.cpus[cpu as usize];
        here.running = Some(Running { tid, task });
        if tid != IDLE {
            here.next = None;
        }
        if before.is_some_and(|before| before.task == task) {
            return Ok(Written::Yes);
        }
        // Some kernels trace no switch from the idle loop while another CPU is busy. There is but
        // one way to leave it.
        let is_from_idle = before.is_some_and(|before| before.tid == IDLE);
        let switch = Event::Switch { next: task, left: Left::Runnable };
        let said = if is_from_idle { switch } else { Event::Running { task } };
        let written = self.try_write(cpu, said)?;
        if written == Written::Refused {
            self.cpus[cpu as usize].running = None;
        }
        Ok(written)
    }

    /// The recording's number of a thread, which is introduced if it was not.
    fn identify(&mut self, tid: Tid, name: &str) -> io::Result<TaskId> {
        let (task, introduction) = self.tasks.identify(tid, name);
        // This happens nowhere, and there is always a first CPU.
        self.write_if(0, introduction)?;
        Ok(task)
    }

    fn write_if(&mut self, cpu: u32, event: Option<Event>) -> io::Result<()> {
        event.map_or(Ok(()), |event| self.write(cpu, event))
    }

    fn write(&mut self, cpu: u32, event: Event) -> io::Result<()> {
        self.try_write(cpu, event).map(|_| ())
    }

    fn try_write(&mut self, cpu: u32, event: Event) -> io::Result<Written> {
        let record = Record { time_ns: self.time_ns, cpu, event };
        match self.writer.write(&record) {
            Ok(()) => Ok(Written::Yes),
            Err(error) if error.get_ref().is_some_and(|error| error.is::<Invalid>()) => {
                Ok(Written::Refused)
            }
            Err(error) => Err(error),
        }
    }
}

/// As many of a text's characters as so many bytes hold.
pub(super) fn shorten(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests;
