//! A copy of the repository, in which statements are deleted and the tests built and run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Pass;
use super::deletions::Deletion;
use super::ledger::{Ledger, Verdict, killing_test};
use crate::command::{Command, Failure, cargo, unwritable};

/// Time limit of a mutant, as a multiple of the time without a mutant: enough on a busy host.
const TIMEOUT_FACTOR: u32 = 10;

/// The copy of the source tree, and the folder that contains it.
pub(super) struct Scratch {
    place: PathBuf,
    tree: PathBuf,
}

impl Scratch {
    /// Copies the files that git tracks or would add.
    pub(super) fn new(place: &Path) -> Result<Self, Failure> {
        let tree = place.join("tree");
        let files = Command::new("git")
            .args("ls-files --cached --others --exclude-standard -- :!traces")
            .output()?;
        let copy = || {
            let _ = fs::remove_dir_all(&tree);
            for file in files.lines().filter(|file| crate::root().join(file).is_file()) {
                let to = tree.join(file);
                fs::create_dir_all(to.parent().unwrap_or(&tree))?;
                fs::copy(crate::root().join(file), to)?;
            }
            Ok(())
        };
        copy().map_err(unwritable(&tree))?;
        Ok(Self { place: place.to_owned(), tree })
    }

    /// Tries each deletion with the tests of a pass. Verdicts are written one by one, so that a run
    /// can be interrupted.
    pub(super) fn run(
        &self,
        pass: &Pass,
        deletions: &[&Deletion],
        ledger: &mut Ledger,
    ) -> Result<(), Failure> {
        let fails = |verdict| {
            Failure::new(
                format!("without a deletion, tests fail: {verdict:?}"),
                format!("cargo test {}", cargo_arguments(pass).join(" ")),
            )
        };
        let programs = self.build(pass)?.ok_or_else(|| fails(Verdict::Unviable))?;
        let start = Instant::now();
        match self.test(pass, &programs, None)? {
            Verdict::Survived => {}
            verdict => return Err(fails(verdict)),
        }
        let timeout =
            (start.elapsed() * TIMEOUT_FACTOR).max(Duration::from_secs(pass.timeout_s.into()));
        for (number, deletion) in (1..).zip(deletions) {
            let path = self.tree.join(&deletion.file);
            let text = fs::read_to_string(&path).map_err(unwritable(&path))?;
            fs::write(&path, deletion.apply(&text)).map_err(unwritable(&path))?;
            let verdict = self.build(pass).and_then(|programs| match programs {
                None => Ok(Verdict::Unviable),
                Some(programs) => self.test(pass, &programs, Some(timeout)),
            });
            fs::write(&path, text).map_err(unwritable(&path))?;
            let verdict = verdict?;
            print!("{number}/{} {}", deletions.len(), verdict.to_line(&deletion.name));
            ledger.note(&deletion.name, verdict);
            ledger.write().map_err(unwritable(&self.place))?;
        }
        Ok(())
    }

    /// Builds the tests of a pass, and returns their programs; `None` if they do not build.
    fn build(&self, pass: &Pass) -> Result<Option<Vec<PathBuf>>, Failure> {
        let mut build = cargo("test --no-run --profile mutants")
            .within(&self.tree)
            // Not the folder of cargo-mutants: cargo would take the last mutant, which was built
            // from another copy, for this tree.
            .env("CARGO_TARGET_DIR", self.place.join("target-deletions"))
            .env("CARGO_PROFILE_MUTANTS_OPT_LEVEL", pass.opt_level)
            .env("CHECK_ALL", "1")
            .env("CARGO_TERM_COLOR", "never");
        for argument in cargo_arguments(pass) {
            build = build.arg(argument);
        }
        let built = build.captured()?;
        let programs = || executables(&String::from_utf8_lossy(&built.stderr));
        Ok(built.status.success().then(programs))
    }

