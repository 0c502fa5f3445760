//! Replays of handwritten recordings: the replay repeats the program's operations, and the design
//! of the recorded kernel sends the recorded interrupts.

use std::io::Cursor;
use std::rc::Rc;

use shootdown_designs::{Engine, Linux70};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Left, Owner, Record, SpaceId, TaskId, Waker,
};
use shootdown_recording::{Ended, Header, Reader, Source, Writer};
use shootdown_run::replay::{ReplayError, Survey, replay, threads};
use shootdown_run::{Outcome, Settings, run};
use shootdown_sim::{Machine, Sim};
use shootdown_vm::ErasedCoherence;

const MACHINE: &str = include_str!("../../../../machines/emerald-rapids-kvm.toml");

pub(crate) const A: TaskId = TaskId(1);
const B: TaskId = TaskId(2);
pub(crate) const SPACE: SpaceId = SpaceId(0);

pub(crate) const READ_ABSENT: FaultCode = FaultCode(0b100);
pub(crate) const WRITE_ABSENT: FaultCode = FaultCode(0b110);
pub(crate) const WRITE_REFUSED: FaultCode = FaultCode(0b111);

pub(crate) const PAGE: u64 = 0x7f00_0000_0000;

pub(crate) const MAP_SHARED: u32 = 1;
pub(crate) const MAP_PRIVATE: u32 = 2;
pub(crate) const MAP_ANONYMOUS: u32 = 0x20;

pub(crate) const DONT_NEED: u32 = 4;
const MS_ASYNC: u32 = 1;
const MS_SYNC: u32 = 4;
const COLD: u32 = 20;
pub(crate) const PAGE_OUT: u32 = 21;
const POPULATE_READ: u32 = 22;
const POPULATE_WRITE: u32 = 23;

/// A recording under construction, with two CPUs and one record per microsecond.
#[derive(Clone, Default)]
pub(crate) struct Script {
    records: Vec<Record>,
    now_ns: u64,
    processor: &'static str,
    /// The release of the kernel; 7.0 if empty.
    kernel: &'static str,
}

impl Script {
    /// Two threads of one process, each on its own CPU.
    pub(crate) fn two_threads() -> Self {
        let name = String::new;
        let owner = Owner::Recorded;
        Self::default()
            .on(0, Event::Task { task: A, owner, space: SPACE, name: name() })
            .on(0, Event::Running { task: A })
            .on(0, Event::Spawn { task: B, space: SPACE, name: name() })
            .on(1, Event::Running { task: TaskId::KERNEL })
            .on(1, Event::Switch { next: B, left: Left::Blocked })
    }

    pub(crate) fn on(mut self, cpu: u32, event: Event) -> Self {
        self.now_ns += 1000;
        self.records.push(Record { time_ns: self.now_ns, cpu, event });
        self
    }

    pub(crate) fn after_ns(mut self, ns: u64) -> Self {
        self.now_ns += ns;
        self
    }

    pub(crate) fn fault(self, cpu: u32, address: u64, code: FaultCode) -> Self {
        self.on(cpu, Event::Fault { address, code })
    }

    pub(crate) fn by_processor(self, processor: &'static str) -> Self {
        Self { processor, ..self }
    }

    pub(crate) fn on_kernel(self, kernel: &'static str) -> Self {
        Self { kernel, ..self }
    }

    pub(crate) fn map(self, cpu: u32, address: u64, length: u64) -> Self {
        self.map_with(cpu, address, length, MAP_PRIVATE | MAP_ANONYMOUS)
    }

    pub(crate) fn map_with(self, cpu: u32, address: u64, length: u64, flags: u32) -> Self {
        let call = Call::Map { address: 0, length, protection: 3, flags };
        self.on(cpu, Event::Call(call)).on(cpu, Event::Return { value: address as i64 })
    }

    /// Gives advice about pages, which the kernel flushes.
    pub(crate) fn advise(self, cpu: u32, address: u64, pages: u64, advice: u32) -> Self {
        self.begin_advice(cpu, address, pages, advice)
            .on(cpu, Event::Flush { reason: FlushReason::LocalSpace, pages: Some(pages) })
            .on(cpu, Event::Return { value: 0 })
    }

    pub(crate) fn begin_advice(self, cpu: u32, address: u64, pages: u64, advice: u32) -> Self {
        self.on(cpu, Event::Call(Call::Advise { address, length: pages << 12, advice }))
    }

