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
    Java,
    Node,
    Python,
}

/// The toolchain of a language on this machine.
enum Toolchain {
    Ready(Programs),
    /// It is missing, for this reason.
    Missing(&'static str),
}

/// The programs of a language.
struct Programs {
    /// The command that runs them, without the name of one.
    words: Vec<String>,
    /// `true` if this toolchain tells tracers the names of functions.
    has_names: bool,
}

/// A program, and what `explain` must find in it.
struct Culprit {
    language: Language,
    name: &'static str,
    /// Those that may be the first: the parts of the names of causes.
    causes: &'static [&'static str],
    /// The function of the program that causes the requests.
    ///
    /// `None` where the requests come from many places: a process that forked writes its memory
    /// everywhere.
    site: Option<&'static str>,
    /// A word of the advice.
    advice: &'static str,
}

const CULPRITS: [Culprit; 9] = [
    Culprit {
        language: Language::C,
        name: "discards",
        causes: &["madvise(MADV_DONTNEED)"],
        site: Some("release_pages"),
        advice: "reuse it",
    },
    Culprit {
        language: Language::C,
        name: "reads-first",
        causes: &["zero page"],
        site: Some("insert"),
        advice: "write",
    },
    Culprit {
        language: Language::C,
        name: "protects",
        causes: &["mprotect"],
        site: Some("protect"),
        advice: "protection",
    },
    Culprit {
        language: Language::C,
        name: "unmaps",
        causes: &["munmap"],
        site: Some("free_buffer"),
        advice: "reuse",
    },
    Culprit {
        language: Language::C,
        name: "forks",
        causes: &["copy-on-write", "fork"],
        site: None,
        advice: "posix_spawn",
    },
    Culprit {
        language: Language::Go,
        name: "maps-files",
        causes: &["munmap"],
        site: Some("main.closeFile"),
        advice: "reuse",
    },
    Culprit {
        language: Language::Java,
        name: "maps-files",
        causes: &["munmap"],
        site: Some("Culprit.closeFile"),
        advice: "reuse",
    },
    Culprit {
        language: Language::Node,
        name: "writes-strings",
        causes: &["munmap"],
        site: Some("^send "),
        advice: "glibc: keep large blocks",
    },
    Culprit {
        language: Language::Python,
        name: "large-buffers",
        causes: &["munmap"],
        site: Some("release"),
        advice: "glibc: keep large blocks",
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
        "{:<13} {:<6} {:>9} {:>9} {:>9} {:>9}",
        "program", "", "requests", "predicted", "removed", "ratio"
    );
    for culprit in &CULPRITS {
        let (name, language) = (culprit.name, format!("{:?}", culprit.language));
        let programs = match culprit.language.build()? {
            Toolchain::Ready(programs) => programs,
            Toolchain::Missing(reason) => {
                println!("{name:<13} {language:<6} skipped: {reason}");
                continue;
            }
        };
        let before = explain(&lab, &programs, &[name])?;
        let predicted = culprit.found_in(&before, &programs)?;
        let after = explain(&lab, &programs, &[name, "changed"])?;
        let (before, after) = (requests(&before), requests(&after));
        let removed = before.saturating_sub(after);
        let ratio = removed as f64 / predicted as f64;
        println!(
            "{name:<13} {language:<6} {before:>9} {predicted:>9} {removed:>9} {ratio:>9.2}{}",
            if programs.has_names { "" } else { "  (this version of the language has no names)" },
        );
        if !ACCURACY.contains(&ratio) {
            return Err(Failure::new(
                format!("the change of `{name}` removes {ratio:.2} of what was predicted"),
                format!("shootdown explain -- {} {name}", programs.words.join(" ")),
            ));
        }
    }
    Ok(())
}

impl Language {
    /// Builds the programs where necessary.
    fn build(self) -> Result<Toolchain, Failure> {
        match self {
            Self::C => compile("cc", "--version", "-O1 -g -pthread -o", "culprits.c"),
            Self::Go => compile("go", "version", "build -o", "culprit.go"),
            Self::Java => java(),
            Self::Node => Ok(node()),
            Self::Python => Ok(python()),
        }
    }
}

/// Compiles a file of programs.
fn compile(
    compiler: &'static str,
    version: &str,
    options: &str,
    source: &str,
) -> Result<Toolchain, Failure> {
    if Command::new(compiler).args(version).output().is_err() {
        return Ok(Toolchain::Missing("there is no compiler"));
    }
    let programs = output().join(format!("culprits-{compiler}"));
    Command::new(compiler).args(options).arg(&programs).arg(sources().join(source)).run()?;
    Ok(Toolchain::Ready(Programs { words: vec![programs.display().to_string()], has_names: true }))
}

