//! What the kernel says, and how it ends.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::error::BootError;
use crate::error::shown;
use crate::progress;

/// A line of the console's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line(pub(crate) String);

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

/// How the console is watched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Console {
    /// How long the kernel may say nothing.
    pub(crate) patience: Duration,
    /// Whether all that it says is shown.
    pub(crate) all: bool,
}

/// How the kernel says how it ends, in its last line.
const PASSED: &str = "end passed";
const FAILED: &str = "end failed";

impl Console {
    /// Starts the emulator, and returns what the kernel says once it has ended well: with its last
    /// line, and with this status.
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
        // Whatever is wrong, no emulator is left running.
        let _ = child.kill();
        let ended = child.wait_with_output().map_err(BootError::Start)?;
        let lines = lines?;
        let said = |line: Option<&Line>| line.map_or(String::new(), |line| line.0.clone());
        match lines.last().map(|line| line.0.as_str()) {
            Some(PASSED) if ended.status.code() == Some(passed_status) => Ok(lines),
            Some(FAILED) => {
                let is_cause = |line: &&Line| line.0.starts_with("fatal");
                let cause = lines.iter().rfind(is_cause).or(lines.iter().nth_back(1));
                Err(BootError::Failed { said: said(cause) })
            }
            _ => {
                let error = String::from_utf8_lossy(&ended.stderr);
                // Bochs frames what it has to say.
                let says = |line: &&str| line.contains(char::is_alphanumeric);
                let last = error.lines().rfind(says).map(|line| Line(line.to_owned()));
                let last = said(last.as_ref().or(lines.last()));
                Err(BootError::Crashed { last, status: ended.status.to_string() })
            }
        }
    }

    /// Reads to the end, or until nothing comes any more.
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

/// It ends by itself, with its own status, a moment after its last line: on a busy host, seconds.
fn wait_for_end(child: &mut Child) {
    const PATIENCE: Duration = Duration::from_secs(20);
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The lines, as they come.
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
