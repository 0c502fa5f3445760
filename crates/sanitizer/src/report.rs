//! Reports: a line of JSON for each distinct fault, and totals.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::invalidation::Left;

/// An instant, and the instruction that was executed then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// Number of events before this one: fills, changes, invalidations and acts, of all CPUs.
    pub time: u64,
    /// The program counter.
    pub pc: u64,
}

/// A change of a page-table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When, and the store.
    pub at: Moment,
    /// The CPU that stored.
    pub cpu: usize,
}

/// The event that makes an old entry a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    /// The frame has a new owner. The number is the index of the hook.
    Reused(usize),
    /// The kernel relies on the change: the flush is complete. The number is the index of the hook.
    Settled(usize),
}

/// A [`Deed`] with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// The event.
    pub deed: Deed,
    /// When, and the instruction.
    pub at: Moment,
    /// The CPU.
    pub cpu: usize,
}

/// The mode that reports a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A page whose frame has a new owner.
    Reuse,
    /// A page whose permission was removed.
    Permission,
    /// A pointer to a page table whose frame has a new owner.
    Tables,
    /// Any of these, of an entry that the CPU has not used.
    Speculation,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::Reuse, Self::Permission, Self::Tables, Self::Speculation];
    /// The modes for entries that were used.
    pub const OF_USED: [Self; 3] = [Self::Reuse, Self::Permission, Self::Tables];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reuse => "reuse",
            Self::Permission => "permission",
            Self::Tables => "tables",
            Self::Speculation => "speculation",
        }
    }
}

/// An invalidation on the CPU after the page table had changed, and the reason why it left the
/// entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Later {
    /// When, and the instruction.
    pub at: Moment,
    /// The CPU that executed the instruction.
    pub by: usize,
    /// Why the entry stayed.
    pub left: Left,
}

/// A fault: a CPU can use a translation that it must not use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The mode that found it.
    pub mode: Mode,
    /// The CPU that holds the entry.
    pub cpu: usize,
    /// `true` in user mode.
    pub in_user_mode: bool,
    /// `true` if the CPU has used the entry for an access, and `false` if it could.
    pub is_used: bool,
    /// When, and the instruction of the CPU.
    pub at: Moment,
    /// The first address that the entry translates.
    pub page: u64,
    /// Number of bytes that the entry covers.
    pub bytes: u64,
    /// The PCID or ASID; `None` for a global entry.
    pub tag: Option<u32>,
    /// Physical address of the page or table.
    pub frame: u64,
    /// `true` if the CPU can write.
    pub is_writable: bool,
    /// When the CPU used the entry first, or from when on the tables had an unused one.
    pub filled: Moment,
    /// When the page table changed, if a store was seen.
    pub change: Option<Change>,
    /// The event that makes the entry a fault.
    pub act: Act,
    /// The invalidations on this CPU after the change, or after the fill; the last sixteen.
    pub later: Vec<Later>,
    /// The number that the guest's last mark had.
    pub mark: u64,
}

/// Totals of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// CPUs.
    pub cpus: usize,
    /// CPUs that ran user code with translation on.
    pub cpus_in_user_mode: usize,
    /// Entries that were filled.
    pub fills: u64,
    /// Entries now.
    pub held: usize,
    /// Invalidating instructions, each counted on each CPU that it concerns.
    pub invalidations: u64,
    /// Loads of a root.
    pub root_loads: u64,
    /// Stores into page tables.
    pub table_stores: u64,
    /// Frames that got a new owner.
    pub reused: u64,
    /// Calls of settling hooks.
    pub settled: u64,
    /// Entries whose frame had a new owner and which were dropped before they could be used.
    pub dropped_in_time: u64,
    /// Accesses whose translation the page tables did not have any more.
    pub not_in_tables: u64,
    /// Reports, those of a known fault included.
    pub reports: u64,
    /// Distinct faults.
    pub faults: u64,
}

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line {
    /// The plugin cannot work.
    Refused {
        /// The cause.
        cause: String,
    },
    /// A new fault.
    Fault(Box<Report>),
    /// The totals so far.
    Progress(Totals),
    /// The totals at the end.
    Ended(Totals),
}

impl Line {
    /// The line as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a line of JSON.
    ///
    /// # Errors
    ///
    /// If the line is another one.
    pub fn parse(line: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

/// Faults with an equal identity are one: the mode, the store that changed the page table, the
/// instruction that made the entry a fault, the CPU's privilege, and the guest's mark.
type Identity = (Mode, Option<u64>, u64, bool, u64);

/// The reports so far.
#[derive(Debug, Default)]
pub struct Reports {
    counts: HashMap<Identity, u64>,
}

impl Reports {
    /// Adds a report, and returns `true` if its fault is new.
    pub fn add(&mut self, report: &Report) -> bool {
        let change = report.change.map(|change| change.at.pc);
        let identity = (report.mode, change, report.act.at.pc, report.in_user_mode, report.mark);
        let count = self.counts.entry(identity).or_default();
        *count += 1;
        *count == 1
    }

    /// Number of reports, and of distinct faults.
    pub fn totals(&self) -> (u64, u64) {
        (self.counts.values().sum(), self.counts.len() as u64)
    }
}
