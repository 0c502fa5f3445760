//! The programs of the experiments, which `traces/programs/corpus.toml` describes.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::command::{Command, Failure};

/// The folder of the programs' sources.
const SOURCES: &str = "traces/programs";

/// The programs of `corpus.toml`.
pub(super) static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let text = include_str!("../../../traces/programs/corpus.toml");
    let mut corpus: Corpus = toml::from_str(text).expect("a test reads the file");
    corpus.everywhere = corpus.everywhere.into_iter().flat_map(Program::of_each_kind).collect();
    corpus
});

/// The contents of `corpus.toml`, which describes the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Corpus {
    /// Programs for guests and for this host.
    pub(super) everywhere: Vec<Program>,
    /// Programs for this host alone.
    pub(super) host: Vec<Program>,
    pub(super) sample: Program,
    pub(super) culprit: Vec<Culprit>,
    pub(super) toolchain: Vec<Toolchain>,
}

/// A program, with its inputs in a working directory.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Program {
    pub(super) name: String,
    kinds: Vec<String>,
    /// The program that the host must have.
    pub(super) needs: String,
    make: String,
    files: String,
    run: String,
    text: Option<String>,
    /// The cause of a difference from the model, as the book names it.
    pub(super) known: Option<String>,
}

/// A program with a known cause of shootdowns.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Culprit {
    pub(super) language: String,
    pub(super) name: String,
    /// Causes that may be the first: parts of their names.
    pub(super) causes: Vec<String>,
    pub(super) site: Option<String>,
    /// A word of the advice.
    pub(super) advice: String,
    /// `true` if the change is made by `explain --try`, and not by the program.
    #[serde(default)]
    pub(super) settings: bool,
}

/// Builds and runs the culprits of a language.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Toolchain {
    pub(super) language: String,
    pub(super) make: String,
    pub(super) run: String,
    /// `true` if tracers get the names of functions.
    #[serde(default = "yes")]
    pub(super) has_names: bool,
}

const fn yes() -> bool {
    true
}

/// Makes a working directory with a copy of the sources.
pub(super) fn work_directory(place: &Path) -> Result<PathBuf, Failure> {
    let work = place.join("work");
    Command::new("mkdir").arg("-p").arg(&work).output()?;
    Command::new("cp").args("-R").arg(format!("{SOURCES}/.")).arg(&work).output()?;
    Ok(work)
}

/// Returns the lines that a shell script prints.
pub(super) fn shell(script: &str, work: &Path) -> Result<Vec<String>, Failure> {
    let printed = Command::new("sh").arg("-ec").arg(script).within(work).output()?;
    Ok(printed.lines().map(str::to_owned).collect())
}

impl Program {
    /// Returns a program for each kind, or the program itself if it has none.
    fn of_each_kind(self) -> Vec<Self> {
        let kinds = self.kinds.iter().map(|kind| Self {
            name: format!("{} {kind}", self.name),
            run: self.run.replace("{kind}", kind),
            ..self.clone()
        });
        if self.kinds.is_empty() { vec![self] } else { kinds.collect() }
    }

    /// Returns the words of the command for a number of CPUs.
    pub(super) fn command(&self, cpus: u32) -> Vec<String> {
        let words = self.run.split_whitespace().chain(self.text.as_deref());
        words.map(|word| word.replace("{cpus}", &cpus.to_string())).collect()
    }

    /// Makes the inputs. Returns the files that a guest needs, the program that starts among them;
    /// `None` if the host lacks the program.
    pub(super) fn prepare(&self, work: &Path) -> Result<Option<Vec<PathBuf>>, Failure> {
        let find = |program: &str| shell(&format!("command -v {program}"), work);
        if find(&self.needs).is_err() {
            return Ok(None);
        }
        shell(&self.make, work)?;
        // A guest has a shell, which starts the program that is needed.
        let words = self.command(1);
        let started = if words[0] == "sh" { &self.needs } else { &words[0] };
        let files = [shell(&self.files, work)?, find(started)?].concat();
        Ok(Some(files.into_iter().map(|file| work.join(file)).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_a_command_for_each_kind() {
        let command = |name: &str, cpus| {
            let mut all = CORPUS.everywhere.iter().chain(&CORPUS.host);
            all.find(|program| program.name == name).map(|program| program.command(cpus))
        };
        assert_eq!((CORPUS.everywhere.len(), CORPUS.host.len()), (17, 25));
        assert_eq!(command("loop fork", 8).unwrap(), ["./loops", "fork", "8", "512"]);
        let sql = command("sqlite3", 4).unwrap();
        assert!(sql.len() == 3 && sql[2].starts_with("PRAGMA threads = 4; CREATE"), "{sql:?}");
        let has =
            |culprit: &Culprit| CORPUS.toolchain.iter().any(|it| it.language == culprit.language);
        assert!(CORPUS.culprit.iter().all(has));
    }

    #[test]
    fn inputs_are_made_in_the_working_directory() {
        let place = std::env::temp_dir().join(format!("shootdown-corpus-{}", std::process::id()));
        let work = work_directory(&place).expect("a folder for the test");
        let program = Program {
            needs: "sh".to_owned(),
            make: "echo 1 > data".to_owned(),
            files: "echo data".to_owned(),
            run: "cat data".to_owned(),
            ..Program::default()
        };
        let files = program.prepare(&work).unwrap().unwrap();
        assert!(files[0].is_file() && files[1].ends_with("cat"), "{files:?}");
        let missing = Program { needs: "no-such-program".to_owned(), ..program };
        assert_eq!(missing.prepare(&work).unwrap(), None);
        std::fs::remove_dir_all(place).expect("it can be removed");
    }
}
