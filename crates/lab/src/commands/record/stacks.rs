//! The call stacks of flush requests, and the traced events that they belong to.

use std::collections::{BTreeSet, VecDeque};

use clap::{Args, ValueEnum};
use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};
use shootdown_recording::record::FlushReason;
use shootdown_stacks::{Options, Sample, Sampler, Symbols, Unwinding};

use super::error::RecordError;
use super::priority;
use super::tracefs::Tracefs;
use super::user::User;

/// The event whose stacks are sampled.
const EVENT: &str = "tlb/tlb_flush";
/// Largest time by which a sample may be older than its event. Both tracers of the kernel run
/// within the event, and the sampler, which starts later, runs second.
const OLDER_NS: u64 = 1000;

/// The options of call stacks, which several commands share.
#[derive(Args, Clone, Debug)]
pub(crate) struct StackOptions {
    /// How to follow the stacks of programs that request flushes
    ///
    /// `dwarf` copies stacks and unwinds them with the tables for exceptions, which all compilers
    /// write. `fp` follows frame pointers, and costs less. [default: dwarf, if the kernel allows]
    #[arg(long, value_enum, value_name = "HOW")]
    stacks: Option<How>,
    /// The largest number of stacks per second and CPU
    #[arg(long, value_name = "N", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    stack_rate: u32,
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
        Some(Options { tracepoint, rate_hz: self.stack_rate.into(), unwinding })
    }
}

/// The sampled stacks.
#[derive(Debug, Default)]
pub(super) struct CallStacks {
    sampler: Option<Sampler>,
    symbols: Symbols,
    /// The samples of each CPU that belong to no event yet, in the order of time.
    samples: Vec<VecDeque<Sample>>,
    /// Number of samples whose event is not in the recording.
    unmatched: u64,
    /// The last flush request of each CPU whose sample was not found yet: its time and thread.
    requested: Vec<Option<(u64, Tid)>>,
    /// The thread that each CPU was sampling at its last event.
    sampling: Vec<Option<Tid>>,
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
        for sample in samples {
            let cpu = sample.cpu as usize;
            if self.samples.len() <= cpu {
                self.samples.resize_with(cpu + 1, VecDeque::new);
            }
            self.samples[cpu].push_back(sample);
        }
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
        self.sampler.as_ref().map_or(0, Sampler::lost) + self.unmatched
    }

    /// Returns the call stack of the last flush request of the event's CPU, if that was sampled
    /// before `event`. Call this, and then [`caused`](Self::caused), with each event in order.
    pub(super) fn before(&mut self, event: &RawEvent) -> Option<RawEvent> {
        let cpu = event.cpu as usize;
        let (at_ns, tid) = self.requested.get(cpu).copied().flatten()?;
        let samples = self.samples.get_mut(cpu)?;
        while samples.front().is_some_and(|it| it.time_ns.saturating_add(OLDER_NS) < at_ns) {
            self.unmatched += 1;
            samples.pop_front();
        }
        let sample = *samples.front()?;
        if sample.time_ns >= event.time_ns || Tid(sample.thread) != tid {
            return None;
        }
        samples.pop_front();
        self.requested[cpu] = None;
        self.sampling.resize(self.sampling.len().max(cpu + 1), None);
        self.sampling[cpu] = Some(tid);
        let frames = self.symbols.frames(self.sampler.as_ref()?, sample.stack);
        let kind = RawKind::Stack { frames, requests: sample.requests };
        Some(RawEvent { time_ns: at_ns, cpu: event.cpu, tid, during: During::Task, kind })
    }

    /// Returns `true` if sampling caused an event: the kernel reads the stack of the thread, and
    /// may fault beyond its end.
    pub(super) fn caused(&mut self, event: &RawEvent) -> bool {
        let cpu = event.cpu as usize;
        let is_request = matches!(event.kind, RawKind::Flush { reason: FlushReason::Request, .. });
        if is_request && self.sampler.is_some() {
            self.requested.resize(self.requested.len().max(cpu + 1), None);
            self.requested[cpu] = Some((event.time_ns, event.tid));
        }
        let Some(sampling) = self.sampling.get_mut(cpu) else { return false };
        let is_fault = matches!(event.kind, RawKind::Fault { code, .. } if !code.is_user());
        if is_fault && *sampling == Some(event.tid) {
            return true;
        }
        if event.during == During::Task {
            *sampling = None;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_recording::record::FaultCode;

    fn event(time_ns: u64, kind: RawKind) -> RawEvent {
        RawEvent { time_ns, cpu: 0, tid: Tid(7), during: During::Task, kind }
    }

    #[test]
    fn only_faults_of_the_kernel_while_sampling_are_ours() {
        let mut stacks = CallStacks { sampling: vec![Some(Tid(7))], ..CallStacks::default() };
        let fault = |code| event(0, RawKind::Fault { address: 0x1000, code: FaultCode(code) });
        let interrupt = RawEvent { during: During::Interrupt, ..event(0, RawKind::Exit) };
        assert!(!stacks.caused(&interrupt), "it may interrupt the sampling");
        assert!(stacks.caused(&fault(0)) && stacks.caused(&fault(0)));
        assert!(!stacks.caused(&fault(4)), "the program goes on");
        assert!(!stacks.caused(&fault(0)));
    }

    #[test]
    fn sample_belongs_to_the_last_request_before_it() {
        let mut stacks =
            CallStacks { requested: vec![Some((5000, Tid(7)))], ..CallStacks::default() };
        let sample = |time_ns, thread| Sample { time_ns, thread, ..Sample::default() };
        stacks.samples = vec![VecDeque::from([sample(100, 7), sample(9000, 7)])];
        assert!(stacks.before(&event(8000, RawKind::Exit)).is_none(), "the sample is later");
        assert_eq!((stacks.unmatched, stacks.samples[0].len()), (1, 1), "the first is too old");
        assert_eq!(stacks.requested[0], Some((5000, Tid(7))));
        stacks.requested[0] = Some((5000, Tid(8)));
        assert!(stacks.before(&event(9500, RawKind::Exit)).is_none(), "another thread");
        assert_eq!(stacks.samples[0].len(), 1);
    }

    #[test]
    fn requests_without_samples_have_no_stack() {
        let mut stacks = CallStacks::default();
        let request = RawKind::Flush { reason: FlushReason::Request, pages: None };
        assert!(!stacks.caused(&event(0, request)));
        assert!(stacks.before(&event(9, RawKind::Exit)).is_none());
    }
}
