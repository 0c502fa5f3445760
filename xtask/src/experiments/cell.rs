//! A cell: a program, a kernel and a number of CPUs; its recording, and its replay.

use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::corpus::Program;
use crate::command::{Command, Failure};

/// The kernel of this host, on which the programs run without a guest.
pub(super) const HOST: &str = "host";

/// The port of Linux to the engine.
pub(super) const PORT: &str = "shootdown";

/// The machines of the replays: one with enough CPUs for every guest, and the host that made the
/// table in the book.
const MACHINE: &str = "xeon-2s";
const MACHINE_OF_HOST: &str = "emerald-rapids-kvm";

/// The directory of the recordings that ship.
const SHIPPED: &str = "traces/guests";

/// Where cells are made.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The `shootdown` command.
    pub(super) lab: PathBuf,
    /// The directory in which the programs run.
    pub(super) work: PathBuf,
    /// The directory of the recordings.
    pub(super) recordings: PathBuf,
}

/// A cell that can be run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) program: &'static Program,
    pub(super) kernel: &'static str,
    pub(super) cpus: u32,
}

/// The path of a recording, or the reason why there is none: the kernel's package or a tool is not
/// available here, or the program failed.
pub(super) type Recorded = Result<PathBuf, String>;

/// The status of `shootdown guest` if a tool, a package or the network is missing.
const MISSING: i32 = 3;

impl Cell {
    /// Returns the file name of the recording.
    pub(super) fn file(&self) -> String {
        let name = self.program.name.replace(' ', "-");
        let Self { kernel, cpus, .. } = self;
        format!("{name}-{kernel}-{cpus}.shootdown")
    }

    /// Returns the path of the recording that a run makes.
    pub(super) fn recording(&self, place: &Place) -> PathBuf {
        place.recordings.join(self.file())
    }

    /// Returns the path of the engine's counters before and after the program, on the port.
    pub(super) fn counts(&self, place: &Place) -> PathBuf {
        place.recordings.join(self.file() + ".counts")
    }

    /// Returns the command that boots the guest, without the program.
    pub(super) fn guest(&self, place: &Place, options: &str) -> Command {
        let guest = Command::new(&place.lab).args("guest --force --quiet").args(options);
        guest.arg("--kernel").arg(self.kernel).arg("--cpus").arg(self.cpus.to_string())
    }

    /// Records the program on this host.
    pub(super) fn record_on_host(&self, place: &Place) -> Result<Recorded, Failure> {
        let path = self.recording(place);
        if self.program.prepare(&place.work)?.is_none() {
            return Ok(Err(format!("{} is not installed", self.program.needs)));
        }
        // Others may use this machine: the threads should run at once all the same. The kernel
        // shares CPUs between sessions, and then between the processes of one.
        let first = r#"echo -15 > /proc/self/autogroup; exec "$@""#;
        let record = Command::new(&place.lab).args("record --quiet --output").arg(&path);
        let record = record.args("-- setsid -w sh -c").arg(first).arg("sh").within(&place.work);
        self.program.command(self.cpus).into_iter().fold(record, Command::arg).output()?;
        Ok(Ok(path))
    }

    /// Replays a recording of the cell.
    pub(super) fn replay(&self, place: &Place, path: &Path) -> Result<Counts, Failure> {
        let machine = if self.kernel == HOST { MACHINE_OF_HOST } else { MACHINE };
        // On the port, the engine is without the lab's memory manager.
        let engine = if self.kernel == PORT { "shootdown-alone" } else { "shootdown" };
        let replay = Command::new(&place.lab).arg("replay").arg(path).arg("--machine").arg(machine);
        let replay = replay.arg("--designs").arg(format!("linux-7.0,{engine}"));
        let replay = replay.args("--format json").captured()?;
        // A replay that is not close is a result here.
        let json: Option<Value> = serde_json::from_slice(&replay.stdout).ok();
        json.as_ref().and_then(|json| Counts::parse(json, engine)).ok_or_else(|| {
            eprint!("{}", String::from_utf8_lossy(&replay.stderr));
            Failure::new(format!("{} cannot be replayed", path.display()), "read the error above")
        })
    }

    /// Returns the recording of an earlier run, or else one that ships.
    pub(super) fn known(&self, place: &Place) -> Option<PathBuf> {
        let shipped = crate::root().join(SHIPPED);
        [place.recordings.as_path(), &shipped]
            .map(|directory| directory.join(self.file()))
            .into_iter()
            .find(|path| path.is_file())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program: Program { name, .. }, kernel, cpus } = self;
        write!(f, "{name} on Linux {kernel} with {cpus} CPUs")
    }
}

