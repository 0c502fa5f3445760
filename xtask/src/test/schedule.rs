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
    /// The steps that must have passed before this one starts.
    pub(super) needs: &'static [&'static str],
    /// A step that must have ended before this one starts, passed or not.
    pub(super) after: Option<&'static str>,
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
        Self { name, cores, needs, after: None, budget_s, run }
    }

    /// Makes the step start after another one has ended.
    pub(super) const fn after(self, other: &'static str) -> Self {
        Self { after: Some(other), ..self }
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

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed(Duration),
    Failed(Duration),
    /// The step was not run, because it needs this one, which did not pass.
    Needs(&'static str),
}

/// Runs all steps, and prints a table of their ends. A failure names all steps that did not pass.
pub(super) fn run(steps: &[Step]) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    run_on(cores, steps, |step| in_process(step.name))
}

/// Runs all steps with `run_step` on this number of cores.
///
/// Steps start in their order; a step that fits into the idle cores does not overtake one that does
/// not. After a failure, only the steps that need the failed one are left out.
fn run_on(
    cores: usize,
    steps: &[Step],
    run_step: impl Fn(&Step) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let run_step = &run_step;
    let mut ends: Vec<Option<End>> = vec![None; steps.len()];
    let (mut next, mut running) = (Vec::from_iter(0..steps.len()), Vec::new());
    let start = Instant::now();
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        loop {
            leave_out(steps, &mut next, &mut ends);
            while let Some(position) = startable(steps, &next, &running, &ends, cores) {
                let step = next.remove(position);
                running.push(step);
                println!("{:>14} │ begins", steps[step].name);
                let sender = sender.clone();
                scope.spawn(move || {
                    let begin = Instant::now();
                    let result = run_step(&steps[step]);
                    // The receiver outlives this scope.
                    let _ = sender.send((step, begin.elapsed(), result));
                });
            }
            if running.is_empty() {
                break;
            }
            let Ok((step, time, result)) = receiver.recv() else { break };
            running.retain(|&other| other != step);
            let (name, seconds) = (steps[step].name, time.as_secs_f64());
            ends[step] = Some(match result {
                Ok(()) => {
                    println!("{name:>14} │ ok, {seconds:.1} s");
                    End::Passed(time)
                }
                // The step has printed its cause and its remedy.
                Err(_) => {
                    println!("{name:>14} │ FAILED, {seconds:.1} s");
                    End::Failed(time)
                }
            });
        }
    });
    summarise(steps, &ends, start.elapsed())
}

/// Removes the steps from `next` that need a step that did not pass.
fn leave_out(steps: &[Step], next: &mut Vec<usize>, ends: &mut [Option<End>]) {
    // A step needs only earlier ones, so one pass finds all that follow from a failure.
    next.retain(|&step| {
        let did_not_pass = |name: &&&str| {
            let index = steps.iter().position(|other| other.name == **name);
            matches!(index.and_then(|index| ends[index]), Some(End::Failed(_) | End::Needs(_)))
        };
        let missing = steps[step].needs.iter().find(did_not_pass);
        if let Some(missing) = missing {
            println!("{:>14} │ not run: it needs {missing}", steps[step].name);
            ends[step] = Some(End::Needs(missing));
        }
        missing.is_none()
    });
}

/// Returns the position in `next` of the step that can start now.
fn startable(
    steps: &[Step],
    next: &[usize],
    running: &[usize],
    ends: &[Option<End>],
    cores: usize,
) -> Option<usize> {
    let has_ended =
        |name: &&str| steps.iter().zip(ends).any(|(step, end)| step.name == *name && end.is_some());
    let is_ready = |&&step: &&usize| {
        let Step { needs, after, .. } = &steps[step];
        needs.iter().chain(after).all(&has_ended)
    };
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

/// Prints the table of all ends. Returns a failure if a step did not pass.
fn summarise(steps: &[Step], ends: &[Option<End>], total: Duration) -> Result<(), Failure> {
    println!("\n{:>14}   seconds  budget", "step");
    let mut failed = Vec::new();
    for (Step { name, budget_s, .. }, end) in steps.iter().zip(ends) {
        match end {
            Some(End::Passed(time) | End::Failed(time)) => {
                let time = time.as_secs_f64();
                let is_slow = time > TOLERANCE * f64::from(*budget_s);
                let warning = if is_slow { "  warning: over twice its budget" } else { "" };
                let verdict = if matches!(end, Some(End::Failed(_))) { "  FAILED" } else { "" };
                println!("{name:>14} {time:>9.1} {budget_s:>7}{verdict}{warning}");
            }
            Some(End::Needs(missing)) => println!("{name:>14}   not run: it needs {missing}"),
            // Its thread has panicked.
            None => println!("{name:>14}   not run"),
        }
        if !matches!(end, Some(End::Passed(_))) {
            failed.push(*name);
        }
    }
    println!("{:>14} {:>9.1}, with steps side by side", "all", total.as_secs_f64());
    if failed.is_empty() {
        return Ok(());
    }
    let again: Vec<_> = failed.iter().map(|name| format!("cargo xtask test {name}")).collect();
    Err(Failure::new(
        format!("{} of {} steps did not pass: {}", failed.len(), steps.len(), failed.join(", ")),
        again.join(" && "),
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const STEPS: [Step; 7] = [
        Step::new("slow", Cores::None, &[], 0, || Ok(())),
        Step::new("one", Cores::One, &[], 0, || Ok(())),
        Step::new("needs slow", Cores::One, &["slow"], 0, || Ok(())),
        Step::new("two", Cores::One, &[], 0, || Ok(())),
        Step::new("needs two", Cores::One, &["two"], 0, || Ok(())),
        Step::new("needs both", Cores::One, &["needs two", "needs slow"], 0, || Ok(())),
        Step::new("after two", Cores::One, &[], 0, || Ok(())).after("two"),
    ];

    /// Returns the order in which steps end, where `failing` fails and "slow" ends after all steps
    /// that can run before it; and the failure.
    fn order(failing: &str) -> (Vec<&'static str>, Option<String>) {
        let done = Mutex::new(Vec::new());

        let before_slow = if failing == "two" { 3 } else { 4 };
        let result = run_on(1, &STEPS, |step| {
            while step.name == "slow" && done.lock().unwrap().len() < before_slow {
                thread::yield_now();
            }
            done.lock().unwrap().push(step.name);
            if step.name == failing { Err(Failure::new("it fails", "nothing")) } else { Ok(()) }
        });
        (done.into_inner().unwrap(), result.err().map(|failure| failure.to_string()))
    }

    #[test]
    fn step_waits_for_the_steps_that_it_needs() {
        let ordered = ["one", "two", "needs two", "after two", "slow", "needs slow", "needs both"];
        assert_eq!(order(""), (ordered.to_vec(), None));
    }

    #[test]
    fn only_steps_that_need_a_failure_are_left_out() {
        let (done, failure) = order("two");
        assert_eq!(done, ["one", "two", "after two", "slow", "needs slow"]);
        let failure = failure.expect("a step failed");
        assert!(failure.contains("3 of 7 steps did not pass: two, needs two, needs both\n"));
        assert!(failure.ends_with("cargo xtask test needs both"), "{failure}");
    }
}
