//! The console of the kernel, and the end of a run.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::error::BootError;
use crate::error::shown;
use crate::progress;

/// A line of the console.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) String);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

/// The parameters of reading the console.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    /// The longest time without a new line.
    pub(crate) patience: Duration,
    /// If `true`, every line is shown.
    pub(crate) all: bool,
}

/// The last lines of a kernel that passed, and of one that failed.
const PASSED: &str = "end passed";
const FAILED: &str = "end failed";

impl Console {
    /// Starts the emulator, waits for its end, and returns the lines of the kernel.
    ///
    /// # Errors
    ///
    /// If the last line does not report success, or the exit status is not `passed_status`.
    pub(crate) fn watch(
        self,
        command: &mut Command,
        passed_status: i32,
    ) -> Result<Vec<Line>, BootError> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(BootError::Start)?;
        let lines = self.read(&mut child);
        if lines.is_ok() {
            wait_for_end(&mut child);
        }
        // No emulator is left running after an error.
        let _ = child.kill();
        let ended = child.wait_with_output().map_err(BootError::Start)?;
        let lines = lines?;
        let text = |line: Option<&Line>| line.map_or(String::new(), |line| line.0.clone());
        match lines.last().map(|line| line.0.as_str()) {
            Some(PASSED) if ended.status.code() == Some(passed_status) => Ok(lines),
            Some(FAILED) => {
                let is_cause = |line: &&Line| line.0.starts_with("fatal");
                let cause = lines.iter().rfind(is_cause).or(lines.iter().nth_back(1));
                Err(BootError::Failed { cause: text(cause) })
            }
            _ => {
                let error = String::from_utf8_lossy(&ended.stderr);
                // Bochs prints a frame around its messages.
                let has_text = |line: &&str| line.contains(char::is_alphanumeric);
                let last = error.lines().rfind(has_text).map(|line| Line(line.to_owned()));
                let last = text(last.as_ref().or(lines.last()));
                Err(BootError::Crashed { last, status: ended.status.to_string() })
            }
        }
    }

    /// Reads lines until the last line, the end of the output, or the timeout.
    fn read(self, child: &mut Child) -> Result<Vec<Line>, BootError> {
        let progress = progress::bar(None, "{spinner} {elapsed:>4} {wide_msg}");
        progress.enable_steady_tick(Duration::from_millis(100));
        let incoming = lines_of(child);
        let mut lines: Vec<Line> = Vec::new();
        let end = loop {
            match incoming.recv_timeout(self.patience) {
                Ok(line) => {
                    progress.set_message(line.to_string());
                    if self.all {
                        progress.suspend(|| eprintln!("{line}"));
                    }
                    let is_last = [PASSED, FAILED].contains(&line.0.as_str());
                    lines.push(line);
                    if is_last {
                        break Ok(lines);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break Ok(lines),
                Err(RecvTimeoutError::Timeout) => {
                    let last = lines.last().map_or(String::new(), |line| line.0.clone());
                    break Err(BootError::Silent { last, patience: self.patience });
                }
            }
        };
        progress.finish_and_clear();
        end
    }
}

/// Waits for the emulator, which ends shortly after the last line. On a busy host this takes
/// seconds.
fn wait_for_end(child: &mut Child) {
    const PATIENCE: Duration = Duration::from_secs(20);
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns a channel that receives the lines of the emulator.
fn lines_of(child: &mut Child) -> Receiver<Line> {
    let (sender, receiver) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        thread::spawn(move || {
            for bytes in BufReader::new(out).split(b'\n') {
                let Ok(bytes) = bytes else { return };
                let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                if sender.send(Line(line)).is_err() {
                    return;
                }
            }
        });
    }
    receiver
}
