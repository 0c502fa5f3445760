//! A machine's description: how many CPUs, how far apart, and what each thing costs.
//!
//! Read from a TOML file (`machines/*.toml`) in which every number carries its source, and says so
//! if it was fitted to a measurement. Unknown keys are refused, and so are machines that cannot be.

mod file;
mod topology;

use core::fmt;

use crate::queue::Key;
use crate::time::Time;

pub use file::{
    Broadcast, Cache, Idle, IdleState, Interrupt, Kernel, MixedSizes, Number, Refill, RemoteFence,
    StaleWrites, Storage, Tagging, Tlb, TlbInIdle, Virtualization,
};
pub use topology::{Distance, Topology};

/// A machine that can be simulated.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What the file calls it.
    pub name: String,
    /// One sentence: what it is like.
    pub about: String,
    /// How its CPUs are arranged.
    pub topology: Topology,
    /// How tags are given to address spaces.
    pub tagging: Tagging,
    /// Who walks page tables after a miss.
    pub refill: Refill,
    /// What becomes of writes that the page tables do not know of yet.
    pub stale_writes: StaleWrites,
    /// Whether a TLB may hold translations of two sizes for one address.
    pub mixed_sizes: MixedSizes,
    /// What accesses to memory cost.
    pub cache: Cache,
    /// What is cached of page tables, and what it costs to forget it.
    pub tlb: Tlb,
    /// What interrupts cost.
    pub interrupt: Interrupt,
    /// What interrupts cost in addition where CPUs are virtual.
    pub virtualization: Option<Virtualization>,
    /// Hardware that tells every CPU's TLB, if there is any.
    pub broadcast: Option<Broadcast>,
    /// Firmware that has CPUs invalidate, if there is any.
    pub remote_fence: Option<RemoteFence>,
    /// What it takes to read and write files, if it takes anything.
    pub storage: Option<Storage>,
    /// What CPUs do when they have nothing to do.
    pub idle: Idle,
    /// What the kernel's own work costs.
    pub kernel: Kernel,
    numbers: Vec<Number>,
}

impl Machine {
    /// Reads a machine file.
    ///
    /// # Errors
    ///
    /// If it is no TOML, has unknown or missing keys, or describes a machine that cannot be.
    pub fn from_toml(text: &str) -> Result<Self, MachineError> {
        let file: file::MachineFile =
            toml::from_str(text).map_err(|error| MachineError::Syntax(error.to_string()))?;
        let numbers = file.numbers();
        for number in &numbers {
            number.check()?;
        }
        let scale = file.scale();
        let machine = Self {
            topology: file.topology(),
            tagging: file.tagging,
            refill: file.refill,
            stale_writes: file.stale_writes,
            mixed_sizes: file.mixed_sizes,
            cache: file.cache.resolve(1.0),
            tlb: file.tlb.resolve(1.0),
            interrupt: file.interrupt.resolve(scale),
            virtualization: file.virtualization.as_ref().map(|file| file.resolve(scale)),
            broadcast: file.broadcast.as_ref().map(|file| file.resolve(1.0)),
            remote_fence: file.remote_fence.as_ref().map(|file| file.resolve(scale)),
            storage: file.storage.as_ref().map(|file| file.resolve(scale)),
            idle: file.idle(),
            kernel: file.kernel.resolve(scale),
            name: file.name,
            about: file.about,
            numbers,
        };
        machine.check()?;
        Ok(machine)
    }

    /// How many CPUs it has.
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.topology.cpu_count()
    }

    /// The same machine with another number of CPUs: fewer are the first of it, more are more
    /// sockets of the same kind.
    ///
    /// # Errors
    ///
    /// If there are to be none, or more than 4096.
    pub fn with_cpus(&self, cpus: usize) -> Result<Self, MachineError> {
        let mut machine = self.clone();
        machine.topology = self.topology.resized(cpus);
        machine.check()?;
        Ok(machine)
    }

    /// Every number of the file, with its source.
    #[must_use]
    pub fn numbers(&self) -> &[Number] {
        &self.numbers
    }

    fn check(&self) -> Result<(), MachineError> {
        let cpus = self.topology.cpu_count();
        if cpus == 0 || cpus > Key::CPUS_MAX {
            return impossible(
                format!("it has {cpus} CPUs"),
                &format!("between 1 and {} can be simulated", Key::CPUS_MAX),
            );
        }
        let tlb = &self.tlb;
        if tlb.entries == 0 || tlb.ways == 0 || !tlb.entries.is_multiple_of(tlb.ways) {
            return impossible(
                format!("its TLB has {} entries in {} ways", tlb.entries, tlb.ways),
                "entries must be a multiple of ways, and not 0",
            );
        }
        if tlb.entries > 1 << 20 || tlb.large_entries > 1 << 12 || tlb.upper_entries > 1 << 12 {
            return impossible("its TLB is too large".to_owned(), "at most 1048576 entries");
        }
        self.check_notify_methods()?;
        let needed = [self.kernel.timeslice, self.cache.pause, self.kernel.fault];
        if needed.contains(&Time::ZERO) {
            return impossible(
                "its timeslice, its pause or its page fault takes no time".to_owned(),
                "a CPU that tries again in no time never ends",
            );
        }
        Ok(())
    }

    /// Whether tags are such that they can be taken, and can be named to others.
    fn check_notify_methods(&self) -> Result<(), MachineError> {
        let tags = self.tlb.tags;
        if tags > usize::from(u16::MAX) {
            return impossible(
                format!("its TLB has {tags} tags"),
                "tags have 16 bits, and 0 is the kernel's: at most 65535",
            );
        }
        if self.tagging == Tagging::Renamed && tags == 0 {
            return impossible(
                "its spaces are to be renamed and it has no tags".to_owned(),
                "give `tlb.tags` the number of them, or leave `tagging` out",
            );
        }
        let tells = self.broadcast.is_some() || self.remote_fence.is_some();
        if tells && self.tagging != Tagging::Global {
            return impossible(
                "others can be told of a tag, which is another space's there".to_owned(),
                "say `tagging = \"global\"`, or leave out `[broadcast]` and `[remote_fence]`",
            );
        }
        if tells && self.refill == Refill::Software {
            return impossible(
                "its kernel walks page tables, and others are told without it".to_owned(),
                "nobody would wait for the refill handler: say `refill = \"hardware\"`",
            );
        }
        if self.broadcast.as_ref().is_some_and(|cost| cost.pages_per_operation == 0) {
            return impossible(
                "`broadcast.pages_per_operation` is 0".to_owned(),
                "1, where there are no operations for ranges",
            );
        }
        Ok(())
    }
}

fn impossible<T>(what: String, remedy: &str) -> Result<T, MachineError> {
    Err(MachineError::Impossible { what, remedy: remedy.to_owned() })
}

/// Why a machine file was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MachineError {
    /// Not TOML, or not these keys: what the parser said.
    Syntax(String),
    /// A machine that cannot be.
    Impossible {
        /// What cannot be.
        what: String,
        /// What could.
        remedy: String,
    },
}

impl fmt::Display for MachineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => f.write_str(error.trim_end()),
            Self::Impossible { what, remedy } => write!(f, "{what}; {remedy}"),
        }
    }
}

impl core::error::Error for MachineError {}
