//! Programs with a known cause of shootdowns: `shootdown explain` must name it, and predict what a
//! change of the program saves.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{Command, Failure, cargo};
use crate::{output, root};

/// A language, whose programs are in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    C,
    Go,
}

/// A program, and what `explain` must find in it.
struct Culprit {
    language: Language,
    name: &'static str,
    cause: &'static str,
    /// The function of the program that causes the requests.
    ///
    /// `None` where the requests come from many places: a process that forked writes its memory
    /// everywhere.
    site: Option<&'static str>,
    /// A word of the advice.
    advice: &'static str,
}

const CULPRITS: [Culprit; 6] = [
    Culprit {
        language: Language::C,
        name: "discards",
        cause: "madvise(MADV_DONTNEED)",
        site: Some("release_pages"),
        advice: "reuse it",
    },
    Culprit {
        language: Language::C,
        name: "reads-first",
        cause: "zero page",
        site: Some("insert"),
        advice: "write",
    },
    Culprit {
        language: Language::C,
        name: "protects",
        cause: "mprotect",
        site: Some("protect"),
        advice: "protection",
    },
    Culprit {
        language: Language::C,
        name: "unmaps",
        cause: "munmap",
        site: Some("free_buffer"),
        advice: "reuse",
    },
    Culprit {
        language: Language::C,
        name: "forks",
        cause: "copy-on-write",
        site: None,
        advice: "posix_spawn",
    },
    Culprit {
        language: Language::Go,
        name: "maps-files",
        cause: "munmap",
        site: Some("main.closeFile"),
        advice: "reuse",
    },
];

/// The requests that the change removes, as a part of those that were predicted.
const ACCURACY: RangeInclusive<f64> = 0.80..=1.25;

/// Explains each program; runs it again with the change; and compares what the change removes with
/// the prediction.
pub(crate) fn soak() -> Result<(), Failure> {
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let lab = output().join("release/shootdown");
    println!(
        "{:<12} {:>9} {:>9} {:>9} {:>9}",
        "program", "requests", "predicted", "removed", "ratio"
    );
    for culprit in &CULPRITS {
        let Some(programs) = culprit.language.build()? else {
            println!(
                "{:<12} skipped: there is no compiler for {:?}",
                culprit.name, culprit.language
            );
            continue;
        };
        let before = explain(&lab, &programs, &[culprit.name])?;
        let predicted = culprit.found_in(&before)?;
        let after = explain(&lab, &programs, &[culprit.name, "changed"])?;
        let (before, after) = (requests(&before), requests(&after));
        let removed = before.saturating_sub(after);
        let ratio = removed as f64 / predicted as f64;
        println!("{:<12} {before:>9} {predicted:>9} {removed:>9} {ratio:>9.2}", culprit.name);
        if !ACCURACY.contains(&ratio) {
            return Err(Failure::new(
                format!(
                    "the change of `{}` removes {ratio:.2} of what was predicted",
                    culprit.name
                ),
                format!("shootdown explain -- {} {}", programs.display(), culprit.name),
            ));
        }
    }
    Ok(())
}

impl Language {
    /// Builds the programs where necessary. Returns `None` if there is no compiler.
    fn build(self) -> Result<Option<PathBuf>, Failure> {
        let (compiler, version, options, source) = match self {
            Self::C => ("cc", "--version", "-O1 -g -pthread -o", "culprits.c"),
            Self::Go => ("go", "version", "build -o", "culprit.go"),
        };
        if Command::new(compiler).args(version).output().is_err() {
            return Ok(None);
        }
        let programs = output().join(format!("culprits-{compiler}"));
        let source = root().join("traces/programs").join(source);
        Command::new(compiler).args(options).arg(&programs).arg(source).run()?;
        Ok(Some(programs))
    }
}

fn explain(lab: &Path, programs: &Path, arguments: &[&str]) -> Result<Value, Failure> {
    let command = Command::new(lab).args("explain --format json --").arg(programs);
    let printed = arguments.iter().fold(command, Command::arg).output()?;
    serde_json::from_str(&printed).map_err(|error| {
        Failure::new(format!("`shootdown explain` printed no JSON: {error}"), "run it by hand")
    })
}

/// The requests of a program.
fn requests(explained: &Value) -> u64 {
    explained["total"]["requests"].as_u64().unwrap_or_default()
}

impl Culprit {
    /// Checks the most expensive site. Returns the requests that its first advice saves.
    fn found_in(&self, explained: &Value) -> Result<u64, Failure> {
        let site = &explained["sites"][0];
        let advice = &site["advice"][0];
        let is_text =
            |value: &Value, wanted: &str| value.as_str().is_some_and(|text| text.contains(wanted));
        let is_site = self.site.is_none_or(|function| is_text(&site["caller"], function));
        let saves = advice["saves"].as_u64().filter(|saves| *saves > 0);
        match saves {
            Some(saves)
                if is_site
                    && is_text(&site["cause"], self.cause)
                    && is_text(&advice["change"], self.advice) =>
            {
                Ok(saves)
            }
            _ => Err(Failure::new(
                format!(
                    "the first site of `{}` is {} of {}, with the advice {}",
                    self.name, site["cause"], site["caller"], advice["change"]
                ),
                format!("it should be `{}` of {:?}", self.cause, self.site),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_cause_and_advice_are_compared() {
        let explained = |cause: &str, caller: &str, saves: u64| {
            serde_json::json!({"sites": [{
                "cause": cause, "caller": caller,
                "advice": [{"change": "keep the memory and reuse it", "saves": saves}],
            }]})
        };
        let [discards, ..] = CULPRITS;
        let found = |cause, caller, saves| discards.found_in(&explained(cause, caller, saves)).ok();
        let (cause, caller) = ("madvise(MADV_DONTNEED)", "release_pages (culprits.c:44)");
        assert_eq!(found(cause, caller, 3), Some(3));
        assert_eq!(found("munmap", caller, 3), None);
        assert_eq!(found(cause, "main (culprits.c:9)", 3), None);
        assert_eq!(found(cause, caller, 0), None);
    }
}
