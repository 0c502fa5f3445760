//! The smallest embedding: two threads play the CPUs of a toy MMU, and CPU 0 unmaps pages.
//!
//! To embed the engine, copy the two `impl` blocks, and replace each body with what your kernel
//! does. The functions after them call the engine where a kernel does.

#![expect(unsafe_code, reason = "the contracts with the hardware and the scheduler are unsafe")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst, fence};
use std::thread;

use shootdown::{CpuId, CpuSet, CpuState, Entries, Extent, Machine, Memory, NoBroadcaster};
use shootdown::{PinnedCpu, Root, Shootdown, Space, Tag, TagSlot};

thread_local! { static CPU: Cell<CpuId> = const { Cell::new(CpuId(0)) }; }

/// Two CPUs and a page table: for each of eight pages a frame, or 0.
#[derive(Default)]
struct Toy {
    table: [AtomicU64; 8],
    tlbs: [[AtomicU64; 8]; 2],
    pending_interrupts: [AtomicBool; 2],
    states: [CpuState<Self>; 2],
}

// SAFETY: the words are atomics, and the fence is a full barrier.
unsafe impl Memory for Toy {
    /// The engine's shared words.
    type Word = AtomicU64;

    /// A full barrier: `mfence`, `dmb ish`, `fence rw,rw`.
    fn fence(&self) {
        fence(SeqCst);
    }
}

// SAFETY: every access is sequentially consistent, so invalidations act in program order. A thread
// that is rung reaches an interrupt point, or answers while it waits.
unsafe impl Machine for Toy {
    /// One bit per CPU: room for 64 CPUs.
    type CpuBits = [u64; 1];
    /// Room for the PCIDs of a CPU. This machine has none; with six it is `[TagSlot; 6]`.
    type TagSlots = [TagSlot; 0];
    /// Room for ASIDs that all CPUs share. This machine has none.
    type TagWords = [AtomicU64; 0];
    /// Hardware that invalidates on other CPUs. This machine has none.
    type Broadcaster = NoBroadcaster;

    /// The engine's state of a CPU, from an array or the per-CPU area.
    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.states[cpu.index()]
    }
    /// The CPU that runs the caller.
    fn cpu(&self) -> CpuId {
        CPU.get()
    }
    /// Returns `true` if the flush interrupt is masked: here always, except at interrupt points.
    fn interrupts_masked(&self) -> bool {
        true
    }
    /// Makes page-table writes visible to walkers: `dsb ishst` on Arm, nothing on x86.
    fn publish(&self) {}
    /// Number of PCIDs or ASIDs, without the kernel's. Without tags, loading a root discards.
    fn tag_count(&self) -> usize {
        0
    }
    /// Loads a root: writes CR3, TTBR0 or satp.
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {
        self.invalidate_all();
    }
    /// Loads the kernel's own root.
    fn load_kernel(&self) {
        self.invalidate_all();
    }
    /// Invalidates pages under the loaded tag: `invlpg`, `tlbi vae1`, `sfence.vma`.
    fn invalidate(&self, _: Tag, extent: Extent) {
        let covered = (0..8).filter(|&page| extent.covers((page as u64) << 12));
        covered.for_each(|page| self.tlb()[page].store(0, SeqCst));
    }
    /// Invalidates all pages under the loaded tag.
    fn invalidate_tag(&self, _: Tag) {
        self.invalidate_all();
    }
    /// Invalidates pages of the kernel. This machine has none.
    fn invalidate_kernel(&self, _: Extent) {}
    /// Invalidates everything.
    fn invalidate_all(&self) {
        self.tlb().iter().for_each(|entry| entry.store(0, SeqCst));
    }
    /// Sends the flush interrupt.
    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        cpus.iter().for_each(|cpu| self.pending_interrupts[cpu.index()].store(true, SeqCst));
    }
    /// Frees a dead space and its page tables.
    fn reclaim(&self, _: NonNull<Space<Self>>) {
        println!("CPU {}: no CPU can walk the space any more, so it is freed", CPU.get().0);
    }
    /// Passes the time until other CPUs answer: a spin hint, or the yield of a virtual CPU.
    fn wait_hint(&self, _: &CpuSet<Self::CpuBits>) {
        thread::yield_now();
    }
}

