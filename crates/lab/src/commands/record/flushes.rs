//! The flushes of all programs and nothing else, for an observer that runs for days: no switch,
//! wake-up, system call or fault has one of the events, and call stacks have the kernel's part
//! alone.

use std::convert::Infallible;
use std::thread;
use std::time::Duration;

use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};
use shootdown_stacks::{Options, Sampler, Symbols, Unwinding};

use super::decode::{self, Decoder};
use super::error::RecordError;
use super::guard::Guard;
use super::merge::Merge;
use super::queue::Batch;
use super::rings::Rings;
use super::tracefs::{Instance, Scope, Tracefs};
use super::{Purpose, symbols, tasks};

/// The size of the buffer of each CPU: some 20,000 flushes.
const BUFFER_KIB: u32 = 2 << 10;
/// The time between two looks into the buffers.
const PAUSE: Duration = Duration::from_millis(250);

/// The tracing of flushes, until it is dropped.
pub(crate) struct Flushes {
    rings: Rings,
    decoder: Decoder,
    sampler: Sampler,
    /// Removes the instance when it is dropped, after the files of the instance are closed.
    _guard: Guard,
}

impl Flushes {
    /// Starts tracing, with at most `rate_hz` call stacks per second and CPU.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or lacks the events.
    pub(crate) fn start(rate_hz: u32) -> Result<Self, RecordError> {
        tasks::refuse_namespace()?;
        let tracefs = Tracefs::find()?;
        let symbols = symbols()?;
        let filter = symbols.filter();
        let decoder = Decoder::new(decode::FLUSHES, &tracefs, symbols)?;
        let guard = Guard::start(vec![tracefs.instance(Scope::System)])?;
        tracefs.remove_stale();
        let filtered = |event: &str| event.starts_with("csd/").then(|| filter.clone());
        let events = decoder.events(Scope::System, Purpose::Keep).into_iter();
        let events = events.map(|(event, _)| (event, filtered(event))).collect();
        let instance = Instance::new(&tracefs, Scope::System, events, BUFFER_KIB)?;
        let rings = Rings::open(&[&instance])?;
        let options = Options {
            tracepoint: tracefs.number(decode::OPTIONAL)?,
            filter,
            rate_hz: rate_hz.into(),
            unwinding: Unwinding::Kernel,
            debug_directories: Vec::new(),
        };
        let cpus: Vec<_> = rings.cpus().collect();
        let sampler = Sampler::start(&options, &cpus, || {});
        let sampler = sampler.map_err(RecordError::system("sampling of call stacks"))?;
        instance.start()?;
        Ok(Self { rings, decoder, sampler, _guard: guard })
    }

    /// Calls `seen` with each event, and with the sampled call stacks, in the order of time, until
    /// `seen` returns `false` for `None`, which it gets after each look into the buffers.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be read.
    pub(crate) fn watch(
        mut self,
        mut seen: impl FnMut(Option<RawEvent>) -> bool,
    ) -> Result<(), RecordError> {
        let mut merge = Merge::new(self.rings.cpus(), self.rings.format(), &self.decoder);
        let mut names = Symbols::new();
        loop {
            let (Batch { pages, complete_to_ns, .. }, _) = self.rings.read()?;
            if !pages.is_empty() {
                self.sampler.synchronize();
            }
            for (stream, page) in pages {
                merge.add(stream, page);
            }
            let mut samples = self.sampler.take();
            samples.sort_by_key(|sample| sample.time_ns);
            let stacks = samples.into_iter().map(|sample| {
                let frames = names.frames(&self.sampler, sample.stack);
                let kind = RawKind::Stack { frames, requests: sample.requests };
                let (tid, during) = (Tid(sample.thread), During::Task);
                RawEvent { time_ns: sample.time_ns, cpu: sample.cpu, tid, during, kind }
            });
            let mut stacks = stacks.peekable();
            let Ok(()) = merge.emit_until(complete_to_ns, |event| -> Result<(), Infallible> {
                while let Some(stack) = stacks.next_if(|stack| stack.time_ns < event.time_ns) {
                    seen(Some(stack));
                }
                seen(Some(event));
                Ok(())
            });
            for stack in stacks {
                seen(Some(stack));
            }
            if !seen(None) {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
    }
}
