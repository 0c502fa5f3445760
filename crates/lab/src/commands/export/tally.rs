//! The sums of flushes by cause and control group, since the command began.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use shootdown_explain::Causes;
use shootdown_recording::raw::{Function, RawEvent, RawKind};
use shootdown_recording::record::{FlushReason, Layer};

/// Upper bounds of the histogram, in nanoseconds. Longer waits are counted as well.
pub(super) const BOUNDS_NS: [u64; 12] = [
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];
/// Largest number of rows. Causes and groups beyond have one row together.
const ROWS_MAX: usize = 2000;
/// Largest number of threads that are remembered, and the time after which the group of one is read
/// again.
const THREADS_MAX: usize = 10_000;
const GROUP_NS: u64 = 10_000_000_000;

pub(super) const UNKNOWN: &str = "unknown";
const OTHERS: &str = "others";

/// All sums.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// By cause and control group.
    pub(super) rows: BTreeMap<(String, String), Row>,
    /// Number of events that the kernel lost.
    pub(super) lost: u64,
    causes: Causes,
    /// The last flush of each CPU.
    pending: HashMap<u32, Pending>,
    /// The CPUs that were interrupted to call functions, and have not flushed since.
    interrupted: HashSet<u32>,
    threads: HashMap<u32, Thread>,
}

/// The sums of a cause in a control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) requests: u64,
    pub(super) interrupts: u64,
    /// Number of measured waits of senders up to each bound, and above the last one.
    pub(super) waits: [u64; BOUNDS_NS.len() + 1],
    pub(super) waited_ns: u64,
}

/// A flush that may not be complete.
#[derive(Debug, Default)]
struct Pending {
    thread: u32,
    at_ns: u64,
    cause: Option<String>,
    /// The targets, each with the time at which it reported its flush.
    targets: Vec<(u32, Option<u64>)>,
    interrupts: u64,
}

impl Pending {
    /// Returns `true` if a request to `target` belongs to the next flush of the thread, which waits
    /// for all targets of one before it begins another.
    fn has_ended(&self, target: u32) -> bool {
        self.targets.iter().all(|(_, at_ns)| at_ns.is_some())
            || self.targets.iter().any(|(cpu, _)| *cpu == target)
    }
}

#[derive(Debug, Default)]
struct Thread {
    group: String,
    read_ns: u64,
    /// The cause of the last flush with a call stack.
    cause: Option<String>,
}

impl Tally {
    /// Adds the next event. `group` returns the control group of a thread.
    pub(super) fn add(&mut self, event: RawEvent, group: impl Fn(u32) -> String) {
        let RawEvent { time_ns, cpu, tid, kind, .. } = event;
        match kind {
            RawKind::QueueCall { function: Function::FlushSpace, target } => {
                let ended = |flush: &mut Pending| flush.thread != tid.0 || flush.has_ended(target);
                if self.pending.get_mut(&cpu).is_some_and(ended)
                    && let Some(flush) = self.pending.remove(&cpu)
                {
                    self.complete(flush, &group);
                }
                let begun = Pending { thread: tid.0, at_ns: time_ns, ..Pending::default() };
                self.pending.entry(cpu).or_insert(begun).targets.push((target, None));
            }
            RawKind::Flush { reason: FlushReason::Remote, .. } => {
                let is_interrupt = self.interrupted.remove(&cpu);
                self.flushed(cpu, time_ns, u64::from(is_interrupt));
            }
            RawKind::Ipi { .. } => drop(self.interrupted.insert(cpu)),
            RawKind::Stack { frames, .. } => {
                let kernel = frames.iter().filter(|frame| frame.layer == Layer::Kernel);
                let functions: Vec<_> = kernel.map(|frame| &*frame.function).collect();
                let cause = self.causes.of_functions(&functions);
                if let Some(flush) = self.pending.get_mut(&cpu).filter(|it| it.thread == tid.0) {
                    flush.cause.clone_from(&cause);
                }
                // The kernel may sample before it traces, if another program samples as well.
                self.threads.entry(tid.0).or_default().cause = cause;
            }
            RawKind::Lost { count } => {
                self.lost = self.lost.saturating_add(count.max(1));
                self.pending.remove(&cpu);
            }
            _ => {}
        }
    }

    /// Ends the flushes that began before a time and are complete by now.
    pub(super) fn settle(&mut self, before_ns: u64, group: impl Fn(u32) -> String) {
        let old: Vec<_> = self.pending.extract_if(|_, flush| flush.at_ns < before_ns).collect();
        old.into_iter().for_each(|(_, flush)| self.complete(flush, &group));
    }

    /// A CPU flushed because another one asked it to: the first that still waits for it.
    fn flushed(&mut self, cpu: u32, time_ns: u64, interrupts: u64) {
        let waits = |flush: &&mut Pending| flush.targets.contains(&(cpu, None));
        if let Some(flush) = self.pending.values_mut().filter(waits).min_by_key(|it| it.at_ns)
            && let Some(target) = flush.targets.iter_mut().find(|it| **it == (cpu, None))
        {
            target.1 = Some(time_ns);
            flush.interrupts += interrupts;
        }
    }

