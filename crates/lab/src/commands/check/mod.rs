//! `shootdown check`: the engine, or a bug that others had, on the hostile machine.

pub(crate) mod html;
pub(crate) mod text;
pub(crate) mod zoo;

use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::{Args, ValueEnum};
use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use shootdown_check::engine::{BadProgram, Config, Programs, Tags};
use shootdown_check::zoo::{Bug, Variant};
use shootdown_check::{
    Budget, Campaign, CounterExample, Design, Detail, Found, Profile, Progress, UnknownDesign,
    Verdict, search, shortest,
};
use tempfile::Builder;

use crate::error::Failure;
use crate::output::{Existing, Output};
use crate::print;

#[derive(Args, Clone, Debug)]
pub(crate) struct Check {
    /// What to check: shootdown, the engine without a rule, a bug of other kernels, its mended
    /// twin, or zoo for all bugs; --list says which there are
    #[arg(long, value_name = "NAME", default_value = "shootdown")]
    pub(crate) design: String,
    /// The architectures whose hardware is played, with commas between them
    #[arg(long, value_enum, value_name = "A,B", value_delimiter = ',',
          default_values_t = Architecture::value_variants().to_vec())]
    pub(crate) arch: Vec<Architecture>,
    /// CPUs of the large programs
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u64).range(2..=64))]
    pub(crate) cpus: u64,
    /// For how long to look, and to make what is found small: 30s, 5m, 2h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) budget: Duration,
    /// Where random numbers start
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Check this program alone: operations behind commas, CPUs behind bars
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) program: Option<String>,
    /// With --program: the tags that the hardware has, such as broadcast:9
    #[arg(long, value_name = "KIND:N", default_value = "per-cpu:2", value_parser = tags,
          requires = "program")]
    pub(crate) tags: Tags,
    /// With --program: how spaces end
    #[arg(long, value_enum, default_value_t = Ending::Handoff, requires = "program")]
    pub(crate) lifetime: Ending,
    /// Draw the counter-example, if there is one, to this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// Show every access to shared memory of the counter-example
    #[arg(long)]
    pub(crate) accesses: bool,
    /// List what can be checked
    #[arg(long)]
    pub(crate) list: bool,
}

/// An architecture, as far as the hostile machine plays it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Architecture {
    X86,
    Arm64,
    Riscv,
    Arc,
}

impl Architecture {
    const fn profile(self) -> Profile {
        match self {
            Self::X86 => Profile::X86,
            Self::Arm64 => Profile::ARM64,
            Self::Riscv => Profile::RISCV,
            Self::Arc => Profile::ARC,
        }
    }
}

/// How spaces end: see `shootdown::Lifetime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ending {
    /// The CPU that leaves it last frees it
    Handoff,
    /// Who retires it interrupts those that are lazy on it
    Shoot,
    /// Each CPU that goes lazy on it counts itself
    Counted,
}

impl Ending {
    const fn lifetime(self) -> shootdown::Lifetime {
        match self {
            Self::Handoff => shootdown::Lifetime::Handoff,
            Self::Shoot => shootdown::Lifetime::Shoot,
            Self::Counted => shootdown::Lifetime::Counted,
        }
    }
}

/// Why nothing was checked, or what the verdict is that is no success.
#[derive(Debug)]
pub(crate) enum CheckFailure {
    UnknownDesign(UnknownDesign),
    BadProgram(BadProgram),
    /// `--program` is for the engine.
    NoProgramFor(Design),
    Unwritable(crate::output::OutputError),
    /// Something must not be.
    Wrong {
        design: Design,
        wrong: String,
        replay: Option<String>,
    },
    /// Of what must happen now and then, this never did.
    Unreached(Vec<String>),
    /// Bugs that were not found, or twins that are wrong.
    Zoo {
        missed: usize,
        budget: Duration,
    },
}

impl CheckFailure {
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::UnknownDesign(error) => error.to_string(),
            Self::BadProgram(error) => error.to_string(),
            Self::NoProgramFor(design) => format!("{design} has a program of its own"),
            Self::Unwritable(error) => error.cause(),
            Self::Wrong { design, wrong, .. } => format!("{design}: {wrong}"),
            Self::Unreached(what) => {
                format!(
                    "never happened, so the search shows less than it seems: {}",
                    what.join("; ")
                )
            }
            Self::Zoo { missed, .. } => {
                format!("{missed} bugs were not found, or their twins are wrong")
            }
        }
    }

    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::UnknownDesign(_) => "shootdown check --list".to_owned(),
            Self::BadProgram(_) => {
                "--program 'run 0, idle, run 0 | unmap 0.1'; shootdown check --list".to_owned()
            }
            Self::NoProgramFor(_) => "--design shootdown --program …".to_owned(),
            Self::Unwritable(_) => "another path for --svg".to_owned(),
            Self::Wrong { replay: Some(replay), .. } => format!("{replay}, for this again"),
            Self::Wrong { design: Design::Bug(bug, _), .. } => {
                format!("shootdown check --design {}-mended", bug.name)
            }
            Self::Wrong { .. } => "shootdown check --list".to_owned(),
            Self::Unreached(_) => "a longer --budget".to_owned(),
            Self::Zoo { budget, .. } => format!("--budget {}s", budget.as_secs().max(1) * 4),
        }
    }
}