impl Toy {
    fn tlb(&self) -> &[AtomicU64; 8] {
        &self.tlbs[CPU.get().index()]
    }

    /// Accesses a page as user code does. Returns its frame, or 0 after a page fault.
    fn access(&self, page: usize) -> u64 {
        let entry = &self.tlb()[page];
        if entry.load(SeqCst) == 0 {
            entry.store(self.table[page].load(SeqCst), SeqCst);
        }
        entry.load(SeqCst)
    }
}

/// The pin guard of this CPU. A kernel masks the flush interrupt and preemption first.
fn pin(engine: &Shootdown<Toy>) -> PinnedCpu<'_, Toy> {
    // SAFETY: the thread is the CPU, and takes the interrupt at interrupt points only.
    unsafe { engine.pin() }
}

/// Runs user code on this CPU, which takes interrupts, until the other CPU reaches `step`.
fn run_until(engine: &Shootdown<Toy>, steps: &AtomicU32, step: u32) {
    while steps.load(SeqCst) < step {
        if engine.machine().pending_interrupts[CPU.get().index()].swap(false, SeqCst) {
            println!("CPU {}: takes the flush interrupt", CPU.get().0);
            pin(engine).handle_flush_ipi();
        }
        thread::yield_now();
    }
}

/// Unmaps a page, flushes, and waits.
fn unmap(engine: &Shootdown<Toy>, space: &Space<Toy>, page: usize) {
    engine.machine().table[page].store(0, SeqCst);
    let mut pending = pin(engine).flush(space, Extent::page((page as u64) << 12));
    // Drop your locks here.
    pending.wait();
    println!("CPU 0: page {page} is flushed, so its frame can be freed");
}

/// CPU 1 runs user code, goes idle, and returns.
fn run_cpu_1(engine: &Shootdown<Toy>, space: &Space<Toy>, steps: &AtomicU32) {
    CPU.set(CpuId(1));
    pin(engine).online();
    // SAFETY: `main` keeps the space in place until both CPUs are offline.
    unsafe { pin(engine).switch(space) };
    assert_eq!([3, 4].map(|page| engine.machine().access(page)), [30, 40]);
    steps.store(1, SeqCst);
    run_until(engine, steps, 2);
    assert_eq!(engine.machine().access(3), 0, "a page fault");
    println!("CPU 1: goes idle, and stays lazy on the space");
    pin(engine).enter_lazy();
    steps.store(3, SeqCst);
    run_until(engine, steps, 4);
    // SAFETY: as above.
    unsafe { pin(engine).switch(space) };
    println!("CPU 1: returns, and has caught up from the log");
    assert_eq!(engine.machine().access(4), 0, "a page fault");
    pin(engine).enter_lazy();
    steps.store(5, SeqCst);
    run_until(engine, steps, 6);
    pin(engine).offline();
}

fn main() {
    let (engine, steps) = (Shootdown::new(Toy::default()), AtomicU32::new(0));
    engine.machine().table[3].store(30, SeqCst);
    engine.machine().table[4].store(40, SeqCst);
    let space = engine.space(Root(0x1000));
    thread::scope(|scope| {
        scope.spawn(|| run_cpu_1(&engine, &space, &steps));
        pin(&engine).online();
        run_until(&engine, &steps, 1);
        unmap(&engine, &space, 3); // interrupts CPU 1, which uses the space
        steps.store(2, SeqCst);
        run_until(&engine, &steps, 3);
        unmap(&engine, &space, 4); // interrupts no CPU
        steps.store(4, SeqCst);
        run_until(&engine, &steps, 5);
        // SAFETY: CPU 1 is only lazy on the space, and no CPU will switch to it again.
        unsafe { pin(&engine).retire(NonNull::from(&space)) }.wait();
        steps.store(6, SeqCst);
        pin(&engine).offline();
    });
    println!("interrupts sent: {}", engine.cpu(CpuId(0)).stats().interrupts_sent);
}