/// Java writes the names of its compiled functions if it is asked to. One compiler, which compiles
/// every function before its first call and does not inline the culprit, makes one call site of it.
const JAVA: &str = "java -XX:+PreserveFramePointer -XX:+UnlockDiagnosticVMOptions \
                    -XX:+DumpPerfMapAtExit -Xcomp -XX:TieredStopAtLevel=1 -XX:CompileCommand=quiet \
                    -XX:CompileCommand=dontinline,Culprit::closeFile -cp";

fn java() -> Result<Toolchain, Failure> {
    if Command::new("javac").args("--version").output().is_err() {
        return Ok(Toolchain::Missing("there is no javac: apt-get install default-jdk-headless"));
    }
    let classes = output().join("culprits-java");
    let compile = Command::new("javac").args("-XDignore.symbol.file -d").arg(&classes);
    compile.arg(sources().join("Culprit.java")).run()?;
    let mut words: Vec<_> = JAVA.split_whitespace().map(str::to_owned).collect();
    words.extend([classes.display().to_string(), "Culprit".to_owned()]);
    Ok(Toolchain::Ready(Programs { words, has_names: true }))
}

/// Node writes the names of compiled functions. One compiler, which compiles every function before
/// its first call and does not inline the culprit, makes one call site of it.
fn node() -> Toolchain {
    if Command::new("node").args("--version").output().is_err() {
        return Toolchain::Missing("there is no node");
    }
    let mut words: Vec<_> =
        ["node", "--perf-basic-prof", "--always-sparkplug", "--no-opt"].map(str::to_owned).into();
    words.push(sources().join("culprit.js").display().to_string());
    Toolchain::Ready(Programs { words, has_names: true })
}

/// The names of Python's interpreters. The first one that tells the names of functions is taken, or
/// else the first one.
const PYTHONS: [&str; 4] = ["python3", "python3.14", "python3.13", "python3.12"];

fn python() -> Toolchain {
    let runs =
        |python: &str, check: &str| Command::new(python).args("-c").arg(check).output().is_ok();
    let file = sources().join("culprit.py").display().to_string();
    let has_names =
        |python: &&&str| runs(python, "import sys; sys.exit(sys.version_info < (3, 12))");
    if let Some(python) = PYTHONS.iter().find(has_names) {
        let words = vec![(*python).to_owned(), "-X".to_owned(), "perf".to_owned(), file];
        return Toolchain::Ready(Programs { words, has_names: true });
    }
    if !runs(PYTHONS[0], "") {
        return Toolchain::Missing("there is no python3");
    }
    let words = vec![PYTHONS[0].to_owned(), file];
    Toolchain::Ready(Programs { words, has_names: false })
}

/// Returns the directory of the programs' sources.
fn sources() -> PathBuf {
    root().join("traces/programs")
}

fn explain(lab: &Path, programs: &Programs, arguments: &[&str]) -> Result<Value, Failure> {
    let lab = std::path::absolute(lab).unwrap_or_default();
    // Node writes logs to its directory.
    let command = Command::new(lab).args("explain --format json --").within(&output());
    let words = programs.words.iter().map(String::as_str).chain(arguments.iter().copied());
    let printed = words.fold(command, Command::arg).output()?;
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
    fn found_in(&self, explained: &Value, programs: &Programs) -> Result<u64, Failure> {
        let site = &explained["sites"][0];
        let advice = &site["advice"][0];
        let is_text =
            |value: &Value, wanted: &str| value.as_str().is_some_and(|text| text.contains(wanted));
        let wanted = self.site.filter(|_| programs.has_names);
        let is_site = wanted.is_none_or(|function| is_text(&site["caller"], function));
        let is_cause = self.causes.iter().any(|cause| is_text(&site["cause"], cause));
        let saves = advice["saves"].as_u64().filter(|saves| *saves > 0);
        match saves {
            Some(saves) if is_site && is_cause && is_text(&advice["change"], self.advice) => {
                Ok(saves)
            }
            _ => Err(Failure::new(
                format!(
                    "the first site of `{}` is {} of {}, with the advice {}",
                    self.name, site["cause"], site["caller"], advice["change"]
                ),
                format!("it should be {:?} of {:?}", self.causes, self.site),
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
        let mut programs = Programs { words: Vec::new(), has_names: true };
        let found = |programs: &Programs, cause, caller, saves| {
            discards.found_in(&explained(cause, caller, saves), programs).ok()
        };
        let (cause, caller) = ("madvise(MADV_DONTNEED)", "release_pages (culprits.c:44)");
        assert_eq!(found(&programs, cause, caller, 3), Some(3));
        assert_eq!(found(&programs, "munmap", caller, 3), None);
        assert_eq!(found(&programs, cause, "main (culprits.c:9)", 3), None);
        assert_eq!(found(&programs, cause, caller, 0), None);
        programs.has_names = false;
        assert_eq!(found(&programs, cause, "[python3.11+0x7]", 3), Some(3));
    }
}
