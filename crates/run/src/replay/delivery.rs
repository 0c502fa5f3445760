//! The times that the recorded machine took for the parts of a flush.
//!
//! How late an interrupt arrives is a property of the machine: of its interconnect, of a hypervisor
//! that runs other CPUs first, of code that masks interrupts. The CPUs of an emulated machine that
//! has more of them than the host arrive late by a millisecond once, and a microsecond the next
//! time. Which requests coalesce, and which targets have missed two flushes, follows from that, so
//! a replay takes each interrupt as late as the recorded one that was sent to the same CPU at about
//! the same time.

use std::collections::HashMap;

use shootdown_recording::record::{Event, FlushReason, Record};

/// Measures the parts of flushes.
#[derive(Default)]
pub(super) struct FlushTimes {
    /// For each CPU that was asked to flush, when and by which CPU.
    asked: HashMap<u32, (u64, u32)>,
    /// For each CPU to which an interrupt is on its way, when it was sent and by which CPU.
    interrupted: HashMap<u32, (u64, u32)>,
    /// For each CPU that requested a flush and has not flushed itself since, when, and when it sent
    /// an interrupt.
    began: HashMap<u32, (u64, Option<u64>)>,
    asked_ns: Vec<u64>,
    requested_ns: Vec<u64>,
    sent_ns: Vec<u64>,
    deliveries: Deliveries,
}

impl FlushTimes {
    pub(super) fn record(&mut self, record: &Record, is_recorded: bool) {
        let (cpu, now_ns) = (record.cpu, record.time_ns);
        match &record.event {
            Event::Requests { targets } | Event::Interrupts { targets } if is_recorded => {
                self.asked.extend(targets.iter().map(|&target| (target, (now_ns, cpu))));
                if matches!(record.event, Event::Interrupts { .. }) {
                    self.began.entry(cpu).or_insert((now_ns, None)).1 = Some(now_ns);
                    for &target in targets {
                        self.interrupted.entry(target).or_insert((now_ns, cpu));
                    }
                }
            }
            Event::Flush { reason: FlushReason::Request, .. } if is_recorded => {
                self.began.insert(cpu, (now_ns, None));
            }
            Event::Flush { reason: FlushReason::Remote, .. } => {
                if let Some((at_ns, _)) = self.asked.remove(&cpu) {
                    self.asked_ns.push(now_ns - at_ns);
                }
                if let Some((at_ns, _)) = self.interrupted.remove(&cpu) {
                    self.deliveries.add(cpu, at_ns, now_ns - at_ns);
                }
            }
            Event::Flush { reason: FlushReason::LocalSpace, .. } => {
                if let Some((requested_ns, Some(sent_ns))) = self.began.remove(&cpu) {
                    self.requested_ns.push(now_ns - requested_ns);
                    self.sent_ns.push(now_ns - sent_ns);
                }
            }
            _ => {}
        }
    }

    /// A CPU does not wait for others any more: those of its targets that left no record of a flush
    /// had caught up, or left the space, before the interrupt arrived.
    pub(super) fn stopped_waiting(&mut self, cpu: u32, now_ns: u64) {
        self.asked.retain(|_, (_, sender)| *sender != cpu);
        self.began.remove(&cpu);
        let Self { interrupted, deliveries, .. } = self;
        interrupted.retain(|&target, &mut (at_ns, sender)| {
            if sender == cpu {
                deliveries.add(target, at_ns, now_ns - at_ns);
            }
            sender != cpu
        });
    }

    /// Returns the median of the times from a request to the flush of its target.
    pub(super) fn delivery_ns(&mut self) -> Option<u64> {
        median(&mut self.asked_ns)
    }

    /// Returns the median of the times from a request with interrupts to the sender's own flush.
    pub(super) fn request_ns(&mut self) -> Option<u64> {
        median(&mut self.requested_ns)
    }

    /// Returns the shortest time from the sending of interrupts to the record of the sender's own
    /// flush. That is the time of the kernel's flush function, whose record is written at its end.
    pub(super) fn flush_ns(&self) -> Option<u64> {
        self.sent_ns.iter().min().copied()
    }

    /// Returns the time of each interrupt.
    pub(super) fn into_deliveries(self) -> Deliveries {
        self.deliveries
    }
}

/// The time from each recorded interrupt to the flush of its target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deliveries {
    /// For each CPU, the times at which interrupts were sent to it, in their order, and how long
    /// they took, in nanoseconds.
    of_cpus: Vec<Vec<(u64, u64)>>,
}

impl Deliveries {
    fn add(&mut self, cpu: u32, sent_ns: u64, took_ns: u64) {
        let cpu = cpu as usize;
        if self.of_cpus.len() <= cpu {
            self.of_cpus.resize(cpu + 1, Vec::new());
        }
        self.of_cpus[cpu].push((sent_ns, took_ns));
    }

    /// Returns the time that the interrupt to a CPU took which was sent nearest to a time; `None`
    /// if no interrupt to the CPU was recorded.
    pub(crate) fn nearest_ns(&self, cpu: usize, sent_ns: u64) -> Option<u64> {
        let recorded = self.of_cpus.get(cpu)?;
        let next = recorded.partition_point(|&(at_ns, _)| at_ns < sent_ns);
        let around = &recorded[next.saturating_sub(1)..recorded.len().min(next + 1)];
        around.iter().min_by_key(|(at_ns, _)| at_ns.abs_diff(sent_ns)).map(|&(_, took_ns)| took_ns)
    }
}

fn median(values: &mut [u64]) -> Option<u64> {
    let middle = values.len() / 2;
    if values.is_empty() { None } else { Some(*values.select_nth_unstable(middle).1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_interrupt_to_the_same_cpu_is_found() {
        let mut deliveries = Deliveries::default();
        for (cpu, sent_ns, took_ns) in [(1, 100, 7), (1, 200, 8), (3, 150, 9)] {
            deliveries.add(cpu, sent_ns, took_ns);
        }
        let found = [(1, 0), (1, 149), (1, 151), (1, 999), (3, 0), (0, 100), (4, 100)]
            .map(|(cpu, sent_ns)| deliveries.nearest_ns(cpu, sent_ns));
        assert_eq!(found, [Some(7), Some(7), Some(8), Some(8), Some(9), None, None]);
    }
}
