//! Runs other commands, and describes their failures.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, BufRead, BufReader, PipeReader, Read as _};
use std::path::Path;
use std::process::{self, Child, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// A failure: one line of cause and one line of remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    cause: String,
    remedy: String,
    /// The exit status of this program.
    status: u8,
}

impl Failure {
    pub(crate) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into(), status: 1 }
    }

    /// A failure of the caller's arguments: exit status 2.
    pub(crate) fn usage(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: 2, ..Self::new(cause, remedy) }
    }

    /// A missing tool: exit status 3.
    pub(crate) fn missing(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: 3, ..Self::new(cause, remedy) }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }

    pub(crate) fn cause(&self) -> &str {
        &self.cause
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}\ntry:   {}", self.cause, self.remedy)
    }
}

/// Returns the failure to write a file or a folder.
pub(crate) fn unwritable(path: impl AsRef<Path>) -> impl Fn(io::Error) -> Failure {
    const REMEDY: &str = "free some disk space, or set CARGO_TARGET_DIR";
    move |error| Failure::new(format!("{}: {error}", path.as_ref().display()), REMEDY)
}

/// Reads a file of the repository.
pub(crate) fn read_tracked(file: &str) -> Result<String, Failure> {
    let text = std::fs::read_to_string(crate::root().join(file));
    let failed = |error| Failure::new(format!("{file}: {error}"), format!("git checkout {file}"));
    text.map_err(failed)
}

/// Returns the CPU time of this process, of all that it has waited for, and of theirs: zero if the
/// host does not know.
pub(crate) fn cpu_time() -> Duration {
    /// Linux counts the times in this file in hundredths of a second, whatever its own clock.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program is in parentheses, and may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    // The fields 14 to 17: the times in user mode and in the kernel, and those of children.
    TICK * fields.skip(11).take(4).filter_map(|ticks| ticks.parse::<u32>().ok()).sum()
}

/// The output and the exit status of a command. The status is `None` if the command was stopped at
/// its time limit.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) status: Option<ExitStatus>,
    pub(crate) output: String,
}

/// A command that runs in the root of the repository.
#[derive(Debug)]
pub(crate) struct Command {
    command: process::Command,
    line: String,
}

/// Returns the command `cargo` with the words of `arguments`.
pub(crate) fn cargo(arguments: &str) -> Command {
    // The path in `$CARGO` does not accept `+nightly`.
    Command::new("cargo").args(arguments)
}

