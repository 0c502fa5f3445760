//! Words with a line of their own that two CPUs alone use, such as a record for calls from one CPU
//! to another.
//!
//! A machine has as many of them as pairs of CPUs: 16 million at 4096 CPUs. A [`SimWord`] of that
//! kind would take its line of the host's memory, and a set of CPUs in the index of lines. Two
//! holders fit in two bits, so that a [`PairWord`] and the state of its line fit in eight bytes.
//! Accesses cost the same.
//!
//! [`SimWord`]: crate::SimWord

use core::cell::Cell;
use core::ptr;

use crate::causes::Cause;
use crate::hot::PAIRS;
use crate::lines::{Access, Cost, Lines};
use crate::sim::Sim;
use crate::time::Time;

/// A flag with its own cache line, which two CPUs alone use.
///
/// Each access names the other CPU, whether or not it has used the word. Unlike a
/// [`SimWord`](crate::SimWord), it may be moved while no CPU waits for it.
#[derive(Debug, Default)]
pub struct PairWord(Cell<u64>);

impl PairWord {
    const VALUE: u64 = 1 << 63;

    /// Reads the word.
    #[inline]
    #[must_use]
    pub fn load(&self, sim: &Sim, other: usize) -> bool {
        self.access(sim, other, Access::Load);
        self.value()
    }

    /// Writes the word, without waiting for its line.
    #[inline]
    pub fn store(&self, sim: &Sim, other: usize, value: bool) {
        self.access(sim, other, Access::Store);
        self.0.set(self.0.get() & !Self::VALUE | if value { Self::VALUE } else { 0 });
        sim.end_polls(other, self.address());
    }

    /// Fetches the line ahead of time, as [`SimWord::prefetch`](crate::SimWord::prefetch) does.
    #[inline]
    pub fn prefetch(&self, sim: &Sim, other: usize) {
        self.access(sim, other, Access::Prefetch);
    }

    /// Waits until the other CPU has cleared the word. The loop has the iterations of
    /// [`load`](Self::load) and [`Sim::flush_wait_hint`], and makes an event only for those that
    /// another CPU or an interrupt can change.
    pub fn wait_until_clear(&self, sim: &Sim, other: usize) {
        sim.attribute(Cause::FlushWait, || {
            let mut is_set = self.load(sim, other);
            while is_set {
                sim.flush_wait_hint();
                is_set = self.poll(sim, other, None);
            }
        });
    }

    /// Waits until CPU `other` has cleared the word that it shares with CPU `from`, in a thread
    /// that [can be preempted](Sim::wait_point) in the wait, and that may run on any CPU.
    pub fn wait_preemptibly(&self, sim: &Sim, from: usize, other: usize) {
        sim.attribute(Cause::FlushWait, || {
            let mut is_set = self.load_anywhere(sim, from, other);
            while is_set {
                sim.wait_point();
                is_set = if sim.cpu() == from {
                    sim.interruptibly(|until| self.poll(sim, other, until))
                } else {
                    self.load_anywhere(sim, from, other)
                };
            }
        });
    }

    /// Returns `true` if the word is set, without a cost.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.value()
    }

    /// Loads the word, after the iterations that no event before `until` changes.
    fn poll(&self, sim: &Sim, other: usize, until: Option<Time>) -> bool {
        let line = PairLine::unpack(self.0.get());
        let me = me(sim.cpu(), other);
        let has_line = line.holders & me != 0 && line.prefetched_by != me;
        let is_loaded =
            has_line && self.value() && sim.skip_polls(self.address(), line.owner == me, until);
        if is_loaded { self.value() } else { self.load(sim, other) }
    }

    /// Loads the word on any CPU.
    fn load_anywhere(&self, sim: &Sim, from: usize, other: usize) -> bool {
        match sim.cpu() {
            cpu if cpu == from => self.load(sim, other),
            cpu if cpu == other => self.load(sim, from),
            _ => self.load_as_third(sim, [from, other]),
        }
    }

    /// Loads the word on a CPU that is not one of the two. The line is transferred if one of them
    /// has written it since the last such load.
    fn load_as_third(&self, sim: &Sim, pair: [usize; 2]) -> bool {
        pair.into_iter().for_each(|cpu| sim.end_polls(cpu, self.address()));
        sim.access_by(Access::Load, |lines, cpu, now| {
            let mut line = PairLine::unpack(self.0.get());
            let owner = core::mem::take(&mut line.owner);
            if owner == 0 {
                let busy = lines.hit(false, Access::Load);
                return Cost { busy, wait: Time::ZERO, stored_at: Time::ZERO };
            }
            let [low, high] = [pair[0].min(pair[1]), pair[0].max(pair[1])];
            let transfer = lines.between(cpu, if owner == me(low, high) { low } else { high });
            line.free_at = now.max(line.free_at) + transfer;
            self.0.set(self.0.get() & Self::VALUE | line.pack());
            let wait = line.free_at - now;
            lines.hot.waited_for_line(PAIRS, wait);
            Cost { busy: wait, wait, stored_at: Time::ZERO }
        });
        self.value()
    }

    fn value(&self) -> bool {
        self.0.get() & Self::VALUE != 0
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    #[inline]
    fn access(&self, sim: &Sim, other: usize, access: Access) {
        sim.end_polls(other, self.address());
        sim.access_by(access, |lines, cpu, now| {
            let mut line = PairLine::unpack(self.0.get());
            let cost = line.access(lines, cpu, other, access, now);
            self.0.set(self.0.get() & Self::VALUE | line.pack());
            lines.hot.waited_for_line(PAIRS, cost.wait);
            cost
        });
    }
}

