//! Cache lines: which CPUs have each line, and the cost of an access.
//!
//! A line is 64 bytes of simulated physical memory, or of the host's memory that contains the
//! shared words of the code under test. So the words of a structure share lines here exactly as
//! they would on hardware. Each line has an owner or sharers, and a queue: while the line is being
//! transferred, the next CPU that requests it waits.
//!
//! Capacity (a line stays until another CPU takes it) and bandwidth are not modelled.

use core::ops::Range;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::hot::{HotSpots, PAGE_RECORDS, PAGE_TABLES, Site};
use crate::machine::{Cache, Distance, Links, Topology};
use crate::time::Time;

/// Identity of a line, in the host's memory or in the simulated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LineId(u64);

impl LineId {
    /// The line that contains a word of the host's memory.
    #[inline]
    pub(crate) fn of_host(address: usize) -> Self {
        Self(address as u64 / 64)
    }

    /// The lines that contain bytes of the host's memory.
    pub(crate) fn all_of_host(memory: Range<usize>) -> impl Iterator<Item = Self> {
        (memory.start as u64 / 64..(memory.end as u64).div_ceil(64)).map(Self)
    }

    /// The line that contains a byte of simulated memory.
    #[inline]
    pub(crate) const fn of_physical(address: u64) -> Self {
        Self((address / 64) | (1 << 63))
    }
}

/// A CPU's access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// A read.
    Load,
    /// A write that does not wait for the line.
    Store,
    /// A read and write in one step.
    Atomic,
    /// A request for a line that is read soon, without waiting for it.
    Prefetch,
    /// A request for a line that is written soon, without waiting for it.
    PrefetchForWrite,
}

impl Access {
    #[inline]
    pub(crate) const fn only_reads(self) -> bool {
        matches!(self, Self::Load | Self::Prefetch)
    }
}

/// Cost of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Time for which the CPU is busy.
    pub(crate) busy: Time,
    /// The part of that time in which the CPU waits for the line.
    pub(crate) wait: Time,
    /// Time at which a store in the store buffer gets its line; zero if it has the line.
    pub(crate) stored_at: Time,
}

/// All lines that were accessed and not forgotten.
#[derive(Debug)]
pub(crate) struct Lines {
    index: HashMap<LineId, u32, BuildHasherDefault<LineHasher>>,
    lines: Vec<Line>,
    /// For each line, one bit per CPU: set if the CPU has a copy.
    sharers: Vec<u64>,
    words_per_line: usize,
    free: Vec<u32>,
    /// The lines of the records of frames, by frame.
    page_records: Vec<PageRecord>,
    topology: Topology,
    cost: Cache,
    /// Time of a transfer between sockets without a link.
    far: Time,
    /// For each CPU, the prefetches that are on their way.
    prefetches: Vec<Prefetches>,
    pub(crate) hot: HotSpots,
}

/// The line of the record of a frame. Nearly every access writes it, so it has no sharers.
#[derive(Clone, Copy, Debug, Default)]
struct PageRecord {
    owner: Option<u16>,
    /// Time at which the last transfer of the line ends.
    free_at: Time,
}

/// Number of lines that a CPU can request without waiting. Intel's cores have 10 line fill buffers
/// since Nehalem, and later ones have 12 or more (Optimization Reference Manual, "Level 1 data
/// cache"); other cores are assumed to have as many.
const PREFETCHES_MAX: usize = 10;

/// The times at which the latest prefetches of a CPU arrive.
#[derive(Clone, Debug, Default)]
struct Prefetches {
    arrivals: [Time; PREFETCHES_MAX],
    oldest: usize,
}

impl Prefetches {
    /// Adds a prefetch at time `now`, whose line `arrives` after it has a buffer. Returns the time
    /// for which the CPU waits for a buffer.
    fn add(&mut self, now: Time, arrives: impl FnOnce(Time) -> Time) -> Time {
        let wait = self.arrivals[self.oldest].saturating_sub(now);
        self.arrivals[self.oldest] = arrives(now + wait);
        self.oldest = (self.oldest + 1) % PREFETCHES_MAX;
        wait
    }
}

#[derive(Clone, Copy, Debug)]
struct Line {
    /// The only CPU that may write the line without a transfer.
    owner: Option<u16>,
    /// Time at which the last transfer of the line ends.
    free_at: Time,
    /// The CPU that prefetched the line, until it reads the line.
    prefetched_by: Option<u16>,
    /// The number of its name.
    name: u16,
}

