//! The description of a machine: the number of its CPUs, the distances between them, and the cost
//! of each operation.
//!
//! A description is read from a TOML file (`machines/*.toml`). Every number in the file has its
//! source, and a mark if it was fitted to a measurement. Files with unknown keys and machines that
//! cannot be simulated are rejected.

mod file;
mod kinds;
mod topology;
mod extends;

use core::fmt;
use core::ops::Range;
use std::sync::Arc;

use crate::queue::Key;
use crate::time::Time;

pub use file::{
    Broadcast, Cache, Domains, Far, Idle, IdleState, Interrupt, Kernel, Number, RemoteFence,
    Storage, Tlb, TlbInIdle,
};
pub use kinds::{MixedSizes, Policy, Refill, StaleWrites, Tagging};
pub use topology::{Distance, Links, Topology};

/// A machine that can be simulated.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Name of the machine in the file.
    pub name: String,
    /// Description in one sentence.
    pub about: String,
    /// Arrangement of the CPUs.
    pub topology: Topology,
    /// Assignment of tags to address spaces.
    pub tagging: Tagging,
    /// Whether hardware or the kernel walks the page tables after a miss.
    pub refill: Refill,
    /// The order in which ready threads run.
    pub scheduler: Policy,
    /// Effect of a write through a cached translation that is not marked dirty.
    pub stale_writes: StaleWrites,
    /// Whether a TLB may hold translations of two sizes for one address.
    pub mixed_sizes: MixedSizes,
    /// Costs of accesses to memory.
    pub cache: Cache,
    /// Costs between sockets that have no link.
    pub far: Far,
    /// Sizes of the TLB, and costs of invalidations.
    pub tlb: Tlb,
    /// Costs of interrupts, including those of the hypervisor where CPUs are virtual.
    pub interrupt: Interrupt,
    /// Hardware that broadcasts invalidations to every CPU's TLB; `None` if there is none.
    pub broadcast: Option<Broadcast>,
    /// The domains that a broadcast can name; `None` if each reaches every CPU.
    pub domains: Option<Domains>,
    /// Firmware that makes other CPUs invalidate; `None` if there is none.
    pub remote_fence: Option<RemoteFence>,
    /// Time to read and write files; `None` if that takes no time.
    pub storage: Option<Storage>,
    /// Behaviour of CPUs without a thread to run.
    pub idle: Idle,
    /// Costs of the kernel's own work.
    pub kernel: Kernel,
    /// Times that programs measured on the real machine, by the key of the program.
    pub measured: Vec<Number>,
    /// The error to expect of a simulated time, in percent of the real one; `None` if it is not
    /// known. The ratio of two designs on one machine mostly has a smaller one.
    pub time_error_percent: Option<u64>,
    numbers: Vec<Number>,
    /// The contents of the file.
    table: Arc<toml::Table>,
}

impl Domains {
    /// The CPUs of the domain that has `cpu`. Those of the last domain need not exist.
    #[must_use]
    pub fn of(&self, cpu: usize) -> Range<usize> {
        let first = cpu / self.cpus * self.cpus;
        first..first + self.cpus
    }

    /// The domains that have these CPUs, each once.
    pub fn covering(&self, cpus: impl IntoIterator<Item = usize>) -> Vec<Range<usize>> {
        let mut domains: Vec<_> = cpus.into_iter().map(|cpu| self.of(cpu)).collect();
        domains.sort_by_key(|domain| domain.start);
        domains.dedup();
        domains
    }
}

impl Machine {
    /// Reads a machine file.
    ///
    /// # Errors
    ///
    /// If the text is not TOML, has unknown or missing keys, describes an impossible machine, or
    /// extends another file.
    pub fn from_toml(text: &str) -> Result<Self, MachineError> {
        Self::from_toml_extending(text, |base| {
            Err(MachineError::Impossible {
                cause: format!("it extends `{}`", base.escape_debug()),
                remedy: "use a file that has all numbers".to_owned(),
            })
        })
    }

    /// Reads a machine file, which may take the numbers that it lacks from another:
    ///
    /// ```toml
    /// extends = "xeon-2s"
    /// without = ["idle"]
    /// ```
    ///
    /// `find` returns the machine that the file extends. Sections in `without` are not inherited,
    /// and neither is `measured`. If both files have `clock.ghz`, inherited times of the core are
    /// scaled by it.
    ///
    /// # Errors
    ///
    /// Those of [`from_toml`](Self::from_toml) and of `find`.
    pub fn from_toml_extending(
        text: &str,
        find: impl FnOnce(&str) -> Result<Self, MachineError>,
    ) -> Result<Self, MachineError> {
        let own: toml::Table = text.parse().map_err(syntax)?;
        let Some(base) = own.get("extends") else {
            let file = toml::from_str(text).map_err(syntax)?;
            return Self::new(file, Arc::new(own));
        };
        let Some(base) = base.as_str() else {
            return Err(MachineError::Impossible {
                cause: "`extends` is not a name".to_owned(),
                remedy: "write `extends = \"xeon-2s\"`, or the path of a file".to_owned(),
            });
        };
        let table = extends::extend(&find(base)?.table, own)?;
        let file = table.clone().try_into().map_err(syntax)?;
        Self::new(file, Arc::new(table))
    }

