//! The kernel's tracing, and this process's own instances of it.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::decode::Enabled;
use super::error::RecordError;
use super::page::PageFormat;

/// The mount points of tracefs: the current one, and the one of older systems.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The start of the names of instances. A process number and a scope follow.
const PREFIX: &str = "shootdown-";
/// Size of a read, in bytes: larger than any file of tracefs that must be read with one call.
const READ_BYTES: usize = 64 << 10;

/// The tasks whose events are traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The command and its descendants. The kernel traces a wake-up if either task is one of them.
    Command,
    /// All tasks, because the switches of other programs decide whether a CPU is idle or lazy.
    System,
}

/// The kernel's tracing.
#[derive(Debug)]
pub(super) struct Tracefs {
    root: PathBuf,
    /// The mount, if this process made it. No other process sees it, and it ends with this one.
    _mount: Option<OwnedFd>,
}

impl Tracefs {
    /// Finds tracefs, or mounts it for this process alone.
    ///
    /// # Errors
    ///
    /// If this user may neither use nor mount tracefs, or the kernel has none.
    pub(super) fn find() -> Result<Self, RecordError> {
        let mut roots = ROOTS.iter().map(PathBuf::from);
        // The mount decides who may trace. By default, this is only root.
        let root = roots.find_map(|root| match fs::read_dir(root.join("instances")) {
            Ok(_) => Some(Ok(Self { root, _mount: None })),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Some(Err(RecordError::NotRoot))
            }
            Err(_) => None,
        });
        root.unwrap_or_else(|| Self::mount().map_err(|_| RecordError::NoTracefs))
    }

    fn mount() -> io::Result<Self> {
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let root = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
        fs::read_dir(root.join("instances"))?;
        Ok(Self { root, _mount: Some(mount) })
    }

    /// Returns the `format` file of `event`, or `None` if the kernel does not have the event.
    pub(super) fn format(&self, event: &str) -> Result<Option<String>, RecordError> {
        let path = self.root.join("events").join(event).join("format");
        match read(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RecordError::kernel(&path, error)),
        }
    }

    /// Returns the kernel's number of `event`.
    ///
    /// # Errors
    ///
    /// If the kernel does not have the event.
    pub(super) fn number(&self, event: &'static str) -> Result<u64, RecordError> {
        let path = self.root.join("events").join(event).join("id");
        let text = read(&path).map_err(|error| RecordError::kernel(&path, error))?;
        text.trim().parse().map_err(|_| RecordError::NoEvent { event })
    }

    /// Returns the path of this process's instance for `scope`, which may not exist.
    pub(super) fn instance(&self, scope: Scope) -> PathBuf {
        let suffix = match scope {
            Scope::Command => "tasks",
            Scope::System => "system",
        };
        self.instances().join(format!("{PREFIX}{}-{suffix}", std::process::id()))
    }

    /// Removes the instances of recorders that have ended. The kernel refuses to remove an instance
    /// in use.
    pub(super) fn remove_stale(&self) {
        let entries = fs::read_dir(self.instances()).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
            let pid = pid.and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                // An instance that cannot be removed does not disturb this recorder.
                let _ = fs::remove_dir(entry.path());
            }
        }
    }

    pub(super) fn instances(&self) -> PathBuf {
        self.root.join("instances")
    }
}

/// An instance of tracing, with its own buffers. A [`Guard`](super::guard::Guard) must remove it.
#[derive(Debug)]
pub(super) struct Instance {
    path: PathBuf,
}

