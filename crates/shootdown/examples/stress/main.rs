//! Two threads per core switch, map, unmap and flush as chance has it, on a TLB that never forgets;
//! first with the engine as it is, then with flushes that ring no active CPU.
//!
//! `cargo run --release --features soft --example stress -- [SECONDS [CPUS]] [--report FILE.html]`

mod report;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use shootdown::soft::{Churn, ChurnReport, Config, Host, Soft};
use shootdown::{CpuId, CpuStats, Rule};

const WORDS: usize = 3;
const CPUS_MAX: u32 = 64 * WORDS as u32;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(cause) => {
            eprintln!("error: {cause}");
            eprintln!("try:   stress 60 4 --report stress.html");
            return ExitCode::from(2);
        }
    };
    let Options { seconds, cpus, report } = options;
    println!("{cpus} CPUs (threads), 3 spaces of 8 pages, 4 tags, {seconds} s\n");
    let intact = run(cpus, Duration::from_secs(seconds), None);
    let broken = run(cpus, Duration::from_secs(1), Some(Rule::RingPresent));
    let rows = rows(&intact, &broken);
    println!("{:<36}{:>14}{:>18}", "", "engine", "without the ring");
    for row in &rows {
        println!("{:<36}{:>14}{:>18}", row.name, row.intact, row.broken);
    }
    if let Some(time) = broken.first_stale {
        println!("\nWithout the ring, a dead translation was used after {time:.1?}.");
    }
    if let Some(path) = report {
        if let Err(error) = report::write(&path, &options_line(cpus, seconds), &rows, &intact.stats)
        {
            eprintln!("error: {}: {error}", path.display());
            eprintln!("try:   another path for --report");
            return ExitCode::FAILURE;
        }
        println!("\nreport: {}", path.display());
    }
    if intact.report.stale == 0 && intact.freed_table_walks == 0 && broken.report.stale > 0 {
        ExitCode::SUCCESS
    } else {
        eprintln!("error: the engine let a dead translation be used, or the test cannot fail");
        eprintln!("try:   `cargo test -p shootdown`, which finds the rule that is broken");
        ExitCode::FAILURE
    }
}

struct Options {
    seconds: u64,
    cpus: u32,
    report: Option<PathBuf>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
        let mut options = Self { seconds: 5, cpus: (2 * cores).min(CPUS_MAX), report: None };
        let mut position = 0;
        while let Some(argument) = arguments.next() {
            let number = || {
                let quoted = argument.escape_debug();
                argument.parse::<u32>().map_err(|_| format!("`{quoted}` is no number"))
            };
            match (argument.as_str(), position) {
                ("--report", _) => {
                    let path = arguments.next().ok_or("--report wants a file")?;
                    options.report = Some(path.into());
                    continue;
                }
                (_, 0) => options.seconds = number()?.into(),
                (_, 1) => options.cpus = number()?,
                _ => return Err(format!("`{}` is one too many", argument.escape_debug())),
            }
            position += 1;
        }
        if options.cpus == 0 || options.cpus > CPUS_MAX {
            return Err(format!("{} CPUs are not between 1 and {CPUS_MAX}", options.cpus));
        }
        Ok(options)
    }
}

fn options_line(cpus: u32, seconds: u64) -> String {
    format!("{cpus} CPUs (threads), 3 spaces of 8 pages, 4 tags, {seconds} s")
}

struct Outcome {
    report: ChurnReport,
    freed_table_walks: u64,
    stats: CpuStats,
    first_stale: Option<Duration>,
}

fn run(cpus: u32, time: Duration, broken: Option<Rule>) -> Outcome {
    let config = Config { cpus, tables: 3, pages: 8, tags: 4, broken, ..Config::DEFAULT };
    let engine = Soft::<Host, WORDS>::engine(config);
    let churn = Churn::new(&engine);
    let start = Instant::now();
    let (mut report, mut first_stale) = (ChurnReport::default(), None);
    thread::scope(|scope| {
        let runs: Vec<_> = (0..cpus)
            .map(|cpu| {
                let (engine, churn) = (&engine, &churn);
                scope.spawn(move || {
                    let mut first_stale = None;
                    let report = churn.run_watched(engine, CpuId(cpu), 1, |so_far| {
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
            let (of_cpu, stale) = run.join().expect("a CPU's thread ends");
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

/// A line of the table.
struct Row {
    name: &'static str,
    intact: u64,
    broken: u64,
}

fn rows(intact: &Outcome, broken: &Outcome) -> Vec<Row> {
    let row = |name, of: fn(&Outcome) -> u64| Row { name, intact: of(intact), broken: of(broken) };
    vec![
        row("uses of a mapped page", |o| o.report.touches),
        row("uses of a dead translation", |o| o.report.stale),
        row("walks of freed page tables", |o| o.freed_table_walks),
        row("flushes waited for", |o| o.report.flushes),
        row("interrupts sent", |o| o.stats.interrupts_sent),
        row("  saved: one was on its way", |o| o.stats.rings_coalesced),
        row("  saved: the CPU was lazy", |o| o.stats.skipped_lazy),
        row("  saved: the CPU was elsewhere", |o| o.stats.skipped_elsewhere),
        row("switches", |o| o.stats.switches),
        row("  that kept the tag's translations", |o| o.stats.switches_without_flush),
        row("flushes made up for from the log", |o| o.stats.caught_up_from_log),
    ]
}
