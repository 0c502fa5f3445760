//! Runs an emulator under a watchdog, which distinguishes a kernel that hangs from a slow host.
//!
//! A kernel makes progress if it prints lines: one for each scenario. The watchdog counts the time
//! for which the host has *run* the emulator since the last line. On a busy host, that time passes
//! slowly.

use std::fs;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{Command, Failure};

/// CPU time between two lines. The longest scenario takes about 3 s on an idle host, and CPUs that
/// wait for each other take several times that on a busy one.
pub(super) const CPU_MS_MAX: u64 = 120_000;

/// Time between two lines, on any clock. If all CPUs sleep, they take hardly any CPU time.
const IDLE_MAX: Duration = Duration::from_secs(900);

/// The last line of a kernel that has run all of its scenarios.
const END: &str = "end";

/// The end of a boot.
#[derive(Debug)]
pub(super) enum End {
    /// The kernel has printed its last line.
    Done,
    /// The emulator has exited with this status.
    Exited(String),
    /// The kernel prints nothing any more.
    Hangs {
        /// CPU time since the last line.
        cpu_ms: u64,
        /// Time since the last line.
        time: Duration,
    },
}

/// Runs an emulator until its kernel has come to its end, or has taken `cpu_ms_max` of CPU time
/// between two lines. Returns its output as well.
pub(super) fn run(command: Command, cpu_ms_max: u64) -> Result<(String, End), Failure> {
    let (mut child, output) = command.start_piped()?;
    let lines = lines(output);
    let mut output = String::new();
    let (mut last_line, mut cpu_then) = (Instant::now(), 0);
    let end = loop {
        match lines.recv_timeout(Duration::from_secs(1)) {
            Ok(line) => {
                output += &line;
                output.push('\n');
                if line.trim_end() == END {
                    break Some(End::Done);
                }
                (last_line, cpu_then) = (Instant::now(), cpu_ms(&child));
            }
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {
                let (cpu_ms, time) = (cpu_ms(&child) - cpu_then, last_line.elapsed());
                if cpu_ms >= cpu_ms_max || time >= IDLE_MAX {
                    break Some(End::Hangs { cpu_ms, time });
                }
            }
        }
    };
    if end.is_some() {
        // Most kernels have switched their machine off by now.
        let _ = child.kill();
    }
    let status = child.wait().map_or("no status".to_owned(), |status| status.to_string());
    Ok((output, end.unwrap_or(End::Exited(status))))
}

/// Reads lines on another thread.
fn lines(output: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Returns the CPU time of a process and its threads; 0 if the host does not report it.
fn cpu_ms(child: &Child) -> u64 {
    /// `sysconf(_SC_CLK_TCK)` is 100 on every Linux.
    const MS_PER_TICK: u64 = 10;
    let text = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces. User and system time are fields
    // 14 and 15, and the first one after the name is field 3.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks * MS_PER_TICK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_reports_its_cpu_time() {
        let start = Command::new("sh").arg("-c").arg("while :; do :; done").start_piped();
        let (mut child, _output) = start.expect("there is a shell");
        let since = Instant::now();
        while cpu_ms(&child) == 0 && since.elapsed() < Duration::from_secs(60) {
            thread::sleep(Duration::from_millis(10));
        }
        let cpu = cpu_ms(&child);
        let _ = child.kill().and_then(|()| child.wait().map(drop));
        assert!(cpu > 0, "a process that runs takes no CPU time");
    }
}
