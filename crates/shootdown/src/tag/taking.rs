//! CPUs that are taking an ASID, which a CPU waits for that is going to end the epoch, if ASIDs are
//! few.

use core::sync::atomic::Ordering::Relaxed;

use crate::cpu_set::CpuSet;
use crate::cpu_state::CpuState;
use crate::machine::Machine;
use crate::memory::Word;
use crate::pinned_cpu::PinnedCpu;

/// Most times that a CPU calls [`Machine::spin_hint`] for each CPU before it ends an epoch. A CPU
/// that takes an ASID reads a few words of each CPU, which take 0.1 µs each.
const SPINS_PER_CPU: usize = 256;

/// Records that a CPU, this one or one that has stopped, has chosen the ASID that it took, or gives
/// it up.
pub(super) fn end_taking<M: Machine>(cpu: &CpuState<M>) {
    // Relaxed: for progress only. Most CPUs never write the word: see `may_run_out_early`.
    if cpu.taking.load(Relaxed) != 0 {
        cpu.taking.store(0, Relaxed);
    }
}

impl<M: Machine> PinnedCpu<'_, M> {
    /// Records that this CPU is taking an ASID of `epoch`, if other CPUs may wait for it.
    pub(super) fn begin_taking(&self, epoch: u64) {
        if self.engine.tags().may_run_out_early(self.machine()) {
            // Relaxed: for progress only.
            self.cpu.taking.store(epoch, Relaxed);
        }
    }

    /// Waits until no other CPU is taking an ASID of `epoch`, which this CPU is about to end, if
    /// CPUs could otherwise end epochs for each other for ever: with `C` CPUs, and fewer than `2C`
    /// ASIDs that are not pinned.
    ///
    /// Then the epoch ends after a CPU has chosen an ASID of it: this CPU has found all blocks
    /// taken, at least one of them had an ASID to hand out, and the CPU that took it was taking
    /// until it had chosen. A CPU that is taking waits for none, so there is no deadlock. The wait
    /// is bounded, for a CPU that its hypervisor has stopped: only progress depends on it.
    pub(super) fn await_takers(&self, epoch: u64) {
        let (machine, tags) = (self.machine(), self.engine.tags());
        end_taking(self.cpu);
        if !tags.may_run_out_early(machine) {
            return;
        }
        let mut users = CpuSet::new();
        tags.users.read_into(machine, &mut users);
        let mut spins = users.len() * SPINS_PER_CPU;
        for cpu in users.iter() {
            // Relaxed: for progress only. A CPU that is found too late loses its ASID.
            while machine.state(cpu).taking.load(Relaxed) == epoch
                && tags.epoch.load(Relaxed) == epoch
            {
                if spins == 0 {
                    return;
                }
                spins -= 1;
                machine.spin_hint();
            }
        }
    }
}

#[cfg(all(test, feature = "soft"))]
#[expect(unsafe_code, reason = "switching is unsafe")]
mod tests {
    use super::*;
    use crate::engine::Shootdown;
    use crate::ids::{CpuId, Root};
    use crate::soft::{Config, Host, Platform, Soft};
    use core::cell::{Cell, RefCell};
    use core::sync::atomic::AtomicU64;
    use std::rc::Rc;
    use std::thread_local;
    use std::vec::Vec;

    const CPUS: usize = 4;
    /// The longest wait, with all CPUs online.
    const SPINS_MAX: usize = CPUS * SPINS_PER_CPU;

    thread_local! {
        static SPINS: Cell<usize> = const { Cell::new(0) };
        static ENGINE: RefCell<Option<Rc<Shootdown<Soft<Waiter>>>>> = const { RefCell::new(None) };
        /// In this turn, CPU 1 has chosen.
        static END: Cell<usize> = const { Cell::new(0) };
    }

    /// One thread that is every CPU, and counts how often it waits.
    #[derive(Debug)]
    struct Waiter;

    impl Platform for Waiter {
        type Word = AtomicU64;
        type Frame = AtomicU64;
        fn fence() {
            Host::fence();
        }
        fn spin_hint() {
            SPINS.set(SPINS.get() + 1);
            if SPINS.get() == END.get() {
                ENGINE.with_borrow(|engine| end_taking(one(engine.as_ref().unwrap())));
            }
        }
        fn cpu() -> CpuId {
            Host::cpu()
        }
        fn set_cpu(cpu: CpuId) {
            Host::set_cpu(cpu);
        }
    }

    fn one(engine: &Shootdown<Soft<Waiter>>) -> &CpuState<Soft<Waiter>> {
        engine.machine().state(CpuId(1))
    }

    /// Number of turns that CPU 0 waits with `tags` ASIDs, of which some are pinned, when it finds
    /// them all taken, while CPU 1 takes one. In turn `end`, CPU 1 has chosen.
    fn spins(tags: usize, pinned: usize, end: usize) -> usize {
        let tables = tags + 2;
        let config =
            Config { cpus: CPUS as u32, tables, ..Config::default().with_broadcasts(tags) };
        let engine = Rc::new(Soft::<Waiter>::engine(config));
        ENGINE.set(Some(Rc::clone(&engine)));
        (0..CPUS as u32).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
        let spaces: Vec<_> = (0..tables as u64).map(|root| engine.space(Root(root))).collect();
        let zero = engine.enter(CpuId(0));
        // SAFETY: the spaces do not move, and outlive the CPU's use of them.
        let switch = |space: usize| unsafe { zero.pin().switch(&spaces[space]) };
        for space in spaces.iter().take(pinned) {
            assert!(zero.pin().pin_tag(space).is_some());
        }
        (pinned..tags).for_each(switch);
        let epoch = engine.tags().epoch.load(Relaxed);
        one(&engine).taking.store(epoch, Relaxed);
        END.set(end);
        SPINS.set(0);
        switch(tags);
        assert!(engine.tags().epoch.load(Relaxed) > epoch, "no rollover");
        assert_eq!(zero.pin().cpu.taking.load(Relaxed), 0, "the CPU has chosen");
        ENGINE.set(None);
        SPINS.get()
    }

    #[test]
    fn few_asids_wait_for_taker() {
        for tags in [CPUS + 1, 2 * CPUS - 1] {
            assert_eq!([1, 3].map(|end| spins(tags, 0, end)), [1, 3], "{tags} ASIDs");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes long, and runs no unsafe code that others do not")]
    fn wait_for_takers_is_bounded() {
        let ends = [SPINS_MAX - 1, SPINS_MAX, SPINS_MAX + 1, usize::MAX];
        let waits = ends.map(|end| spins(CPUS + 1, 0, end));
        assert_eq!(waits, [SPINS_MAX - 1, SPINS_MAX, SPINS_MAX, SPINS_MAX]);
    }

    #[test]
    fn twice_as_many_asids_never_wait() {
        assert_eq!([2 * CPUS, 2 * CPUS + 1].map(|tags| spins(tags, 0, 1)), [0, 0]);
        // Pinned ASIDs do not count.
        assert_eq!([1, 2].map(|pinned| spins(2 * CPUS + 1, pinned, 2)), [0, 2]);
    }
}
