//! Telling other CPUs' TLBs without their kernels: hardware that broadcasts, and firmware that
//! reaches into a set of CPUs.
//!
//! Both promise the same: what was cached when the operation was issued is gone when it is
//! complete, and nothing more. So an entry that was there at the issue is used until the
//! completion, and one that comes after the issue stays: of all that hardware may do, that is what
//! a design that issues too early, or reuses a page too early, survives least. An operation that
//! nobody completes never takes effect; and that another CPU than the issuer waits completes
//! nothing, as on arm64, where `dsb` orders the operations of its own CPU alone.
//!
//! All CPUs' broadcasts share one queue, whatever their sockets: one operation occupies the
//! interconnect for a while, and the next waits. With `n` CPUs that issue as fast as they can,
//! each operation takes about `n` times as long.

use core::ops::Range;

use crate::invalidation::{Drops, Operation};
use crate::machine::{Broadcast, RemoteFence};
use crate::sim::Sim;
use crate::time::Time;
use crate::tlb::Levels;

/// What TLBs are told to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastScope<'a> {
    /// The translations of pages in these ranges of addresses, under the tag.
    Pages(&'a [Range<u64>]),
    /// Those, and what is cached of the upper levels above them.
    Tables(&'a [Range<u64>]),
    /// All that is cached under the tag.
    Tag,
    /// All that is cached under any tag, global translations included.
    Everything,
}

impl Sim {
    /// Issues a broadcast to all CPUs' TLBs, this one's included: `TLBI …IS`, `INVLPGB`. It is
    /// complete only when this CPU has [waited](Self::complete_broadcasts).
    ///
    /// Without hardware for it nothing happens, and the oracle will see.
    pub fn broadcast(&self, tag: u16, what: BroadcastScope<'_>) {
        let Some(cost) = &self.machine.broadcast else { return };
        let most = (cost.pages_per_operation as u64).saturating_mul(PAGE);
        match what {
            BroadcastScope::Pages(ranges) => {
                self.issue_ranges(cost, tag, ranges, most, Levels::Last)
            }
            BroadcastScope::Tables(ranges) => {
                self.issue_ranges(cost, tag, ranges, most, Levels::All)
            }
            BroadcastScope::Tag => self.issue(cost, tag, Drops::Tag),
            BroadcastScope::Everything => self.issue(cost, tag, Drops::Everything),
        }
    }

    /// Waits until all broadcasts that this CPU has issued are done on all CPUs: `DSB ISH`,
    /// `TLBSYNC`. Without any, it costs what a barrier costs.
    pub fn complete_broadcasts(&self) {
        self.fence();
        let began = self.now();
        let done_at = self.clock.borrow().cpus[self.cpu()].broadcasting.done_at;
        // Interrupts are taken when the instruction is over.
        self.mask();
        self.stall_until(done_at);
        let operations = {
            let mut clock = self.clock.borrow_mut();
            core::mem::take(&mut clock.cpus[self.cpu()].broadcasting.operations)
        };
        for tlb in self.tlbs.borrow_mut().iter_mut() {
            operations.iter().for_each(|operation| operation.apply(tlb));
        }
        self.count_wait(began);
        self.unmask();
    }

    /// Has firmware make CPUs invalidate, and returns when all have: an SBI remote fence. Their
    /// kernels do not notice, whether they mask interrupts or not.
    ///
    /// Pages are those of last-level entries alone, as in the RISC-V privileged specification:
    /// whoever frees tables names the tag. Without such firmware nothing happens, and the oracle
    /// will see.
    pub fn remote_fence(
        &self,
        cpus: impl IntoIterator<Item = usize>,
        tag: u16,
        what: BroadcastScope<'_>,
    ) {
        let Some(cost) = &self.machine.remote_fence else { return };
        let targets: Vec<usize> = cpus.into_iter().collect();
        let issued = self.next_moment();
        let operations = fences(cost, tag, what, issued);
        let invalidations = self.time_of(&operations);
        let began = self.now();
        self.mask();
        self.spend(cost.call + cost.each * targets.len() as u64);
        let done_at = self.occupy_targets(cost, &targets, invalidations);
        self.stall_until(done_at);
        {
            let mut tlbs = self.tlbs.borrow_mut();
            for &target in &targets {
                operations.iter().for_each(|operation| operation.apply(&mut tlbs[target]));
            }
        }
        self.count(|counts| counts.remote_fences += targets.len() as u64);
        self.count_wait(began);
        self.unmask();
    }

    /// Says that a space was given a tag.
    pub fn count_tag_taken(&self) {
        self.count(|counts| counts.tags_taken += 1);
    }

    /// Says that tags were used up, and all were taken back: on this CPU where they are its own,
    /// everywhere where they are everyone's.
    pub fn count_rollover(&self) {
        self.count(|counts| counts.rollovers += 1);
    }

    fn issue_ranges(
        &self,
        cost: &Broadcast,
        tag: u16,
        ranges: &[Range<u64>],
        most: u64,
        levels: Levels,
    ) {
        for range in ranges {
            let mut start = range.start;
            while start < range.end {
                let end = start.saturating_add(most).min(range.end);
                self.issue(cost, tag, Drops::Pages(start..end, levels));
                start = end;
            }
        }
    }

    fn issue(&self, cost: &Broadcast, tag: u16, drops: Drops) {
        self.spend(cost.issue);
        let operation = Operation { tag, drops, issued: self.next_moment() };
        let mut clock = self.clock.borrow_mut();
        let number = self.cpu();
        let starts_at = clock.cpus[number].now.max(clock.interconnect_free_at);
        clock.interconnect_free_at = starts_at + cost.occupy;
        let cpu = &mut clock.cpus[number];
        cpu.counts.broadcasts += 1;
        cpu.broadcasting.operations.push(operation);
        let done_at = starts_at + cost.complete.max(cost.occupy);
        cpu.broadcasting.done_at = done_at.max(cpu.broadcasting.done_at);
        if cost.victim > Time::ZERO {
            let others = clock.cpus.iter_mut().enumerate().filter(|&(other, _)| other != number);
            others.for_each(|(_, cpu)| cpu.steal(cost.victim));
        }
    }

    /// Takes the time of a remote fence from its targets, each of which does one after the other.
    /// Returns when the last is done.
    fn occupy_targets(&self, cost: &RemoteFence, targets: &[usize], invalidations: Time) -> Time {
        let mut clock = self.clock.borrow_mut();
        let now = clock.cpus[self.cpu()].now;
        let mut last = now;
        for &target in targets {
            let cpu = &mut clock.cpus[target];
            let work = cost.target + invalidations;
            let alone = now + cost.deliver + invalidations;
            cpu.fenced_until = alone.max(cpu.fenced_until + work);
            last = last.max(cpu.fenced_until);
            if target != self.cpu() {
                cpu.steal(work);
            }
        }
        last
    }

    /// Holds this CPU up until the given time. Interrupts must be masked.
    fn stall_until(&self, until: Time) {
        let cpu = self.cpu();
        let rest = until.saturating_sub(self.now());
        // What others take meanwhile, it would not have used.
        self.clock.borrow_mut().cpus[cpu].stalled = true;
        self.spend(rest);
        self.clock.borrow_mut().cpus[cpu].stalled = false;
    }

    fn count_wait(&self, began: Time) {
        let waited = self.now() - began;
        self.count(|counts| counts.broadcast_wait += waited);
    }

    fn time_of(&self, operations: &[Operation]) -> Time {
        let tlb = &self.machine.tlb;
        let time = |operation: &Operation| match &operation.drops {
            Drops::Pages(range, _) => {
                tlb.invalidate_page * pages(range).div_ceil(tlb.pages_per_invalidation as u64)
            }
            Drops::Tag => tlb.load_root_and_discard,
            Drops::Everything => tlb.invalidate_all,
        };
        operations.iter().map(time).sum()
    }
}

/// What the firmware of each target does.
fn fences(cost: &RemoteFence, tag: u16, what: BroadcastScope<'_>, issued: u64) -> Vec<Operation> {
    let operation = |drops| Operation { tag, drops, issued };
    match what {
        BroadcastScope::Pages(ranges) | BroadcastScope::Tables(ranges) => {
            if ranges.iter().map(pages).sum::<u64>() > cost.page_ceiling as u64 {
                return vec![operation(Drops::Tag)];
            }
            let drops = |range: &Range<u64>| Drops::Pages(range.clone(), Levels::Last);
            ranges.iter().map(drops).map(operation).collect()
        }
        BroadcastScope::Tag => vec![operation(Drops::Tag)],
        BroadcastScope::Everything => vec![operation(Drops::Everything)],
    }
}

const PAGE: u64 = 4096;

fn pages(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start).div_ceil(PAGE)
}
