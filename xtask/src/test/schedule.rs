//! Runs steps in parallel, as far as there are cores.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::inputs::Inputs;
use crate::command::{Command, Failure, cpu_time};

/// One step of the tests.
pub(super) struct Step {
    /// The argument that selects the step on the command line.
    pub(super) name: &'static str,
    cores: Cores,
    /// The steps that must have passed before this one starts.
    pub(super) needs: &'static [&'static str],
    /// A step that must have ended before this one starts, passed or not.
    pub(super) after: Option<&'static str>,
    /// The files and folders that the step reads, beside those of every step. None are all.
    files: &'static [&'static str],
    /// Expected CPU time in seconds. A longer time is not a failure.
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
        Self { name, cores, needs, after: None, files: &[], budget_s, run }
    }

    /// Makes these the only files and folders that the step reads, beside those of every step.
    pub(super) const fn reads(self, files: &'static [&'static str]) -> Self {
        Self { files, ..self }
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

/// The steps that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// All of them.
    All,
    /// Those that have not passed with the files that there are now.
    Changed,
}

/// A step is reported when it takes more CPU time than its budget times this factor.
const TOLERANCE: u32 = 2;

/// The line with which a step ends, before its CPU time in milliseconds.
const CPU_TIME: &str = "milliseconds of CPU time: ";

/// The times of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    clock: Duration,
    cpu: Duration,
}

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed(Times),
    Failed(Times),
    /// The step was not run, because it has passed with the same files.
    Unchanged,
    /// The step was not run, because it needs this one, which did not pass.
    Needs(&'static str),
}

/// Runs the steps, and prints a table of their ends. A failure names all steps that did not pass.
pub(super) fn run(steps: &[Step], selection: Selection) -> Result<(), Failure> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let inputs = Inputs::of_now("index")?;
    // The set-up depends on the host.
    let is_left_out = |step: &Step| {
        let can_be = selection == Selection::Changed && step.cores == Cores::One;
        can_be && inputs.have_passed(step.name, step.files)
    };
    run_on(cores, steps, is_left_out, |step| {
        let (cpu, result) = in_process(step.name);
        let pass = |()| inputs.pass(&Inputs::of_now(step.name)?, step.name, step.files);
        (cpu, result.and_then(pass))
    })
}

/// Runs all steps but those that `is_left_out` with `run_step`, which also returns their CPU time,
/// on this number of cores.
///
/// Steps start in their order; a step that fits into the idle cores does not overtake one that does
/// not. After a failure, only the steps that need the failed one are left out.
fn run_on(
    cores: usize,
    steps: &[Step],
    is_left_out: impl Fn(&Step) -> bool,
    run_step: impl Fn(&Step) -> (Duration, Result<(), Failure>) + Sync,
) -> Result<(), Failure> {
    let run_step = &run_step;
    let mut ends: Vec<Option<End>> =
        steps.iter().map(|step| is_left_out(step).then_some(End::Unchanged)).collect();
    let (mut next, mut running) = (Vec::from_iter(0..steps.len()), Vec::new());
    next.retain(|&step: &usize| ends[step].is_none());
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
                    let (cpu, result) = run_step(&steps[step]);
                    // The receiver outlives this scope.
                    let _ = sender.send((step, Times { clock: begin.elapsed(), cpu }, result));
                });
            }
            if running.is_empty() {
                break;
            }
            let Ok((step, times, result)) = receiver.recv() else { break };
            running.retain(|&other| other != step);
            let (name, seconds) = (steps[step].name, times.clock.as_secs_f64());
            // A step that failed has printed its cause and its remedy.
            let (verdict, end) = match result {
                Ok(()) => ("ok", End::Passed(times)),
                Err(_) => ("FAILED", End::Failed(times)),
            };
            println!("{name:>14} │ {verdict}, {seconds:.1} s");
            ends[step] = Some(end);
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

/// Runs a step in this process, and prints its CPU time.
pub(super) fn run_one(step: &Step) -> Result<(), Failure> {
    let result = (step.run)();
    println!("{CPU_TIME}{}", cpu_time().as_millis());
    result
}

