//! An interrupted CPU makes progress: its handler returns, however often other CPUs flush.

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

/// Two CPUs on one thread. Whenever CPU 0 invalidates, CPU 1 flushes again, as fast as a CPU can.
struct Storm {
    cpus: [CpuState<Self>; 2],
    flushes_left: AtomicU64,
    self_interrupts: AtomicU64,
    /// `ring` handles the flush IPI, as a `ring` may that spins on a lock.
    handles_ipi_in_ring: bool,
}

impl Storm {
    fn on<R>(&self, cpu: u32, f: impl FnOnce() -> R) -> R {
        let before = CURRENT.replace(cpu);
        let result = f();
        CURRENT.set(before);
        result
    }

    fn flush_on_cpu_1(&self) {
        if CURRENT.get() != 0 || self.flushes_left.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.flushes_left.fetch_sub(1, Ordering::Relaxed);
        let (Some(engine), Some(space)) = (ENGINE.get(), SPACE.get()) else { return };
        // SAFETY: the thread is CPU 1 now, and no method of another `PinnedCpu` of CPU 1 runs.
        self.on(1, || std::mem::forget(unsafe { engine.pin() }.flush(space, PAGE)));
    }
}

// SAFETY: there is one thread, and the words are the host's atomics.
unsafe impl Memory for Storm {
    type Word = AtomicU64;

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

// SAFETY: there is one thread and no TLB. The tests take the interrupts.
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
        self.flush_on_cpu_1();
    }
    fn invalidate_tag(&self, _: Tag) {
        self.flush_on_cpu_1();
    }
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {}
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        if cpus.contains(self.cpu()) {
            self.self_interrupts.fetch_add(1, Ordering::Relaxed);
        }
        if self.handles_ipi_in_ring
            && let Some(engine) = ENGINE.get()
        {
            // SAFETY: the contract allows a second `PinnedCpu` in `ring`, to handle the flush IPI.
            unsafe { engine.pin() }.handle_flush_ipi();
        }
    }
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {}
}

/// An engine on which CPU 0 uses a space that CPU 1 has flushed once. CPU 1 will flush it `flushes`
/// times more.
fn storm(flushes: u64, handles_ipi_in_ring: bool) -> &'static Shootdown<Storm> {
    let engine: &Shootdown<Storm> = Box::leak(Box::new(Shootdown::new(Storm {
        cpus: [CpuState::new(), CpuState::new()],
        flushes_left: AtomicU64::new(0),
        self_interrupts: AtomicU64::new(0),
        handles_ipi_in_ring,
    })));
    let space: &Space<Storm> = Box::leak(Box::new(engine.space(Root(0))));
    ENGINE.set(Some(engine));
    SPACE.set(Some(space));
    // SAFETY: the thread is the CPU that `Machine::cpu` returns, and the space is never freed.
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
fn handler_does_at_most_three_rounds() {
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
            assert!(stats().answers - before <= 3, "one interrupt did more than three rounds");
            pending = machine.self_interrupts.load(Ordering::Relaxed) - sent;
            assert_eq!(stats().interrupts_sent, sent + pending);
        }
        // Every flush has been answered, also the last one.
        assert_eq!(stats().answers, flushes + 1);
        assert_eq!(interrupts, (flushes + 1).div_ceil(3).max(1));
    }
}

#[test]
fn ring_may_handle_the_flush_ipi() {
    let engine = storm(0, true);
    let space = SPACE.get().expect("`storm` has set it");
    let machine = engine.machine();
    // CPU 1 uses the space, and CPU 0 rings it. In `ring`, CPU 0 finds its own bell rung.
    machine.on(1, || {
        // SAFETY: the thread is CPU 1, and the space is never freed.
        unsafe { engine.pin().switch(space) };
    });
    // SAFETY: the thread is CPU 0.
    let mut pending = unsafe { engine.pin() }.flush(space, PAGE);
    assert_eq!(engine.cpu(CpuId(0)).stats().answers, 1, "`ring` has handled the IPI");
    // SAFETY: the thread is CPU 1.
    machine.on(1, || unsafe { engine.pin() }.handle_flush_ipi());
    assert!(pending.poll());
}