/// Runs a guest, which is named in errors. Returns what is missing on this host, if something is.
pub(super) fn run(guest: Command, name: &str) -> Result<Option<String>, Failure> {
    let ended = guest.captured()?;
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    let is_missing = ["apt-get", "apt-cache", "qemu-system-x86_64 is not", "mirror of Debian"];
    match ended.status.code() {
        Some(0) => {
            print!("{}", String::from_utf8_lossy(&ended.stdout));
            Ok(None)
        }
        Some(MISSING) if is_missing.iter().any(|cause| errors.contains(cause)) => {
            Ok(Some(errors.lines().next().unwrap_or_default().to_owned()))
        }
        _ => {
            eprint!("{errors}");
            Err(Failure::new(format!("the guest of {name} failed"), "read its output above"))
        }
    }
}

/// Counts of the kernel and of `linux-7.0`, and of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) requests: (u64, u64),
    pub(super) interrupts: (u64, u64),
    pub(super) full: (u64, u64),
    pub(super) ranged: (u64, u64),
    /// Requests and interrupts of the engine.
    pub(super) engine: (u64, u64),
    /// Full and ranged flushes of the engine together.
    pub(super) engine_flushes: u64,
}

impl Counts {
    fn parse(json: &Value, engine: &str) -> Option<Self> {
        let kernel = |count: &str| json.get("kernel")?.get(count)?.as_u64();
        let designs = json.get("designs")?.as_array()?;
        let row = |name: &str| designs.iter().find(|row| row["design"] == name);
        let model = json.get("fidelity")?.get("model")?.as_str()?;
        let (linux, engine) = (row(model)?, row(engine)?);
        let number = |row: &Value, count: &str| row.get(count)?.as_u64();
        Some(Self {
            requests: (kernel("requests")?, number(linux, "requests")?),
            interrupts: (kernel("ipis_sent")?, number(linux, "ipis_sent")?),
            full: (kernel("flushes_full")?, number(linux, "flushes_full")?),
            ranged: (kernel("flushes_ranged")?, number(linux, "flushes_ranged")?),
            engine: (number(engine, "requests")?, number(engine, "ipis_sent")?),
            engine_flushes: number(engine, "flushes_full")? + number(engine, "flushes_ranged")?,
        })
    }

    /// Returns the verdict: the first reason why the model differs from the kernel, if it does.
    pub(super) fn verdict(&self) -> Verdict {
        let all = |(full, ranged): ((u64, u64), (u64, u64))| (full.0 + ranged.0, full.1 + ranged.1);
        if !is_within(REQUESTS, self.requests) {
            Verdict::Requests
        } else if is_within(FLUSHES, self.full) && is_within(FLUSHES, self.ranged) {
            Verdict::Close
        } else if is_within(FLUSHES, all((self.full, self.ranged))) {
            Verdict::Kinds
        } else {
            Verdict::Flushes
        }
    }
}

/// The judgement of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Requests are within 5 %, and full and ranged flushes within 10 %.
    Close,
    /// Requests and the sum of the flushes are, but not how many of them are full.
    Kinds,
    /// Requests are, but not the sum of the flushes.
    Flushes,
    /// Requests are not.
    Requests,
}

impl Verdict {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Close => "close",
            Self::Kinds => "kinds",
            Self::Flushes => "flushes",
            Self::Requests => "requests",
        }
    }
}

/// The largest relative errors of requests, and of flushes, in percent.
pub(super) const REQUESTS: u64 = 5;
const FLUSHES: u64 = 10;
/// The largest absolute error: it is many percent of a small number.
const CLOSE_COUNT: u64 = 10;

/// Returns `true` if the model's count is close to the kernel's.
pub(super) fn is_within(percent: u64, (kernel, model): (u64, u64)) -> bool {
    let off = kernel.abs_diff(model);
    off <= CLOSE_COUNT || off * 100 <= percent * kernel
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_names_first_difference() {
        let counts = |requests, full, ranged| Counts {
            requests: (1000, requests),
            full: (100, full),
            ranged: (900, ranged),
            ..Counts::default()
        };
        assert_eq!(counts(1050, 110, 810).verdict(), Verdict::Close);
        assert_eq!(counts(949, 100, 900).verdict(), Verdict::Requests);
        assert_eq!(counts(1000, 150, 900).verdict(), Verdict::Kinds);
        assert_eq!(counts(1000, 100, 700).verdict(), Verdict::Flushes);
    }
}