    /// Discards a page. The kernel flushes everything.
    pub(crate) fn split(self, cpu: u32, address: u64) -> Self {
        self.begin_advice(cpu, address, 1, DONT_NEED)
            .on(cpu, Event::Flush { reason: FlushReason::LocalSpace, pages: None })
            .on(cpu, Event::Return { value: 0 })
    }

    /// Unmaps a page. The kernel flushes it here, and interrupts the targets.
    pub(crate) fn unmap(self, cpu: u32, address: u64, targets: &[u32]) -> Self {
        let call = Call::Unmap { address, length: 4096 };
        let flush = |reason| Event::Flush { reason, pages: Some(1) };
        let mut script = self.on(cpu, Event::Call(call)).on(cpu, flush(FlushReason::Request));
        if !targets.is_empty() {
            script = script.on(cpu, Event::Interrupts { targets: targets.to_vec() });
        }
        script = script.on(cpu, flush(FlushReason::LocalSpace));
        for &target in targets {
            script = script.on(target, flush(FlushReason::Remote));
        }
        script.on(cpu, Event::Return { value: 0 })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let header = Header {
            recorder: "by hand".to_owned(),
            source: Source::Tracefs,
            kernel: if self.kernel.is_empty() { "7.0" } else { self.kernel }.to_owned(),
            processor: self.processor.to_owned(),
            cpus: 2,
            command: vec!["script".to_owned()],
        };
        let mut writer = Writer::create(Vec::new(), &header).unwrap();
        for record in &self.records {
            writer.write(record).unwrap();
        }
        writer.finish(Ended::Exited(0)).unwrap()
    }
}

pub(crate) fn survey(file: &[u8]) -> Survey {
    Survey::of(Reader::open(Cursor::new(file.to_vec())).unwrap(), |_| {}).unwrap()
}

pub(crate) fn under_recorded_schedule<C: Into<ErasedCoherence>>(
    file: &[u8],
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Result<Outcome, ReplayError> {
    on_machine(MACHINE, file, design)
}

pub(crate) fn on_machine<C: Into<ErasedCoherence>>(
    machine: &str,
    file: &[u8],
    design: impl FnOnce(Rc<Sim>) -> C,
) -> Result<Outcome, ReplayError> {
    let machine = Machine::from_toml(machine).unwrap();
    let reader = Reader::open(Cursor::new(file.to_vec())).unwrap();
    replay(machine, 1 << 20, reader, &survey(file), |_| {}, design)
}

fn under_simulated_schedule(file: &[u8]) -> Outcome {
    let machine = Machine::from_toml(MACHINE).unwrap();
    let reader = Reader::open(Cursor::new(file.to_vec())).unwrap();
    let threads = threads(reader, &survey(file), 1, |_| {}).unwrap();
    run(machine, Settings::DEFAULT, Rc::new(threads), Linux70::uncounted).unwrap()
}

#[test]
fn active_cpu_is_interrupted_and_idle_is_not() {
    let both = Script::two_threads()
        // A neighbouring page keeps the page table, whose release would notify idle CPUs.
        .map(0, PAGE, 8192)
        .fault(0, PAGE + 4096, WRITE_ABSENT)
        .fault(0, PAGE, WRITE_ABSENT)
        .fault(1, PAGE, READ_ABSENT);
    let file = both.unmap(0, PAGE, &[1]).write();
    let outcome = under_recorded_schedule(&file, Linux70::uncounted).unwrap();
    assert_eq!(outcome.counts.interrupts_sent, 1);
    assert_eq!(outcome.counts.interrupts_sent, survey(&file).kernel.interrupts_sent);
    assert_eq!(outcome.counts.flushes_ranged, 2);
    assert_eq!(survey(&file).kernel.flushes_ranged, 2);
    assert_eq!(outcome.violations, 0);

    let idle = Script::two_threads()
        .map(0, PAGE, 8192)
        .fault(0, PAGE + 4096, WRITE_ABSENT)
        .fault(0, PAGE, WRITE_ABSENT)
        .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked })
        .unmap(0, PAGE, &[]);
    let outcome = under_recorded_schedule(&idle.write(), Linux70::uncounted).unwrap();
    assert_eq!(outcome.counts.interrupts_sent, 0);
    let outcome = under_recorded_schedule(&idle.write(), Engine::<1>::new).unwrap();
    assert_eq!(outcome.counts.interrupts_sent, 0);
}

