//! The kernel's own counters of flushes, which do not depend on tracing: the line `TLB` of
//! `/proc/interrupts` counts the flushes that each CPU performed because others requested them.

use std::fs;

use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};

use super::rings::now_ns;

/// The line of the counters.
const LINE: &str = "TLB:";

/// The counters of all CPUs at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) time_ns: u64,
    /// Each CPU with its counter.
    cpus: Vec<(u32, u64)>,
}

impl Counted {
    /// Reads the counters. Returns `None` if the kernel has none.
    pub(super) fn now() -> Option<Self> {
        let before_ns = now_ns();
        let text = fs::read_to_string("/proc/interrupts").ok()?;
        // The kernel reads the counters while it writes the text.
        let time_ns = before_ns.midpoint(now_ns());
        Some(Self { time_ns, cpus: parse(&text)? })
    }

    /// Returns the events that record the counters.
    pub(super) fn events(self) -> impl Iterator<Item = RawEvent> {
        let Self { time_ns, cpus } = self;
        cpus.into_iter().map(move |(cpu, requests)| RawEvent {
            time_ns,
            cpu,
            tid: Tid(0),
            during: During::Interrupt,
            kind: RawKind::Counted { requests },
        })
    }
}

/// Parses the line, of which each column belongs to a CPU of the first line.
fn parse(text: &str) -> Option<Vec<(u32, u64)>> {
    let mut lines = text.lines();
    let cpus = lines.next()?.split_whitespace();
    let cpus = cpus.filter_map(|word| word.strip_prefix("CPU")?.parse().ok());
    let line = lines.find_map(|line| line.trim_start().strip_prefix(LINE))?;
    let counts = line.split_whitespace().map_while(|word| word.parse().ok());
    Some(cpus.zip(counts).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_belong_to_the_cpus_of_the_first_line() {
        let text = "            CPU0       CPU3\n  0:   7   8   IO-APIC   2-edge   timer\n\
            CAL:  1 2 Function call interrupts\nTLB:    3949538    4162601   TLB shootdowns\n";
        assert_eq!(parse(text), Some(vec![(0, 3_949_538), (3, 4_162_601)]));
        assert_eq!(parse("CPU0\nIPI0: 1 Rescheduling interrupts\n"), None, "another processor");
        let counted = Counted { time_ns: 7, cpus: vec![(1, 5)] };
        let event = counted.events().next().expect("an event");
        assert_eq!((event.time_ns, event.cpu), (7, 1));
        assert_eq!(event.kind, RawKind::Counted { requests: 5 });
    }
}
