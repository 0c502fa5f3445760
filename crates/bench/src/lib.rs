//! The machine that the hot paths are counted on: plain atomics, and hardware that does nothing.
//!
//! What is left is the engine: what an operation costs on top of the root loads, invalidations and
//! interrupts that no design can do without.

#![expect(unsafe_code, reason = "implements `Machine`, and switches")]

use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use shootdown::{
    Cpu, CpuId, CpuSet, Entries, Extent, Here, Machine, Root, Shootdown, Space, Tag, TagSlot, Word,
};

/// Up to 64 CPUs with six tags each.
#[derive(Debug)]
pub struct Plain {
    cpus: Vec<Cpu<Self>>,
    current: AtomicU32,
}

// SAFETY: there is one thread, one TLB that holds nothing, and no interrupt.
unsafe impl Machine for Plain {
    type Word = AtomicU64;
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 6];
    type TagWords = [core::sync::atomic::AtomicU64; 0];

    #[inline]
    fn state(&self, cpu: CpuId) -> &Cpu<Self> {
        &self.cpus[cpu.index()]
    }
    #[inline]
    fn cpu(&self) -> CpuId {
        CpuId(self.current.load(Ordering::Relaxed))
    }
    #[inline]
    fn interrupts_masked(&self) -> bool {
        true
    }
    #[inline]
    fn fence(&self) {
        fence(SeqCst);
    }
    /// As a kernel for x86 would have it: one `xchg`.
    #[inline]
    fn store_then_fence(&self, word: &AtomicU64, value: u64, _order: Ordering) {
        word.swap(value, SeqCst);
    }
    /// As a kernel for x86 would have it: one `lock xadd`.
    #[inline]
    fn fetch_add_then_fence(&self, word: &AtomicU64, value: u64, _order: Ordering) -> u64 {
        word.fetch_add(value, SeqCst)
    }
    #[inline]
    fn publish(&self) {}
    #[inline]
    fn tag_count(&self) -> usize {
        6
    }
    #[inline]
    unsafe fn load(&self, _root: Root, _tag: Tag, _entries: Entries) {}
    #[inline]
    fn load_kernel(&self) {}
    #[inline]
    fn invalidate(&self, _tag: Tag, _extent: Extent) {}
    #[inline]
    fn invalidate_tag(&self, _tag: Tag) {}
    #[inline]
    fn invalidate_kernel(&self, _extent: Extent) {}
    #[inline]
    fn invalidate_all(&self) {}
    #[inline]
    fn ring(&self, _cpus: &CpuSet<Self>) {}
    #[inline]
    fn relax(&self, _waiting: &CpuSet<Self>) {}
    #[inline]
    fn reclaim(&self, _space: NonNull<Space<Self>>) {}
}

/// An engine with two CPUs online and a few spaces, on CPU 0.
#[derive(Debug)]
pub struct System {
    engine: Shootdown<Plain>,
    spaces: Vec<Space<Plain>>,
}

impl System {
    /// CPU 0 has space 0 loaded, and has had space 1.
    #[must_use]
    #[expect(clippy::missing_panics_doc, reason = "there is no word that is not a word")]
    pub fn new() -> Self {
        assert_eq!(size_of::<AtomicU64>(), size_of::<<Plain as Machine>::Word>());
        let _: AtomicU64 = Word::new(0);
        let cpus = (0..2).map(|_| Cpu::new()).collect();
        let engine = Shootdown::new(Plain { cpus, current: AtomicU32::new(1) });
        let spaces = (0..8).map(|root| engine.space(Root(root))).collect();
        let system = Self { engine, spaces };
        system.here().online();
        system.engine.machine().current.store(0, Ordering::Relaxed);
        system.here().online();
        system.switch(1);
        system.switch(0);
        system
    }

    /// The CPU's token.
    #[must_use]
    #[inline]
    pub fn here(&self) -> Here<'_, Plain> {
        // SAFETY: there is one thread and no interrupt.
        unsafe { self.engine.here() }
    }

    /// The machine.
    #[must_use]
    #[inline]
    pub fn machine(&self) -> &Plain {
        self.engine.machine()
    }

    /// A space.
    #[must_use]
    #[inline]
    pub fn space(&self, index: usize) -> &Space<Plain> {
        &self.spaces[index]
    }

    /// Switches to a space.
    #[inline]
    pub fn switch(&self, index: usize) {
        // SAFETY: the spaces live as long as the engine.
        unsafe { self.here().switch(&self.spaces[index]) };
    }

    /// Has CPU 1 do something.
    pub fn on_other_cpu(&self, act: impl FnOnce(&Self)) {
        let current = &self.engine.machine().current;
        current.store(1, Ordering::Relaxed);
        act(self);
        current.store(0, Ordering::Relaxed);
    }
}

impl Default for System {
    fn default() -> Self {
        Self::new()
    }
}