impl Instance {
    /// Creates an instance and enables its events. Tracing does not start yet.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or has no memory for two buffers of `buffer_kib` per CPU.
    pub(super) fn new(
        tracefs: &Tracefs,
        scope: Scope,
        events: Vec<Enabled>,
        buffer_kib: u32,
    ) -> Result<Self, RecordError> {
        let instance = Self { path: tracefs.instance(scope) };
        let path = &instance.path;
        fs::create_dir(path).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => RecordError::NotRoot,
            _ => RecordError::kernel(path, error),
        })?;
        instance.set("tracing_on", "0")?;
        instance.set("buffer_size_kb", &buffer_kib.to_string()).map_err(|error| match error {
            RecordError::Kernel { error, .. } if is_out_of_memory(&error) => {
                RecordError::NoMemory { buffer_kib }
            }
            error => error,
        })?;
        instance.set("trace_clock", "mono")?;
        // A poll on a buffer returns when a quarter of the buffer is full. Older kernels do not
        // have this file, and return when half of the buffer is full, which is sufficient.
        let _ = instance.set("buffer_percent", "25");
        if scope == Scope::Command {
            instance.set("options/event-fork", "1")?;
        }
        for (event, filter) in events {
            if let Some(filter) = filter {
                // Without it, the recording has events that nothing needs.
                let _ = instance.set(&format!("events/{event}/filter"), &filter);
            }
            instance.set(&format!("events/{event}/enable"), "1")?;
        }
        Ok(instance)
    }

    /// Restricts tracing to these tasks and their descendants, besides those that are traced
    /// already.
    pub(super) fn follow(&self, tasks: impl Iterator<Item = u32>) -> Result<(), RecordError> {
        let path = self.path.join("set_event_pid");
        let error = |error| RecordError::kernel(&path, error);
        let numbers: String = tasks.map(|task| format!("{task}\n")).collect();
        let mut file = fs::OpenOptions::new().append(true).open(&path).map_err(error)?;
        // Each write makes the kernel copy its list, and wait until no CPU uses the old one.
        file.write_all(numbers.as_bytes()).map_err(error)?;
        Ok(())
    }

    /// Returns the number of traced tasks that still live. The kernel also lists tasks that ended a
    /// moment ago.
    pub(super) fn followed(&self) -> Result<usize, RecordError> {
        let tasks = self.read("set_event_pid")?;
        let lives = |task: &&str| Path::new("/proc").join(task).exists();
        Ok(tasks.split_whitespace().filter(lives).count())
    }

    pub(super) fn start(&self) -> Result<(), RecordError> {
        self.set("tracing_on", "1")
    }

    pub(super) fn stop(&self) -> Result<(), RecordError> {
        self.set("tracing_on", "0")
    }

    /// Returns the layout of the pages of the buffers.
    pub(super) fn page_format(&self) -> Result<PageFormat, RecordError> {
        let text = self.read("events/header_page")?;
        PageFormat::parse(&text).ok_or(RecordError::NoEvent { event: "header_page" })
    }

    /// Returns the CPUs that have a buffer, in ascending order.
    pub(super) fn cpus(&self) -> Result<Vec<u32>, RecordError> {
        let path = self.path.join("per_cpu");
        let entries = fs::read_dir(&path).map_err(|error| RecordError::kernel(&path, error))?;
        let number = |name: &str| name.strip_prefix("cpu")?.parse().ok();
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut cpus: Vec<_> = names.filter_map(|name| number(name.to_str()?)).collect();
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Returns the file from which the events of `cpu` are read.
    pub(super) fn buffer(&self, cpu: u32) -> PathBuf {
        self.path.join(format!("per_cpu/cpu{cpu}/trace_pipe_raw"))
    }

    /// Returns the number of events of `cpu` that were lost because the buffer was full.
    pub(super) fn lost(&self, cpu: u32) -> Result<u64, RecordError> {
        let text = self.read(&format!("per_cpu/cpu{cpu}/stats"))?;
        Ok(text.lines().filter_map(parse_lost).sum())
    }

    fn read(&self, file: &str) -> Result<String, RecordError> {
        let path = self.path.join(file);
        read(&path).map_err(|error| RecordError::kernel(&path, error))
    }

    fn set(&self, file: &str, value: &str) -> Result<(), RecordError> {
        let path = self.path.join(file);
        fs::write(&path, value).map_err(|error| RecordError::kernel(&path, error))
    }
}

/// Reads a file of tracefs. Some of these files end after the first read, whatever its size, and
/// the standard library starts with a small read.
fn read(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let (mut text, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            count => text.extend_from_slice(&buffer[..count]),
        }
    }
}

fn is_out_of_memory(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
}

/// Returns the number of lost events in a line of `stats`, if it has one. Events are lost by being
/// overwritten before they are read, during a commit, or by being dropped.
fn parse_lost(line: &str) -> Option<u64> {
    let (name, count) = line.split_once(':')?;
    let is_loss = matches!(name, "overrun" | "commit overrun" | "dropped events");
    is_loss.then(|| count.trim().parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Tracefs {
        pub(in crate::commands::record) fn at(root: &Path) -> Self {
            Self { root: root.to_owned(), _mount: None }
        }
    }

    #[test]
    fn all_kinds_of_lost_events_are_summed() {
        let stats = "entries: 129\noverrun: 3\ncommit overrun: 20\nbytes: 1088\n\
            oldest event ts:  5.1\nnow ts: 7.4\ndropped events: 100\nread events: 129\n";
        assert_eq!(stats.lines().filter_map(parse_lost).sum::<u64>(), 123);
    }
}
