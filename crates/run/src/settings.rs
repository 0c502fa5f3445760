//! The settings of a run: the machine's memory and its management, the limits at which the run
//! ends, and the checks.

use shootdown_program::operation::OnFault;
use shootdown_sim::Time;

use crate::contents::ContentsModel;

/// The settings of a run, besides its machine, its workload and its design.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The memory of the machine, and its management.
    pub memory: Memory,
    /// Number of free frames of a node below which its reclaim thread starts. The thread stops when
    /// twice as many are free; a thread that finds no free frame reclaims pages itself. `None` for
    /// one frame in 64.
    ///
    /// In Linux, this is the distance between two of a zone's watermarks: a quarter of
    /// `min_free_kbytes`, which grows with the square root of memory. A run with less memory than
    /// the machine that it represents needs the number of that machine.
    pub kept_free_frames: Option<usize>,
    /// The limits at which the run ends with an error.
    pub limits: Limits,
    /// Creates the model with which every word that is read is compared, and all words at the end
    /// of a process and of the run; `None` for no such checks. Runs with a model take about three
    /// times as long. They also take simulated time after the end of the measurement, to read
    /// files.
    pub contents: Option<fn() -> Box<dyn ContentsModel>>,
    /// The consequence of refused accesses and changes.
    pub on_fault: OnFault,
    /// The seed of the [jitter](shootdown_sim::Sim::set_jitter) of start times and costs; `None`
    /// for no jitter.
    pub jitter: Option<u64>,
}

impl Settings {
    /// The default of each part: enough memory, contents unchecked, and refusals are fatal.
    pub const DEFAULT: Self = Self {
        memory: Memory::DEFAULT,
        kept_free_frames: None,
        limits: Limits::DEFAULT,
        contents: None,
        on_fault: OnFault::Fatal,
        jitter: None,
    };
}

/// The memory of the machine, and its management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Number of frames of 4 KiB.
    pub frames: usize,
    /// Number of nodes that the frames and the sockets are divided among. With one node, every
    /// frame is near every CPU.
    pub nodes: usize,
    /// The supply of free frames.
    pub supply: Supply,
}

impl Memory {
    /// 16 GiB in one node, which is enough.
    pub const DEFAULT: Self = Self::of_frames(4 << 20);

    /// Returns memory of this many frames in one node, which is enough.
    #[must_use]
    pub const fn of_frames(frames: usize) -> Self {
        Self { frames, nodes: 1, supply: Supply::Enough }
    }
}

/// The supply of free frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Supply {
    /// There is enough memory. A run that needs more fails. The memory manager does not record
    /// where pages are mapped, so it cannot move them.
    #[default]
    Enough,
    /// Pages are reclaimed when memory is short, and files are stored on a device.
    Reclaimed,
    /// As [`Reclaimed`](Self::Reclaimed). In addition, a fault in a file reads and maps the pages
    /// around it, as in Linux.
    ReclaimedReadAhead,
}

/// The limits at which a run ends with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of threads that exist at the same time.
    pub threads: usize,
    /// Largest simulated time.
    pub time: Time,
}

impl Limits {
    /// 4096 threads and one hour.
    pub const DEFAULT: Self = Self { threads: 4096, time: Time::from_ms(3_600_000) };
}
