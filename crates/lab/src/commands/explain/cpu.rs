//! The interrupts of one CPU: its flush requests by cause and caller, the times that they take and
//! that lie between them, and the interrupts that do not flush pages of a program.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use serde::Serialize;
use shootdown_explain::{Analysis, Explanation};

use super::findings::{SCHEMA, caller, shown_frame};
use crate::commands::record::OtherCall;
use crate::error::shown;
use crate::render::table::Table;
use crate::render::{duration, grouped};

/// The interrupts of a CPU.
#[derive(Clone, Debug, Serialize)]
pub(super) struct OfCpu {
    schema: u32,
    cpu: u32,
    /// Number of flush requests to this CPU.
    requests: u64,
    /// By number.
    senders: Vec<Sender>,
    /// Times from the request until this CPU flushed.
    waits: Times,
    /// Times between two requests.
    gaps: Times,
    /// `null` for a recording, which does not have them.
    others: Option<Vec<Other>>,
    /// The kernel's own counters while the recording was made; `null` for a recording.
    counters: Option<Vec<Counter>>,
}

/// Flush requests to the CPU.
#[derive(Clone, Debug, Serialize)]
struct Sender {
    /// A function of the recorded programs, or a thread of the kernel or of another program.
    by: String,
    cause: String,
    requests: u64,
}

/// Functions that the CPU was asked to call, which flush no pages of a program.
#[derive(Clone, Debug, Serialize)]
struct Other {
    purpose: String,
    calls: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Counter {
    name: String,
    count: u64,
}

/// The distribution of a time in nanoseconds; all 0 if there is none.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Times {
    min_ns: u64,
    median_ns: u64,
    p99_ns: u64,
    max_ns: u64,
    /// The number of times below each power of two, and not below the one before it.
    histogram: BTreeMap<u64, u64>,
}

impl Times {
    fn of(mut times_ns: Vec<u64>) -> Self {
        times_ns.sort_unstable();
        let at = |percent: usize| times_ns.get(times_ns.len() * percent / 100).copied();
        let mut histogram = BTreeMap::new();
        for time_ns in &times_ns {
            *histogram.entry((time_ns + 1).next_power_of_two()).or_default() += 1;
        }
        Self {
            min_ns: at(0).unwrap_or_default(),
            median_ns: at(50).unwrap_or_default(),
            p99_ns: at(99).unwrap_or_default(),
            max_ns: times_ns.last().copied().unwrap_or_default(),
            histogram,
        }
    }

    fn text(&self) -> String {
        if self.histogram.is_empty() {
            return "not measured".to_owned();
        }
        let [min, median, p99, max] =
            [self.min_ns, self.median_ns, self.p99_ns, self.max_ns].map(duration);
        format!("{min} to {max}, median {median}, 99 % within {p99}")
    }
}

/// Returns the purpose of a function that interrupts call, or its name.
fn purpose(function: &str) -> &str {
    match function {
        "do_kernel_range_flush" | "do_flush_tlb_all" => {
            "pages of the kernel flushed (BPF, modules, vmalloc)"
        }
        "ipi_mb" | "ipi_sync_core" | "ipi_rseq" | "ipi_sync_rq_state" => "membarrier",
        "do_sync_core" => "code of the kernel patched",
        "tlb_remove_table_smp_sync" => "page tables freed",
        "sched_ttwu_pending" => "a thread woken",
        "remote_function" => "performance events",
        _ if function.starts_with("rcu_") => "RCU",
        _ => function,
    }
}

/// The kernel's counters of each CPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupts(String);

impl Interrupts {
    pub(super) fn now() -> Self {
        Self(fs::read_to_string("/proc/interrupts").unwrap_or_default())
    }

    /// Returns the number of the last CPU, plus 1; `None` if the kernel does not list them.
    pub(super) fn cpus(&self) -> Option<u32> {
        let last = self.0.lines().next()?.split_whitespace().next_back()?;
        last.strip_prefix("CPU")?.parse::<u32>().ok()?.checked_add(1)
    }