/// No more states than fit into memory, of one program.
const STATES_MAX: usize = 50_000_000;

/// Runs the command.
pub(crate) fn check(options: &Check) -> Result<(), Failure> {
    if options.list {
        return print(&text::list());
    }
    let failed = |failure| Failure::Check(Box::new(failure));
    let design: Design =
        options.design.parse().map_err(|error| failed(CheckFailure::UnknownDesign(error)))?;
    // Before minutes are spent.
    let drawing = options.svg.as_deref().map(Drawing::new).transpose().map_err(failed)?;
    let result = match (design, &options.program) {
        (Design::Engine(broken), None) => campaign(options, broken, drawing),
        (Design::Engine(broken), Some(program)) => one_program(options, broken, program, drawing),
        (design, Some(_)) => Ok(Err(CheckFailure::NoProgramFor(design))),
        (Design::Bug(bug, variant), None) => one_bug(options, bug, variant, drawing),
        (Design::Zoo, None) => all_bugs(options),
    };
    result?.map_err(failed)
}

/// What was said is said; whether that is a success is another matter.
type Said = Result<Result<(), CheckFailure>, Failure>;

fn campaign(options: &Check, broken: Option<shootdown::Rule>, drawing: Option<Drawing>) -> Said {
    let campaign = Campaign {
        profiles: options.arch.iter().map(|arch| arch.profile()).collect(),
        cpus: options.cpus as usize,
        time: options.budget,
        seed: options.seed,
        broken,
    };
    let verdict = with_progress(&campaign);
    let design = Design::Engine(broken);
    print(&text::verdict(design, &campaign, &verdict))?;
    if let Some(bad) = &verdict.counter_example {
        return show(options, design, &bad.found, Some(replay(design, bad, options)), drawing);
    }
    let missing: Vec<_> =
        campaign.expected().difference(&verdict.reached).map(ToString::to_string).collect();
    Ok(if missing.is_empty() { Ok(()) } else { Err(CheckFailure::Unreached(missing)) })
}