impl Line {
    const UNCACHED: Self =
        Self { owner: None, free_at: Time::ZERO, prefetched_by: None, name: PAGE_TABLES };
}

impl Lines {
    pub(crate) fn new(topology: Topology, cost: Cache, far: Time) -> Self {
        Self {
            index: HashMap::default(),
            lines: Vec::new(),
            sharers: Vec::new(),
            words_per_line: topology.cpu_count().div_ceil(64),
            free: Vec::new(),
            prefetches: vec![Prefetches::default(); topology.cpu_count()],
            page_records: Vec::new(),
            hot: HotSpots::default(),
            topology,
            cost,
            far,
        }
    }

    /// Time until `cpu` has the line of the record of a frame, which it writes.
    #[inline]
    pub(crate) fn use_page_record(&mut self, frame: u64, cpu: usize, now: Time) -> Time {
        self.use_record_as(PAGE_RECORDS, frame, cpu, now)
    }

    /// The same, for a line of another name.
    #[inline]
    pub(crate) fn use_record_as(&mut self, name: u16, frame: u64, cpu: usize, now: Time) -> Time {
        let transfer = self.take_page_record(frame, cpu);
        let free_at = &mut self.page_records[frame as usize].free_at;
        if let Some(transfer) = transfer {
            *free_at = now.max(*free_at) + transfer;
        }
        // The CPU's own line may be on its way.
        let wait = free_at.saturating_sub(now);
        self.hot.waited_for_line(name, wait);
        wait
    }

    /// Starts a transfer of the line of the record of a frame to `cpu`, which writes it soon.
    /// Returns the time of the request.
    pub(crate) fn request_page_record(&mut self, frame: u64, cpu: usize, now: Time) -> Time {
        let Some(transfer) = self.take_page_record(frame, cpu) else { return Time::ZERO };
        let mut free_at = self.page_records[frame as usize].free_at;
        let wait = self.request(cpu, now, transfer, &mut free_at);
        self.page_records[frame as usize].free_at = free_at;
        self.requested(wait).busy
    }

    /// Makes `cpu` the owner of the record of a frame. Returns the time of the transfer, if it was
    /// not the owner.
    #[inline]
    fn take_page_record(&mut self, frame: u64, cpu: usize) -> Option<Time> {
        let frame = frame as usize;
        if frame >= self.page_records.len() {
            self.page_records.resize(frame + 1, PageRecord::default());
        }
        let transfer = match self.page_records[frame].owner.replace(cpu as u16) {
            Some(owner) if usize::from(owner) == cpu => return None,
            Some(owner) => self.between(cpu, owner.into()),
            None => self.cost.memory,
        };
        Some(transfer)
    }

    /// The cost of an access by `cpu`, which has the line afterwards. `site` names a line of the
    /// host's memory; the others are in page tables.
    #[inline]
    pub(crate) fn access(
        &mut self,
        line: LineId,
        cpu: usize,
        access: Access,
        now: Time,
        site: Option<Site>,
    ) -> Cost {
        let at = match self.index.get(&line) {
            Some(&at) => at as usize,
            None => {
                let at = self.add(line) as usize;
                self.lines[at].name = site.map_or(PAGE_TABLES, |site| self.hot.name(site));
                at
            }
        };
        let line = &mut self.lines[at];
        let owned = line.owner == Some(cpu as u16);
        let is_shared = self.sharers[at * self.words_per_line + cpu / 64] >> (cpu % 64) & 1 == 1;
        if !(owned || is_shared && access.only_reads()) {
            let cost = self.miss(at, cpu, access, now);
            self.hot.waited_for_line(self.lines[at].name, cost.wait);
            return cost;
        }
        let mut late = Time::ZERO;
        if line.prefetched_by == Some(cpu as u16) {
            line.prefetched_by = None;
            late = line.free_at.saturating_sub(now);
            self.hot.waited_for_line(line.name, late);
        }
        Cost { busy: self.hit(owned, access) + late, wait: late, stored_at: Time::ZERO }
    }

    /// The cost of an access to a line that a CPU has in the required state.
    #[inline]
    pub(crate) fn hit(&self, owned: bool, access: Access) -> Time {
        match access {
            Access::Store => self.cost.store,
            Access::Atomic => self.cost.atomic + if owned { Time::ZERO } else { self.cost.hit },
            // Its cost is that of a design's private state, which is not charged.
            _ if owned => Time::ZERO,
            _ => self.cost.hit,
        }
    }