    /// Returns the counters of a CPU by their descriptions, or by their names without one.
    fn of(&self, cpu: u32) -> HashMap<String, u64> {
        let mut lines = self.0.lines();
        let cpus: Vec<_> = lines.next().unwrap_or_default().split_whitespace().collect();
        let wanted = format!("CPU{cpu}");
        let Some(column) = cpus.iter().position(|name| *name == wanted) else {
            return HashMap::new();
        };
        let counter = |line: &str| {
            let (name, counts) = line.split_once(':')?;
            let words: Vec<_> = counts.split_whitespace().collect();
            let count: u64 = words.get(column)?.parse().ok()?;
            let description = words.get(cpus.len()..).unwrap_or_default().join(" ");
            let name = if description.is_empty() { name.trim().to_owned() } else { description };
            Some((name, count))
        };
        let mut counters: HashMap<String, u64> = HashMap::new();
        // Several lines may have one description.
        for (name, count) in lines.filter_map(counter) {
            *counters.entry(name).or_default() += count;
        }
        counters
    }

    /// Returns the counters of a CPU that grew until `later`, the most first.
    fn grown(&self, later: &Self, cpu: u32) -> Vec<Counter> {
        let before = self.of(cpu);
        let mut grown = later.of(cpu);
        for (name, count) in &mut grown {
            *count = count.saturating_sub(before.get(name).copied().unwrap_or_default());
        }
        grown.retain(|_, count| *count > 0);
        by_count(grown).map(|(name, count)| Counter { name, count }).collect()
    }
}

/// Numbers that the recorder reads while it records, and that no recording has.
#[derive(Clone, Debug)]
pub(super) struct Beside {
    pub(super) calls: Vec<OtherCall>,
    pub(super) before: Interrupts,
    pub(super) after: Interrupts,
}

impl OfCpu {
    pub(super) fn of(
        cpu: u32,
        analysis: &Analysis,
        explanation: &Explanation,
        beside: Option<&Beside>,
    ) -> Self {
        let received: Vec<_> = analysis.received.iter().filter(|it| it.cpu == cpu).collect();
        let mut times: Vec<_> =
            received.iter().map(|it| analysis.flushes[it.flush].at_ns).collect();
        times.sort_unstable();
        let waits = received.iter().filter_map(|it| it.wait_ns).collect();
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mut sums: HashMap<(String, String), u64> = HashMap::new();
        for it in &received {
            let flush = &analysis.flushes[it.flush];
            let by = match explanation.site_of(analysis, it.flush) {
                Some(site) => caller(&site.frames).map(shown_frame),
                None => explanation.sender_of(analysis, it.flush).map(str::to_owned),
            };
            let by = by.unwrap_or_else(|| "unknown".to_owned());
            *sums.entry((by, analysis.causes.name(flush.cause).to_owned())).or_default() += 1;
        }
        let sender = |((by, cause), requests)| Sender { by, cause, requests };
        let senders = by_count(sums).map(sender).collect();
        Self {
            schema: SCHEMA,
            cpu,
            requests: received.len() as u64,
            senders,
            waits: Times::of(waits),
            gaps: Times::of(gaps),
            others: beside.map(|beside| others(cpu, &beside.calls)),
            counters: beside.map(|beside| beside.before.grown(&beside.after, cpu)),
        }
    }

