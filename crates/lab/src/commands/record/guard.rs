//! A process that outlives the recorder, to remove the instances that it made.
//!
//! It is the only one that does: after a normal end, an error, a panic and a SIGKILL alike, what it
//! waits for is that its standard input ends, and the kernel ends that with the recorder.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use super::error::RecordError;
use super::helper::{self, Helper};

/// How often a removal is tried: an instance that someone still reads is refused.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The process, seen from the recorder.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    instances: Vec<PathBuf>,
}

impl Guard {
    /// Starts it for `instances`, which may not exist yet.
    ///
    /// # Errors
    ///
    /// If there is no process to be had.
    pub(super) fn start(instances: Vec<PathBuf>) -> Result<Self, RecordError> {
        let helper = Helper::Guard { instances: instances.clone() };
        let process = helper::command(&helper)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // The terminal's Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .map_err(RecordError::system("a process to clean up"))?;
        Ok(Self { process, instances })
    }

    /// Has the instances removed. None of their files may be open any more.
    ///
    /// # Errors
    ///
    /// If one is still there.
    pub(super) fn end(mut self) -> Result<(), RecordError> {
        self.release();
        let paths: Vec<_> = self.instances.iter().filter(|path| path.exists()).cloned().collect();
        if paths.is_empty() { Ok(()) } else { Err(RecordError::InstancesLeft { paths }) }
    }

    fn release(&mut self) {
        drop(self.process.stdin.take());
        // Whether it did what it should is seen by what is left.
        let _ = self.process.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
    }
}

/// What the process does.
pub(super) fn guard(instances: &[PathBuf]) {
    // However it ends, the recorder is gone.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    for _ in 0..TRIES {
        let mut left = false;
        for path in instances.iter().filter(|path| path.exists()) {
            left |= fs::remove_dir(path).is_err();
        }
        if !left {
            return;
        }
        thread::sleep(PAUSE);
    }
}
