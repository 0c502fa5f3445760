//! The flushes of all programs and nothing else, for an observer that runs for days: no event of
//! switches, system calls or faults is traced, and call stacks have the kernel's part alone.

use std::convert::Infallible;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shootdown_recording::raw::RawEvent;
use shootdown_stacks::{Options, Sampler, Unwinding};

use super::decode::Decoder;
use super::error::RecordError;
use super::guard::Guard;
use super::merge::Merge;
use super::queue::Batch;
use super::rings::Rings;
use super::stacks::{CallStacks, EVENT, Placed};
use super::tracefs::{Instance, Scope, Tracefs};
use super::{symbols, tasks};

/// The size of the buffer of each CPU: a second of some 20,000 flushes.
const BUFFER_KIB: u32 = 2 << 10;

/// The tracing of flushes, until it is dropped.
pub(crate) struct Flushes {
    rings: Rings,
    instance: Instance,
    decoder: Decoder,
    sampler: Option<Sampler>,
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
        if tracefs.format(EVENT)?.is_none() {
            return Err(RecordError::NoEvent { event: EVENT });
        }
        let decoder = Decoder::new(&tracefs, symbols()?)?;
        let guard = Guard::start(vec![tracefs.instance(Scope::System)])?;
        tracefs.remove_stale();
        let events = decoder.flush_events();
        let instance = Instance::new(&tracefs, Scope::System, events, BUFFER_KIB)?;
        let rings = Rings::open(&[&instance])?;
        let options = Options {
            tracepoint: tracefs.number(EVENT)?,
            rate_hz: rate_hz.into(),
            unwinding: Unwinding::Kernel,
            debug_directories: Vec::new(),
        };
        let cpus: Vec<_> = rings.cpus().collect();
        let sampler = Sampler::start(&options, &cpus, || {});
        let sampler = sampler.map_err(RecordError::system("sampling of call stacks"))?;
        instance.start()?;
        Ok(Self { rings, instance, decoder, sampler: Some(sampler), _guard: guard })
    }

    /// Calls `seen` with each event, and with the call stacks of flushes, until `seen` returns
    /// `false` for `None`, which it gets after each pass through the buffers.
    ///
    /// # Errors
    ///
    /// If a buffer cannot be read.
    pub(crate) fn watch(
        mut self,
        mut seen: impl FnMut(Option<RawEvent>) -> bool,
    ) -> Result<(), RecordError> {
        let mut merge = Merge::new(self.rings.cpus(), self.rings.format(), &self.decoder);
        let mut stacks = CallStacks::new(self.sampler.take());
        loop {
            let (Batch { pages, complete_to_ns, .. }, _) = self.rings.read()?;
            let is_idle = pages.is_empty();
            for (stream, page) in pages {
                merge.add(stream, page);
            }
            if !is_idle {
                stacks.collect();
            }
            let Ok(()) = merge.emit_until(complete_to_ns, |event| -> Result<(), Infallible> {
                let Placed { before, after, .. } = stacks.place(&event);
                for event in [before, Some(event), after] {
                    if event.is_some() {
                        seen(event);
                    }
                }
                Ok(())
            });
            if !seen(None) {
                return self.instance.stop();
            }
            self.wait();
        }
    }

    /// Waits until a buffer is a quarter full, and for at most a tenth of a second.
    fn wait(&self) {
        let mut fds: Vec<_> =
            self.rings.fds().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let patience = Duration::from_millis(100);
        let patience = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
        // An error is one of the next read as well.
        let _ = poll(&mut fds, Some(&patience));
    }
}
