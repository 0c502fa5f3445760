//! The call stacks of flush requests, and the traced events that they belong to.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};
use shootdown_stacks::{Options, Sample, Sampler, Symbols, Unwinding};

use super::error::RecordError;
use super::matching::{Matched, Matching};
use super::priority;
use super::tracefs::Tracefs;
use super::user::User;

/// The event whose stacks are sampled.
const EVENT: &str = "tlb/tlb_flush";
/// The reason `remote IPI send`: a CPU requests a flush from other CPUs.
const FILTER: &str = "reason==4";
/// The options of call stacks, which several commands share.
#[derive(Args, Clone, Debug)]
pub(crate) struct StackOptions {
    /// How to follow the stacks of programs that request flushes
    ///
    /// `dwarf` copies stacks and unwinds them with `.eh_frame`, which all compilers write. `fp`
    /// follows frame pointers, and costs less. [default: dwarf, if the kernel allows]
    #[arg(long, value_enum, value_name = "HOW")]
    stacks: Option<How>,
    /// The largest number of stacks per second and CPU
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    stack_rate: u32,
    /// A directory with the debug data of stripped programs and libraries, by build ID, besides
    /// /usr/lib/debug; can be given several times
    ///
    /// If DEBUGINFOD_URLS names servers, `debuginfod-find` is asked as well.
    #[arg(long, value_name = "PATH")]
    debug_dir: Vec<PathBuf>,
}

/// The values of `--stacks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum How {
    Dwarf,
    Fp,
    None,
}

impl StackOptions {
    /// Returns the largest number of stacks per second and CPU; `None` if the user wants no stacks.
    pub(crate) fn rate_hz(&self) -> Option<u64> {
        (self.stacks != Some(How::None)).then(|| self.stack_rate.into())
    }

    /// Returns the options of a sampler; `None` if the user wants no stacks.
    pub(crate) fn of_sampler(&self, tracepoint: u64) -> Option<Options> {
        let unwinding = match self.stacks {
            None | Some(How::Dwarf) => Unwinding::Dwarf,
            Some(How::Fp) => Unwinding::FramePointers,
            Some(How::None) => return None,
        };
        let debug_directories = self.debug_dir.clone();
        let filter = FILTER.to_owned();
        Some(Options {
            tracepoint,
            filter,
            rate_hz: self.stack_rate.into(),
            unwinding,
            debug_directories,
        })
    }
}

/// The sampled stacks.
#[derive(Debug, Default)]
pub(super) struct CallStacks {
    sampler: Option<Sampler>,
    symbols: Symbols,
    matching: Matching,
}

/// The place of an event among the stacks.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// The stack of the last request before the event.
    pub(super) before: Option<RawEvent>,
    /// The stack of the event, which is a request.
    pub(super) after: Option<RawEvent>,
    /// `true` if sampling caused the event: the kernel reads the stack of the thread, and may fault
    /// beyond its end.
    pub(super) is_caused: bool,
}

/// Starts sampling on the CPUs of `streams`. Returns `None` if the user wants no stacks.
///
/// # Errors
///
/// If the kernel refuses, and the user asked for stacks. Otherwise, prints a note.
pub(super) fn start(
    options: &StackOptions,
    tracefs: &Tracefs,
    streams: Vec<u32>,
    user: &User,
) -> Result<Option<Sampler>, RecordError> {
    if tracefs.format(EVENT)?.is_none() {
        return Ok(None);
    }
    let Some(of_sampler) = options.of_sampler(tracefs.number(EVENT)?) else { return Ok(None) };
    // A CPU has a stream in each instance of tracing.
    let cpus: Vec<_> = BTreeSet::from_iter(streams).into_iter().collect();
    let prepare = || {
        // Without the right to do so, the sampler may be late, and lost samples are counted.
        let _ = priority::raise();
    };
    match Sampler::start(&of_sampler, &cpus, prepare) {
        Ok(sampler) => Ok(Some(sampler)),
        Err(error) if options.stacks.is_some() => {
            Err(RecordError::System { what: "sampling of call stacks", error })
        }
        Err(error) => {
            user.note(&format!("without call stacks: {error}"));
            Ok(None)
        }
    }
}

impl CallStacks {
    /// Returns the stacks of a sampler, or none.
    pub(super) fn new(sampler: Option<Sampler>) -> Self {
        let symbols = if sampler.is_some() { Symbols::new() } else { Symbols::default() };
        Self { sampler, symbols, ..Self::default() }
    }

    /// Takes the samples of all requests up to now.
    pub(super) fn collect(&mut self) {
        let Some(sampler) = &mut self.sampler else { return };
        sampler.synchronize();
        let mut samples = sampler.take();
        samples.sort_by_key(|sample| sample.time_ns);
        samples.into_iter().for_each(|sample| self.matching.add(sample));
    }

    /// Returns the names of calls that were recorded without, if some are known now: some JIT
    /// compilers write them when the program ends.
    pub(super) fn late_names(&mut self) -> Option<RawEvent> {
        let kind = RawKind::Names { names: self.symbols.late_names() };
        // The assembler replaces the time by that of the last event.
        let event = RawEvent { time_ns: 0, cpu: 0, tid: Tid(0), during: During::Interrupt, kind };
        (!matches!(&event.kind, RawKind::Names { names } if names.is_empty())).then_some(event)
    }

    /// Number of samples that were lost, or whose events were.
    pub(super) fn lost(&self) -> u64 {
        self.sampler.as_ref().map_or(0, Sampler::lost) + self.matching.unmatched
    }

    /// Places an event among the stacks. Call this with each event in order.
    pub(super) fn place(&mut self, event: &RawEvent) -> Placed {
        let Matched { before, after, is_caused } = self.matching.place(event);
        let mut stack = |(time_ns, sample): (u64, Sample)| {
            let frames = self.symbols.frames(self.sampler.as_ref()?, sample.stack);
            let kind = RawKind::Stack { frames, requests: sample.requests };
            let (cpu, tid, during) = (event.cpu, Tid(sample.thread), During::Task);
            Some(RawEvent { time_ns, cpu, tid, during, kind })
        };
        let before = before.and_then(&mut stack);
        let after = after.and_then(|sample| stack((event.time_ns, sample)));
        Placed { before, after, is_caused }
    }
}
