//! Records the steps of the engine on the hostile machine, for the refinement checker in `proof/`:
//! runs of the intact engine, and runs of an engine that breaks a rule, where that changes a step.
//! With the word `intact` after the path, only the former.
//!
//! The output has a line that begins with `run` for each run, and a line for each step: the CPU,
//! the kind of the step, and its text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::{env, fs};

use shootdown::{Lifetime, Rule};
use shootdown_check::engine::{Config, Programs, Tags};
use shootdown_check::{
    End, History, Line, LineKind, Outcome, Profile, Random, RunSettings, Scenario, Sharing,
};

/// Small programs that together reach nearly all rules.
const PROGRAMS: &[&str] = &[
    "run 0, idle, run 0 | unmap 0.0",
    "run 0, leave, run 0 | unmap 0.0, unmap 0.1",
    "run 0, run 1, run 2, run 0 | unmap 0.0, unmap 0.1",
    "run 0, idle, run 1 | unmap-table 0.0",
    "run 0, run 1, run 0 | unmap-table 0.0, trim-cpumask 0, unmap 0.1",
    "run 0, idle, run 0 | free-table 0.0, free-table 0.1, flush-walkers 0",
    "run 0, unmap-masked 0.1, idle | run 0, unmap-masked 0.0",
    "run 0, idle, run 1 | run 0, idle, retire 0, reap",
    "run 0, reclaim 0.0 | run 0, unmap 0.0, reclaim-both 0.1",
    "run 0, offline-online, run 0 | unmap-kernel 0, unmap 0.0",
    "run 0, stop, idle | unmap 0.0, unmap-kernel 0",
    "run 0, unmap 0.1, leave | attach 0, unmap 0.0, pin 0",
    "unmap 0.0 | unmap 0.1 | run 0, unmap 0.2 | run 0, idle, run 0",
    "run 0, idle | unmap-table 0.0, unmap-table 0.1",
    "run 0, unmap-table 0.1 | run 0, unmap-table 0.0, unmap-kernel 1",
    "attach 0, attach 0 | unmap 0.0, unmap 0.1, unmap 0.2",
    "pin 0, pin 0 | run 0, unmap 0.0, unmap 0.1, unmap 0.2",
    "run 0, idle | unmap-kernel 0 | run 0, idle, retire 0, reap",
    "run 0, stop, run 1, stop | unmap 0.0, unmap 1.0 | unmap 0.1, unmap-kernel 0",
    "run 0, stop-in-walk 0.0, stop-in-walk 0.1, stop-in-walk 0.0 | unmap 0.1, unmap 0.2 | \
     unmap 0.0, unmap-table 0.1",
    "run 0, run 1, run 2, run 3 | run 1, run 2, run 3, run 0 | run 2, run 3, unmap 0.0",
    "trim-cpumask 0, unmap 0.0 | run 0, run 1, run 0 | run 0, leave, trim-cpumask 0, run 0",
    "stay-in-user, run 0, stay-in-user | unmap-kernel 0, unmap-kernel 1, unmap-kernel-table",
    "run 0, run 1, unmap 1.0, run 0, idle, run 0 | defer-and-reuse 0.0, defer-and-reuse 0.1",
];

/// The machines: the first is the most frequent one.
const MACHINES: &[(Profile, Config)] = &[
    (Profile::X86, Config::new(2)),
    (Profile::ARM64, Config::new(2)),
    (Profile::X86, Config { tags: Tags::PerCpu(1), ..Config::new(2) }),
    (Profile::ARM64, Config { tags: Tags::Broadcast(7), ..Config::new(2) }),
    (
        Profile::RISCV,
        Config { tags: Tags::Global(3), lifetime: Lifetime::Counted, ..Config::new(2) },
    ),
    (Profile::ARC, Config { tags: Tags::Renamed(2), ..Config::new(2) }),
    (Profile::ARM64_TLBID, Config { tags: Tags::Domains(7), ..Config::new(2) }),
];

/// Number of runs of each broken rule.
const RUNS_BROKEN: usize = 3;

fn main() {
    let path = env::args().nth(1).expect("the path of the output");
    let rules = if env::args().nth(2).is_some_and(|of| of == "intact") { &[] } else { Rule::ALL };
    let (mut text, mut changed) = (String::new(), BTreeMap::new());
    for (at, &program) in PROGRAMS.iter().enumerate() {
        for (seed, &(profile, config)) in (at as u64..).zip(MACHINES) {
            let intact = record(program, profile, config, seed);
            write(&mut text, "intact", program, profile, config, &intact);
            for &rule in rules {
                let count = changed.entry(rule).or_insert(0);
                if *count >= RUNS_BROKEN {
                    continue;
                }
                let config = Config { broken: Some(rule), ..config };
                let broken = record(program, profile, config, seed);
                if steps(&broken) != steps(&intact) {
                    *count += 1;
                    write(&mut text, &format!("{rule:?}"), program, profile, config, &broken);
                }
            }
        }
    }
    for (rule, count) in changed.iter().filter(|(_, count)| **count == 0) {
        println!("{rule:?}: {count} runs");
    }
    fs::write(path, text).expect("the output can be written");
}

fn record(program: &str, profile: Profile, config: Config, seed: u64) -> Outcome {
    let programs = Programs::parse(config, program).expect("the text is valid");
    let (chooser, sharing) = (&mut Random::new(seed), &mut Sharing::all());
    programs.run(RunSettings { profile, chooser, history: History::On, sharing })
}

/// The lines of an outcome that are steps of the engine.
fn steps(outcome: &Outcome) -> Vec<&Line> {
    outcome.lines.iter().filter(|line| line.kind != LineKind::StaleEntries).collect()
}

fn write(
    text: &mut String,
    rule: &str,
    program: &str,
    profile: Profile,
    config: Config,
    outcome: &Outcome,
) {
    let end = match &outcome.end {
        End::Done => "done".to_owned(),
        End::GivenUp => "given up".to_owned(),
        End::Violation(violation) => violation.to_string(),
    };
    let Config { tags, lifetime, .. } = config;
    let head = format!("{rule}\t{}\t{tags:?}\t{lifetime:?}\t{program}\t{end}", profile.name);
    writeln!(text, "run\t{head}").expect("strings grow");
    for Line { cpu, text: what, kind } in steps(outcome) {
        writeln!(text, "{cpu}\t{kind:?}\t{what}").expect("strings grow");
    }
}
