//! The verdict on each mutant, and the arguments for those that survive.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use crate::command::Failure;

/// The verdict on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The mutant does not build.
    Unviable,
    /// This test detects the mutant.
    Killed(String),
    /// No test so far detects the mutant.
    Survived,
}

impl Verdict {
    /// Parses the mutant and the verdict from a log of cargo-mutants; `None` if it was interrupted.
    pub(super) fn of_log(log: &str) -> Option<(&str, Self)> {
        let mutant = log.lines().find_map(|line| line.strip_prefix("*** "))?;
        if mutant == "baseline" {
            return None;
        }
        let results: Vec<_> =
            log.lines().filter_map(|line| line.strip_prefix("*** result: ")).collect();
        let verdict = match results[..] {
            // The first result is that of the build, the second that of the tests.
            ["Success", "Success"] => Self::Survived,
            ["Success", "Timeout"] => {
                Self::Killed(format!("{}, which does not end", killing_test(log)))
            }
            ["Success", failure] if failure.starts_with("Failure") => {
                Self::Killed(killing_test(log))
            }
            [failure] if failure.starts_with("Failure") => Self::Unviable,
            _ => return None,
        };
        Some((mutant, verdict))
    }

    fn to_line(&self, mutant: &str) -> String {
        match self {
            Self::Unviable => format!("unviable\t{mutant}\n"),
            Self::Killed(by) => format!("killed\t{mutant}\t{by}\n"),
            Self::Survived => format!("survived\t{mutant}\n"),
        }
    }

    fn from_line(line: &str) -> Option<(&str, Self)> {
        let mut fields = line.split('\t');
        let (verdict, mutant) = (fields.next()?, fields.next()?);
        Some(match verdict {
            "unviable" => (mutant, Self::Unviable),
            "killed" => (mutant, Self::Killed(fields.next()?.to_owned())),
            "survived" => (mutant, Self::Survived),
            _ => return None,
        })
    }
}

/// Returns the first test that failed and its binary, or only the binary.
fn killing_test(log: &str) -> String {
    let mut binary = "?";
    for line in log.lines() {
        // For example: Running `target/mutants/deps/engine-95c21ca9377de002`
        if let Some(path) = line.trim_start().strip_prefix("Running `")
            && let Some((_, file)) = path.rsplit_once("/deps/")
            && let Some((name, _)) = file.rsplit_once('-')
        {
            binary = name;
        } else if let Some(test) = line.strip_prefix("test ")
            && let Some(test) = test.strip_suffix(" ... FAILED")
        {
            return format!("{binary} {}", test.trim_end_matches(" - should panic"));
        }
    }
    binary.to_owned()
}

/// The verdicts on all mutants so far, kept in a file.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    verdicts: BTreeMap<String, Verdict>,
}

impl Ledger {
    /// Reads the verdicts; there are none if the file does not exist.
    pub(super) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_default();
        let verdicts = text
            .lines()
            .filter_map(Verdict::from_line)
            .map(|(mutant, verdict)| (mutant.to_owned(), verdict))
            .collect();
        Self { path: path.to_owned(), verdicts }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&self) -> io::Result<()> {
        let lines: String =
            self.verdicts.iter().map(|(mutant, verdict)| verdict.to_line(mutant)).collect();
        // Replace the file atomically.
        let new = self.path.with_extension("new");
        fs::write(&new, lines)?;
        fs::rename(new, &self.path)
    }

    pub(super) fn note(&mut self, mutant: &str, verdict: Verdict) {
        if !self.is_flushed(mutant) {
            self.verdicts.insert(mutant.to_owned(), verdict);
        }
    }

    /// Returns `true` if the verdict on the mutant is final.
    pub(super) fn is_flushed(&self, mutant: &str) -> bool {
        matches!(self.verdicts.get(mutant), Some(Verdict::Unviable | Verdict::Killed(_)))
    }

    /// Counts the verdicts on these mutants.
    pub(super) fn tally(&self, mutants: &[String], arguments: &BTreeMap<String, usize>) -> Tally {
        let mut tally = Tally::default();
        let mut may_survive = arguments.clone();
        for mutant in mutants {
            match self.verdicts.get(mutant) {
                None => tally.untried += 1,
                Some(Verdict::Unviable) => tally.unviable += 1,
                Some(Verdict::Killed(_)) => tally.killed += 1,
                Some(Verdict::Survived) => match may_survive.get_mut(without_place(mutant)) {
                    Some(count) if *count > 0 => {
                        *count -= 1;
                        tally.argued += 1;
                    }
                    _ => tally.unargued.push(mutant.clone()),
                },
            }
        }
        tally
    }
}

