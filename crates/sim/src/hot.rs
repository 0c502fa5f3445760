//! The cache lines and locks that CPUs wait for, by name.
//!
//! A line of the host's memory has the name of the module that accesses it first: a lock is then
//! named after the code that takes it, and not after the type of the lock.

use core::panic::Location;
use std::collections::HashMap;

use serde::{Serialize, Serializer};

use crate::time::Time;

/// The place in the source that accesses a line.
pub(crate) type Site = &'static Location<'static>;

/// Names of lines whose accesses the simulator makes itself. Their numbers are their places in
/// [`HotSpots::KNOWN`].
pub(crate) const PAGE_TABLES: u16 = 0;
pub(crate) const PAGE_RECORDS: u16 = 1;
pub(crate) const TABLE_LOCKS: u16 = 2;
pub(crate) const PAIRS: u16 = 3;

/// The names of modules whose lines are well known.
const MODULES: [(&str, &str); 19] = [
    ("vm/src/area_index.rs", "lock of an area"),
    ("vm/src/locked_areas.rs", "lock of the space"),
    ("vm/src/file.rs", "lock of a file's pages"),
    ("program/src/interpreter/threads.rs", "lock of the workload"),
    ("sim/src/frames.rs", "lock of free frames"),
    ("run/src/accounting.rs", "lock of LRU lists, counter of the cgroup"),
    ("run/src/platform.rs", "sharers of a page table"),
    ("sim/src/hypervisor.rs", "state of a virtual CPU"),
    ("designs/src/linux/calls.rs", "queue of calls of a CPU"),
    ("designs/src/linux/mask.rs", "mm_cpumask"),
    ("designs/src/linux/v7_0/mod.rs", "context.tlb_gen and loaded_mm"),
    ("designs/src/linux/mm_count.rs", "mm_count"),
    ("shootdown/src/parts/flush_log/mod.rs", "log of a space's flushes"),
    ("shootdown/src/parts/cpumask/mod.rs", "CPUs of a space"),
    ("shootdown/src/parts/presence/mod.rs", "presence of a CPU"),
    ("shootdown/src/parts/bell/mod.rs", "doorbell of a CPU"),
    ("vm/src/reclaim/rmap.rs", "lock of a reverse map"),
    ("vm/src/replicas/mod.rs", "replicas of a space"),
    ("vm/src/deferred/quarantine.rs", "quarantine of page tables"),
];

/// The waits for lines and locks of one name, of all CPUs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HotSpot {
    /// The name: that of a known structure, or the module that accesses the lines.
    pub name: &'static str,
    /// Time that CPUs waited until they had a line.
    #[serde(rename = "line_wait_ns", serialize_with = "as_ns")]
    pub line_wait: Time,
    /// Number of these waits.
    pub transfers: u64,
    /// Time that threads waited for a lock, spinning or asleep, from the request until they had it.
    /// Contains waits for the lock's line.
    #[serde(rename = "lock_wait_ns", serialize_with = "as_ns")]
    pub lock_wait: Time,
    /// Number of requests for a lock that another thread had.
    pub lock_waits: u64,
}

fn as_ns<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(time.ns())
}

impl HotSpot {
    /// The longer of the two waits, which contains a part of the other.
    #[must_use]
    pub fn wait(&self) -> Time {
        self.line_wait.max(self.lock_wait)
    }

    /// The difference from an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            name: self.name,
            line_wait: self.line_wait - earlier.line_wait,
            transfers: self.transfers - earlier.transfers,
            lock_wait: self.lock_wait - earlier.lock_wait,
            lock_waits: self.lock_waits - earlier.lock_waits,
        }
    }

    /// Adds the waits of another reading of the same name.
    pub fn add(&mut self, other: &Self) {
        self.line_wait += other.line_wait;
        self.transfers += other.transfers;
        self.lock_wait += other.lock_wait;
        self.lock_waits += other.lock_waits;
    }
}

/// The waits of a simulation. A name's number is its index.
#[derive(Debug)]
pub(crate) struct HotSpots {
    pub(crate) spots: Vec<HotSpot>,
    by_site: HashMap<usize, u16>,
}

impl HotSpots {
    const KNOWN: [&'static str; 4] =
        ["page tables", "records of frames", "lock of a page table", "calls between two CPUs"];

    /// Returns the number of the name of a line that is first accessed at `site`.
    pub(crate) fn name(&mut self, site: Site) -> u16 {
        let key = core::ptr::from_ref(site).addr();
        if let Some(&known) = self.by_site.get(&key) {
            return known;
        }
        let name = name_of(site.file());
        let known = self.spots.iter().position(|spot| spot.name == name);
        let number = known.unwrap_or_else(|| {
            self.spots.push(HotSpot { name, ..HotSpot::default() });
            self.spots.len() - 1
        });
        self.by_site.insert(key, number as u16);
        number as u16
    }

    pub(crate) fn waited_for_line(&mut self, name: u16, wait: Time) {
        let spot = &mut self.spots[usize::from(name)];
        spot.line_wait += wait;
        spot.transfers += u64::from(wait != Time::ZERO);
    }

    pub(crate) fn waited_for_lock(&mut self, name: u16, wait: Time) {
        let spot = &mut self.spots[usize::from(name)];
        spot.lock_wait += wait;
        spot.lock_waits += 1;
    }
}

impl Default for HotSpots {
    fn default() -> Self {
        let spot = |name| HotSpot { name, ..HotSpot::default() };
        Self { spots: Self::KNOWN.map(spot).to_vec(), by_site: HashMap::new() }
    }
}

/// Returns the name of a module: the well-known one, or its path from the crate on.
fn name_of(file: &'static str) -> &'static str {
    let known = MODULES.into_iter().find(|(module, _)| file.ends_with(module));
    let path = file.rsplit_once("crates/").map_or(file, |(_, path)| path);
    known.map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_has_name_of_first_module() {
        let mut hot = HotSpots::default();
        let name = hot.name(Location::caller());
        assert_eq!(hot.spots[usize::from(name)].name, "sim/src/hot.rs");
        assert_eq!(hot.name(Location::caller()), name, "another site of the same module");
        assert_eq!(name_of("crates/vm/src/area_index.rs"), "lock of an area");
        hot.waited_for_line(PAIRS, Time::TICK);
        hot.waited_for_line(PAIRS, Time::ZERO);
        assert_eq!(hot.spots[3].transfers, 1);
    }
}
