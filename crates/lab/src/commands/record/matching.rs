//! The traced event of each sample.
//!
//! The kernel runs the tracers of an event in the order in which they were registered, and all
//! samplers of a machine have one place in that order. A sample is therefore taken after its event
//! or, if another program sampled the event before this recorder started, before it. In either
//! case, the thread causes no other event on its CPU in between.

use std::collections::{BTreeSet, VecDeque};

use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};
use shootdown_recording::record::FlushReason;
use shootdown_stacks::Sample;

/// The samples, until their events arrive.
#[derive(Debug, Default)]
pub(super) struct Matching {
    cpus: Vec<OnCpu>,
    /// The threads of all events so far. The kernel may leave out the events of other programs, but
    /// samples their stacks.
    threads: BTreeSet<Tid>,
    /// Number of samples of these threads whose event did not arrive.
    pub(super) unmatched: u64,
    /// Number of samples that can only belong to the event after them, less those that can only
    /// belong to the event before them. The order does not change while this recorder samples.
    early: i64,
}

#[derive(Debug, Default)]
struct OnCpu {
    /// In the order of time.
    samples: VecDeque<Sample>,
    /// The time and the thread of the last event of a task, if that is a flush request without a
    /// sample.
    requested: Option<(u64, Tid)>,
    /// The time of the first event: sampling starts before tracing.
    traced_from_ns: Option<u64>,
}

/// The samples that belong to an event, and to the last one of the CPU.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Matched {
    /// The sample of the last request before the event, and the time of that request.
    pub(super) before: Option<(u64, Sample)>,
    /// The sample of the event, which is a request.
    pub(super) after: Option<Sample>,
    /// `true` if sampling caused the event.
    pub(super) is_caused: bool,
}

/// The request that a sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    None,
    Last,
    This,
}

impl Matching {
    /// Adds a sample, which is later than those of its CPU so far.
    pub(super) fn add(&mut self, sample: Sample) {
        self.on(sample.cpu).samples.push_back(sample);
    }

    /// Finds the samples of an event, and of the last request. Call this with each event in order.
    pub(super) fn place(&mut self, event: &RawEvent) -> Matched {
        let mut matched = Matched::default();
        if event.during != During::Task {
            return matched;
        }
        self.threads.insert(event.tid);
        let on_cpu = self.on(event.cpu);
        let from_ns = *on_cpu.traced_from_ns.get_or_insert(event.time_ns);
        let is_early = |sample: &&Sample| sample.time_ns <= event.time_ns;
        let mut early = on_cpu.samples.iter().take_while(is_early);
        let is_fault = matches!(event.kind, RawKind::Fault { code, .. } if !code.is_user());
        if is_fault && early.any(|sample| Tid(sample.thread) == event.tid) {
            matched.is_caused = true;
            return matched;
        }
        let is_request = matches!(event.kind, RawKind::Flush { reason: FlushReason::Request, .. });
        let last = on_cpu.requested.take();
        while let Some(sample) = self.on(event.cpu).samples.front().filter(is_early).copied() {
            self.on(event.cpu).samples.pop_front();
            let last = last.filter(|(_, tid)| tid.0 == sample.thread && matched.before.is_none());
            let is_open = is_request && event.tid.0 == sample.thread && matched.after.is_none();
            match self.choose(&sample, last, is_open.then_some(event.time_ns)) {
                Of::None => {
                    let is_recorded = self.threads.contains(&Tid(sample.thread));
                    self.unmatched += u64::from(is_recorded && from_ns <= sample.time_ns);
                }
                Of::Last => matched.before = last.map(|(at_ns, _)| (at_ns, sample)),
                Of::This => matched.after = Some(sample),
            }
        }
        let is_open = is_request && matched.after.is_none();
        let on_cpu = self.on(event.cpu);
        on_cpu.requested = is_open.then_some((event.time_ns, event.tid));
        matched
    }

    /// Chooses between the last request and this one, at `this_ns`, those that are possible.
    fn choose(&mut self, sample: &Sample, last: Option<(u64, Tid)>, this_ns: Option<u64>) -> Of {
        match (last, this_ns) {
            (None, None) => Of::None,
            (Some(_), None) => {
                self.early -= 1;
                Of::Last
            }
            (None, Some(_)) => {
                self.early += 1;
                Of::This
            }
            // If no sample has shown the order, the nearer one.
            (Some((last_ns, _)), Some(this_ns)) if self.early == 0 => {
                let is_nearer = this_ns - sample.time_ns < sample.time_ns.saturating_sub(last_ns);
                if is_nearer { Of::This } else { Of::Last }
            }
            (Some(_), Some(_)) if self.early > 0 => Of::This,
            (Some(_), Some(_)) => Of::Last,
        }
    }

