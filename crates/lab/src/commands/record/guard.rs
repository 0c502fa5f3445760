//! The guard: a process that outlives the recorder and removes the recorder's instances of tracing.
//!
//! Only the guard removes instances. It waits for the end of its standard input. The kernel closes
//! that pipe when the recorder ends, whether by a normal exit, an error, a panic or SIGKILL.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use super::error::RecordError;
use super::helper::{self, Helper};
use super::tracefs::Tracefs;

/// Number of attempts to remove an instance. The kernel refuses while a process reads the instance.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// The guard, as the recorder sees it.
#[derive(Debug)]
pub(super) struct Guard {
    process: Child,
    instances: Vec<PathBuf>,
}

impl Guard {
    /// Starts the guard for `instances`, which may not exist yet.
    ///
    /// # Errors
    ///
    /// If the process cannot be started.
    pub(super) fn start(instances: Vec<PathBuf>) -> Result<Self, RecordError> {
        let helper = Helper::Guard { instances: instances.clone() };
        let process = helper::command(&helper)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // In its own process group, the guard does not receive Ctrl-C from the terminal.
            .process_group(0)
            .spawn()
            .map_err(RecordError::system("a process to clean up"))?;
        Ok(Self { process, instances })
    }

    /// Ends the guard, which removes the instances. Close all files of the instances before this
    /// call.
    ///
    /// # Errors
    ///
    /// If an instance still exists.
    pub(super) fn end(mut self) -> Result<(), RecordError> {
        self.release();
        let paths: Vec<_> = self.instances.iter().filter(|path| path.exists()).cloned().collect();
        if paths.is_empty() { Ok(()) } else { Err(RecordError::InstancesLeft { paths }) }
    }

    fn release(&mut self) {
        drop(self.process.stdin.take());
        // The remaining instances show whether the guard succeeded.
        let _ = self.process.wait();
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.release();
    }
}

/// Runs the guard process: waits for the end of standard input, then removes the instances.
pub(super) fn guard(instances: &[PathBuf]) {
    // The recorder's own mount ends with it.
    let Ok(tracefs) = Tracefs::find() else { return };
    let names = instances.iter().filter_map(|path| path.file_name());
    let instances: Vec<_> = names.map(|name| tracefs.instances().join(name)).collect();
    // The copy ends, with or without an error, when the recorder has ended.
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