/// Number of mutants by verdict.
#[derive(Debug, Default)]
pub(super) struct Tally {
    killed: usize,
    unviable: usize,
    untried: usize,
    argued: usize,
    pub(super) unargued: Vec<String>,
}

impl Tally {
    /// Percentage of killed mutants among those that build and were tried.
    pub(super) fn killed_percent(&self) -> f64 {
        let viable = self.killed + self.argued + self.unargued.len();
        100.0 * self.killed as f64 / viable.max(1) as f64
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mutant in &self.unargued {
            writeln!(f, "survives: {mutant}")?;
        }
        let Self { killed, unviable, untried, argued, unargued } = self;
        let generated = killed + unviable + untried + argued + unargued.len();
        writeln!(f, "generated     {generated:>5}")?;
        writeln!(f, "not tried     {untried:>5}")?;
        writeln!(f, "do not build  {unviable:>5}")?;
        writeln!(f, "killed        {killed:>5}")?;
        writeln!(f, "argued        {argued:>5}")?;
        writeln!(f, "not argued    {:>5}", unargued.len())?;
        write!(f, "score         {:>7.1} %", self.killed_percent())
    }
}

/// Returns the name without line and column, which change with every edit above the mutant.
pub(super) fn without_place(mutant: &str) -> &str {
    mutant.split_once(": ").map_or(mutant, |(_, change)| change)
}

/// Parses the mutants that may survive, and the number of each name. Each mutant is on a line of
/// its own, `NAME` or `NAME (COUNT)`. An indented line below gives the reason for all mutants above
/// it.
pub(super) fn arguments(text: &str) -> Result<BTreeMap<String, usize>, Failure> {
    let mut arguments = BTreeMap::new();
    let mut waiting = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with(' ') {
            waiting = None;
            continue;
        }
        let counted = line.strip_suffix(')').and_then(|line| line.rsplit_once(" ("));
        let (name, count) = counted
            .and_then(|(name, count)| Some((name, count.parse().ok()?)))
            .unwrap_or((line, 1));
        *arguments.entry(name.to_owned()).or_default() += count;
        waiting = Some(name);
    }
    match waiting {
        None => Ok(arguments),
        Some(name) => Err(Failure::new(
            format!("`{name}` has no reason"),
            "add an indented line with the reason below it",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MUTANT: &str = "crates/x/src/a.rs:1:2: replace f -> u64 with 0";

    fn log(test: &str) -> String {
        format!("\n*** {MUTANT}\n\n*** cargo test\n*** result: Success\n{test}")
    }

    #[test]
    fn first_failing_test_kills() {
        let tests = "     Running `/target/mutants/deps/engine-95c2`\n\
            test one ... ok\ntest two ... FAILED\ntest three ... FAILED\n";
        let verdict = |end: &str| {
            let log = log(&format!("{tests}{end}"));
            Verdict::of_log(&log).map(|(mutant, verdict)| (mutant.to_owned(), verdict))
        };
        let killed = |by: &str| Some((MUTANT.to_owned(), Verdict::Killed(by.to_owned())));
        assert_eq!(verdict("*** result: Failure(101)\n"), killed("engine two"));
        assert_eq!(verdict("*** result: Timeout\n"), killed("engine two, which does not end"));
        // The run was interrupted.
        assert_eq!(verdict(""), None);
    }

    #[test]
    fn lines_round_trip() {
        let verdicts = [Verdict::Unviable, Verdict::Survived, Verdict::Killed("lib a::b".into())];
        for verdict in verdicts {
            let line = verdict.to_line(MUTANT);
            assert_eq!(Verdict::from_line(line.trim_end()), Some((MUTANT, verdict)));
        }
    }

    #[test]
    fn only_argued_mutants_may_survive() {
        let argued =
            "# File\nreplace f -> u64 with 0 (2)\nreplace g -> u64 with 0\n    A reason.\n";
        let arguments = arguments(argued).unwrap();
        let mutants: Vec<_> =
            (1..4).map(|line| MUTANT.replace(":1:", &format!(":{line}:"))).collect();
        let verdicts = mutants.iter().map(|mutant| (mutant.clone(), Verdict::Survived)).collect();
        let ledger = Ledger { path: PathBuf::new(), verdicts };
        let tally = ledger.tally(&mutants, &arguments);
        assert_eq!((tally.argued, tally.unargued), (2, vec![mutants[2].clone()]));
    }

    #[test]
    fn mutant_without_reason_is_rejected() {
        assert!(arguments("replace f -> u64 with 0\n").is_err());
    }
}
