//! Converts Linux's events to records. Threads get the recording's numbers, events that concern
//! neither the program nor the schedule are dropped, and flush interrupts are distinguished from
//! other interrupts.
//!
//! In reading order: `tasks` identifies threads, `calls` finds the purpose of an interrupt,
//! `frames` numbers the calls of call stacks, and the [`Assembler`] combines them.

mod calls;
mod frames;
mod tasks;

use std::fmt;
use std::io;

use super::format::{CPUS_MAX, Ended, Invalid, NAME_BYTES_MAX, Writer};
use super::raw::{During, RawEvent, RawKind, Tid};
use super::record::{Event, FlushReason, Frame, Layer, Left, Record, TaskId, Waker};
use calls::{Calls, Evidence};
use frames::Frames;
use tasks::Tasks;

/// The idle loop of every CPU.
const IDLE: Tid = Tid(0);
/// Start of the kernel's half of the address space.
const KERNEL_HALF: u64 = 1 << 63;

/// Time in which an idle CPU switches to a thread after the interrupt that put the thread into its
/// queue: 1.3 to 2.5 µs in recordings that contain both (a virtual machine at 2.1 GHz).
const IDLE_EXIT_NS: u64 = 1500;

/// The threads that existed when the recording began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Startup {
    /// The threads of the recorded program. The threads that they create are recorded as well.
    pub recorded: Vec<Tid>,
    /// All threads of the machine, as far as the source knows them.
    pub tasks: Vec<StartTask>,
}

/// A thread that existed when the recording began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartTask {
    /// Number of the thread.
    pub tid: Tid,
    /// Linux's number of the thread's process (`tgid`).
    pub process: u32,
    /// Kernel thread or thread of a program.
    pub kind: TaskKind,
    /// Name of the thread.
    pub name: String,
}

/// The kinds of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskKind {
    /// A kernel thread, which borrows the address space that is loaded.
    Kernel,
    /// A thread of a program.
    User,
}

/// Converts Linux's events to records, and writes them.
///
/// The assembler corrects errors of a source. It replaces a time that goes backwards by the last
/// time, and drops a return without its call and every event on a CPU that the recording lacks. The
/// memory that it needs is bounded by the number of live threads.
#[derive(Debug)]
pub struct Assembler<W: io::Write> {
    writer: Writer<W>,
    tasks: Tasks,
    cpus: Vec<Cpu>,
    evidence: Evidence,
    frames: Frames,
    /// The time of the first event.
    start_ns: Option<u64>,
    /// The time of the last record.
    time_ns: u64,
    /// The earliest time at which an idle CPU is predicted to switch; `u64::MAX` if none is.
    predicted_ns: u64,
    observer: Option<Observer>,
}

/// A function that receives each record when it is written, with the thread that runs on the
/// record's CPU, if that is known.
pub struct Observer(Box<Observe>);

type Observe = dyn FnMut(&Record, Option<Tid>) + Send;

impl Observer {
    /// Makes an observer of a function.
    pub fn new(function: impl FnMut(&Record, Option<Tid>) + Send + 'static) -> Self {
        Self(Box::new(function))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").finish_non_exhaustive()
    }
}

/// The state of a CPU.
#[derive(Clone, Debug, Default)]
struct Cpu {
    /// The thread that runs according to the recording.
    running: Option<Running>,
    /// The last two threads that the CPU has switched to, the last one first, and their names.
    names: [Option<(Tid, String)>; 2],
    /// The previous thread, from a switch until an event of the next thread.
    previous: Option<Tid>,
    /// The predicted switch of an idle CPU: its time, and the next thread.
    predicted: Option<(u64, Tid)>,
    /// `true` if `running` was predicted, and no event has confirmed it yet.
    is_predicted: bool,
    calls: Calls,
}

impl Cpu {
    /// Notes the name of a thread that the CPU has switched to.
    fn name(&mut self, tid: Tid, name: String) {
        self.names.rotate_right(1);
        self.names[0] = Some((tid, name));
    }
}

/// A running thread, and its number in the recording.
#[derive(Clone, Copy, Debug)]
struct Running {
    tid: Tid,
    task: TaskId,
}

/// The result of writing a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Yes,
    /// The record would make the recording invalid.
    Refused,
}