/// Full flushes, ranged flushes, and interrupts.
pub(crate) fn flushes(script: &Script) -> (u64, u64, u64) {
    let outcome = under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap();
    assert_eq!((outcome.violations, outcome.dropped_steps), (0, 0));
    let counts = &outcome.counts;
    (
        counts.flushes_full - counts.flushes_full_at_switch,
        counts.flushes_ranged - counts.flushes_ranged_at_switch,
        counts.interrupts_sent,
    )
}

#[test]
fn cold_pages_lose_their_mark() {
    let used = |flags| {
        Script::two_threads()
            .map_with(0, PAGE, 3 << 12, flags)
            .fault(0, PAGE, WRITE_ABSENT)
            .fault(1, PAGE + 4096, WRITE_ABSENT)
            // The second fault has ended.
            .after_ns(100_000)
    };
    for flags in [MAP_PRIVATE | MAP_ANONYMOUS, MAP_SHARED] {
        assert_eq!(flushes(&used(flags).advise(0, PAGE, 3, COLD)), (0, 2, 1));
    }
    // The pages were not used since.
    let twice = used(MAP_SHARED).advise(0, PAGE, 3, COLD).advise(0, PAGE, 3, COLD);
    assert_eq!(flushes(&twice), (0, 2, 1));
}

#[test]
fn paged_out_files_are_unmapped() {
    let used = |flags| {
        Script::two_threads()
            .map_with(0, PAGE, 3 << 12, flags)
            .fault(0, PAGE, WRITE_ABSENT)
            .fault(1, PAGE + 4096, WRITE_ABSENT)
            .advise(0, PAGE, 3, PAGE_OUT)
    };
    // One flush for both pages, which drops everything.
    assert_eq!(flushes(&used(MAP_SHARED)), (2, 0, 1));
    // There is no swap space, and the marks of pages that are to be reclaimed are ignored.
    assert_eq!(flushes(&used(MAP_PRIVATE | MAP_ANONYMOUS)), (0, 0, 0));
}

#[test]
fn written_back_files_are_protected() {
    let used = |sharing, flags, flushed: bool| {
        let sync = Event::Call(Call::Sync { address: PAGE, length: 3 << 12, flags });
        let script = Script::two_threads()
            .map_with(0, PAGE, 3 << 12, sharing)
            .fault(0, PAGE, WRITE_ABSENT)
            .fault(1, PAGE + 4096, WRITE_ABSENT)
            // The second fault has ended.
            .after_ns(100_000)
            .on(0, sync);
        let flush = Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) };
        let script = if flushed { script.on(0, flush) } else { script };
        script.on(0, Event::Return { value: 0 })
    };
    // Each of the two written pages is flushed alone, on both CPUs.
    assert_eq!(flushes(&used(MAP_SHARED, MS_SYNC, true)), (0, 4, 2));
    // The kernel does not track writes to a file in memory.
    assert_eq!(flushes(&used(MAP_SHARED, MS_SYNC, false)), (0, 0, 0));
    // Only a synchronous call on a shared area writes out.
    assert_eq!(flushes(&used(MAP_SHARED, MS_ASYNC, true)), (0, 0, 0));
    for private in [MAP_PRIVATE, MAP_PRIVATE | MAP_ANONYMOUS] {
        assert_eq!(flushes(&used(private, MS_SYNC, true)), (0, 0, 0));
    }
}

#[test]
fn populated_pages_are_mapped_without_access() {
    let script = Script::two_threads().map(0, PAGE, 2 << 12).advise(0, PAGE, 2, POPULATE_READ);
    assert_eq!(flushes(&script), (0, 0, 0));
    // Each write replaces the page of zeros, which is flushed on both CPUs.
    let script = script.advise(0, PAGE, 2, POPULATE_WRITE);
    assert_eq!(flushes(&script), (0, 4, 2));
    assert_eq!(flushes(&script.advise(0, PAGE, 2, POPULATE_WRITE)), (0, 4, 2));
}

#[test]
fn call_within_another_flushes_everything() {
    let used = || {
        Script::two_threads().map(0, PAGE, 4 << 12).fault(0, PAGE, WRITE_ABSENT).fault(
            1,
            PAGE + 4096,
            WRITE_ABSENT,
        )
    };
    let alone = used().advise(0, PAGE, 1, DONT_NEED).advise(1, PAGE + 4096, 1, DONT_NEED);
    assert_eq!(flushes(&alone), (0, 4, 2));
    // A thread begins a call and is preempted. The other one's flush is a full one, and its own,
    // which comes later, is not.
    let nested = used()
        .begin_advice(0, PAGE, 1, DONT_NEED)
        .advise(1, PAGE + 4096, 1, DONT_NEED)
        .on(0, Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) })
        .on(0, Event::Return { value: 0 })
        .advise(1, PAGE + 4096, 1, DONT_NEED);
    assert_eq!(flushes(&nested), (2, 2, 2));
}

