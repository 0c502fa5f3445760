//! Sums by process and call site, of any number of recordings one after another.

use std::collections::BTreeMap;
use std::time::Duration;

use shootdown_explain::Sum;

/// A process, also after its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Process {
    /// Linux's number; 0 for threads of the kernel.
    pub(super) pid: u32,
    pub(super) name: String,
}

/// A cause with the calls of the program, the innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Site {
    pub(super) cause: String,
    pub(super) frames: Vec<String>,
}

/// A call site of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) process: Process,
    pub(super) site: Site,
}

/// The sum of a call site of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) sum: Sum,
    /// The call that probably is the program's own.
    pub(super) caller: Option<String>,
    /// The change that would remove the shootdowns.
    pub(super) advice: Option<String>,
}

/// All sums.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    pub(super) entries: BTreeMap<Key, Entry>,
    /// Number of lost events.
    pub(super) lost: u64,
}

/// The property by which rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Cost,
    Requests,
    Interrupts,
    InVain,
}

impl Order {
    pub(super) const ALL: [Self; 4] = [Self::Cost, Self::Requests, Self::Interrupts, Self::InVain];

    /// Returns the key that selects the order.
    pub(super) const fn key(self) -> char {
        match self {
            Self::Cost => 'c',
            Self::Requests => 'r',
            Self::Interrupts => 'i',
            Self::InVain => 'v',
        }
    }

    /// Returns the number by which rows are sorted.
    pub(super) const fn of(self, sum: &Sum) -> u64 {
        match self {
            Self::Cost => sum.cpu_ns,
            Self::Requests => sum.requests,
            Self::Interrupts => sum.interrupts,
            Self::InVain => sum.in_vain,
        }
    }
}

impl Sums {
    /// Adds a sum. `details` returns the caller and the advice of a new entry.
    pub(super) fn add(
        &mut self,
        key: Key,
        sum: Sum,
        details: impl FnOnce() -> (Option<String>, Option<String>),
    ) {
        let entry = self.entries.entry(key).or_insert_with(|| {
            let (caller, advice) = details();
            Entry { sum: Sum::default(), caller, advice }
        });
        plus(&mut entry.sum, &sum);
    }

    /// Returns these sums and others.
    pub(super) fn with(mut self, others: &Self) -> Self {
        for (key, other) in &others.entries {
            let details = || (other.caller.clone(), other.advice.clone());
            self.add(key.clone(), other.sum, details);
        }
        self.lost += others.lost;
        self
    }

    /// Returns the part of these sums that was added after `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut entries = BTreeMap::new();
        for (key, entry) in &self.entries {
            let mut sum = entry.sum;
            if let Some(before) = before.entries.get(key) {
                minus(&mut sum, &before.sum);
            }
            if sum.requests > 0 {
                entries.insert(key.clone(), Entry { sum, ..entry.clone() });
            }
        }
        Self { entries, lost: self.lost.saturating_sub(before.lost) }
    }

    /// Returns the sum of everything.
    pub(super) fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.entries.values().for_each(|entry| plus(&mut total, &entry.sum));
        total
    }

    /// Returns the sum of each process, the largest first.
    pub(super) fn processes(&self, order: Order) -> Vec<(&Process, Sum)> {
        let mut processes: BTreeMap<&Process, Sum> = BTreeMap::new();
        for (key, entry) in &self.entries {
            plus(processes.entry(&key.process).or_default(), &entry.sum);
        }
        let mut processes: Vec<_> = processes.into_iter().collect();
        processes.sort_by_key(|(_, sum)| std::cmp::Reverse(order.of(sum)));
        processes
    }

    /// Returns the sum of each call site of a process, or of all, the largest first.
    pub(super) fn sites(&self, of: Option<&Process>, order: Order) -> Vec<(&Site, Entry)> {
        let mut sites: BTreeMap<&Site, Entry> = BTreeMap::new();
        let of_process = |key: &&Key| of.is_none_or(|process| *process == key.process);
        for key in self.entries.keys().filter(of_process) {
            let entry = &self.entries[key];
            match sites.get_mut(&key.site) {
                Some(site) => plus(&mut site.sum, &entry.sum),
                None => drop(sites.insert(&key.site, entry.clone())),
            }
        }
        let mut sites: Vec<_> = sites.into_iter().collect();
        sites.sort_by_key(|(_, entry)| std::cmp::Reverse(order.of(&entry.sum)));
        sites
    }
}

/// Returns a count per second of `time`.
pub(super) fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(1e-3)
}

fn plus(sum: &mut Sum, other: &Sum) {
    *sum = sum.combined(other, u64::saturating_add);
}

/// Subtracts a sum. An unsampled flush may later belong to another call site, whose sum then
/// decreases.
fn minus(sum: &mut Sum, other: &Sum) {
    *sum = sum.combined(other, u64::saturating_sub);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns sums of `(pid, cause, caller, requests)`. Each request costs 10 µs; one in four is
    /// in vain.
    pub(in super::super) fn example(rows: &[(u32, &str, &str, u64)]) -> Sums {
        let mut sums = Sums::default();
        for (pid, cause, caller, requests) in rows {
            let process = Process { pid: *pid, name: format!("program-{pid}") };
            let frames = vec!["madvise (libc.so.6)".to_owned(), (*caller).to_owned()];
            let key = Key { process, site: Site { cause: (*cause).to_owned(), frames } };
            let (requests, in_vain) = (*requests, requests / 4);
            let cpu_ns = 10_000 * requests;
            let sum = Sum { requests, interrupts: requests, in_vain, cpu_ns, ..Sum::default() };
            let advice = "reuse the mapping".to_owned();
            sums.add(key, sum, || (Some((*caller).to_owned()), Some(advice)));
        }
        sums
    }

    #[test]
    fn rows_are_sums_in_order() {
        let sums = example(&[(1, "munmap", "a", 5), (2, "munmap", "a", 7), (2, "fork", "b", 9)]);
        let processes = sums.processes(Order::Requests);
        let processes: Vec<_> = processes.iter().map(|(it, sum)| (it.pid, sum.requests)).collect();
        assert_eq!(processes, [(2, 16), (1, 5)]);
        let of = |process: Option<&Process>| -> Vec<_> {
            let sites = sums.sites(process, Order::Cost);
            sites.iter().map(|(site, it)| (site.cause.clone(), it.sum.requests)).collect()
        };
        assert_eq!(of(None), [("munmap".to_owned(), 12), ("fork".to_owned(), 9)]);
        let first = Process { pid: 1, name: "program-1".to_owned() };
        assert_eq!(of(Some(&first)), [("munmap".to_owned(), 5)]);
        assert_eq!(sums.total().requests, 21);
    }

    #[test]
    fn difference_has_only_new_requests() {
        let before = example(&[(1, "munmap", "a", 5), (2, "fork", "b", 9)]);
        let after = before.clone().with(&example(&[(1, "munmap", "a", 2), (3, "exit", "c", 1)]));
        let since = after.since(&before);
        assert_eq!(since.total().requests, 3);
        assert_eq!(since.entries.len(), 2);
        // A sum may move to another site.
        assert_eq!(before.since(&after).total().requests, 0);
    }
}