    /// Runs test programs until one fails, or until the timeout for all of them.
    fn test(
        &self,
        pass: &Pass,
        programs: &[PathBuf],
        timeout: Option<Duration>,
    ) -> Result<Verdict, Failure> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        for program in programs {
            let verdict = self.run_tests(&self.tree.join(program), pass, deadline)?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// Runs one test binary without cargo, so that there is only one process to kill.
    fn run_tests(
        &self,
        program: &Path,
        pass: &Pass,
        deadline: Option<Instant>,
    ) -> Result<Verdict, Failure> {
        let log = self.place.join("tests.log");
        let run = || {
            let output = File::create(&log)?;
            let mut child = std::process::Command::new(program)
                .current_dir(self.tree.join("crates").join(folder_of(package_of(pass))))
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                .spawn()?;
            wait(&mut child, deadline)
        };
        let passed = run().map_err(|error| {
            Failure::new(
                format!("{}: {error}", program.display()),
                "cargo xtask mutants 'delete statement'",
            )
        })?;
        let printed = fs::read(&log).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let killer = killing_test(&format!("Running `{}`\n{printed}", program.display()));
        Ok(match passed {
            Some(true) => Verdict::Survived,
            Some(false) => Verdict::Killed(killer),
            None => Verdict::Killed(format!("{killer}, which does not end")),
        })
    }
}

/// Waits for a child. Returns `true` if it succeeded, and `None` if it was killed at the deadline.
fn wait(child: &mut Child, deadline: Option<Instant>) -> std::io::Result<Option<bool>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.success()));
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the package whose tests a pass runs.
fn package_of(pass: &Pass) -> &'static str {
    let package = |word: &'static str| word.strip_prefix("--test-package=");
    pass.tests.split_whitespace().find_map(package).unwrap_or("shootdown")
}

/// Returns the folder of a package below `crates/`.
fn folder_of(package: &str) -> &str {
    package.strip_prefix("shootdown-").unwrap_or(package)
}

/// Returns the arguments of a pass for cargo, from those for cargo-mutants.
fn cargo_arguments(pass: &Pass) -> Vec<String> {
    let tests = pass.tests.split_whitespace().filter_map(|word| word.strip_prefix("-C="));
    ["-p", package_of(pass)].into_iter().chain(tests).map(str::to_owned).collect()
}

/// Parses the programs that `cargo test --no-run` has built from its output: `Executable tests/a.rs
/// (target/mutants/deps/a-95c21ca9377de002)`.
fn executables(printed: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let line = line.trim_start().strip_prefix("Executable ")?;
        let (_, path) = line.strip_suffix(')')?.rsplit_once('(')?;
        Some(PathBuf::from(path))
    };
    printed.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::PASSES;

    #[test]
    fn pass_names_package_and_tests() {
        let arguments: Vec<_> = PASSES.iter().map(|pass| cargo_arguments(pass).join(" ")).collect();
        assert_eq!(arguments[0], "-p shootdown --lib");
        assert_eq!(arguments[3], "-p shootdown-check --test=engine");
        assert_eq!(folder_of(package_of(&PASSES[3])), "check");
        assert!(arguments.iter().all(|arguments| arguments.contains(" --")), "{arguments:?}");
    }

    #[test]
    fn executables_are_read_from_cargo() {
        let printed = "   Compiling a v0.1.0\n    Finished `mutants` profile\n  Executable \
            unittests src/lib.rs (/t/mutants/deps/a-1f)\n  Executable tests/b.rs (t/deps/b-2)\n";
        let paths = ["/t/mutants/deps/a-1f", "t/deps/b-2"].map(PathBuf::from);
        assert_eq!(executables(printed), paths);
    }

    #[test]
    fn child_is_killed_at_its_deadline() {
        let run = |program: &str, arguments: &[&str], deadline| {
            let mut child = std::process::Command::new(program).args(arguments).spawn().unwrap();
            wait(&mut child, deadline).unwrap()
        };
        assert_eq!(run("true", &[], None), Some(true));
        assert_eq!(run("false", &[], None), Some(false));
        assert_eq!(run("sleep", &["600"], Some(Instant::now())), None);
    }
}