    fn complete(&mut self, flush: Pending, group: impl Fn(u32) -> String) {
        let Pending { thread, at_ns, cause, targets, interrupts, .. } = flush;
        if self.threads.len() >= THREADS_MAX {
            self.threads.clear();
        }
        let known = self.threads.entry(thread).or_default();
        if known.group.is_empty() || at_ns > known.read_ns + GROUP_NS {
            (known.group, known.read_ns) = (group(thread), at_ns);
        }
        if cause.is_some() {
            known.cause = cause;
        }
        let cause = known.cause.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        let mut key = (cause, known.group.clone());
        if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            key = (OTHERS.to_owned(), OTHERS.to_owned());
        }
        let row = self.rows.entry(key).or_default();
        row.requests += targets.len() as u64;
        row.interrupts += interrupts;
        if let Some(last_ns) = targets.iter().filter_map(|(_, flushed_ns)| *flushed_ns).max() {
            let wait_ns = last_ns.saturating_sub(at_ns);
            row.waits[BOUNDS_NS.partition_point(|bound| *bound < wait_ns)] += 1;
            row.waited_ns += wait_ns;
        }
    }
}

/// Returns the control group of a thread; `unknown` if it has ended.
pub(super) fn cgroup(thread: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{thread}/cgroup")).unwrap_or_default();
    group_of(&text).unwrap_or(UNKNOWN).to_owned()
}

/// Returns the first group that is not the root: of the unified hierarchy, systemd's or memory's.
fn group_of(text: &str) -> Option<&str> {
    let path =
        |hierarchy| text.lines().find_map(|line| line.split_once(':')?.1.strip_prefix(hierarchy));
    let paths = [":", "name=systemd:", "memory:"].into_iter().filter_map(path);
    paths.reduce(|first, next| if first == "/" { next } else { first })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_recording::raw::{CallSite, During, Tid};
    use shootdown_recording::record::Frame;

    fn event(time_ns: u64, (cpu, tid): (u32, u32), kind: RawKind) -> RawEvent {
        RawEvent { time_ns, cpu, tid: Tid(tid), during: During::Task, kind }
    }

    /// Returns the events of a flush of thread 7 on CPU 0, which asks CPUs 1 and 2 and interrupts
    /// CPU 1.
    fn flush(at_ns: u64, calls: &[&str]) -> Vec<RawEvent> {
        let on = (0, 7);
        let flushed = || RawKind::Flush { reason: FlushReason::Remote, pages: None };
        let queue = |target| RawKind::QueueCall { function: Function::FlushSpace, target };
        let frame = |function: &&str| {
            let function = (*function).to_owned();
            Frame { layer: Layer::Kernel, function, file: String::new(), line: 0 }
        };
        let frames: Vec<_> = calls.iter().map(frame).collect();
        let mut events = vec![event(at_ns, on, queue(1))];
        if !frames.is_empty() {
            events.push(event(at_ns, on, RawKind::Stack { frames, requests: 1 }));
        }
        let called = RawKind::Ipi { targets: Vec::new(), site: CallSite::CallFunction };
        events.extend([
            event(at_ns + 1, on, queue(2)),
            event(at_ns + 800, (1, 8), called),
            event(at_ns + 900, (1, 8), flushed()),
            event(at_ns + 1500, (2, 9), flushed()),
        ]);
        events
    }

    #[test]
    fn flushes_are_summed_by_cause_and_group() {
        let group = |thread: u32| format!("/group-{thread}");
        let mut tally = Tally::default();
        for events in [flush(10_000, &["unmap_region", "__x64_sys_munmap"]), flush(20_000, &[])] {
            events.into_iter().for_each(|event| tally.add(event, group));
        }
        let key = ("munmap".to_owned(), "/group-7".to_owned());
        assert_eq!(tally.rows[&key].requests, 2, "the last one may not be complete");
        tally.settle(20_000, group);
        assert_eq!(tally.rows[&key].requests, 2);
        tally.settle(20_001, group);
        let row = &tally.rows[&key];
        assert_eq!((tally.rows.len(), row.requests, row.interrupts), (1, 4, 2));
        // Two waits of 1.5 µs: above the first bound, and up to the second.
        assert_eq!((row.waits[0], row.waits[1], row.waited_ns), (0, 2, 3000));
    }

    #[test]
    fn lost_events_end_the_flush() {
        let mut tally = Tally::default();
        tally.add(flush(5, &[]).remove(0), |_| String::new());
        tally.add(event(6, (0, 0), RawKind::Lost { count: 0 }), |_| String::new());
        tally.settle(100, |_| String::new());
        assert!(tally.rows.is_empty() && tally.lost == 1);
    }

    #[test]
    fn rows_are_bounded() {
        let mut tally = Tally::default();
        for round in 0..ROWS_MAX as u64 + 5 {
            // The group is read again after its time.
            let at_ns = round * 2 * GROUP_NS;
            let group = |_| round.to_string();
            flush(at_ns, &[]).into_iter().for_each(|event| tally.add(event, group));
            tally.settle(at_ns + 1, group);
        }
        assert_eq!(tally.rows.len(), ROWS_MAX + 1);
        let others = &tally.rows[&(OTHERS.to_owned(), OTHERS.to_owned())];
        assert_eq!(others.requests, 2 * 5);
    }

    #[test]
    fn group_is_that_of_the_unified_hierarchy() {
        assert_eq!(
            group_of("0::/system.slice/redis.service\n"),
            Some("/system.slice/redis.service")
        );
        let hybrid = "4:memory:/a\n1:name=systemd:/user.slice\n0::/\n";
        assert_eq!(group_of(hybrid), Some("/user.slice"));
        assert_eq!(group_of("4:memory:/a\n1:name=systemd:/\n"), Some("/a"));
        assert_eq!(group_of("0::/\n"), Some("/"));
        assert_eq!(group_of(""), None);
    }
}