#[test]
fn new_program_moves_its_stack() {
    let script = |exec: bool| {
        let script = Script::two_threads().fault(0, PAGE, WRITE_ABSENT);
        if exec {
            script.on(0, Event::Exec { space: SpaceId(1), name: String::new() })
        } else {
            script
        }
    };
    assert_eq!(flushes(&script(false)), (0, 0, 0));
    // The pages, and then the tables that mapped them, on this CPU only.
    assert_eq!(flushes(&script(true)), (1, 1, 0));
}

#[test]
fn fault_of_the_kernel_does_not_end_its_call() {
    let script = |copies: bool| {
        let protect = Call::Protect { address: PAGE, length: 4096, protection: 1 };
        let script = Script::two_threads().map(0, PAGE, 4096).fault(0, PAGE, WRITE_ABSENT);
        let script = script.on(0, Event::Call(protect));
        let script = if copies { script.fault(0, PAGE + 8192, FaultCode(0)) } else { script };
        script
            .on(0, Event::Flush { reason: FlushReason::LocalSpace, pages: Some(1) })
            .on(0, Event::Return { value: 0 })
    };
    assert_eq!(flushes(&script(true)), flushes(&script(false)));
}

/// The parent's write finds the page unshared, because the child has left the space already.
#[test]
fn exec_leaves_its_space_at_its_flush() {
    let flush = |reason, pages| Event::Flush { reason, pages };
    let script = |leaves: bool| {
        let script = Script::two_threads()
            .map(0, PAGE, 4096)
            .fault(0, PAGE, WRITE_ABSENT)
            .on(1, Event::Spawn { task: TaskId(3), space: SpaceId(1), name: String::new() })
            .on(1, Event::Switch { next: TaskId(3), left: Left::Runnable })
            .fault(1, PAGE + 4096, READ_ABSENT);
        let script = match leaves {
            true => script.on(1, flush(FlushReason::Request, None)),
            false => script,
        };
        script
            .after_ns(200_000)
            .fault(0, PAGE, WRITE_REFUSED)
            .after_ns(200_000)
            .on(1, Event::Exec { space: SpaceId(2), name: String::new() })
    };
    let (stays, leaves) = (flushes(&script(false)), flushes(&script(true)));
    assert_eq!(stays.1 - leaves.1, 1, "{stays:?}, {leaves:?}");
}

#[test]
fn freed_table_is_flushed_from_its_first_address() {
    let unmapped = |address| {
        let script = Script::two_threads().map(0, address, 4096).fault(0, address, WRITE_ABSENT);
        flushes(&script.unmap(0, address, &[1]))
    };
    // Other tables of the page's path cover other addresses, so this is the middle of the first.
    assert_eq!(unmapped(PAGE + 30 * 4096), (0, 2, 1));
    assert_eq!(unmapped(PAGE + 40 * 4096), (2, 0, 1));
}

#[test]
fn write_after_read_flushes_the_page() {
    let script = Script::two_threads()
        .map(0, PAGE, 8192)
        .fault(0, PAGE, READ_ABSENT)
        .fault(0, PAGE, WRITE_REFUSED)
        // The recorded kernel had mapped this page along with its neighbour.
        .fault(0, PAGE + 4096, WRITE_REFUSED);
    let outcome = under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap();
    assert_eq!(outcome.counts.interrupts_sent, 2);
    assert_eq!(outcome.counts.flushes_ranged, 4);
}

#[test]
fn computing_and_idling_take_their_recorded_time() {
    let short = Script::two_threads().fault(0, PAGE, WRITE_ABSENT).fault(0, PAGE, WRITE_ABSENT);
    let time = |script: &Script| {
        under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap().time
    };
    let computing = Script::two_threads().fault(0, PAGE, WRITE_ABSENT).after_ns(5_000_000).fault(
        0,
        PAGE,
        WRITE_ABSENT,
    );
    assert_eq!(time(&computing).ns() - time(&short).ns(), 5_000_000);
    let idling = Script::two_threads()
        .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked })
        .after_ns(7_000_000)
        .on(1, Event::Switch { next: B, left: Left::Blocked });
    let time_idle = time(&idling).ns();
    assert!((7_000_000..7_100_000).contains(&time_idle), "{time_idle}");
}