    /// Returns the answer, and `rows_max` rows of each table that has some.
    pub(super) fn text(&self, rows_max: usize) -> String {
        let Self { cpu, requests, senders, waits, gaps, others, counters, .. } = self;
        let mut text = match senders.first() {
            None => format!("no program and no thread of the kernel asked CPU {cpu} to flush\n"),
            Some(first) => format!(
                "CPU {cpu} was asked to flush {} times, {} of them by {} in {}\n\n\
                 From a request until CPU {cpu} flushed: {}.\n\
                 Between two requests: {}.\n",
                grouped(*requests),
                grouped(first.requests),
                shown(&first.cause),
                shown(&first.by),
                waits.text(),
                gaps.text(),
            ),
        };
        let mut add = |mut table: Table, rows: Vec<Vec<String>>| {
            if !rows.is_empty() {
                rows.into_iter().for_each(|row| table.row(row));
                text += &format!("\n{table}");
            }
        };
        let table = Table::default;
        let first = senders.iter().take(rows_max);
        let row = |it: &Sender| vec![shown(&it.by), shown(&it.cause), grouped(it.requests)];
        add(table().left(["by", "cause"]).right(["requests"]), first.map(row).collect());
        let all: BTreeSet<_> = waits.histogram.keys().chain(gaps.histogram.keys()).collect();
        let of =
            |times: &Times, below: &u64| grouped(times.histogram.get(below).copied().unwrap_or(0));
        let row = |below: &u64| vec![duration(*below), of(waits, below), of(gaps, below)];
        add(table().right(["below", "waits", "gaps"]), all.into_iter().map(row).collect());
        let Some((others, counters)) = others.as_ref().zip(counters.as_ref()) else {
            return text
                + "\nA recording has no interrupts but flushes: run explain --all --cpu N.\n";
        };
        let first = others.iter().take(rows_max);
        let row = |it: &Other| vec![shown(&it.purpose), grouped(it.calls)];
        add(table().left(["other calls by interrupts"]).right(["calls"]), first.map(row).collect());
        let first = counters.iter().take(rows_max);
        let row = |it: &Counter| vec![shown(&it.name), grouped(it.count)];
        add(table().left(["/proc/interrupts"]).right(["count"]), first.map(row).collect());
        text
    }
}

fn others(cpu: u32, calls: &[OtherCall]) -> Vec<Other> {
    let mut sums: HashMap<&str, u64> = HashMap::new();
    for call in calls.iter().filter(|call| call.cpu == cpu) {
        *sums.entry(purpose(&call.function)).or_default() += call.count;
    }
    by_count(sums).map(|(purpose, calls)| Other { purpose: purpose.to_owned(), calls }).collect()
}

/// Returns names with their counts, the largest count first.
fn by_count<K: Ord>(counts: HashMap<K, u64>) -> impl Iterator<Item = (K, u64)> {
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by(|(name, count), (other, more)| (more, name).cmp(&(count, other)));
    counts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_by_powers_of_two() {
        let times = Times::of(vec![1000, 1, 3, 1023, 1024]);
        assert_eq!((times.min_ns, times.median_ns, times.max_ns), (1, 1000, 1024));
        assert_eq!(times.histogram, BTreeMap::from([(2, 1), (4, 1), (1024, 2), (2048, 1)]));
        assert_eq!(Times::of(Vec::new()).text(), "not measured");
    }

    #[test]
    fn other_calls_are_named_by_purpose() {
        let call = |cpu, function: &str| OtherCall { cpu, function: function.into(), count: 3 };
        let calls = [call(1, "ipi_mb"), call(1, "ipi_rseq"), call(0, "ipi_mb"), call(1, "f")];
        let others: Vec<_> =
            others(1, &calls).into_iter().map(|it| (it.purpose, it.calls)).collect();
        assert_eq!(others, [("membarrier".to_owned(), 6), ("f".to_owned(), 3)]);
        assert_eq!(purpose("ipi_of_a_driver"), "ipi_of_a_driver");
    }

    #[test]
    fn growth_of_counters_is_that_of_the_cpu() {
        let text = |count| {
            Interrupts(format!(
                "   CPU0 CPU2\n 24: 1 5 IO-APIC edge disk\nRES: 7 {count} Rescheduling\n"
            ))
        };
        let grown: Vec<_> =
            text(9).grown(&text(12), 2).into_iter().map(|it| (it.name, it.count)).collect();
        assert_eq!(grown, [("Rescheduling".to_owned(), 3)]);
        assert!(text(9).grown(&text(12), 1).is_empty(), "no such CPU");
        assert_eq!(text(9).cpus(), Some(3));
        let twice = |count| Interrupts(format!("  CPU0\n1: {count} disk\n2: {count} disk\n"));
        assert_eq!(twice(1).grown(&twice(4), 0)[0].count, 6, "two lines with one description");
    }
}
