//! The speed of writing, reading and replaying recordings, and the memory that this needs: ten
//! million records of two threads that use sixteen pages and discard them repeatedly.
//!
//! Speeds are per CPU time of this process, so that other processes on the host do not affect them.
//! A figure that misses its aim is not a failure, because hosts differ.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::rc::Rc;

use shootdown_designs::{Engine, Linux70};
use shootdown_recording::record::{
    Call, Event, FaultCode, FlushReason, Left, Owner, Record, SpaceId, TaskId,
};
use shootdown_recording::{Ended, Header, Reader, Source, Writer};
use shootdown_run::replay::{Survey, replay, threads};
use shootdown_run::{Limits, Memory, Settings, run};
use shootdown_sim::{Machine, Sim};
use shootdown_vm::ErasedCoherence;

const RECORDS: u64 = 10_000_000;
const FRAMES: usize = 1 << 20;
/// Smallest acceptable speed, in millions of records per second.
const REPLAY_AIM: f64 = 1.0;
/// Largest acceptable memory.
const MEMORY_AIM_MIB: u64 = 1024;

fn main() {
    let mut file = tempfile::tempfile().expect("a temporary file can be created");
    report("written", None, || {
        let copy = file.try_clone().expect("the file can be shared");
        write(Writer::create(copy, &header()).expect("the header is valid"));
    });
    let reader = |file: &mut File| {
        file.seek(SeekFrom::Start(0)).expect("the file can be read again");
        Reader::open(file.try_clone().expect("the file can be shared")).expect("the file is valid")
    };
    let mut survey = None;
    report("read", None, || {
        survey = Some(Survey::of(reader(&mut file), |_| {}).expect("the recording is complete"));
    });
    let survey = survey.expect("the recording was read");
    report("replayed, linux-7.0", Some(REPLAY_AIM), || {
        under_recorded_schedule(reader(&mut file), &survey, Linux70::uncounted);
    });
    report("replayed, shootdown", Some(REPLAY_AIM), || {
        under_recorded_schedule(reader(&mut file), &survey, Engine::<1>::new);
    });
    memory("under the recorded schedule");
    report("replayed, simulated schedule", Some(REPLAY_AIM), || {
        let threads =
            threads(reader(&mut file), &survey, 1, |_| {}).expect("the recording is complete");
        let settings = Settings {
            memory: Memory::of_frames(FRAMES),
            limits: Limits { threads: 8, ..Limits::DEFAULT },
            ..Settings::DEFAULT
        };
        run(machine(), settings, Rc::new(threads), Linux70::uncounted).expect("the run ends");
    });
    memory("under a simulated schedule");
}

fn under_recorded_schedule<C: Into<ErasedCoherence>>(
    reader: Reader<'static>,
    survey: &Survey,
    design: impl FnOnce(Rc<Sim>) -> C,
) {
    let outcome =
        replay(machine(), FRAMES, reader, survey, |_| {}, design).expect("the replay ends");
    assert_eq!(outcome.violations, 0);
}

fn machine() -> Machine {
    let file = include_str!("../../../machines/emerald-rapids-kvm.toml");
    Machine::from_toml(file).expect("the file is part of this repository")
}

fn header() -> Header {
    Header {
        recorder: "benchmark".to_owned(),
        source: Source::Tracefs,
        kernel: String::new(),
        processor: String::new(),
        cpus: 2,
        command: Vec::new(),
    }
}

fn write(mut writer: Writer<File>) {
    let mut time_ns = 0;
    let mut put = |cpu, event| {
        time_ns += 300;
        writer.write(&Record { time_ns, cpu, event }).expect("the file has room");
    };
    let (owner, space) = (Owner::Recorded, SpaceId(0));
    for (cpu, task) in [(0, TaskId(1)), (1, TaskId(2))] {
        put(cpu, Event::Task { task, owner, space, name: String::new() });
        put(cpu, Event::Switch { next: task, left: Left::Blocked });
    }
    let area = |cpu: u32| 0x7f00_0000_0000 + u64::from(cpu) * (1 << 21);
    for round in 0..RECORDS / 19 {
        let cpu = (round % 2) as u32;
        for page in 0..16 {
            put(cpu, Event::Fault { address: area(cpu) + page * 4096, code: FaultCode(6) });
        }
        let (address, length) = (area(cpu), 16 * 4096);
        put(cpu, Event::Call(Call::Advise { address, length, advice: 4 }));
        put(cpu, Event::Flush { reason: FlushReason::LocalSpace, pages: Some(16) });
        put(cpu, Event::Return { value: 0 });
    }
    writer.finish(Ended::Exited(0)).expect("the file has room");
}

fn report(what: &str, aim: Option<f64>, work: impl FnOnce()) {
    let start = cpu_seconds();
    work();
    let speed = RECORDS as f64 / (cpu_seconds() - start) / 1e6;
    let aim = aim.map_or_else(String::new, |aim| {
        format!("  aim {aim:.1}{}", if speed < aim { ": below" } else { "" })
    });
    println!("{what:<32} {speed:>6.1} M records/s{aim}");
}

fn memory(what: &str) {
    let mib = peak_memory_mib();
    let verdict = if mib > MEMORY_AIM_MIB { ": above" } else { "" };
    println!(
        "{:<32} {mib:>6} MiB at most  aim {MEMORY_AIM_MIB}{verdict}",
        format!("memory {what}")
    );
}

/// Returns the peak memory of this process so far.
fn peak_memory_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}

/// Returns the CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The user and the system time, in hundredths of a second, follow the name, which may contain
    // spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