    /// The cost of an access to a line that `cpu` does not have in the required state.
    #[inline(never)]
    fn miss(&mut self, at: usize, cpu: usize, access: Access, now: Time) -> Cost {
        if matches!(access, Access::Prefetch | Access::PrefetchForWrite) {
            let wait = self.prefetch(at, cpu, access, now);
            return self.requested(wait);
        }
        let was_uncached = self.is_uncached(at);
        let transfer = self.transfer(at, cpu, access);
        let arrives = now.max(self.lines[at].free_at) + transfer;
        self.lines[at].free_at = arrives;
        if access == Access::Load {
            // The only CPU that has the line may also write it (the E of MESI).
            self.lines[at].owner = was_uncached.then_some(cpu as u16);
            self.add_sharer(at, cpu);
            return Cost { busy: arrives - now, wait: arrives - now, stored_at: Time::ZERO };
        }
        self.lines[at].owner = Some(cpu as u16);
        self.lines[at].prefetched_by = None;
        self.sharers_mut(at).fill(0);
        self.add_sharer(at, cpu);
        match access {
            Access::Store => Cost { busy: self.cost.store, wait: Time::ZERO, stored_at: arrives },
            _ => Cost {
                busy: arrives - now + self.cost.atomic,
                wait: arrives - now,
                stored_at: Time::ZERO,
            },
        }
    }

    /// Starts a transfer to a CPU that does not wait for the line. Returns the time for which the
    /// CPU waits until the request can be made.
    fn prefetch(&mut self, at: usize, cpu: usize, access: Access, now: Time) -> Time {
        let is_write = access == Access::PrefetchForWrite;
        let transfer = self.transfer(at, cpu, if is_write { Access::Atomic } else { Access::Load });
        let mut free_at = self.lines[at].free_at;
        let wait = self.request(cpu, now, transfer, &mut free_at);
        let line = &mut self.lines[at];
        line.free_at = free_at;
        line.owner = is_write.then_some(cpu as u16);
        line.prefetched_by = Some(cpu as u16);
        if is_write {
            self.sharers_mut(at).fill(0);
        }
        self.add_sharer(at, cpu);
        wait
    }

    /// Starts a transfer of a line that is free at `free_at`, as [`prefetch`](Self::prefetch) does.
    pub(crate) fn request(
        &mut self,
        cpu: usize,
        now: Time,
        transfer: Time,
        free_at: &mut Time,
    ) -> Time {
        self.prefetches[cpu].add(now, |now| {
            *free_at = now.max(*free_at) + transfer;
            *free_at
        })
    }

    /// The cost of a prefetch that waited for a buffer.
    pub(crate) fn requested(&self, wait: Time) -> Cost {
        Cost { busy: wait + self.cost.store, wait, stored_at: Time::ZERO }
    }

    /// The number of the name of a line; that of page tables if it is in no cache.
    pub(crate) fn name(&self, line: LineId) -> u16 {
        self.index.get(&line).map_or(PAGE_TABLES, |&at| self.lines[at as usize].name)
    }

    /// Duration of a transfer of a line that no CPU has.
    pub(crate) const fn memory_time(&self) -> Time {
        self.cost.memory
    }

    /// Returns `true` if the line was accessed and not forgotten.
    pub(crate) fn contains(&self, line: LineId) -> bool {
        self.index.contains_key(&line)
    }

    /// Removes a line from all caches, because its memory was freed or is reused.
    pub(crate) fn forget(&mut self, line: LineId) {
        if let Some(at) = self.index.remove(&line) {
            self.sharers_mut(at as usize).fill(0);
            self.lines[at as usize] = Line::UNCACHED;
            self.free.push(at);
        }
    }

    /// Makes `cpu` the owner of a line that it has just written completely. That cost was charged
    /// separately.
    pub(crate) fn own(&mut self, line: LineId, cpu: usize) {
        let at = match self.index.get(&line) {
            Some(&at) => {
                self.sharers_mut(at as usize).fill(0);
                at as usize
            }
            None => self.add(line) as usize,
        };
        let name = self.lines[at].name;
        self.lines[at] = Line { owner: Some(cpu as u16), name, ..Line::UNCACHED };
        self.add_sharer(at, cpu);
    }

