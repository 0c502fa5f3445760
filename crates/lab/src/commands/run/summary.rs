//! The means of the rows over the seeds.

use shootdown_run::text::Row;
use shootdown_run::{Classes, MemoryCosts};
use shootdown_sim::{Cause, HotSpot, TimeByCause};

/// The mean of the rows that differ only in the seed.
#[derive(Clone, Debug)]
pub(super) struct Summary {
    pub(super) workload: String,
    pub(super) machine: String,
    pub(super) cpus: usize,
    pub(super) design: &'static str,
    pub(super) seeds: u64,
    pub(super) time_ns: u64,
    pub(super) time_error_percent: Option<u64>,
    pub(super) pass_p50_ns: u64,
    pub(super) pass_p99_ns: u64,
    /// Half of the difference between the longest and the shortest time, in percent of the mean.
    pub(super) spread_percent: f64,
    pub(super) operations: u64,
    pub(super) requests: u64,
    pub(super) interrupts: u64,
    pub(super) classes: Classes,
    pub(super) flushes_full: u64,
    pub(super) flushes_ranged: u64,
    pub(super) memory_costs: MemoryCosts,
    /// The sum over the seeds.
    pub(super) violations: u64,
    /// The sum over the seeds.
    causes: TimeByCause,
    /// The sum over the seeds of the kernel's waits for lines.
    line_wait_ns: u64,
    /// The sum over the seeds, the longest first.
    hottest: Vec<HotSpot>,
}

impl Summary {
    /// Returns operations per second, or `None` if the workload counts none.
    pub(super) fn rate(&self) -> Option<f64> {
        let has_rate = self.operations > 0 && self.time_ns > 0;
        has_rate.then(|| self.operations as f64 * 1e9 / self.time_ns as f64)
    }

    /// Returns the part of the time of all CPUs that has a cause, in percent.
    pub(super) fn percent(&self, cause: Cause) -> f64 {
        self.percent_of_all(self.causes[cause].ns())
    }

    /// Returns the part of the time of all CPUs in which the kernel waited for cache lines, in
    /// percent.
    pub(super) fn percent_of_lines(&self) -> f64 {
        self.percent_of_all(self.line_wait_ns)
    }

    /// Returns the lines and locks whose waits are at least a hundredth of the time of all CPUs, at
    /// most three, with the waits for the lines and for the locks in percent.
    pub(super) fn hottest(&self) -> impl Iterator<Item = (&HotSpot, f64, f64)> {
        let percents = |it: &HotSpot| {
            (self.percent_of_all(it.line_wait.ns()), self.percent_of_all(it.lock_wait.ns()))
        };
        let all = self.hottest.iter().map(move |it| (it, percents(it).0, percents(it).1));
        all.filter(|(_, line, lock)| line.max(*lock) >= 1.0).take(3)
    }

    fn percent_of_all(&self, ns: u64) -> f64 {
        100.0 * ns as f64 / self.causes.total().ns().max(1) as f64
    }
}

/// Returns the means, in the order of the rows.
pub(super) fn summaries(rows: &[Row]) -> Vec<Summary> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        let is_same = |group: &&mut Vec<&Row>| {
            let first = group[0];
            (&first.workload, first.cpus, first.design) == (&row.workload, row.cpus, row.design)
        };
        match groups.iter_mut().find(is_same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    // By interval, so that lines to compare are neighbours.
    let mut workloads: Vec<&str> = groups.iter().map(|group| group[0].workload.as_str()).collect();
    workloads.dedup();
    groups.sort_by_key(|group| workloads.iter().position(|it| *it == group[0].workload));
    groups.iter().map(|group| summary(group)).collect()
}

/// Adds up the waits of the same name.
fn hottest(rows: &[&Row]) -> Vec<HotSpot> {
    let mut sums: Vec<HotSpot> = Vec::new();
    for it in rows.iter().flat_map(|row| &row.hottest) {
        match sums.iter_mut().find(|sum| sum.name == it.name) {
            None => sums.push(*it),
            Some(sum) => sum.add(it),
        }
    }
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.wait()));
    sums
}

fn summary(rows: &[&Row]) -> Summary {
    let (first, seeds) = (rows[0], rows.len() as u64);
    let mean = |value: fn(&Row) -> u64| rows.iter().map(|row| value(row)).sum::<u64>() / seeds;
    let times = || rows.iter().map(|row| row.time_ns);
    let range = times().max().unwrap_or_default() - times().min().unwrap_or_default();
    let time_ns = mean(|row| row.time_ns);
    Summary {
        workload: first.workload.clone(),
        machine: first.machine.clone(),
        cpus: first.cpus,
        design: first.design,
        seeds,
        time_ns,
        time_error_percent: first.time_error_percent,
        pass_p50_ns: mean(|row| row.pass_p50_ns),
        pass_p99_ns: mean(|row| row.pass_p99_ns),
        spread_percent: 50.0 * range as f64 / time_ns.max(1) as f64,
        operations: mean(|row| row.operations),
        requests: mean(|row| row.requests),
        interrupts: mean(|row| row.interrupts),
        classes: Classes::means(&rows.iter().map(|row| row.classes).collect::<Vec<_>>()),
        flushes_full: mean(|row| row.flushes_full),
        flushes_ranged: mean(|row| row.flushes_ranged),
        memory_costs: MemoryCosts::mean(
            &rows.iter().map(|row| row.memory_costs).collect::<Vec<_>>(),
        ),
        violations: rows.iter().map(|row| row.violations).sum(),
        causes: rows.iter().map(|row| &row.time_by_cause).sum(),
        line_wait_ns: rows.iter().map(|row| row.line_wait_ns).sum(),
        hottest: hottest(rows),
    }
}