/// Runs a step as a process, and prints its name before each of its lines. Returns its CPU time as
/// well.
fn in_process(name: &str) -> (Duration, Result<(), Failure>) {
    let mut cpu = Duration::ZERO;
    let mut line = |line: &str| match line.strip_prefix(CPU_TIME).and_then(|ms| ms.parse().ok()) {
        Some(milliseconds) => cpu = Duration::from_millis(milliseconds),
        None => println!("{name:>14} │ {line}"),
    };
    let result = std::env::current_exe()
        .map_err(|error| Failure::new(format!("this program: {error}"), "cargo xtask test"))
        .and_then(|program| Command::new(program).args("test").arg(name).run_with(&mut line));
    (cpu, result)
}

/// Prints the table of all ends. Returns a failure if a step did not pass.
fn summarise(steps: &[Step], ends: &[Option<End>], clock: Duration) -> Result<(), Failure> {
    println!("\n{:>14}   seconds  of CPU  budget", "step");
    let (mut failed, mut cpu) = (Vec::new(), Duration::ZERO);
    for (Step { name, budget_s, .. }, end) in steps.iter().zip(ends) {
        match end {
            Some(End::Passed(times) | End::Failed(times)) => {
                let is_slow = times.cpu > TOLERANCE * Duration::from_secs((*budget_s).into());
                let warning = if is_slow { "  warning: over twice its budget" } else { "" };
                let verdict = if matches!(end, Some(End::Failed(_))) { "  FAILED" } else { "" };
                print_times(name, *times);
                println!(" {budget_s:>7}{verdict}{warning}");
                cpu += times.cpu;
            }
            Some(End::Unchanged) => println!("{name:>14}   has passed with the same files"),
            Some(End::Needs(missing)) => println!("{name:>14}   not run: it needs {missing}"),
            // Its thread has panicked.
            None => println!("{name:>14}   not run"),
        }
        if !matches!(end, Some(End::Passed(_) | End::Unchanged)) {
            failed.push(*name);
        }
    }
    print_times("all", Times { clock, cpu });
    println!(", with steps side by side");
    if failed.is_empty() {
        return Ok(());
    }
    let again: Vec<_> = failed.iter().map(|name| format!("cargo xtask test {name}")).collect();
    Err(Failure::new(
        format!("{} of {} steps did not pass: {}", failed.len(), steps.len(), failed.join(", ")),
        again.join(" && "),
    ))
}

/// Prints the first columns of a row of the table.
fn print_times(name: &str, times: Times) {
    print!("{name:>14} {:>9.1} {:>7.1}", times.clock.as_secs_f64(), times.cpu.as_secs_f64());
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

    /// Returns the order in which steps end, where `failing` fails, `unchanged` is left out, and
    /// "slow" ends after `before_slow` others; and the failure.
    fn order(
        failing: &str,
        unchanged: &str,
        before_slow: usize,
    ) -> (Vec<&'static str>, Option<String>) {
        let done = Mutex::new(Vec::new());
        let is_left_out = |step: &Step| step.name == unchanged;
        let result = run_on(1, &STEPS, is_left_out, |step| {
            while step.name == "slow" && done.lock().unwrap().len() < before_slow {
                thread::yield_now();
            }
            done.lock().unwrap().push(step.name);
            let failure = || Err(Failure::new("it fails", "nothing"));
            (Duration::ZERO, if step.name == failing { failure() } else { Ok(()) })
        });
        (done.into_inner().unwrap(), result.err().map(|failure| failure.to_string()))
    }

    #[test]
    fn step_waits_for_the_steps_that_it_needs() {
        let ordered = ["one", "two", "needs two", "after two", "slow", "needs slow", "needs both"];
        assert_eq!(order("", "", 4), (ordered.to_vec(), None));
    }

    #[test]
    fn step_that_is_left_out_holds_no_other_back() {
        let ordered = ["one", "needs two", "after two", "slow", "needs slow", "needs both"];
        assert_eq!(order("", "two", 3), (ordered.to_vec(), None));
    }

    #[test]
    fn only_steps_that_need_a_failure_are_left_out() {
        let (done, failure) = order("two", "", 3);
        assert_eq!(done, ["one", "two", "after two", "slow", "needs slow"]);
        let failure = failure.expect("a step failed");
        assert!(failure.contains("3 of 7 steps did not pass: two, needs two, needs both\n"));
        assert!(failure.ends_with("cargo xtask test needs both"), "{failure}");
    }
}