impl Command {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let program = program.as_ref();
        let mut command = process::Command::new(program);
        command.current_dir(crate::root());
        // The cargo that runs this program sets these for its own toolchain.
        for inherited in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC"] {
            command.env_remove(inherited);
        }
        Self { command, line: program.display().to_string() }
    }

    pub(crate) fn args(mut self, words: &str) -> Self {
        self.command.args(words.split_whitespace());
        self.line = format!("{} {words}", self.line);
        self
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.line = format!("{} {}", self.line, argument.as_ref().display());
        self.command.arg(argument);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Makes the command run in another directory than the root.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs the command, and shows its output.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        let status = self.command.status().map_err(|error| self.not_run(&error))?;
        self.succeeded(status)
    }

    /// Runs the command, shows its output, and returns its exit status.
    pub(crate) fn status(mut self) -> Result<ExitStatus, Failure> {
        self.command.status().map_err(|error| self.not_run(&error))
    }

    /// Runs the command, passes each line of its standard output to `line`, and returns its exit
    /// status.
    pub(crate) fn lines(mut self, mut line: impl FnMut(&str)) -> Result<ExitStatus, Failure> {
        let mut run = || {
            let mut child = self.command.stdout(Stdio::piped()).spawn()?;
            if let Some(output) = child.stdout.take() {
                // The message of a panic may contain any bytes.
                for text in BufReader::new(output).split(b'\n') {
                    line(&String::from_utf8_lossy(&text?));
                }
            }
            child.wait()
        };
        run().map_err(|error| self.not_run(&error))
    }

    /// Runs the command, and passes each line of its output and error streams to `line`.
    pub(crate) fn run_with(mut self, mut line: impl FnMut(&str)) -> Result<(), Failure> {
        let (mut child, output) = self.start().map_err(|error| self.not_run(&error))?;
        for text in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            line(&String::from_utf8_lossy(&text));
        }
        let status = child.wait().map_err(|error| self.not_run(&error))?;
        self.succeeded(status)
    }

    /// Runs the command for at most `limit`, and returns its output and exit status.
    pub(crate) fn captured_within(mut self, limit: Duration) -> Result<Captured, Failure> {
        /// After this time, a process that the command started and left behind still has the pipe
        /// open.
        const AFTER_KILL: Duration = Duration::from_secs(1);
        let (mut child, mut output) = self.start().map_err(|error| self.not_run(&error))?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // Output before an error is worth showing. The receiver may have stopped waiting for
            // it.
            let _ = output.read_to_end(&mut bytes);
            let _ = sender.send(bytes);
        });
        let in_time = receiver.recv_timeout(limit);
        let status = match &in_time {
            Ok(_) => Some(child.wait().map_err(|error| self.not_run(&error))?),
            Err(_) => child.kill().and_then(|()| child.wait()).err().and(None),
        };
        let bytes = in_time.or_else(|_| receiver.recv_timeout(AFTER_KILL)).unwrap_or_default();
        Ok(Captured { status, output: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Starts the command, and returns it with a pipe that both of its streams end in.
    pub(crate) fn start_piped(mut self) -> Result<(Child, PipeReader), Failure> {
        self.start().map_err(|error| self.not_run(&error))
    }

    /// Starts the command with both of its streams in one pipe.
    fn start(&mut self) -> io::Result<(Child, PipeReader)> {
        let (reader, writer) = io::pipe()?;
        self.command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        let child = self.command.spawn();
        // These would keep the pipe open.
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok((child?, reader))
    }

    /// Runs the command, and returns its standard output.
    pub(crate) fn output(mut self) -> Result<String, Failure> {
        match self.command.output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let cause = cause(&said).map_or_else(String::new, |cause| format!(": {cause}"));
                Err(Failure::new(
                    format!("`{}` failed ({}){cause}", self.line, output.status),
                    "run it by hand to see all of its output",
                ))
            }
            Err(error) => Err(self.not_run(&error)),
        }
    }

    /// Runs the command, and returns its output and exit status, also if it fails.
    pub(crate) fn captured(mut self) -> Result<Output, Failure> {
        self.command.output().map_err(|error| self.not_run(&error))
    }

    /// Runs the command, and shows its output only if it fails.
    pub(crate) fn output_or_show(mut self) -> Result<(), Failure> {
        let output = self.command.output().map_err(|error| self.not_run(&error))?;
        if output.status.success() {
            return Ok(());
        }
        eprint!("{}", String::from_utf8_lossy(&output.stdout));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        self.succeeded(output.status)
    }

    /// Returns a failure unless `status` is a success.
    fn succeeded(&self, status: ExitStatus) -> Result<(), Failure> {
        if status.success() {
            return Ok(());
        }
        let cause = format!("`{}` failed ({status})", self.line);
        Err(Failure::new(cause, "read its output above"))
    }

    fn not_run(&self, error: &std::io::Error) -> Failure {
        let program = self.command.get_program().display();
        Failure::new(format!("`{program}` did not start: {error}"), format!("install {program}"))
    }
}

/// Returns the cause that a program printed: its first line of the form `error: CAUSE`, or its last
/// line.
fn cause(printed: &str) -> Option<&str> {
    let mut lines = printed.lines().filter(|line| !line.trim().is_empty());
    let error = lines.clone().find_map(|line| line.strip_prefix("error: "));
    error.or_else(|| lines.next_back())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_command_reports_its_cause() {
        assert_eq!(cause("a\nerror: no kernel\ntry:   build it\n"), Some("no kernel"));
        assert_eq!(cause("a\nb\n\n"), Some("b"));
        assert_eq!(cause(""), None);
        let failure = Command::new("sh").args("missing-script").output().unwrap_err();
        assert!(failure.to_string().contains("missing-script` failed"), "{failure}");
        assert!(failure.cause().contains("): "), "{failure}");
    }
}
