//! A machine's description: how many CPUs, how far apart, and what each thing costs.
//!
//! Read from a TOML file (`machines/*.toml`) in which every number carries its source, and says so
//! if it was fitted to a measurement. Unknown keys are refused, and so are machines that cannot be.

mod file;
mod topology;

use core::fmt;

use crate::queue::Key;
use crate::time::Time;

pub use file::{Cache, Idle, IdleState, Interrupt, Kernel, Number, Tlb, TlbInIdle, Virtualization};
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
    /// What accesses to memory cost.
    pub cache: Cache,
    /// What is cached of page tables, and what it costs to forget it.
    pub tlb: Tlb,
    /// What interrupts cost.
    pub interrupt: Interrupt,
    /// What interrupts cost in addition where CPUs are virtual.
    pub virtualization: Option<Virtualization>,
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
            cache: file.cache.resolve(1.0),
            tlb: file.tlb.resolve(1.0),
            interrupt: file.interrupt.resolve(scale),
            virtualization: file.virtualization.as_ref().map(|file| file.resolve(scale)),
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
        let impossible = |what: String, remedy: &str| {
            Err(MachineError::Impossible { what, remedy: remedy.to_owned() })
        };
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
        let needed = [self.kernel.timeslice, self.cache.pause, self.kernel.fault];
        if needed.contains(&Time::ZERO) {
            return impossible(
                "its timeslice, its pause or its page fault takes no time".to_owned(),
                "a CPU that tries again in no time never ends",
            );
        }
        Ok(())
    }
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
