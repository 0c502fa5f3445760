//! Which CPUs a flush must look at.
//!
//! A CPU puts itself into a space's cpumask when it first switches to it, and stays there when it
//! leaves, so that going back and forth writes no shared line. Linux's `mm_cpumask` works that way
//! too, and pays for it: a process that once ran everywhere and now runs on one CPU has everybody
//! in its mask. Linux then interrupts those once a second, so that they take themselves out;
//! taking somebody else out is a race (powerpc had it: a665eec0a22e).
//!
//! Here a cpumask that has become mostly stale is left for a fresh one. There are two sets. A flush
//! that has looked at too many CPUs in vain declares the move, copies into the fresh set those who
//! are present, and from then on the old set is not read. A CPU that was elsewhere registers again
//! when it next switches in. Nobody is interrupted and nobody waits: while the move is on, readers
//! look at both sets. Why no CPU falls between the sets is in [`rules`](crate::rules).

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::cpu_set::{CpuBits, CpuSet, SharedCpuSet};
use crate::ids::CpuId;
use crate::memory::{Memory, Word, fence, order};
use crate::phase::Phase;
use crate::rules::Rule;

/// How many times in vain each CPU in the cpumask may be looked at before the cpumask moves.
///
/// A look in vain costs a cache miss, 50–150 ns; the move costs about as much per CPU, and later
/// once more for each that registers again. So the cure costs at most a quarter of the disease.
const VAIN_LOOKS_PER_CPU: u64 = 8;

/// The CPUs that may be present on one space, and some that no longer are.
pub(crate) struct CpuMask<M: Memory, B: CpuBits> {
    phase: M::Word,
    sets: [SharedCpuSet<M, B>; 2],
}

impl<M: Memory, B: CpuBits> CpuMask<M, B> {
    pub(crate) fn new() -> Self {
        Self { phase: M::Word::new(0), sets: [SharedCpuSet::new(), SharedCpuSet::new()] }
    }

    /// Ensures that flushes look at `cpu`, whose presence says so and has been fenced. Returns the
    /// phase in which it is registered.
    ///
    /// Writes nothing if it is registered already.
    pub(crate) fn register(&self, machine: &M, cpu: CpuId) -> Phase {
        let phase = self.phase(machine);
        if self.set(phase.registered_epoch()).contains(cpu) {
            phase
        } else {
            self.register_anew(machine, cpu, phase)
        }
    }

    #[cold]
    fn register_anew(&self, machine: &M, cpu: CpuId, mut phase: Phase) -> Phase {
        loop {
            let epoch = phase.registered_epoch();
            // Pairs with FlushFence: a flush sees the bit, or the caller sees its generation.
            // Pairs with MoveFence: whoever moves the cpumask sees the bit in the old set, or we
            // see the phase that it has set.
            self.set(epoch).insert_then_fence(machine, cpu, Rule::RegisterFence);
            phase = self.phase(machine);
            if phase.registered_epoch() == epoch || machine.breaks(Rule::RecheckPhase) {
                return phase;
            }
        }
    }

    /// Whether no CPU but `cpu` may be present. May say that some are if the cpumask is moving.
    #[inline]
    pub(crate) fn has_only(&self, machine: &M, cpu: CpuId) -> bool {
        let phase = self.phase(machine);
        phase.state() != Phase::TRIMMING
            && self.set(phase.0 >> 2).has_only(machine, cpu)
            && self.is_still_in(machine, phase).is_ok()
    }

    /// Adds the CPUs that may be present to `members`.
    #[inline]
    pub(crate) fn read_into(&self, machine: &M, members: &mut CpuSet<B>) {
        let mut phase = self.phase(machine);
        loop {
            let epoch = phase.0 >> 2;
            self.set(epoch).read_into(machine, members);
            if phase.state() == Phase::TRIMMING {
                self.set(epoch + 1).read_into(machine, members);
            }
            match self.is_still_in(machine, phase) {
                Ok(()) => return,
                Err(now) => phase = now,
            }
        }
    }

    /// Whether the cpumask is still in the phase in which its sets were read. See
    /// [`Rule::RecheckScan`].
    ///
    /// A set is cleared only in a later phase than those in which it is read, so if the phase is
    /// the same, the caller has seen every bit that was set before its fence.
    ///
    /// # Errors
    ///
    /// If not: the phase that it is in now.
    #[inline]
    fn is_still_in(&self, machine: &M, phase: Phase) -> Result<(), Phase> {
        // Relaxed: ScanAcquire orders this load after those of the sets.
        if machine.breaks(Rule::RecheckScan) || self.phase.load(Relaxed) == phase.0 {
            return Ok(());
        }
        Err(self.phase(machine))
    }

    /// The CPUs that may be present.
    pub(crate) fn members(&self, machine: &M) -> CpuSet<B> {
        let mut members = CpuSet::new();
        self.read_into(machine, &mut members);
        members
    }

    /// Whether so many looks in vain are reason enough to move.
    pub(crate) fn is_stale(vain_looks: u64, member_count: u64) -> bool {
        vain_looks >= VAIN_LOOKS_PER_CPU * member_count
    }

