//! A space that is retired and freed as soon as an interrupt handler has dropped it.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shootdown::soft::{Config, Host, Platform, Soft};
use shootdown::{CpuId, Extent, ExtentSet, Pending, Root, Word};

use crate::finish;

/// The host's platform, with a hook that runs when a CPU drops a hazard pointer.
struct HookedHost;

/// The address of a space, and a hook that runs when a hazard pointer to it is cleared.
struct DropHook(u64, Box<dyn FnOnce()>);

thread_local! {
    static DROP_HOOK: RefCell<Option<DropHook>> = const { RefCell::new(None) };
}

/// A word whose successful compare-and-swap to 0 runs the hook.
struct HookedWord(AtomicU64);

impl Word for HookedWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let result = self.0.compare_exchange(current, new, success, failure);
        let matches = |hook: &mut DropHook| result == Ok(hook.0) && new == 0;
        if let Some(DropHook(_, run)) = DROP_HOOK.with_borrow_mut(|hook| hook.take_if(matches)) {
            run();
        }
        result
    }
}

impl Platform for HookedHost {
    type Word = HookedWord;
    type Frame = AtomicU64;
    fn fence() {
        Host::fence();
    }
    fn spin_hint() {
        Host::spin_hint();
    }
    fn cpu() -> CpuId {
        Host::cpu()
    }
    fn set_cpu(cpu: CpuId) {
        Host::set_cpu(cpu);
    }
}

/// The handler must not even keep a reference: miri fails if one outlives the space, used or not.
#[test]
fn handler_does_not_touch_a_dropped_space() {
    let engine = Arc::new(Soft::<HookedHost>::engine(Config::default()));
    (0..2).for_each(|cpu| engine.enter(CpuId(cpu)).pin().online());
    let dying = NonNull::from(Box::leak(Box::new(engine.space(Root(0)))));
    // SAFETY: the space exists until it is retired.
    let space = || unsafe { dying.as_ref() };

    let one = engine.enter(CpuId(1));
    // SAFETY: the space is freed after the engine has reclaimed it, and not before.
    unsafe { one.pin().switch(space()) };
    one.pin().enter_lazy();
    engine.machine().unhook_tables(space());
    let mut extents = ExtentSet::new();
    extents.add(Extent::page(0).freeing_tables());
    // A lazy CPU is not rung for unhooked tables, and leaves the space when it is rung for another
    // reason.
    let pending = engine.enter(CpuId(0)).pin().flush_gathered(space(), &extents);
    finish(pending, Pending::poll);
    let pending = engine.enter(CpuId(0)).pin().flush_kernel(Extent::page(0));

    let other = Arc::clone(&engine);
    let retire_and_free = move || {
        // SAFETY: no CPU uses the space, which stays in place until it is freed below.
        drop(unsafe { other.enter(CpuId(0)).pin().retire(dying) });
        for space in other.machine().take_reclaimed() {
            // SAFETY: the box was leaked above, and the engine has reclaimed the space, so nothing
            // else points to it.
            drop(unsafe { Box::from_raw(space.as_ptr()) });
        }
        // The thread is CPU 1 again, and its handler continues.
        HookedHost::set_cpu(CpuId(1));
    };
    DROP_HOOK.set(Some(DropHook(dying.as_ptr() as u64, Box::new(retire_and_free))));
    one.interrupt_point();
    finish(pending, Pending::poll);
    assert!(DROP_HOOK.take().is_none(), "the handler has not dropped its hazard pointer");
}
