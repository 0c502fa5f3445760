use super::*;
use crate::base::ids::{CpuId, Root};
use crate::soft::{Config, Host, Platform, Soft};
use crate::state::engine::Shootdown;
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
    let config = Config { cpus: CPUS as u32, tables, ..Config::default().with_broadcasts(tags) };
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