    fn add(&mut self, line: LineId) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.lines.push(Line::UNCACHED);
            self.sharers.resize(self.lines.len() * self.words_per_line, 0);
            self.lines.len() as u32 - 1
        });
        self.index.insert(line, at);
        at
    }

    /// Duration of a transfer. A reader gets the line from the nearest CPU that has it; a writer
    /// waits until the farthest CPU has dropped it.
    fn transfer(&self, at: usize, cpu: usize, access: Access) -> Time {
        let cost = &self.cost;
        if self.is_uncached(at) {
            return cost.memory;
        }
        let steps = [
            (Distance::Core, cost.core),
            (Distance::Cluster, cost.cluster),
            (Distance::Socket, cost.socket),
        ];
        for (distance, time) in steps {
            let within = self.topology.within(cpu, distance);
            let mut words = self.sharers(at).iter().enumerate();
            let found = match access {
                Access::Load => words.any(|(i, &word)| word & mask(i, &within) != 0),
                _ => words.all(|(i, &word)| word & !mask(i, &within) == 0),
            };
            if found {
                return time;
            }
        }
        if self.topology.links == Links::All {
            return cost.system;
        }
        let has_sharer = |socket| {
            let within = self.topology.cpus_of_socket(socket);
            self.sharers(at).iter().enumerate().any(|(i, &word)| word & mask(i, &within) != 0)
        };
        let own = self.topology.socket_of(cpu);
        let sharers =
            (0..self.topology.sockets).filter(|&socket| socket != own && has_sharer(socket));
        let distances = sharers.map(|socket| self.topology.between_sockets(own, socket));
        let distance = if access == Access::Load { distances.min() } else { distances.max() };
        if distance == Some(Distance::Far) { self.far } else { cost.system }
    }

    /// Duration of a transfer from one CPU to another.
    pub(crate) fn between(&self, from: usize, to: usize) -> Time {
        match self.topology.distance(from, to) {
            Distance::Core => self.cost.core,
            Distance::Cluster => self.cost.cluster,
            Distance::Socket => self.cost.socket,
            Distance::System => self.cost.system,
            Distance::Far => self.far,
        }
    }

    fn add_sharer(&mut self, at: usize, cpu: usize) {
        self.sharers[at * self.words_per_line + cpu / 64] |= 1 << (cpu % 64);
    }

    fn is_uncached(&self, at: usize) -> bool {
        self.sharers(at).iter().all(|&word| word == 0)
    }

    fn sharers(&self, at: usize) -> &[u64] {
        &self.sharers[at * self.words_per_line..(at + 1) * self.words_per_line]
    }

    fn sharers_mut(&mut self, at: usize) -> &mut [u64] {
        &mut self.sharers[at * self.words_per_line..(at + 1) * self.words_per_line]
    }
}

/// The bits of the `index`-th word of a CPU set that represent CPUs in `cpus`.
fn mask(index: usize, cpus: &Range<usize>) -> u64 {
    let first = cpus.start.saturating_sub(index * 64).min(64);
    let end = cpus.end.saturating_sub(index * 64).min(64);
    let below = |bit: usize| if bit >= 64 { u64::MAX } else { (1 << bit) - 1 };
    below(end) & !below(first)
}

/// Spreads line numbers, which are distinct already.
#[derive(Debug, Default)]
struct LineHasher(u64);

