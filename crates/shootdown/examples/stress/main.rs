//! A stress test of the engine. Two threads per core switch, map, unmap and flush at random, on a
//! TLB that never evicts: first with the engine as it is, then with flushes that ring no active
//! CPU.
//!
//! `cargo run --release --features soft --example stress -- [SECONDS [CPUS]]`

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use shootdown::soft::{Churn, Config, Host, Soft, StressReport};
use shootdown::{CpuId, CpuStats, Rule};

const WORDS: usize = 3;
const CPUS_MAX: u32 = 64 * WORDS as u32;

fn main() -> ExitCode {
    let (seconds, cpus) = match parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(cause) => {
            eprintln!("error: {cause}");
            eprintln!("try:   stress 60 4, for 60 seconds with 4 CPUs");
            return ExitCode::from(2);
        }
    };
    println!("{cpus} CPUs (threads), 3 spaces of 8 pages, 4 tags, {seconds} s\n");
    let intact = run(cpus, Duration::from_secs(seconds), None);
    let broken = run(cpus, Duration::from_secs(1), Some(Rule::RingPresent));
    print_table(&intact, &broken);
    if let Some(time) = broken.first_stale {
        println!("\nWithout rings, a CPU used a stale translation after {time:.1?}.");
    }
    if intact.report.stale > 0 || intact.freed_table_walks > 0 {
        eprintln!("error: a CPU used a stale translation or a freed page table");
        eprintln!("try:   `cargo test -p shootdown`, to find the broken rule");
        return ExitCode::FAILURE;
    }
    if broken.report.stale == 0 {
        eprintln!(
            "error: without rings, no CPU used a stale translation, so this test cannot fail"
        );
        eprintln!("try:   more CPUs, or a less busy host");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The seconds and the number of CPUs that the arguments ask for.
fn parse(mut arguments: impl Iterator<Item = String>) -> Result<(u64, u32), String> {
    let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
    let mut number = |default: u32| match arguments.next() {
        Some(argument) => {
            argument.parse().map_err(|_| format!("`{}` is not a number", argument.escape_debug()))
        }
        None => Ok(default),
    };
    let (seconds, cpus) = (number(5)?, number((2 * cores).min(CPUS_MAX))?);
    if let Some(argument) = arguments.next() {
        return Err(format!("unexpected argument `{}`", argument.escape_debug()));
    }
    if cpus == 0 || cpus > CPUS_MAX {
        return Err(format!("the number of CPUs must be between 1 and {CPUS_MAX}, not {cpus}"));
    }
    Ok((seconds.into(), cpus))
}

struct Outcome {
    report: StressReport,
    freed_table_walks: u64,
    stats: CpuStats,
    first_stale: Option<Duration>,
}

fn run(cpus: u32, time: Duration, broken: Option<Rule>) -> Outcome {
    let config = Config { cpus, tables: 3, pages: 8, tags: 4, broken, ..Config::DEFAULT };
    let engine = Soft::<Host, WORDS>::engine(config);
    let churn = Churn::new(&engine);
    let start = Instant::now();
    let (mut report, mut first_stale) = (StressReport::default(), None);
    thread::scope(|scope| {
        let runs: Vec<_> = (0..cpus)
            .map(|cpu| {
                let (engine, churn) = (&engine, &churn);
                scope.spawn(move || {
                    let mut first_stale = None;
                    let report = churn.run_while(engine, CpuId(cpu), 1, |so_far| {
                        if so_far.stale > 0 && first_stale.is_none() {
                            first_stale = Some(start.elapsed());
                        }
                        start.elapsed() < time
                    });
                    (report, first_stale)
                })
            })
            .collect();
        show_progress(start, time);
        for run in runs {
            let (of_cpu, stale) = run.join().expect("the thread of a CPU does not panic");
            report += of_cpu;
            first_stale = first_stale.into_iter().chain(stale).min();
        }
    });
    Outcome {
        report,
        freed_table_walks: engine.machine().freed_table_walks(),
        stats: engine.machine().total_stats(),
        first_stale,
    }
}

fn show_progress(start: Instant, time: Duration) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    while start.elapsed() < time {
        eprint!("\r{:>4} of {} s", start.elapsed().as_secs(), time.as_secs());
        thread::sleep(Duration::from_millis(250).min(time));
    }
    eprint!("\r{:20}\r", "");
}

type Count = fn(&Outcome) -> u64;

fn print_table(intact: &Outcome, broken: &Outcome) {
    let rows: [(&str, Count); 11] = [
        ("uses of a mapped page", |o| o.report.touches),
        ("uses of a stale translation", |o| o.report.stale),
        ("walks of freed page tables", |o| o.freed_table_walks),
        ("completed flushes", |o| o.report.flushes),
        ("interrupts sent", |o| o.stats.interrupts_sent),
        ("  saved: one was already sent", |o| o.stats.rings_coalesced),
        ("  saved: the CPU was lazy", |o| o.stats.skipped_lazy),
        ("  saved: the CPU was elsewhere", |o| o.stats.skipped_elsewhere),
        ("switches", |o| o.stats.switches),
        ("  that kept the translations", |o| o.stats.switches_without_flush),
        ("flushes caught up with from the log", |o| o.stats.caught_up_from_log),
    ];
    println!("{:<36}{:>14}{:>18}", "", "engine", "without rings");
    for (name, count) in rows {
        println!("{name:<36}{:>14}{:>18}", count(intact), count(broken));
    }
}
