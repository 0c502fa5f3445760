//! The software machine as the engine sees it.

use core::panic::Location;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Relaxed, Release};

use super::device::device_tag;
use super::tlb::Tlb;
use super::{ASLEEP, Answers, Config, Platform, Reclaimed, Site, Soft, WOKEN, guard};
use crate::base::ids::{CpuId, DeviceTicket, Root, Tag};
use crate::base::memory::{Memory, Word};
use crate::base::rules::Rule;
use crate::parts::cpu_set::CpuSet;
use crate::parts::extent::Extent;
use crate::parts::trace_event::{FlushTrace, WaitTrace};
use crate::state::cpu_state::CpuState;
use crate::state::machine::{Entries, Lifetime, Machine, Tagging};
use crate::state::space::Space;
use crate::state::tag::slots::TagSlot;

// SAFETY: the words and the barrier are the platform's. `breaks` returns `true` only in tests that
// expect the engine to fail.
unsafe impl<P: Platform, const WORDS: usize> Memory for Soft<P, WORDS> {
    type Word = P::Word;

    fn fence(&self) {
        P::fence();
    }
    #[track_caller]
    fn breaks(&self, rule: Rule) -> bool {
        let Config { broken, broken_site, note_site, .. } = self.config;
        let site = Site { rule, location: Location::caller() };
        if let Some(note) = note_site {
            note(site);
        }
        broken == Some(rule) || broken_site == Some(site)
    }
}

// SAFETY: `cpu` is the CPU that the thread has entered, and only one thread at a time can be that
// CPU. The TLB drops translations before each `invalidate` method returns. A CPU that is rung
// handles the interrupt at its next interrupt point.
unsafe impl<P: Platform, const WORDS: usize> Machine for Soft<P, WORDS> {
    type CpuBits = [u64; WORDS];
    type TagSlots = [TagSlot; 6];
    type TagWords = [P::Word; 2];
    type Broadcaster = Self;

    const LIFETIME: Lifetime = P::LIFETIME;
    const TRACES: bool = P::TRACES;
    const ISOLATES: bool = true;
    const FLUSHES_AT_REUSE: bool = true;

    fn trace_clock_ns(&self) -> u64 {
        self.trace_clock_ns.fetch_add(1, Relaxed)
    }
    fn trace_flush(&self, trace: &FlushTrace) {
        guard(&self.traces).0.push(*trace);
    }
    fn trace_wait(&self, trace: &WaitTrace) {
        guard(&self.traces).1.push(*trace);
    }
    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()].state
    }
    fn cpu(&self) -> CpuId {
        P::cpu()
    }
    fn interrupts_masked(&self) -> bool {
        !self.is_unmasked.load(Relaxed)
    }
    fn publish(&self) {}
    fn wake_waiters(&self, _: CpuId) {
        if self.sleeper.load(Relaxed) == ASLEEP {
            self.sleeper.store(WOKEN, Relaxed);
        }
    }
    fn tagging(&self) -> Tagging {
        self.config.tagging
    }
    fn tag_count(&self) -> usize {
        self.config.tags
    }
    fn cpu_limit(&self) -> usize {
        self.config.cpus as usize
    }
    fn is_away(&self, cpu: CpuId) -> bool {
        self.config.is_guest && self.cpus[cpu.index()].vcpu.defer_flush(self)
    }
    fn issue_to_devices(&self, space: &Space<Self>, extents: &[Extent]) -> DeviceTicket {
        self.device.issue(device_tag(space), extents)
    }
    fn devices_are_done(&self, ticket: DeviceTicket) -> bool {
        let is_held = self.config.holds_device && self.device.is_held();
        !is_held && self.device.complete(ticket)
    }
    fn broadcaster(&self) -> Option<&Self> {
        self.config.broadcast.map(|_| self)
    }
    fn catch_up_ceiling(&self) -> usize {
        self.config.catch_up_ceiling
    }
    unsafe fn load(&self, root: Root, tag: Tag, entries: Entries) {
        self.load_root(Some(root), tag, entries);
    }
    fn load_kernel(&self) {
        let entries = if self.config.tags == 0 { Entries::Discard } else { Entries::Keep };
        self.load_root(None, Tag::KERNEL, entries);
    }
    fn invalidate(&self, tag: Tag, extent: Extent) {
        if self.config.answers == Answers::EarlyWithNmis {
            self.take_nmi();
        }
        self.tlb_after_walk(|tlb| tlb.invalidate(tag, extent));
    }
    fn invalidate_tag(&self, tag: Tag) {
        self.tlb_after_walk(|tlb| tlb.discard(tag));
    }
    fn invalidate_kernel(&self, extent: Extent) {
        self.tlb(|tlb| tlb.invalidate_kernel(extent));
    }
    fn invalidate_all(&self) {
        self.tlb(Tlb::invalidate_all);
    }
    fn traps_stale_writes(&self) -> bool {
        self.config.traps_stale_writes
    }
    fn tolerates_mixed_sizes(&self) -> bool {
        self.config.tolerates_mixed_sizes
    }
    fn answers_early(&self) -> bool {
        self.config.answers != Answers::Late
    }
    fn is_used_on_entry(&self, extent: Extent) -> bool {
        let entry_page = self.config.entry_page;
        entry_page.is_some_and(|page| extent.covers((page as u64) << 12))
    }
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        for cpu in cpus.iter() {
            self.cpus[cpu.index()].interrupt.store(1, Release);
        }
    }
    fn reclaim(&self, space: NonNull<Space<Self>>) {
        // SAFETY: the space exists until a test gets it from `take_reclaimed` and frees it.
        self.table(unsafe { space.as_ref() }).free_in_place();
        guard(&self.reclaimed).push(Reclaimed(space));
    }
    fn spin_hint(&self) {
        P::spin_hint();
    }
    fn wait_hint(&self, _waiting: &CpuSet<Self::CpuBits>) {
        P::spin_hint();
    }
}