    /// Trims the mask: removes every CPU for which `keeps` returns `false`. Does nothing if another
    /// CPU is trimming the mask.
    ///
    /// `keeps` must return `true` for a CPU that is present on the space, or still holds it. It is
    /// called after [`Rule::TrimFence`].
    ///
    /// Returns whether the mask was trimmed.
    #[cold]
    pub(crate) fn trim(&self, machine: &M, keeps: impl Fn(CpuId) -> bool) -> bool {
        let stable = self.phase(machine);
        if stable.state() != Phase::STABLE {
            return false;
        }
        let clearing = stable.with(Phase::CLEARING);
        // Relaxed: the load above has acquired this phase, and a phase is stored once. Later stores
        // to the sets are ordered after this one by ClearRelease.
        if self.phase.compare_exchange(stable.0, clearing.0, Relaxed, Relaxed).is_err() {
            return false;
        }
        let epoch = stable.0 >> 2;
        self.set(epoch + 1).clear(machine);

        let moving = stable.with(Phase::TRIMMING);
        self.phase.store(moving.0, order(machine, Rule::TrimmingRelease));
        // Pairs with SwitchFence: a CPU that still registers in the old epoch has its presence
        // seen below. Pairs with RegisterFence: or it sees that we are moving.
        fence(machine, Rule::TrimFence);
        let mut old = CpuSet::new();
        self.set(epoch).read_into(machine, &mut old);
        for cpu in old.iter().filter(|&cpu| keeps(cpu)) {
            self.set(epoch + 1).insert(cpu);
        }
        self.phase.store(stable.next().0, order(machine, Rule::TrimRelease));
        true
    }

    /// How far the moves have come. See [`Rule::PhaseAcquire`].
    #[inline]
    pub(crate) fn phase(&self, machine: &M) -> Phase {
        Phase(self.phase.load(order(machine, Rule::PhaseAcquire)))
    }

    #[inline]
    fn set(&self, epoch: u64) -> &SharedCpuSet<M, B> {
        &self.sets[usize::from(epoch % 2 == 1)]
    }
}

impl<M: Memory, B: CpuBits> fmt::Debug for CpuMask<M, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.sets).finish()
    }
}

#[cfg(all(test, feature = "soft"))]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::hazard::Hazard;
    use crate::ids::Root;
    use crate::presence::Presence;
    use crate::soft::{Config, Host, Soft};
    use crate::space::Space;
    use std::format;
    use std::vec::Vec;

    type Machine = Soft<Host>;

    fn engine() -> Shootdown<Machine> {
        let engine = Soft::engine(Config { cpus: 5, ..Config::default() });
        (0..5).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        engine
    }

    fn switch(engine: &Shootdown<Machine>, cpu: u32, space: &Space<Machine>) {
        #[expect(unsafe_code, reason = "the spaces outlive their CPUs")]
        // SAFETY: see the reason.
        unsafe {
            engine.enter(CpuId(cpu)).pin().switch(space);
        }
    }

    fn members(engine: &Shootdown<Machine>, cpumask: &CpuMask<Machine, [u64; 1]>) -> Vec<u32> {
        cpumask.members(engine.machine()).iter().map(|cpu| cpu.0).collect()
    }

    #[test]
    fn who_is_not_present_is_left_behind() {
        let engine = engine();
        let (space, other) = (engine.space(Root(0)), engine.space(Root(1)));
        for epoch in 1..5 {
            (1..5).for_each(|cpu| switch(&engine, cpu, &space));
            assert_eq!(members(&engine, &space.cpumask), [1, 2, 3, 4]);
            engine.enter(CpuId(2)).pin().enter_lazy();
            switch(&engine, 3, &other);
            engine.enter(CpuId(4)).pin().leave_space();
            assert!(engine.enter(CpuId(0)).pin().trim_cpumask(&space));
            assert_eq!(members(&engine, &space.cpumask), [1, 2]);
            assert_eq!(space.cpumask.phase.load(Relaxed), epoch << 2);
        }
        assert_eq!(format!("{:?}", space.cpumask), "[[6], [30]]");
    }

    #[test]
    fn who_is_on_its_way_in_or_out_comes_along() {
        let engine = engine();
        let (space, other) = (engine.space(Root(0)), engine.space(Root(1)));
        let cpumask = &space.cpumask;
        for cpu in 1..4 {
            cpumask.register(engine.machine(), CpuId(cpu));
        }
        let (coming, leaving) = (engine.enter(CpuId(1)), engine.enter(CpuId(2)));
        coming.pin().set_presence(Presence::Switching(space.id()).into());
        leaving.pin().set_presence(Presence::Switching(other.id()).into());
        leaving.pin().set_hazard(Hazard::space(&raw const space));
        assert!(leaving.pin().trim_cpumask(&space));
        assert_eq!(members(&engine, cpumask), [1, 2]);
    }

    #[test]
    fn one_moves_it_at_a_time_and_meanwhile_both_sets_count() {
        let engine = engine();
        let (machine, space) = (engine.machine(), engine.space(Root(0)));
        let cpumask = &space.cpumask;
        for epoch in 0..3 {
            for state in [Phase::CLEARING, Phase::TRIMMING] {
                cpumask.sets.iter().for_each(|set| set.clear(machine));
                let phase = Phase(epoch << 2).with(state);
                assert_eq!((phase.state(), phase.next().0), (state, (epoch + 1) << 2));
                cpumask.phase.store(phase.0, Relaxed);
                assert!(!cpumask.trim(machine, |_| true));
                assert_eq!(cpumask.phase.load(Relaxed), phase.0);

                let both = epoch + u64::from(state == Phase::TRIMMING);
                cpumask.set(epoch).insert(CpuId(1));
                cpumask.set(epoch + 1).insert(CpuId(2));
                let expected: &[u32] = if state == Phase::TRIMMING { &[1, 2] } else { &[1] };
                assert_eq!(members(&engine, cpumask), expected);
                cpumask.register(machine, CpuId(3));
                assert!(cpumask.set(both).contains(CpuId(3)));
                assert!(!cpumask.set(both + 1).contains(CpuId(3)));
            }
        }
    }

    #[test]
    fn eight_looks_in_vain_for_each_are_enough() {
        assert!(CpuMask::<Machine, [u64; 1]>::is_stale(24, 3));
        assert!(!CpuMask::<Machine, [u64; 1]>::is_stale(23, 3));
    }
}