#[test]
fn blocked_thread_waits_for_its_waker_or_sleeps() {
    let time_ns = |by: Waker| {
        let mut script = Script::two_threads()
            .fault(1, PAGE, WRITE_ABSENT)
            .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked });
        // Faults take their recorded and their simulated time here: the waker is later than
        // recorded.
        for page in 1..=1000 {
            script = script.fault(0, PAGE + page * 4096, WRITE_ABSENT);
        }
        let script = script
            .after_ns(2_000_000)
            .on(0, Event::Wake { task: B, by })
            .on(0, Event::Exit)
            .on(0, Event::Switch { next: TaskId::KERNEL, left: Left::Dead })
            .on(1, Event::Switch { next: B, left: Left::Blocked })
            .after_ns(2_000_000)
            .fault(1, PAGE, WRITE_ABSENT)
            .on(1, Event::Exit);
        let outcome = under_simulated_schedule(&script.write());
        assert_eq!(outcome.violations, 0);
        outcome.time.ns()
    };
    // The thread slept for 3 ms, and computed for 2 ms.
    let after_a_timer_ns = time_ns(Waker::Interrupt);
    assert!((4_900_000..5_400_000).contains(&after_a_timer_ns), "{after_a_timer_ns}");
    let after_the_other_ns = time_ns(Waker::Running);
    assert!(after_the_other_ns > after_a_timer_ns + 200_000, "{after_the_other_ns}");
}

#[test]
fn thread_may_be_woken_before_its_creation() {
    let child = TaskId(3);
    // The waker had no CPU while the creator computed. Here it has one.
    let script = Script::two_threads()
        .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Runnable })
        .after_ns(9_000_000)
        .on(0, Event::Spawn { task: child, space: SPACE, name: String::new() })
        .on(0, Event::Switch { next: child, left: Left::Runnable })
        .on(0, Event::Switch { next: A, left: Left::Blocked })
        .on(1, Event::Switch { next: B, left: Left::Blocked })
        .on(1, Event::Wake { task: child, by: Waker::Running })
        .on(1, Event::Exit)
        .on(0, Event::Exit)
        .on(0, Event::Switch { next: child, left: Left::Dead })
        .on(0, Event::Exit);
    assert_eq!(under_simulated_schedule(&script.write()).violations, 0);
}

#[test]
fn processes_start_and_end_under_both_schedules() {
    let (child, fresh, copy) = (TaskId(3), SpaceId(2), SpaceId(1));
    let script = Script::two_threads()
        .map(0, PAGE, 4096)
        .fault(0, PAGE, WRITE_ABSENT)
        .on(0, Event::Spawn { task: child, space: copy, name: String::new() })
        .on(1, Event::Switch { next: child, left: Left::Blocked })
        .fault(1, PAGE, WRITE_REFUSED)
        .on(1, Event::Exec { space: fresh, name: String::new() })
        .fault(1, PAGE, WRITE_ABSENT)
        .on(1, Event::Exit)
        .on(1, Event::Switch { next: B, left: Left::Dead })
        .fault(0, PAGE, WRITE_REFUSED)
        .on(1, Event::Exit)
        .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Dead })
        .on(0, Event::Exit)
        .on(0, Event::Switch { next: TaskId::KERNEL, left: Left::Dead });
    let file = script.write();
    let survey = survey(&file);
    assert_eq!((survey.threads, survey.spaces), (3, 3));
    for outcome in [
        under_recorded_schedule(&file, Linux70::uncounted).unwrap(),
        under_recorded_schedule(&file, Engine::<1>::new).unwrap(),
        under_simulated_schedule(&file),
    ] {
        assert_eq!(outcome.violations, 0);
        // The fork removes a permission, and the child's write replaces a page.
        let flushes = outcome.counts.flushes_full + outcome.counts.flushes_ranged;
        assert!(flushes >= 2, "{flushes}");
        // Two of the three spaces are left for another one.
        assert!(outcome.counts.root_loads >= 4, "{}", outcome.counts.root_loads);
    }
}

#[test]
fn machine_needs_the_recorded_cpus() {
    let one_cpu =
        MACHINE.replace("cores_per_cluster = { value = 2", "cores_per_cluster = { value = 1");
    let machine = Machine::from_toml(&one_cpu).unwrap();
    let file = Script::two_threads().write();
    let reader = Reader::open(Cursor::new(file.clone())).unwrap();
    let result = replay(machine, 1 << 20, reader, &survey(&file), |_| {}, Linux70::uncounted);
    assert!(matches!(result, Err(ReplayError::TooFewCpus { recorded: 2, machine: 1 })));
}