/// The state of a line that two CPUs use. In each pair of bits, the lower bit stands for the CPU
/// with the lower number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PairLine {
    /// Time at which the last transfer of the line ends.
    free_at: Time,
    holders: u8,
    /// The only CPU that may write the line without a transfer.
    owner: u8,
    /// The CPU that prefetched the line, until it reads the line.
    prefetched_by: u8,
}

impl PairLine {
    const TIME_BITS: u32 = 52;

    fn unpack(bits: u64) -> Self {
        let two = |at: u32| (bits >> (Self::TIME_BITS + at) & 3) as u8;
        let free_at = Time::from_ps(bits & ((1 << Self::TIME_BITS) - 1));
        Self { free_at, holders: two(0), owner: two(2), prefetched_by: two(4) }
    }

    fn pack(self) -> u64 {
        let flags = self.holders | self.owner << 2 | self.prefetched_by << 4;
        self.free_at.min(Time::END).ps() | u64::from(flags) << Self::TIME_BITS
    }

    /// The cost of an access by `cpu`: that of [`Lines::access`] to a line that only `cpu` and
    /// `other` have accessed.
    fn access(
        &mut self,
        lines: &mut Lines,
        cpu: usize,
        other: usize,
        access: Access,
        now: Time,
    ) -> Cost {
        let me = me(cpu, other);
        let owned = self.owner == me;
        if owned || self.holders & me != 0 && access.only_reads() {
            let mut busy = lines.hit(owned, access);
            if self.prefetched_by == me {
                self.prefetched_by = 0;
                busy += self.free_at.saturating_sub(now);
            }
            let wait = busy.saturating_sub(lines.hit(owned, access));
            return Cost { busy, wait, stored_at: Time::ZERO };
        }
        let was_uncached = self.holders == 0;
        let transfer = match self.holders & !me {
            _ if was_uncached => lines.memory_time(),
            0 => lines.between(cpu, cpu),
            _ => lines.between(cpu, other),
        };
        if access == Access::Prefetch {
            let wait = lines.request(cpu, now, transfer, &mut self.free_at);
            (self.owner, self.prefetched_by) = (0, me);
            self.holders |= me;
            return lines.requested(wait);
        }
        self.free_at = now.max(self.free_at) + transfer;
        if access == Access::Load {
            self.owner = if was_uncached { me } else { 0 };
            self.holders |= me;
            let wait = self.free_at - now;
            return Cost { busy: wait, wait, stored_at: Time::ZERO };
        }
        (self.owner, self.holders, self.prefetched_by) = (me, me, 0);
        Cost { busy: lines.hit(true, Access::Store), wait: Time::ZERO, stored_at: self.free_at }
    }
}

/// The bit of a CPU in a [`PairLine`].
fn me(cpu: usize, other: usize) -> u8 {
    if cpu < other { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::LineId;
    use crate::lines::tests::lines;
    use crate::rng::Rng;

    /// Both kinds of lines cost the same, for all distances and all orders of accesses.
    #[test]
    fn pair_costs_as_much_as_any_line() {
        const ACCESSES: [Access; 3] = [Access::Load, Access::Store, Access::Prefetch];
        for seed in 0..2000 {
            let mut rng = Rng::new(seed);
            let (mut packed, mut general) = (lines(), lines());
            let cpus = [rng.below(8) as usize, 8 + rng.below(8) as usize];
            let cpus = if seed.is_multiple_of(2) { cpus } else { [cpus[0], (cpus[0] + 1) % 8] };
            let (mut bits, mut now) = (0, Time::ZERO);
            for _ in 0..40 {
                let me = rng.below(2) as usize;
                let access = ACCESSES[rng.below(3) as usize];
                let mut line = PairLine::unpack(bits);
                let cost = line.access(&mut packed, cpus[me], cpus[1 - me], access, now);
                bits = line.pack();
                let expected = general.access(LineId::of_physical(64), cpus[me], access, now, None);
                assert_eq!(cost, expected, "{access:?} by {} of {cpus:?}, {seed}", cpus[me]);
                now += Time::from_ns(rng.below(120));
            }
        }
    }
}