impl Hasher for LineHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn lines() -> Lines {
        let ns = Time::from_ns;
        let cost = Cache {
            hit: ns(1),
            core: ns(5),
            cluster: ns(20),
            socket: ns(50),
            system: ns(200),
            memory: ns(80),
            store: ns(2),
            atomic: ns(8),
            fence: ns(10),
            pause: ns(20),
        };
        Lines::new(Topology::new(2, 2, 2, 2), cost, ns(300))
    }

    const LINE: LineId = LineId::of_physical(0x40);

    fn busy(lines: &mut Lines, cpu: usize, access: Access, now: u64) -> u64 {
        lines.access(LINE, cpu, access, Time::from_ns(now), None).busy.ns()
    }

    #[test]
    fn nearest_sharer_sends_the_line() {
        let mut lines = lines();
        assert_eq!(busy(&mut lines, 0, Access::Load, 0), 80);
        assert_eq!(busy(&mut lines, 0, Access::Load, 100), 0);
        assert_eq!(busy(&mut lines, 0, Access::Atomic, 150), 8);
        assert_eq!(busy(&mut lines, 1, Access::Load, 200), 5);
        assert_eq!(busy(&mut lines, 2, Access::Load, 300), 20);
        assert_eq!(busy(&mut lines, 4, Access::Load, 400), 50);
        assert_eq!(busy(&mut lines, 8, Access::Load, 500), 200);
        assert_eq!(busy(&mut lines, 9, Access::Load, 800), 5);
    }

    #[test]
    fn writer_waits_for_farthest_sharer() {
        let mut lines = lines();
        busy(&mut lines, 0, Access::Load, 0);
        busy(&mut lines, 1, Access::Load, 100);
        assert_eq!(busy(&mut lines, 0, Access::Atomic, 200), 5 + 8);
        busy(&mut lines, 8, Access::Load, 300);
        assert_eq!(busy(&mut lines, 0, Access::Atomic, 600), 200 + 8);
        assert_eq!(busy(&mut lines, 0, Access::Atomic, 900), 8);
    }

    #[test]
    fn line_takes_longer_between_sockets_without_link() {
        let mut lines = lines();
        lines.topology = Topology::new(4, 1, 2, 1).with_links(Links::Ring);
        busy(&mut lines, 0, Access::Atomic, 0);
        assert_eq!(busy(&mut lines, 4, Access::Load, 100), 300);
        // The nearest CPU that has the line sends it; a writer waits for the farthest.
        assert_eq!(busy(&mut lines, 6, Access::Load, 500), 200);
        assert_eq!(busy(&mut lines, 2, Access::Load, 800), 200);
        assert_eq!(busy(&mut lines, 6, Access::Atomic, 1100), 300 + 8);
        let mut time = |cpu, now| lines.use_page_record(7, cpu, Time::from_ns(now)).ns();
        assert_eq!([time(0, 0), time(0, 80), time(4, 70)], [80, 0, 10 + 300]);
    }

    #[test]
    fn requested_page_records_travel_in_parallel() {
        let mut lines = lines();
        (0..11).for_each(|frame| _ = lines.use_page_record(frame, 8, Time::ZERO));
        let mut now = Time::from_ns(5000);
        for frame in 0..11 {
            now += lines.request_page_record(frame, 0, now);
        }
        // The eleventh waits until the first has arrived.
        assert_eq!(now.ns(), 5000 + 200 + 2);
        assert_eq!(lines.request_page_record(10, 0, now), Time::ZERO, "it is on its way");
        now += lines.use_page_record(9, 0, now);
        assert_eq!(now.ns(), 5000 + 9 * 2 + 200);
        now += lines.use_page_record(10, 0, now);
        assert_eq!(now.ns(), 5000 + 200 + 200);
        assert_eq!(lines.use_page_record(0, 8, now).ns(), 200, "it goes back");
    }

    #[test]
    fn requests_wait_for_transfer_in_progress() {
        let mut lines = lines();
        busy(&mut lines, 0, Access::Atomic, 0);
        assert_eq!(busy(&mut lines, 2, Access::Atomic, 100), 20 + 8);
        assert_eq!(busy(&mut lines, 4, Access::Atomic, 100), 20 + 50 + 8);
    }

    #[test]
    fn store_is_buffered_until_line_arrives() {
        let mut lines = lines();
        busy(&mut lines, 2, Access::Load, 0);
        let cost = lines.access(LINE, 0, Access::Store, Time::from_ns(200), None);
        assert_eq!((cost.busy.ns(), cost.stored_at.ns()), (2, 220));
    }

    #[test]
    fn prefetched_lines_travel_in_parallel() {
        let mut lines = lines();
        let all = [0x40, 0x80, 0xc0].map(LineId::of_physical);
        for (cpu, line) in (2..).zip(all) {
            lines.access(line, cpu, Access::Atomic, Time::ZERO, None);
        }
        let mut now = Time::from_ns(1000);
        for access in [Access::Prefetch, Access::Load] {
            for line in all {
                now += lines.access(line, 0, access, now, None).busy;
            }
        }
        // Two lines from the cluster, one from the socket: 50 ns, and not 90.
        assert_eq!(now.ns(), 1000 + 3 * 2 - 2 + 50 + 1);
    }

    #[test]
    fn cpu_that_fills_a_line_owns_it() {
        let mut lines = lines();
        lines.own(LINE, 2);
        assert_eq!(busy(&mut lines, 2, Access::Atomic, 0), 8);
        assert_eq!(busy(&mut lines, 0, Access::Load, 100), 20);
    }

    #[test]
    fn mask_covers_exactly_its_cpus() {
        for (first, end) in [(0, 64), (3, 7), (60, 70), (64, 128), (127, 128), (0, 200)] {
            for cpu in 0..256 {
                let in_mask = mask(cpu / 64, &(first..end)) >> (cpu % 64) & 1 == 1;
                assert_eq!(in_mask, (first..end).contains(&cpu), "{cpu} of {first}..{end}");
            }
        }
    }
}