#[test]
fn truncated_recording_is_refused() {
    let file = Script::two_threads().map(0, PAGE, 4096).fault(0, PAGE, WRITE_ABSENT).write();
    let cut = file[..file.len() - 20].to_vec();
    assert!(Survey::of(Reader::open(Cursor::new(cut.clone())).unwrap(), |_| {}).is_err());
    // The replay also refuses a recording that was truncated after its survey.
    let machine = Machine::from_toml(MACHINE).unwrap();
    let reader = Reader::open(Cursor::new(cut)).unwrap();
    let result = replay(machine, 1 << 20, reader, &survey(&file), |_| {}, Linux70::uncounted);
    assert!(matches!(result, Err(ReplayError::Read(_))));
}

/// A recorder writes the introduction of a task on CPU 0, whichever CPU runs the task. CPU 1 is
/// busy with another program, and therefore switches without delay.
#[test]
fn first_switch_on_another_cpu_is_replayed() {
    let task = |task, owner, space| Event::Task { task, owner, space, name: String::new() };
    let mut script = Script::default()
        .on(0, Event::Running { task: TaskId::KERNEL })
        .on(0, task(A, Owner::Other, SpaceId(1)))
        .on(1, Event::Running { task: A })
        .on(0, task(B, Owner::Recorded, SPACE));
    let event = Event::Switch { next: B, left: Left::Runnable };
    script.records.push(Record { time_ns: script.now_ns, cpu: 1, event });
    let script = script
        .map(1, PAGE, 8192)
        .fault(1, PAGE + 4096, WRITE_ABSENT)
        .fault(1, PAGE, WRITE_ABSENT)
        .unmap(1, PAGE, &[]);
    let outcome = under_recorded_schedule(&script.write(), Linux70::uncounted).unwrap();
    assert_eq!((outcome.dropped_steps, outcome.counts.flushes_ranged), (0, 1));
}

/// The child begins on CPU 1 while CPU 0 still copies the parent's memory.
#[test]
fn child_waits_until_fork_is_complete() {
    let (child, copy) = (TaskId(3), SpaceId(1));
    let mut script = Script::two_threads().map(0, PAGE, 64 * 4096);
    for page in 0..64 {
        script = script.fault(0, PAGE + page * 4096, WRITE_ABSENT);
    }
    let mut script = script.on(0, Event::Spawn { task: child, space: copy, name: String::new() });
    let event = Event::Switch { next: child, left: Left::Blocked };
    script.records.push(Record { time_ns: script.now_ns, cpu: 1, event });
    let before = script.write();
    let after = script.unmap(1, PAGE, &[]).write();
    let [before, after] =
        [before, after].map(|file| under_recorded_schedule(&file, Linux70::uncounted).unwrap());
    assert_eq!((before.dropped_steps, after.dropped_steps), (0, 0));
    let flushes = |outcome: &Outcome| outcome.counts.flushes_full + outcome.counts.flushes_ranged;
    assert_eq!(flushes(&after), flushes(&before) + 1, "the child unmaps a page of its copy");
}

#[test]
fn steps_without_their_task_are_counted() {
    let unknown = Script::two_threads()
        .fault(0, PAGE, WRITE_ABSENT)
        .on(0, Event::Exit)
        // The thread has ended, so this access has no memory.
        .fault(0, PAGE, WRITE_ABSENT);
    let outcome = under_recorded_schedule(&unknown.write(), Linux70::uncounted).unwrap();
    assert_eq!(outcome.dropped_steps, 1);
    let idle = Script::default().on(0, Event::Running { task: TaskId::KERNEL }).fault(
        0,
        PAGE,
        WRITE_ABSENT,
    );
    assert_eq!(survey(&idle.write()).unattributed, 1);
}

#[test]
fn parallel_time_needs_two_cpus_in_one_space() {
    let alone = |script: Script| script.on(1, Event::Switch { next: B, left: Left::Blocked });
    let script = Script::two_threads()
        .after_ns(2_999_000)
        .on(1, Event::Switch { next: TaskId::KERNEL, left: Left::Blocked })
        .after_ns(6_999_000);
    let survey = survey(&alone(script).write());
    // CPU 0 runs from 2 µs on, and CPU 1 from 5 µs on.
    assert_eq!((survey.parallel_ns, survey.busy_ns), (3_000_000, 10_003_000));
}
