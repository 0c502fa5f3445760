//! The recorded requests of all programs, held against the kernel's own counters.

use std::collections::HashMap;

use shootdown_recording::record::{Event, FlushReason};

/// The largest difference that is not reported, in percent of the kernel's count, and the largest
/// that is due to the time in which the counters are read.
const PERCENT: u64 = 2;
const REQUESTS: u64 = 10;

/// The flush requests of all programs between the beginning and the end of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Number of requests in the recording.
    pub recorded: u64,
    /// Number of requests that the kernel counted.
    pub counted: u64,
    /// `true` if the recording has interrupts or flushes instead of requests. One interrupt may
    /// serve several requests.
    pub is_of_interrupts: bool,
}

impl Balance {
    /// Returns `true` if the numbers differ by more than 2 %, and by more than 10.
    #[must_use]
    pub fn is_off(&self) -> bool {
        let off = self.recorded.abs_diff(self.counted);
        off > REQUESTS && off * 100 > PERCENT * self.counted
    }
}

/// The counters of the kernel, and of the records.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// The kernel's first counter of each CPU.
    first: HashMap<u32, u64>,
    /// The kernel's last counter of each CPU that had one before.
    last: HashMap<u32, u64>,
    requests: Span,
    interrupts: Span,
    flushed: Span,
}

/// A number that grows, now and when the kernel's counters were recorded.
#[derive(Clone, Copy, Debug, Default)]
struct Span {
    now: u64,
    at_first: u64,
    at_last: u64,
}

impl Counters {
    /// Adds a record.
    pub(crate) fn record(&mut self, cpu: u32, event: &Event) {
        match event {
            Event::Requests { targets } => self.requests.now += targets.len() as u64,
            Event::Interrupts { targets } => self.interrupts.now += targets.len() as u64,
            Event::Flush { reason: FlushReason::Remote, .. } => self.flushed.now += 1,
            Event::Counted { requests } => {
                let is_first = !self.first.contains_key(&cpu);
                let counters = if is_first { &mut self.first } else { &mut self.last };
                counters.insert(cpu, *requests);
                for span in [&mut self.requests, &mut self.interrupts, &mut self.flushed] {
                    let at = if is_first { &mut span.at_first } else { &mut span.at_last };
                    *at = span.now;
                }
            }
            _ => {}
        }
    }

    /// Returns the comparison; `None` if the recording lacks the kernel's counters.
    pub(crate) fn balance(&self) -> Option<Balance> {
        let grown = |(cpu, last): (&u32, &u64)| last.saturating_sub(self.first[cpu]);
        let is_of_interrupts = self.requests.now == 0;
        let spans = [self.requests, self.interrupts];
        let span = spans.into_iter().find(|span| span.now > 0).unwrap_or(self.flushed);
        (!self.last.is_empty()).then(|| Balance {
            recorded: span.at_last - span.at_first,
            counted: self.last.iter().map(grown).sum(),
            is_of_interrupts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_between_the_counters_are_compared() {
        let mut counters = Counters::default();
        let requests = || Event::Requests { targets: vec![0, 1] };
        let counted = |counters: &mut Counters, counts: [u64; 2]| {
            for (cpu, requests) in (0..).zip(counts) {
                counters.record(cpu, &Event::Counted { requests });
            }
        };
        counters.record(0, &requests());
        counted(&mut counters, [100, 200]);
        assert_eq!(counters.balance(), None, "there is no end");
        counters.record(0, &requests());
        counters.record(1, &Event::Interrupts { targets: vec![0] });
        counted(&mut counters, [101, 202]);
        counters.record(0, &requests());
        let balance = Balance { recorded: 2, counted: 3, is_of_interrupts: false };
        assert_eq!(counters.balance(), Some(balance));
    }

    #[test]
    fn two_percent_and_ten_requests_may_be_missing() {
        let is_off =
            |recorded, counted| Balance { recorded, counted, is_of_interrupts: false }.is_off();
        assert!(!is_off(980, 1000) && is_off(979, 1000) && is_off(1021, 1000));
        assert!(!is_off(0, 10) && is_off(0, 11));
    }
}