/// Runs it, and says on a terminal how far it has come.
fn with_progress(campaign: &Campaign) -> Verdict {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{elapsed}: {msg}") {
        bar.set_style(style);
    }
    let progress = Progress::default();
    let verdict = std::thread::scope(|scope| {
        let running = scope.spawn(|| campaign.run(&progress));
        while !running.is_finished() {
            std::thread::park_timeout(Duration::from_millis(100));
            let of = |counter: u64| HumanCount(counter);
            let tried = progress.tried.load(Relaxed);
            if tried > 0 {
                bar.set_message(format!(
                    "found; making it small: {tried} programs tried, {} operations in the smallest",
                    progress.smallest.load(Relaxed),
                ));
                continue;
            }
            bar.set_message(format!(
                "{} short programs in {} states, {} runs of large ones, {} steps",
                progress.short.load(Relaxed),
                of(progress.states.load(Relaxed)),
                of(progress.runs.load(Relaxed)),
                of(progress.steps.load(Relaxed)),
            ));
        }
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    bar.finish_and_clear();
    verdict
}

fn one_program(
    options: &Check,
    broken: Option<shootdown::Rule>,
    program: &str,
    drawing: Option<Drawing>,
) -> Said {
    let config = Config {
        tags: options.tags,
        lifetime: options.lifetime.lifetime(),
        broken,
        ..Config::new(1)
    };
    let programs = match Programs::parse(config, program) {
        Ok(programs) => programs,
        Err(error) => return Ok(Err(CheckFailure::BadProgram(error))),
    };
    let design = Design::Engine(broken);
    for profile in options.arch.iter().map(|arch| arch.profile()) {
        let budget = Budget { time: options.budget, states: STATES_MAX };
        let search = CounterExample::look(&programs, profile, options.seed, budget);
        print(&text::program(profile, &search))?;
        if let Some(found) = search.found {
            let bad = CounterExample { programs: programs.clone(), profile, found };
            let replay = replay(design, &bad, options);
            return show(options, design, &bad.found, Some(replay), drawing);
        }
    }
    Ok(Ok(()))
}

fn one_bug(options: &Check, bug: &'static Bug, variant: Variant, drawing: Option<Drawing>) -> Said {
    print(&text::bug(bug))?;
    let (scene, design) = (bug.scene(variant), Design::Bug(bug, variant));
    let budget = Budget { time: options.budget, states: STATES_MAX };
    let mut found = shortest(&scene, bug.profile, zoo::CHANGES_MAX, budget);
    if found.found.is_none() {
        found = search(&scene, bug.profile, None, budget);
    }
    match found.found {
        Some(found) => show(options, design, &found, None, drawing),
        None => print(&text::program(bug.profile, &found)).map(Ok),
    }
}

fn all_bugs(options: &Check) -> Said {
    let bar = ProgressBar::with_draw_target(
        Some(Bug::all().count() as u64),
        ProgressDrawTarget::stderr(),
    );
    if let Ok(style) = ProgressStyle::with_template("{pos} of {len} bugs, {elapsed}") {
        bar.set_style(style);
    }
    let rows = zoo::rows(options.budget, || bar.inc(1));
    bar.finish_and_clear();
    print(&text::zoo(&rows))?;
    let missed = rows.iter().filter(|row| !row.is_right()).count();
    let budget = options.budget;
    Ok(if missed == 0 { Ok(()) } else { Err(CheckFailure::Zoo { missed, budget }) })
}

/// The counter-example, and where it was drawn; which is no success.
fn show(
    options: &Check,
    design: Design,
    found: &Found,
    replay: Option<String>,
    drawing: Option<Drawing>,
) -> Said {
    // A bug of the zoo is a few lines, and what they read and write is all there is to see.
    let is_small = matches!(design, Design::Bug(..));
    let detail = if options.accesses || is_small { Detail::Accesses } else { Detail::Events };
    print(&format!("\n{}", found.timeline(detail)))?;
    if let Some(drawing) = drawing {
        let path = drawing.0.path().display().to_string();
        if let Err(error) = drawing.write(&found.drawing(detail)) {
            return Ok(Err(error));
        }
        print(&format!("drawn: {}\n", crate::error::shown(path)))?;
    }
    Ok(Err(CheckFailure::Wrong { design, wrong: found.wrong.to_string(), replay }))
}

/// The command that finds it again.
fn replay(design: Design, bad: &CounterExample, options: &Check) -> String {
    let Config { tags, lifetime, .. } = bad.programs.config;
    let mut command = format!("shootdown check --design {design} --arch {}", bad.profile.name);
    if tags != Tags::PerCpu(2) {
        command += &format!(" --tags {}", tags_text(tags));
    }
    if lifetime != shootdown::Lifetime::Handoff {
        command += &format!(" --lifetime {}", format!("{lifetime:?}").to_lowercase());
    }
    if options.seed != 1 {
        command += &format!(" --seed {}", options.seed);
    }
    format!("{command} --program '{}'", bad.programs)
}

/// A file for a drawing, which appears whole or not at all.
struct Drawing(Output);

impl Drawing {
    fn new(path: &Path) -> Result<Self, CheckFailure> {
        let output = Output::new(path, Existing::Replace).map_err(CheckFailure::Unwritable)?;
        // Whether it can be written is known before anything is looked for.
        output.create().map_err(CheckFailure::Unwritable)?;
        Ok(Self(output))
    }

    fn write(&self, svg: &str) -> Result<(), CheckFailure> {
        let unwritable = |error: io::Error| CheckFailure::Unwritable(self.0.unwritable(error));
        let mut file = Builder::new()
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(self.0.directory())
            .map_err(unwritable)?;
        file.write_all(svg.as_bytes()).map_err(unwritable)?;
        self.0.keep(file).map(drop).map_err(CheckFailure::Unwritable)
    }
}

/// `30s`, `5m` or `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let seconds = match &text[unit.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("a number and s, m or h, such as 30s".to_owned()),
    };
    let number: u64 = unit.parse().map_err(|_| "a whole number and s, m or h".to_owned())?;
    let total = number.checked_mul(seconds).filter(|&total| total > 0 && total < 1 << 32);
    total.map(Duration::from_secs).ok_or_else(|| "more than 0s, and less than a century".to_owned())
}

fn tags(text: &str) -> Result<Tags, String> {
    let (kind, count) = text.split_once(':').unwrap_or((text, ""));
    let count: usize = count.parse().map_err(|_| "a kind and a number: per-cpu:2".to_owned())?;
    match kind {
        "per-cpu" if count <= 2 => Ok(Tags::PerCpu(count)),
        "global" if count <= 63 => Ok(Tags::Global(count)),
        "broadcast" if count <= 63 => Ok(Tags::Broadcast(count)),
        "renamed" if count <= 255 => Ok(Tags::Renamed(count)),
        _ => Err("per-cpu:0 to 2, global:0 to 63, broadcast:0 to 63, or renamed:0 to 255".into()),
    }
}

fn tags_text(tags: Tags) -> String {
    match tags {
        Tags::PerCpu(count) => format!("per-cpu:{count}"),
        Tags::Global(count) => format!("global:{count}"),
        Tags::Broadcast(count) => format!("broadcast:{count}"),
        Tags::Renamed(count) => format!("renamed:{count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for bad in ["", "s", "30", "-1s", "1.5m", "0s", "9999999999999999999s", "99999999h", "5 m"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tags_are_read_as_they_are_written() {
        for kind in [Tags::PerCpu(0), Tags::Global(63), Tags::Broadcast(9), Tags::Renamed(3)] {
            assert_eq!(tags(&tags_text(kind)), Ok(kind));
        }
        for bad in ["", "per-cpu", "per-cpu:3", "global:64", "own:1", "global:x"] {
            assert!(tags(bad).is_err(), "{bad}");
        }
    }
}
