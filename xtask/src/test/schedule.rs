//! Runs steps in parallel, as far as there are cores.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Command, Failure};

/// One step of the tests.
pub(super) struct Step {
    /// The argument that selects the step on the command line.
    pub(super) name: &'static str,
    cores: Cores,
    /// The steps that must be done before this one starts.
    pub(super) needs: &'static [&'static str],
    /// Expected time in seconds. A longer time is not a failure.
    budget_s: u32,
    pub(super) run: fn() -> Result<(), Failure>,
}

impl Step {
    pub(super) const fn new(
        name: &'static str,
        cores: Cores,
        needs: &'static [&'static str],
        budget_s: u32,
        run: fn() -> Result<(), Failure>,
    ) -> Self {
        Self { name, cores, needs, budget_s, run }
    }
}

/// The number of cores that a step keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// The step waits for the network or the disk.
    None,
    /// The step leaves other cores idle at times, so other steps run in parallel.
    One,
}

/// A step is reported when it takes longer than its budget times this factor.
const TOLERANCE: f64 = 2.0;

/// The result of a step.
struct Done {
    step: usize,
    time: Duration,
    result: Result<(), Failure>,
}

/// Runs all steps, prints a table of their times, and returns the first failure.
pub(super) fn run(steps: &[Step]) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    run_on(cores, steps, |step| in_process(step.name))
}

/// Runs all steps with `run_step` on this number of cores.
///
/// Steps start in their order; a step that fits into the idle cores does not overtake one that does
/// not. After a failure, no step starts.
fn run_on(
    cores: usize,
    steps: &[Step],
    run_step: impl Fn(&Step) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let run_step = &run_step;
    let mut times: Vec<Option<Duration>> = vec![None; steps.len()];
    let (mut next, mut running, mut failure) = (Vec::from_iter(0..steps.len()), Vec::new(), None);
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            while failure.is_none()
                && let Some(position) = startable(steps, &next, &running, &times, cores)
            {
                let step = next.remove(position);
                running.push(step);
                println!("{:>14} │ begins", steps[step].name);
                let sender = sender.clone();
                scope.spawn(move || {
                    let begin = Instant::now();
                    let result = run_step(&steps[step]);
                    // The receiver outlives this scope.
                    let _ = sender.send(Done { step, time: begin.elapsed(), result });
                });
            }
            if running.is_empty() {
                break;
            }
            let Ok(Done { step, time, result }) = receiver.recv() else { break };
            running.retain(|&other| other != step);
            let verdict = if result.is_ok() { "ok" } else { "FAILED" };
            println!("{:>14} │ {verdict}, {:.1} s", steps[step].name, time.as_secs_f64());
            times[step] = Some(time);
            if let Err(cause) = result {
                failure.get_or_insert(cause);
            }
        }
    });
    summarise(steps, &times, start.elapsed());
    failure.map_or(Ok(()), Err)
}

/// Returns the position in `next` of the step that can start now.
fn startable(
    steps: &[Step],
    next: &[usize],
    running: &[usize],
    times: &[Option<Duration>],
    cores: usize,
) -> Option<usize> {
    let is_done = |name: &&str| {
        steps.iter().zip(times).any(|(step, time)| step.name == *name && time.is_some())
    };
    let is_ready = |&&step: &&usize| steps[step].needs.iter().all(&is_done);
    let cores_of = |step: &usize| usize::from(steps[*step].cores == Cores::One);
    let busy: usize = running.iter().map(cores_of).sum();
    let (position, step) = next.iter().enumerate().find(|(_, step)| is_ready(step))?;
    (busy + cores_of(step) <= cores).then_some(position)
}

/// Runs a step as a process, and prints its name before each of its lines.
fn in_process(name: &str) -> Result<(), Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("this program: {error}"), "cargo xtask test"))?;
    Command::new(program).args("test").arg(name).run_with(|line| println!("{name:>14} │ {line}"))
}

fn summarise(steps: &[Step], times: &[Option<Duration>], total: Duration) {
    println!("\n{:>14}   seconds  budget", "step");
    for (step, time) in steps.iter().zip(times) {
        let Some(time) = time.map(|time| time.as_secs_f64()) else {
            println!("{:>14}   not run", step.name);
            continue;
        };
        let is_slow = time > TOLERANCE * f64::from(step.budget_s);
        let warning = if is_slow { "  warning: over twice its budget" } else { "" };
        println!("{:>14} {time:>9.1} {:>7}{warning}", step.name, step.budget_s);
    }
    println!("{:>14} {:>9.1}, with steps side by side", "all", total.as_secs_f64());
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const STEPS: [Step; 5] = [
        Step::new("slow", Cores::None, &[], 0, || Ok(())),
        Step::new("one", Cores::One, &[], 0, || Ok(())),
        Step::new("after slow", Cores::One, &["slow"], 0, || Ok(())),
        Step::new("two", Cores::One, &[], 0, || Ok(())),
        Step::new("last", Cores::One, &[], 0, || Ok(())),
    ];

    /// Returns the order in which steps end, where one of them fails and one is slow.
    fn order(failing: &str, slow: &str) -> Vec<&'static str> {
        let done = Mutex::new(Vec::new());
        let result = run_on(1, &STEPS, |step| {
            if step.name == slow {
                thread::sleep(Duration::from_millis(300));
            }
            done.lock().unwrap().push(step.name);
            if step.name == failing { Err(Failure::new("it fails", "nothing")) } else { Ok(()) }
        });
        assert_eq!(result.is_err(), !failing.is_empty());
        done.into_inner().unwrap()
    }

    #[test]
    fn step_waits_for_the_steps_that_it_needs() {
        assert_eq!(order("", "slow"), ["one", "two", "last", "slow", "after slow"]);
    }

    #[test]
    fn no_step_starts_after_a_failure() {
        assert_eq!(order("two", "slow"), ["one", "two", "slow"]);
    }
}
