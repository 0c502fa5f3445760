//! The load: the text that `shootdown boot` puts into memory to describe a run. It is a line
//! `shootdown-load N`, where N is the number of all bytes with this line; lines of `name=value`; an
//! empty line; and the bytes of the workload.

use core::str::{self, FromStr};

use shootdown_program::OnFault;
use shootdown_vm::PAGE_BYTES;

use crate::kernel::arch::{Arch, Architecture};

/// Defines the values of parameters, each with its name in the load, if the load can have it.
macro_rules! choices {
    ($($(#[$doc:meta])* $choice:ident {
        $($(#[$of:meta])* $variant:ident $(= $name:literal)?,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $choice { $($(#[$of])* $variant,)* }

        impl $choice {
            fn parse(name: &str) -> Option<Self> {
                match name {
                    $($($name => Some(Self::$variant),)?)*
                    _ => None,
                }
            }
        }
    )*};
}

choices! {
    /// What the kernel does.
    Mode {
        /// Tests the architecture.
        Smoke = "smoke",
        /// Tests the architecture, then whether this machine shows faults in the engine.
        FaultInjection = "trials",
        /// Tests whether this machine shows faults in the engine of a hypervisor.
        Guests = "guests",
        /// Runs a workload.
        Workload = "workload",
    }

    /// How a flush notifies other CPUs.
    Notify {
        /// As the architecture's processor does by default.
        ByDefault = "default",
        /// By broadcasts where they cost less than interrupts, if the machine has them.
        ByBroadcasts = "broadcasts",
        /// As by default, and CPUs answer before they invalidate pages.
        WithEarlyAnswers = "early-answers",
    }

    /// The flushes of pages that the kernel reclaims when memory is short.
    Reclaim {
        /// The kernel reclaims nothing, and files stay in memory.
        Never,
        /// One flush for each page.
        PerPage = "per-page",
        /// One flush for many pages.
        Batched = "batched",
        /// No flush, except of the page with the user code: a fault, which must show as wrong
        /// words.
        Unflushed = "unflushed",
    }

    /// The release of pages that `madvise` discards.
    DiscardMode {
        /// Later, after one flush and a test for zeros.
        InPlace = "in-place",
        /// In the call, which flushes.
        Immediate = "immediate",
        /// Later, whether or not the pages are zero: a fault, which must show as wrong words.
        Untested = "untested",
        /// Later, without a flush: a fault, which must show as wrong words.
        Unflushed = "unflushed",
    }

    /// The page tables that CPUs load.
    Replicas {
        /// All CPUs that run a space load the same tables.
        Never,
        /// Each CPU loads upper tables of its own where that saves more than it costs.
        IfWorth = "if-worth",
        /// Each CPU loads upper tables of its own from its first fault on.
        Always = "always",
        /// As `Always`, and flushes leave out the replicas of other CPUs: a fault, which must show
        /// as wrong words.
        Unflushed = "unflushed",
    }
}

/// Address of the user code in every process, below the addresses that workloads use.
pub(crate) const USER_CODE_START: u64 = 16 * PAGE_BYTES;

/// Parameters of a workload's run and of its scheduler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Number of CPUs.
    pub(crate) cpus: u32,
    /// The timeslice of a thread.
    pub(crate) slice_ns: u64,
    /// The longest time between two timer interrupts of a CPU that runs a thread. An emulator that
    /// counts instructions switches to another CPU at a timer interrupt at the latest: with shorter
    /// ticks, the CPUs interleave more finely.
    pub(crate) tick_ns: u64,
    /// Time without progress after which the run is aborted.
    pub(crate) stall_ns: u64,
    /// Number of frames for pages and page tables, if there are as many.
    pub(crate) frames: u64,
    /// The flushes of reclaimed pages.
    pub(crate) reclaim: Reclaim,
    /// The release of pages that are discarded.
    pub(crate) discards: DiscardMode,
    /// The page tables that CPUs load.
    pub(crate) replicas: Replicas,
    /// How other CPUs are notified.
    pub(crate) notify: Notify,
}

impl Notify {
    /// The processor that notifies other CPUs in this way.
    pub(crate) fn processor(self) -> <Arch as Architecture>::Processor {
        match self {
            Self::ByDefault | Self::WithEarlyAnswers => Arch::processor(),
            Self::ByBroadcasts => Arch::broadcasting_processor(),
        }
    }
}

/// A parsed load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) mode: Mode,
    pub(crate) settings: Settings,
    /// The consequence of a refused access: `refusals` is `fatal` or `survived`.
    pub(crate) on_fault: OnFault,
    /// Number of flushes of each CPU in a storm, or of runs of each path.
    pub(crate) rounds: u64,
    /// The bytes of the workload.
    pub(crate) rest: &'static [u8],
}

/// A line that cannot be parsed.
pub(crate) struct BadLine(pub(crate) &'static [u8]);

impl Load {
    /// The values of parameters that the load does not set.
    const DEFAULT: Self = Self {
        mode: Mode::Smoke,
        settings: Settings {
            cpus: 1,
            slice_ns: 3_000_000,
            tick_ns: 100_000_000,
            stall_ns: 20_000_000_000,
            frames: u64::MAX,
            reclaim: Reclaim::Never,
            discards: DiscardMode::InPlace,
            replicas: Replicas::Never,
            notify: Notify::ByDefault,
        },
        on_fault: OnFault::Fatal,
        rounds: 40,
        rest: &[],
    };

    /// Parses a load. Without bytes, all parameters have default values.
    ///
    /// # Errors
    ///
    /// Returns the first line with an unknown name or an invalid value.
    pub(crate) fn parse(bytes: &'static [u8]) -> Result<Self, BadLine> {
        let mut load = Self::DEFAULT;
        let head = bytes.windows(2).position(|pair| pair == b"\n\n").unwrap_or(bytes.len());
        load.rest = bytes.get(head + 2..).unwrap_or_default();
        // The first line is the one with the length.
        for line in bytes[..head].split(|byte| *byte == b'\n').skip(1) {
            load.set(line).ok_or(BadLine(line))?;
        }
        Ok(load)
    }

    /// Sets the parameter of a line. Returns `None` if the name is unknown or the value invalid.
    fn set(&mut self, line: &[u8]) -> Option<()> {
        fn number<N: FromStr>(text: &str) -> Option<N> {
            text.parse().ok()
        }
        let (name, value) = str::from_utf8(line).ok()?.split_once('=')?;
        let settings = &mut self.settings;
        match name {
            "mode" => self.mode = Mode::parse(value)?,
            "cpus" => settings.cpus = number(value).filter(|cpus| (1..=64).contains(cpus))?,
            "slice_ns" => settings.slice_ns = number(value).filter(|ns| *ns > 0)?,
            "tick_ns" => settings.tick_ns = number(value).filter(|ns| *ns > 0)?,
            "stall_ns" => settings.stall_ns = number(value).filter(|ns| *ns > 0)?,
            "frames" => settings.frames = number(value)?,
            "reclaim" => settings.reclaim = Reclaim::parse(value)?,
            "discards" => settings.discards = DiscardMode::parse(value)?,
            "replicas" => settings.replicas = Replicas::parse(value)?,
            "notify" => settings.notify = Notify::parse(value)?,
            "rounds" => self.rounds = number(value)?,
            "refusals" => {
                self.on_fault = match value {
                    "fatal" => OnFault::Fatal,
                    "survived" => OnFault::Survived,
                    _ => return None,
                }
            }
            // The host then reports that the kernel does not know the parameter.
            _ => return None,
        }
        Some(())
    }
}