    fn on(&mut self, cpu: u32) -> &mut OnCpu {
        let cpu = cpu as usize;
        if self.cpus.len() <= cpu {
            self.cpus.resize_with(cpu + 1, OnCpu::default);
        }
        &mut self.cpus[cpu]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_recording::record::FaultCode;

    fn event(time_ns: u64, kind: RawKind) -> RawEvent {
        RawEvent { time_ns, cpu: 0, tid: Tid(7), during: During::Task, kind }
    }

    fn request(time_ns: u64) -> RawEvent {
        event(time_ns, RawKind::Flush { reason: FlushReason::Request, pages: None })
    }

    fn sample(time_ns: u64, thread: u32) -> Sample {
        Sample { time_ns, thread, ..Sample::default() }
    }

    /// Returns the time of the request of each sample, of requests at these times with another
    /// event of the thread after each.
    fn requests_of(samples: &[u64], requests: &[u64]) -> (Vec<(u64, u64)>, u64) {
        let mut matching = Matching::default();
        samples.iter().for_each(|at| matching.add(sample(*at, 7)));
        let mut found = Vec::new();
        for &at in requests {
            for event in [request(at), event(at + 5000, RawKind::Exit)] {
                let Matched { before, after, .. } = matching.place(&event);
                found.extend(before.map(|(of_ns, sample)| (sample.time_ns, of_ns)));
                found.extend(after.map(|sample| (sample.time_ns, event.time_ns)));
            }
        }
        (found, matching.unmatched)
    }

    #[test]
    fn sample_belongs_to_request_on_either_side() {
        let after = requests_of(&[10_300, 30_300], &[10_000, 20_000, 30_000]);
        assert_eq!(after, (vec![(10_300, 10_000), (30_300, 30_000)], 0));
        // Copying a stack takes longer than a flush: another recorder was there first.
        let before = requests_of(&[9_000, 28_000], &[10_000, 20_000, 30_000]);
        assert_eq!(before, (vec![(9_000, 10_000), (28_000, 30_000)], 0));
        assert_eq!(requests_of(&[16_000], &[10_000]), (vec![], 0), "no later event");
        assert_eq!(requests_of(&[16_000], &[10_000, 30_000]).0, [(16_000, 30_000)]);
    }

    #[test]
    fn order_of_clear_samples_decides_between_two_requests() {
        // The second sample is nearer to the other request each time.
        for (samples, of) in [([300, 39_000], 20_000), ([9_000, 20_400], 40_000)] {
            let mut matching = Matching::default();
            samples.into_iter().for_each(|at| matching.add(sample(at, 7)));
            let clear = [request(0), event(5000, RawKind::Exit), request(10_000)];
            let events = clear.into_iter().chain([event(15_000, RawKind::Exit)]);
            let mut found = Vec::new();
            for event in events.chain([request(20_000), request(40_000)]) {
                let Matched { before, after, .. } = matching.place(&event);
                found.extend(before.map(|(of_ns, _)| of_ns));
                found.extend(after.map(|_| event.time_ns));
            }
            assert_eq!(found.last(), Some(&of), "{samples:?}");
        }
    }

    #[test]
    fn sample_without_event_of_recorded_thread_is_lost() {
        let mut matching = Matching::default();
        matching.place(&event(100, RawKind::Exit));
        // Before the first event, nothing is traced, and of thread 9 nothing is.
        for (time_ns, thread, unmatched) in [(99, 7, 0), (100, 9, 0), (100, 7, 1)] {
            matching.add(sample(time_ns, thread));
            assert_eq!(matching.place(&event(200, RawKind::Exit)), Matched::default());
            assert_eq!(matching.unmatched, unmatched, "{time_ns} {thread}");
        }
        let interrupt = RawEvent { during: During::Interrupt, ..event(300, RawKind::Exit) };
        matching.place(&request(240));
        matching.add(sample(250, 7));
        assert_eq!(matching.place(&interrupt), Matched::default(), "it may interrupt the sampling");
        assert!(matching.place(&event(400, RawKind::Exit)).before.is_some());
    }

    #[test]
    fn only_faults_of_the_kernel_while_sampling_are_ours() {
        let mut matching = Matching::default();
        let fault = |at, code| event(at, RawKind::Fault { address: 0x1000, code: FaultCode(code) });
        // The events of thread 8 are not recorded.
        matching.add(sample(90, 8));
        matching.add(sample(100, 7));
        assert!(!matching.place(&fault(50, 0)).is_caused, "before the sample");
        assert!(
            matching.place(&fault(150, 0)).is_caused && matching.place(&fault(160, 0)).is_caused
        );
        assert_eq!(matching.place(&request(200)).after.map(|it| it.time_ns), Some(100));
        assert!(!matching.place(&fault(250, 0)).is_caused);
    }
}
