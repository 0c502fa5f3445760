//! Processes that end when the user interrupts the command.

use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use super::error::GuestError;
use crate::commands::record::{Signals, StopRequest};

/// The time between two looks at a process.
const PERIOD: Duration = Duration::from_millis(20);

/// A process that is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Owned(pub(super) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The end of a wait for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Ended,
    /// The condition of the wait was no longer true.
    GaveUp,
}

/// Waits until the process ends, the user stops the command, or `may_wait` returns `false`.
///
/// # Errors
///
/// If the user stopped the command.
pub(super) fn wait(
    child: &mut Child,
    signals: &mut Signals,
    mut may_wait: impl FnMut() -> bool,
) -> Result<Waited, GuestError> {
    loop {
        if signals.stop_request() != StopRequest::None {
            return Err(GuestError::Interrupted);
        }
        // An error means that the process no longer exists.
        if !matches!(child.try_wait(), Ok(None)) {
            return Ok(Waited::Ended);
        }
        if !may_wait() {
            return Ok(Waited::GaveUp);
        }
        thread::sleep(PERIOD);
    }
}

/// Runs a program that prepares the guest, and returns its standard output.
///
/// # Errors
///
/// If the program is missing or fails, or the user stopped the command.
pub(super) fn output(
    program: (&'static str, &'static str),
    command: &mut Command,
    signals: &mut Signals,
) -> Result<String, GuestError> {
    let Output { status, stdout, stderr } = finished(program, command, signals)?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&stderr);
    // apt-get marks its errors.
    let line = errors.lines().find(|line| line.starts_with("E: ")).or(errors.lines().last());
    let error = line.map_or_else(|| status.to_string(), str::to_owned);
    Err(GuestError::Failed { program: program.0, error })
}

/// Runs a program to its end, whether it succeeds or not.
///
/// # Errors
///
/// If the program is missing, or the user stopped the command.
pub(super) fn finished(
    (program, package): (&'static str, &'static str),
    command: &mut Command,
    signals: &mut Signals,
) -> Result<Output, GuestError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| not_started(program, package, error))?;
    let mut child = Owned(child);
    let (stdout, stderr) = (child.0.stdout.take(), child.0.stderr.take());
    let (stdout, stderr) = (reader(stdout), reader(stderr));
    wait(&mut child.0, signals, || true)?;
    let status = child.0.wait().map_err(|error| GuestError::NotStarted { program, error })?;
    let bytes = |reader: thread::JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    Ok(Output { status, stdout: bytes(stdout), stderr: bytes(stderr) })
}

/// Returns the error of a program that did not start.
pub(super) fn not_started(
    program: &'static str,
    package: &'static str,
    error: io::Error,
) -> GuestError {
    match error.kind() {
        io::ErrorKind::NotFound => GuestError::NoProgram { program, package },
        _ => GuestError::NotStarted { program, error },
    }
}

/// Reads a pipe on a thread, because a full pipe would stop the process.
fn reader(pipe: Option<impl io::Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // After an error, the part before it is shown.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
