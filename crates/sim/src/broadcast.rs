//! Invalidation of other CPUs' TLBs without their kernels: hardware that broadcasts, and firmware
//! that interrupts a set of CPUs below their kernels.
//!
//! Both guarantee only this: entries that were cached when the operation was issued are gone when
//! it is complete. So an entry that was present at the issue stays usable until the completion, and
//! an entry that is cached after the issue stays. Of all behaviours that hardware may have, this is
//! the most likely to break a design that issues or reuses a page too early. An operation that is
//! never completed never takes effect. A wait on another CPU than the issuer completes nothing, as
//! on arm64, where `dsb` orders only the operations of its own CPU.
//!
//! The broadcasts of all CPUs share one queue, also across sockets: one operation occupies the
//! interconnect for some time, and the next waits. If `n` CPUs issue as fast as they can, each
//! operation takes about `n` times as long.

use core::ops::Range;

use crate::causes::Cause;
use crate::invalidation::{Drops, Invalidation};
use crate::machine::{Broadcast, RemoteFence};
use crate::sim::Sim;
use crate::time::Time;
use crate::tlb::Levels;

/// The entries that TLBs must drop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BroadcastScope<'a> {
    /// The translations under the tag of pages in these ranges of addresses.
    Pages(&'a [Range<u64>]),
    /// The entries of `Pages`, and the cached entries of the upper levels above them.
    Tables(&'a [Range<u64>]),
    /// All entries under the tag.
    Tag,
    /// All entries under any tag, global translations included.
    Everything,
}

impl Sim {
    /// Issues a broadcast to the TLBs of all CPUs, including this one: `TLBI …IS`, `INVLPGB`. It is
    /// complete only when this CPU has [waited](Self::complete_broadcasts).
    ///
    /// On a machine without broadcasts nothing happens, and the oracle will report uses of stale
    /// entries.
    pub fn broadcast(&self, tag: u16, scope: BroadcastScope<'_>) {
        let Some(cost) = &self.machine.broadcast else { return };
        match scope {
            BroadcastScope::Pages(ranges) => self.issue_ranges(cost, tag, ranges, Levels::Last),
            BroadcastScope::Tables(ranges) => self.issue_ranges(cost, tag, ranges, Levels::All),
            BroadcastScope::Tag => self.issue(cost, tag, Drops::Tag),
            BroadcastScope::Everything => self.issue(cost, tag, Drops::Everything),
        }
    }

    /// Issues a broadcast of all entries under the tag to the TLBs of the domains that have one of
    /// these CPUs, an operation for each domain. It reaches this CPU only if one of the domains
    /// does. As [`broadcast`](Self::broadcast), it is complete when this CPU has waited.
    ///
    /// On a machine without domains nothing happens, and the oracle will report uses of stale
    /// entries.
    pub fn broadcast_in_domains(&self, cpus: impl IntoIterator<Item = usize>, tag: u16) {
        let (Some(cost), Some(domains)) = (&self.machine.broadcast, &self.machine.domains) else {
            return;
        };
        for domain in domains.covering(cpus) {
            let complete = self.machine.completion_in_domain(domains, self.cpu(), domain.start);
            let cost = Broadcast { complete, occupy: domains.occupy, ..cost.clone() };
            self.issue_to(&cost, complete, domain, tag, Drops::Tag);
        }
    }

    /// Waits until all broadcasts that this CPU has issued are complete on all CPUs: `DSB ISH`,
    /// `TLBSYNC`. If there are none, it costs as much as a barrier.
    pub fn complete_broadcasts(&self) {
        self.fence();
        let began = self.now();
        let done_at = self.clock.borrow().cpus[self.cpu()].broadcasts.done_at;
        // Interrupts are taken after the instruction.
        self.mask();
        self.stall_until(done_at);
        let operations = {
            let mut clock = self.clock.borrow_mut();
            core::mem::take(&mut clock.cpus[self.cpu()].broadcasts.operations)
        };
        for (cpu, tlb) in self.tlbs.borrow_mut().iter_mut().enumerate() {
            let reaching = operations.iter().filter(|(cpus, _)| cpus.contains(&cpu));
            reaching.for_each(|(_, operation)| operation.apply(tlb));
        }
        self.count_wait(began);
        self.unmask();
    }

    /// Makes CPUs invalidate by firmware (an SBI remote fence), and returns when all have. Their
    /// kernels do not notice, whether or not they mask interrupts.
    ///
    /// `Pages` and `Tables` drop last-level entries only, as in the RISC-V privileged
    /// specification. A caller that frees tables must use `Tag`. On a machine without such firmware
    /// nothing happens, and the oracle will report uses of stale entries.
    pub fn remote_fence(
        &self,
        cpus: impl IntoIterator<Item = usize>,
        tag: u16,
        scope: BroadcastScope<'_>,
    ) {
        let Some(cost) = &self.machine.remote_fence else { return };
        let targets: Vec<usize> = cpus.into_iter().collect();
        let issued = self.next_invalidation();
        let operations = fences(cost, tag, scope, issued);
        let invalidations = self.time_of(&operations);
        let began = self.now();
        self.mask();
        self.spend_as(Cause::FlushWait, cost.call + cost.each * targets.len() as u64);
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

    /// Counts a tag that was assigned to a space.
    pub fn count_tag_taken(&self) {
        self.count(|counts| counts.tags_taken += 1);
    }

    /// Counts a rollover: tags ran out, and all were reclaimed. Where each CPU has its own tags,
    /// those of this CPU; where tags are global, those of all CPUs.
    pub fn count_rollover(&self) {
        self.count(|counts| counts.rollovers += 1);
    }

    fn issue_ranges(&self, cost: &Broadcast, tag: u16, ranges: &[Range<u64>], levels: Levels) {
        let most = (cost.pages_per_operation as u64).saturating_mul(PAGE);
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
        let (complete, all) = (self.machine.completion_of(cost), 0..self.machine.cpu_count());
        self.issue_to(cost, complete, all, tag, drops);
    }

    /// Issues an operation that reaches these CPUs, and is complete after `complete` if it does not
    /// queue.
    fn issue_to(
        &self,
        cost: &Broadcast,
        complete: Time,
        reached: Range<usize>,
        tag: u16,
        drops: Drops,
    ) {
        self.spend_as(Cause::Invalidations, cost.issue);
        let operation = Invalidation { tag, drops, issued: self.next_invalidation() };
        let mut clock = self.clock.borrow_mut();
        let number = self.cpu();
        let starts_at = clock.cpus[number].now.max(clock.interconnect_free_at);
        clock.interconnect_free_at = starts_at + cost.occupy;
        let cpu = &mut clock.cpus[number];
        cpu.counts.broadcasts += 1;
        cpu.broadcasts.operations.push((reached.clone(), operation));
        let done_at = starts_at + complete;
        cpu.broadcasts.done_at = done_at.max(cpu.broadcasts.done_at);
        if cost.victim > Time::ZERO {
            let others = clock
                .cpus
                .iter_mut()
                .enumerate()
                .filter(|(other, _)| *other != number && reached.contains(other));
            others.for_each(|(_, cpu)| cpu.steal(cost.victim));
        }
    }

    /// Takes the time of a remote fence from its targets. Each target executes fences one by one.
    /// Returns the time at which the last target is done.
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

    /// Stalls this CPU until the given time, for flushes. Interrupts must be masked.
    fn stall_until(&self, until: Time) {
        let cpu = self.cpu();
        let rest = until.saturating_sub(self.now());
        // Time that other CPUs take from a stalled CPU is no loss.
        self.clock.borrow_mut().cpus[cpu].stalled = true;
        self.spend_as(Cause::FlushWait, rest);
        self.clock.borrow_mut().cpus[cpu].stalled = false;
    }

    fn count_wait(&self, began: Time) {
        let waited = self.now() - began;
        self.count(|counts| counts.broadcast_wait += waited);
    }

    fn time_of(&self, operations: &[Invalidation]) -> Time {
        let tlb = &self.machine.tlb;
        let time = |operation: &Invalidation| match &operation.drops {
            Drops::Pages(range, _) => {
                tlb.invalidate_page * pages(range).div_ceil(tlb.pages_per_invalidation as u64)
            }
            Drops::Tag => tlb.load_root_and_discard,
            Drops::Everything => tlb.invalidate_all,
        };
        operations.iter().map(time).sum()
    }
}

/// The operations that the firmware executes on each target.
fn fences(
    cost: &RemoteFence,
    tag: u16,
    scope: BroadcastScope<'_>,
    issued: u64,
) -> Vec<Invalidation> {
    let operation = |drops| Invalidation { tag, drops, issued };
    match scope {
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
