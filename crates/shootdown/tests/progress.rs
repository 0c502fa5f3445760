//! A CPU that is interrupted makes progress: its handler returns however often others flush.

#![expect(unsafe_code, reason = "implements `Machine`, and switches")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use shootdown::{
    CpuId, CpuSet, CpuState, Entries, Extent, Machine, Memory, NoBroadcaster, Root, Shootdown,
    Space, Tag, TagSlot,
};

const PAGE: Extent = Extent::page(0x1000);

thread_local! {
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    static ENGINE: Cell<Option<&'static Shootdown<Storm>>> = const { Cell::new(None) };
    static SPACE: Cell<Option<&'static Space<Storm>>> = const { Cell::new(None) };
}

/// Two CPUs on one thread. Whenever CPU 0 invalidates, CPU 1 flushes again, as a CPU does that
/// waits for nothing else.
struct Storm {
    cpus: [CpuState<Self>; 2],
    flushes_left: AtomicU64,
    self_interrupts: AtomicU64,
    /// Whether a lock that `ring` takes is waited for in a loop that answers.
    answers_in_ring: bool,
}

impl Storm {
    fn on<R>(&self, cpu: u32, f: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(cpu);
        let result = f();
        CURRENT.set(before);
        result
    }

    fn others_flush(&self) {
        if CURRENT.get() != 0 || self.flushes_left.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.flushes_left.fetch_sub(1, Ordering::Relaxed);
        let (Some(engine), Some(space)) = (ENGINE.get(), SPACE.get()) else { return };
        // SAFETY: the thread is CPU 1 now, and uses no other token of it.
        self.on(1, || std::mem::forget(unsafe { engine.pin() }.flush(space, PAGE)));
    }
}

// SAFETY: there is one thread.
unsafe impl Memory for Storm {
    type Word = AtomicU64;

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

// SAFETY: there is one thread, no TLB, and an interrupt is taken when the test says so.
unsafe impl Machine for Storm {
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 2];
    type TagWords = [AtomicU64; 0];
    type Broadcaster = NoBroadcaster;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(CURRENT.get())
    }
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn publish(&self) {}
    fn tag_count(&self) -> usize {
        2
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {}
    fn load_kernel(&self) {}
    fn invalidate(&self, _: Tag, _: Extent) {
        self.others_flush();
    }
    fn invalidate_tag(&self, _: Tag) {
        self.others_flush();
    }
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {}
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        if cpus.contains(self.cpu()) {
            self.self_interrupts.fetch_add(1, Ordering::Relaxed);
        }
        if self.answers_in_ring
            && let Some(engine) = ENGINE.get()
        {
            // SAFETY: `ring` is where a second token may be made, to answer.
            unsafe { engine.pin() }.handle_flush_ipi();
        }
    }
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {}
}

/// CPU 0 uses the space, and CPU 1 has flushed it once.
fn storm(flushes: u64, answers_in_ring: bool) -> &'static Shootdown<Storm> {
    let engine: &Shootdown<Storm> = Box::leak(Box::new(Shootdown::new(Storm {
        cpus: [CpuState::new(), CpuState::new()],
        flushes_left: AtomicU64::new(0),
        self_interrupts: AtomicU64::new(0),
        answers_in_ring,
    })));
    let space: &Space<Storm> = Box::leak(Box::new(engine.space(Root(0))));
    ENGINE.set(Some(engine));
    SPACE.set(Some(space));
    // SAFETY: the thread is the CPU that it says, and the space is never freed.
    unsafe {
        engine.machine().on(1, || engine.pin().online());
        engine.pin().online();
        engine.pin().switch(space);
        engine.machine().on(1, || std::mem::forget(engine.pin().flush(space, PAGE)));
    }
    engine.machine().flushes_left.store(flushes, Ordering::Relaxed);
    engine
}

#[test]
fn handler_is_bounded_however_often_others_flush() {
    for flushes in [0, 1, 10, 1000] {
        let engine = storm(flushes, false);
        let (machine, stats) = (engine.machine(), || engine.cpu(CpuId(0)).stats());
        let mut interrupts = 0;
        let mut pending = 1;
        while pending != 0 {
            let (before, sent) = (stats().answers, machine.self_interrupts.load(Ordering::Relaxed));
            // SAFETY: the thread is CPU 0.
            unsafe { engine.pin() }.handle_flush_ipi();
            interrupts += 1;
            assert!(stats().answers - before <= 3, "one interrupt served too many rounds");
            pending = machine.self_interrupts.load(Ordering::Relaxed) - sent;
        }
        // Nobody is forgotten: the last of them have their answer, too.
        assert_eq!(stats().answers, flushes + 1);
        assert_eq!(interrupts, (flushes + 1).div_ceil(3).max(1));
    }
}

#[test]
fn lock_in_ring_may_answer() {
    let engine = storm(0, true);
    let space = SPACE.get().expect("made by `storm`");
    let machine = engine.machine();
    // CPU 1 uses the space, and CPU 0 rings it; both find their own bell rung in `ring`.
    machine.on(1, || {
        // SAFETY: the thread is CPU 1, and the space is never freed.
        unsafe { engine.pin().switch(space) };
    });
    // SAFETY: the thread is CPU 0.
    let mut pending = unsafe { engine.pin() }.flush(space, PAGE);
    assert_eq!(engine.cpu(CpuId(0)).stats().answers, 1, "in `ring`");
    // SAFETY: the thread is CPU 1.
    machine.on(1, || unsafe { engine.pin() }.handle_flush_ipi());
    assert!(pending.poll());
}