impl<W: io::Write> Assembler<W> {
    /// Creates an assembler that has received no event.
    pub fn new(writer: Writer<W>, startup: Startup) -> Self {
        Self {
            writer,
            tasks: Tasks::new(startup),
            cpus: Vec::new(),
            evidence: Evidence::default(),
            frames: Frames::default(),
            start_ns: None,
            time_ns: 0,
            predicted_ns: u64::MAX,
            observer: None,
        }
    }

    /// Sends each record that is written from now on to `observer` as well.
    #[must_use]
    pub fn observed_by(self, observer: Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Adds a thread with what an event contains about it, unless the thread is known already.
    ///
    /// `process` is Linux's number of the thread's process; `None` if the source lacks it.
    pub fn introduce(&mut self, tid: Tid, process: Option<u32>, name: &str) {
        self.tasks.introduce(tid, process, name);
    }

    /// Converts the next event.
    ///
    /// # Errors
    ///
    /// Returns the errors of the writer's output.
    pub fn event(&mut self, event: RawEvent) -> io::Result<()> {
        if event.cpu >= CPUS_MAX {
            return Ok(());
        }
        let start_ns = *self.start_ns.get_or_insert(event.time_ns);
        let time_ns = self.time_ns.max(event.time_ns.saturating_sub(start_ns));
        self.perform_predicted_switches(time_ns)?;
        self.time_ns = time_ns;
        if self.cpus.len() <= event.cpu as usize {
            self.cpus.resize_with(event.cpu as usize + 1, Cpu::default);
        }
        let event = match event.kind {
            // These belong to no thread.
            RawKind::Names { names } => {
                let mut named = self.frames.named(names).into_iter();
                return named.try_for_each(|name| self.write(event.cpu, name));
            }
            RawKind::Counted { requests } => {
                return self.write(event.cpu, Event::Counted { requests });
            }
            kind => RawEvent { kind, ..event },
        };
        let complete = self.cpus[event.cpu as usize].calls.complete_before(&event);
        self.requests(event.cpu, complete)?;
        if let RawKind::Lost { count } = event.kind {
            return self.record_loss(event.cpu, count);
        }
        if self.is_predicted_switch(&event) {
            return self.convert(event);
        }
        if self.is_within_switch(&event) {
            // The event belongs to neither thread.
            return self.convert(RawEvent { during: During::Interrupt, ..event });
        }
        let cpu = &mut self.cpus[event.cpu as usize];
        (cpu.previous, cpu.is_predicted) = (None, false);
        match self.record_running(&event)? {
            Written::Yes => self.convert(event),
            Written::Refused => Ok(()),
        }
    }

    /// Returns the output. The last records may not be written to it yet.
    pub fn output(&self) -> &W {
        self.writer.output()
    }

    /// Begins another recording in `writer` after the [end](Self::end) of one. It begins with the
    /// threads that live now, and its time begins again. It lacks their memory, and the threads
    /// that run are not known until an event shows them.
    ///
    /// # Errors
    ///
    /// Returns the errors of the writer's output.
    pub fn restart(&mut self, writer: Writer<W>) -> io::Result<()> {
        self.writer = writer;
        self.cpus.fill_with(Cpu::default);
        self.frames = Frames::default();
        (self.start_ns, self.time_ns, self.predicted_ns) = (None, 0, u64::MAX);
        for introduction in self.tasks.restart() {
            self.write(0, introduction)?;
        }
        Ok(())
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// Returns the errors of the writer's output.
    pub fn finish(mut self, ended: Ended) -> io::Result<W> {
        self.requests_of_all_cpus()?;
        self.writer.finish(ended)
    }

    /// Ends the recording. Nothing can be written afterwards.
    ///
    /// # Errors
    ///
    /// Returns the errors of the writer's output. The recording can then be [`cut`](Self::cut).
    pub fn end(&mut self, ended: Ended) -> io::Result<()> {
        self.requests_of_all_cpus()?;
        self.writer.end(ended)
    }

    /// Ends the recording after the last block that was written, because the output is full (see
    /// [`Writer::cut`]).
    ///
    /// # Errors
    ///
    /// Returns the errors of the writer's output.
    pub fn cut(&mut self) -> io::Result<()> {
        self.writer.cut()
    }

    fn requests_of_all_cpus(&mut self) -> io::Result<()> {
        for cpu in 0..self.cpus.len() {
            let complete = self.cpus[cpu].calls.complete();
            self.requests(cpu as u32, complete)?;
        }
        Ok(())
    }

    fn convert(&mut self, event: RawEvent) -> io::Result<()> {
        let RawEvent { cpu, tid, during, kind, .. } = event;
        let of_task = during == During::Task;
        match kind {
            RawKind::Switch { left, next, next_name } => {
                self.switch(cpu, tid, left, next, &next_name)?;
                self.cpus[cpu as usize].name(next, next_name);
                Ok(())
            }
            RawKind::Waking { tid: woken } => self.wake(cpu, tid, during, woken),
            RawKind::Queued { tid: queued, target } => {
                self.predict_switch(cpu, tid, queued, target);
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
            RawKind::QueueCall { function, target } => {
                self.evidence = Evidence::Queues;
                self.cpus[cpu as usize].calls.queue(during, function, target);
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
            RawKind::Stack { frames, requests } => {
                let frames = self.kept_frames(cpu, tid, frames);
                self.stack(cpu, frames, requests)
            }
            RawKind::Enter(_)
            | RawKind::Return { .. }
            | RawKind::Fault { .. }
            | RawKind::Names { .. }
            | RawKind::Counted { .. }
            | RawKind::Lost { .. } => Ok(()),
        }
    }

    /// Returns the calls of a stack that are recorded: of another program and of the kernel, only
    /// functions of the kernel. The name of the thread stands for the rest. A thread that the CPU
    /// was not seen to switch to just before has none: a stack may come before its switch.
    fn kept_frames(&self, cpu: u32, tid: Tid, mut frames: Vec<Frame>) -> Vec<Frame> {
        if self.tasks.is_recorded(tid) {
            return frames;
        }
        frames.retain(|frame| frame.layer == Layer::Kernel);
        let mut names = self.cpus[cpu as usize].names.iter().flatten();
        if let Some((_, name)) = names.find(|(named, name)| *named == tid && !name.is_empty()) {
            let function = name.clone();
            frames.push(Frame { layer: Layer::User, function, file: String::new(), line: 0 });
        }
        frames
    }

    fn stack(&mut self, cpu: u32, frames: Vec<Frame>, requests: u64) -> io::Result<()> {
        let (introductions, frame) = self.frames.number(frames);
        introductions.into_iter().try_for_each(|introduction| self.write(cpu, introduction))?;
        self.write(cpu, Event::Stack { frame, requests })
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
        let on_cpu = &mut self.cpus[cpu as usize];
        let before = on_cpu.running.replace(Running { tid: next, task });
        on_cpu.previous = (tid != next).then_some(tid);
        (on_cpu.predicted, on_cpu.is_predicted) = (None, false);
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
        // The recording's numbers of tasks are bounded.
        if task == TaskId::KERNEL { Ok(()) } else { self.write(cpu, Event::Wake { task, by }) }
    }

    fn interrupt(&mut self, cpu: u32, mut targets: Vec<u32>) -> io::Result<()> {
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() { Ok(()) } else { self.write(cpu, Event::Interrupts { targets }) }
    }

    /// Writes requests for flushes, each with its targets.
    fn requests(&mut self, cpu: u32, requests: Vec<Vec<u32>>) -> io::Result<()> {
        let mut requests = requests.into_iter();
        requests.try_for_each(|targets| self.write(cpu, Event::Requests { targets }))
    }

    /// Records a loss. The state of the CPU, with its queued calls, is unknown from here on.
    fn record_loss(&mut self, cpu: u32, count: u64) -> io::Result<()> {
        self.cpus[cpu as usize] = Cpu::default();
        self.write(cpu, Event::Lost { count })
    }

    /// Returns `true` if an event belongs to the switch that its CPU has begun. Linux traces
    /// `sched_switch` first, and attributes the rest of the switch, such as loading an address
    /// space, to the previous thread.
    ///
    /// An event that only a running thread can cause shows that a switch back is missing.
    fn is_within_switch(&self, event: &RawEvent) -> bool {
        let may_be = matches!(
            event.kind,
            RawKind::Flush { .. }
                | RawKind::QueueCall { .. }
                | RawKind::Ipi { .. }
                | RawKind::Waking { .. }
                | RawKind::Queued { .. }
        );
        may_be && self.cpus[event.cpu as usize].previous == Some(event.tid)
    }

    /// Predicts the switch of an idle CPU to a thread in its queue. An event of any thread on this
    /// CPU before that time replaces the prediction. Some kernels do not trace this switch while
    /// another CPU is busy.
    fn predict_switch(&mut self, cpu: u32, running: Tid, queued: Tid, target: u32) {
        let on_cpu = &mut self.cpus[cpu as usize];
        let is_idle = on_cpu.running.is_some_and(|running| running.tid == IDLE);
        let is_first = on_cpu.predicted.is_none();
        if cpu == target && running == IDLE && is_idle && queued != IDLE && is_first {
            let due_ns = self.time_ns.saturating_add(IDLE_EXIT_NS);
            on_cpu.predicted = Some((due_ns, queued));
            self.predicted_ns = self.predicted_ns.min(due_ns);
        }
    }

    /// Records the predicted switches that are due.
    fn perform_predicted_switches(&mut self, now_ns: u64) -> io::Result<()> {
        if self.predicted_ns > now_ns {
            return Ok(());
        }
        for cpu in 0..self.cpus.len() {
            let predicted = &mut self.cpus[cpu].predicted;
            let Some((due_ns, tid)) = predicted.take_if(|(due_ns, _)| *due_ns <= now_ns) else {
                continue;
            };
            self.time_ns = self.time_ns.max(due_ns);
            let complete = self.cpus[cpu].calls.complete();
            self.requests(cpu as u32, complete)?;
            self.switch(cpu as u32, IDLE, Left::Runnable, tid, "")?;
            self.cpus[cpu].is_predicted = true;
        }
        let due = self.cpus.iter().filter_map(|cpu| cpu.predicted.map(|(due_ns, _)| due_ns));
        self.predicted_ns = due.min().unwrap_or(u64::MAX);
        Ok(())
    }

    /// Returns `true` if an event is a switch from the idle loop that was predicted and recorded.
    fn is_predicted_switch(&self, event: &RawEvent) -> bool {
        matches!(event.kind, RawKind::Switch { .. })
            && event.tid == IDLE
            && self.cpus[event.cpu as usize].is_predicted
    }

    /// Records which thread runs on a CPU, unless the recording contains it already. This is the
    /// first record of any CPU: if the writer refuses it, the recording has no such CPU.
    fn record_running(&mut self, event: &RawEvent) -> io::Result<Written> {
        let &RawEvent { cpu, tid, .. } = event;
        let before = self.cpus[cpu as usize].running;
        if let Some(before) = before.filter(|before| before.tid != tid) {
            let is_final = matches!(event.kind, RawKind::Switch { left: Left::Dead, .. });
            self.tasks.detect_renumbering(before.tid, tid, is_final);
        }
        let task = self.identify(tid, "")?;
        let on_cpu = &mut self.cpus[cpu as usize];
        on_cpu.running = Some(Running { tid, task });
        if tid != IDLE {
            on_cpu.predicted = None;
        }
        if before.is_some_and(|before| before.task == task) {
            return Ok(Written::Yes);
        }
        // Some kernels trace no switch from the idle loop while another CPU is busy. A switch is
        // the only way out of the idle loop.
        let is_from_idle = before.is_some_and(|before| before.tid == IDLE);
        let switch = Event::Switch { next: task, left: Left::Runnable };
        let event = if is_from_idle { switch } else { Event::Running { task } };
        let written = self.try_write(cpu, event)?;
        if written == Written::Refused {
            self.cpus[cpu as usize].running = None;
        }
        Ok(written)
    }

    /// Returns the recording's number of a thread, which is introduced if it is new.
    fn identify(&mut self, tid: Tid, name: &str) -> io::Result<TaskId> {
        let (task, introduction) = self.tasks.identify(tid, name);
        // An introduction belongs to no CPU, and CPU 0 always exists.
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
            Ok(()) => {
                if let Some(observer) = &mut self.observer {
                    let running = self.cpus.get(cpu as usize).and_then(|cpu| cpu.running);
                    (observer.0)(&record, running.map(|running| running.tid));
                }
                Ok(Written::Yes)
            }
            Err(error) if error.get_ref().is_some_and(|error| error.is::<Invalid>()) => {
                Ok(Written::Refused)
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the longest prefix of a text that has at most `bytes_max` bytes.
pub(super) fn shorten(text: &str, bytes_max: usize) -> &str {
    if text.len() <= bytes_max {
        return text;
    }
    let end = (0..=bytes_max).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests;