    fn new(file: file::MachineFile, table: Arc<toml::Table>) -> Result<Self, MachineError> {
        let numbers = file.numbers();
        for number in &numbers {
            number.check()?;
        }
        let scale = file.scale();
        let machine = Self {
            topology: file.topology(),
            tagging: file.tagging,
            refill: file.refill,
            scheduler: file.scheduler,
            stale_writes: file.stale_writes,
            mixed_sizes: file.mixed_sizes,
            cache: file.cache.resolve(1.0),
            far: file.far(),
            tlb: file.tlb.resolve(1.0),
            interrupt: file.interrupt(),
            broadcast: file.broadcast.as_ref().map(|file| file.resolve(1.0)),
            domains: file.domains.as_ref().map(|file| file.resolve(1.0)),
            remote_fence: file.remote_fence.as_ref().map(|file| file.resolve(scale)),
            storage: file.storage.as_ref().map(|file| file.resolve(scale)),
            idle: file.idle(),
            kernel: file.kernel.resolve(scale),
            measured: file.measured(),
            time_error_percent: file.time_error_percent(),
            name: file.name,
            about: file.about,
            numbers,
            table,
        };
        machine.check()?;
        Ok(machine)
    }

    /// Number of CPUs.
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.topology.cpu_count()
    }

    /// The time from the issue of a broadcast until it is complete on every CPU, if no other CPU
    /// issues any.
    #[must_use]
    pub fn completion_of(&self, broadcast: &Broadcast) -> Time {
        let crosses = self.topology.sockets > 1;
        let cross = if crosses { broadcast.cross } else { Time::ZERO };
        (broadcast.complete + cross).max(broadcast.occupy)
    }

    /// The time from the issue by `issuer` of a broadcast in one domain, of which `cpu` is one CPU,
    /// until it is complete, if no other CPU issues any.
    #[must_use]
    pub fn completion_in_domain(&self, domains: &Domains, issuer: usize, cpu: usize) -> Time {
        let of_domain = domains.of(cpu);
        let sockets = [of_domain.start, of_domain.end - 1].map(|cpu| self.topology.socket_of(cpu));
        let crosses = sockets.iter().any(|&socket| socket != self.topology.socket_of(issuer));
        let cross = self.broadcast.as_ref().filter(|_| crosses).map_or(Time::ZERO, |it| it.cross);
        (domains.complete + cross).max(domains.occupy)
    }

    /// Returns this machine with another number of CPUs. Fewer CPUs are the first of this
    /// machine's; more CPUs are in additional sockets of the same kind.
    ///
    /// # Errors
    ///
    /// If `cpus` is 0 or more than 4096.
    pub fn with_cpus(&self, cpus: usize) -> Result<Self, MachineError> {
        let mut machine = self.clone();
        machine.topology = self.topology.resized(cpus);
        machine.check()?;
        Ok(machine)
    }

    /// Returns this machine with another value of one number, which is named as
    /// `SECTION.KEY`: `tlb.invalidate_page_ns`, or `idle.C1.exit_us`. The number of CPUs stays
    /// unless the number is one of `topology`.
    ///
    /// # Errors
    ///
    /// If the file has no such number, if the number changes no cost (`clock`, by which only files
    /// that extend this one scale their times, and `measured`), or if the machine is impossible
    /// with this value.
    pub fn with_number(&self, key: &str, value: f64) -> Result<Self, MachineError> {
        let section = key.split('.').next().unwrap_or_default();
        require(
            !matches!(section, "clock" | "measured" | "error"),
            format!("no cost follows from `{}` of a machine", key.escape_debug()),
            "set the costs themselves, for example `kernel.syscall_ns`",
        )?;
        let mut table = toml::Table::clone(&self.table);
        let number = file::number_mut(&mut table, key).ok_or_else(|| {
            let names = self.numbers.iter().map(|it| format!("{}.{}", it.section, it.key));
            let near: Vec<_> = names.filter(|name| file::is_similar(name, key)).collect();
            MachineError::Impossible {
                cause: format!("it has no number `{}`", key.escape_debug()),
                remedy: match near.join(" or ") {
                    none if none.is_empty() => "use SECTION.KEY of its file".to_owned(),
                    near => format!("use {near}"),
                },
            }
        })?;
        number.insert("value".to_owned(), value.into());
        number.insert("source".to_owned(), "set for this run".into());
        number.remove("calibrated_on");
        let file = table.clone().try_into();
        let file =
            file.map_err(|error: toml::de::Error| MachineError::Syntax(error.to_string()))?;
        let machine = Self::new(file, Arc::new(table))?;
        if key.starts_with("topology.") { Ok(machine) } else { machine.with_cpus(self.cpu_count()) }
    }

    /// All numbers of the file, with their sources.
    #[must_use]
    pub fn numbers(&self) -> &[Number] {
        &self.numbers
    }

    fn check(&self) -> Result<(), MachineError> {
        let cpus = self.topology.cpu_count();
        require(
            (1..=Key::CPUS_MAX).contains(&cpus),
            format!("it has {cpus} CPUs"),
            &format!("use between 1 and {}", Key::CPUS_MAX),
        )?;
        let tlb = &self.tlb;
        require(
            tlb.entries > 0 && tlb.ways > 0 && tlb.entries.is_multiple_of(tlb.ways),
            format!("its TLB has {} entries in {} ways", tlb.entries, tlb.ways),
            "make `tlb.entries` a multiple of `tlb.ways`, and both more than 0",
        )?;
        require(
            tlb.entries <= 1 << 20 && tlb.large_entries <= 1 << 12 && tlb.upper_entries <= 1 << 12,
            "its TLB is too large".to_owned(),
            "use at most 1048576 small entries, and 4096 large and upper entries",
        )?;
        self.check_notify_methods()?;
        require(
            self.topology.links == Links::All || self.has_far(),
            "some of its sockets have no link, and the way between them has no cost".to_owned(),
            "add the section `[far]`, or remove `socket_links`",
        )?;
        require(
            self.topology.links != Links::All || !self.has_far(),
            "it has a cost for sockets without a link, and all have one".to_owned(),
            "set `socket_links`, or remove the section `[far]`",
        )?;
        let needed = [self.kernel.timeslice, self.cache.pause, self.kernel.fault];
        require(
            !needed.contains(&Time::ZERO),
            "its timeslice, its pause or its page fault takes no time".to_owned(),
            "use times above 0: a CPU that retries in no time never ends",
        )
    }

    fn has_far(&self) -> bool {
        self.numbers.iter().any(|number| number.section == "far")
    }

    /// Checks that the number of tags is possible, and that the invalidations that other CPUs can
    /// be sent name one space.
    fn check_notify_methods(&self) -> Result<(), MachineError> {
        let tags = self.tlb.tags;
        require(
            tags <= usize::from(u16::MAX),
            format!("its TLB has {tags} tags"),
            "use at most 65535: tags have 16 bits, and tag 0 is the kernel's",
        )?;
        require(
            self.tagging != Tagging::Renamed || tags > 0,
            "its spaces are renamed and it has no tags".to_owned(),
            "set `tlb.tags` to the number of tags, or remove `tagging`",
        )?;
        let is_remote = self.broadcast.is_some() || self.remote_fence.is_some();
        require(
            !is_remote || self.tagging == Tagging::Global,
            "it invalidates a tag on other CPUs, where the tag is another space's".to_owned(),
            "set `tagging = \"global\"`, or remove `[broadcast]` and `[remote_fence]`",
        )?;
        require(
            !is_remote || self.refill == Refill::Hardware,
            "its kernel walks page tables, and other CPUs invalidate without it".to_owned(),
            "set `refill = \"hardware\"`: no CPU would wait for the refill handler",
        )?;
        require(
            self.domains.as_ref().is_none_or(|it| it.cpus > 0 && self.broadcast.is_some()),
            "it has domains without CPUs, or without broadcasts".to_owned(),
            "set `domains.cpus` to 1 or more, and add the section `[broadcast]`",
        )?;
        require(
            self.broadcast.as_ref().is_none_or(|cost| cost.pages_per_operation > 0),
            "`broadcast.pages_per_operation` is 0".to_owned(),
            "use 1 if the machine has no operations for ranges",
        )
    }
}

fn syntax(error: toml::de::Error) -> MachineError {
    MachineError::Syntax(error.to_string())
}

/// Returns [`MachineError::Impossible`] unless `holds`.
fn require(holds: bool, cause: String, remedy: &str) -> Result<(), MachineError> {
    if holds { Ok(()) } else { Err(MachineError::Impossible { cause, remedy: remedy.to_owned() }) }
}

/// Reason why a machine file was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineError {
    /// Not TOML, or unknown or missing keys; the parser's message.
    Syntax(String),
    /// A machine that cannot be simulated.
    Impossible {
        /// The impossible property, as a clause about the machine.
        cause: String,
        /// How to change the file, as an imperative.
        remedy: String,
    },
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => f.write_str(error.trim_end()),
            Self::Impossible { cause, remedy } => write!(f, "{cause}; {remedy}"),
        }
    }
}

impl core::error::Error for MachineError {}
