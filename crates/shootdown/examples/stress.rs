//! Two threads per core switch, map, unmap and flush as chance has it, on a TLB that never forgets;
//! first with the engine as it is, then with a flush that rings nobody.
//!
//! `cargo run --release --features soft --example stress -- [SECONDS] [CPUS]`

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use shootdown::soft::{Churn, ChurnReport, Config, Host, Soft};
use shootdown::{CpuId, CpuStats, Rule};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let cores = thread::available_parallelism().map_or(1, usize::from) as u32;
    let (seconds, cpus) = match (numbers.next(), numbers.next(), numbers.next()) {
        (seconds, cpus, None)
            if !matches!(seconds, Some(Err(_))) && !matches!(cpus, Some(Err(_) | Ok(0))) =>
        {
            (seconds.map_or(5, Result::unwrap), cpus.map_or(2 * cores, Result::unwrap))
        }
        _ => {
            eprintln!("error: the arguments are a number of seconds and a number of CPUs");
            eprintln!("try:   cargo run --release --features soft --example stress -- 60 4");
            return ExitCode::from(2);
        }
    };
    if cpus as usize > CPUS_MAX {
        eprintln!("error: {cpus} CPUs are more than the {CPUS_MAX} of this example");
        eprintln!("try:   a smaller number of CPUs");
        return ExitCode::from(2);
    }

    println!("{cpus} CPUs (threads), 3 spaces of 8 pages, 4 tags, {seconds} s\n");
    let intact = run(cpus, Duration::from_secs(seconds.into()), None);
    let broken = run(cpus, Duration::from_secs(1), Some(Rule::RingPresent));
    print(&intact, &broken);
    if intact.report.stale == 0 && intact.freed_table_walks == 0 && broken.report.stale > 0 {
        ExitCode::SUCCESS
    } else {
        eprintln!("\nerror: the engine failed, or the test cannot fail");
        ExitCode::FAILURE
    }
}

const CPUS_MAX: usize = 64 * WORDS;
const WORDS: usize = 3;

struct Outcome {
    report: ChurnReport,
    freed_table_walks: u64,
    stats: CpuStats,
    first_stale: Option<Duration>,
}

fn run(cpus: u32, time: Duration, broken: Option<Rule>) -> Outcome {
    let config = Config { cpus, tables: 3, pages: 8, tags: 4, broken };
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
        watch(start, time);
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

/// Shows the time on a terminal.
fn watch(start: Instant, time: Duration) {
    if !std::io::stderr().is_terminal() {
        return;
    }
    while start.elapsed() < time {
        eprint!("\r{:>4} of {} s", start.elapsed().as_secs(), time.as_secs());
        thread::sleep(Duration::from_millis(250).min(time));
    }
    eprint!("\r{:20}\r", "");
}

fn print(intact: &Outcome, broken: &Outcome) {
    println!("{:<34}{:>14}{:>16}", "", "engine", "rings nobody");
    let row = |name: &str, of: &dyn Fn(&Outcome) -> u64| {
        println!("{name:<34}{:>14}{:>16}", of(intact), of(broken));
    };
    row("uses of a mapped page", &|o| o.report.touches);
    row("uses of a dead translation", &|o| o.report.stale);
    row("walks of freed page tables", &|o| o.freed_table_walks);
    row("flushes waited for", &|o| o.report.flushes);
    row("interrupts sent", &|o| o.stats.interrupts_sent);
    row("  coalesced with one on its way", &|o| o.stats.rings_coalesced);
    row("  saved: the CPU was lazy", &|o| o.stats.skipped_lazy);
    row("  saved: the CPU was elsewhere", &|o| o.stats.skipped_elsewhere);
    row("switches", &|o| o.stats.switches);
    row("  that kept the tag's translations", &|o| o.stats.switches_without_flush);
    row("flushes made up for from the log", &|o| o.stats.caught_up_from_log);
    if let Some(time) = broken.first_stale {
        println!("\nWithout the ring, the first dead translation was used after {time:.1?}.");
    }
}
