//! A thread that is a CPU of the software machine.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Platform, Soft, Touch};
use crate::base::ids::CpuId;
use crate::base::memory::Word;
use crate::state::engine::Shootdown;
use crate::state::machine::{Entries, Machine};
use crate::state::pinned_cpu::PinnedCpu;
use crate::state::space::Space;
use crate::state::vcpu::VcpuWord;

impl<P: Platform, const WORDS: usize> Shootdown<Soft<P, WORDS>> {
    /// Makes this thread CPU `cpu`, until the returned value is dropped.
    ///
    /// # Panics
    ///
    /// If a thread is that CPU already.
    pub fn enter(&self, cpu: CpuId) -> OnCpu<'_, P, WORDS> {
        let occupied = &self.machine().cpus[cpu.index()].occupied;
        assert!(!occupied.swap(true, Acquire), "another thread is CPU {}", cpu.0);
        P::set_cpu(cpu);
        OnCpu { engine: self, cpu, not_send: PhantomData }
    }
}

/// A thread that is a CPU of the software machine. One thread may be several CPUs in turn.
pub struct OnCpu<'e, P: Platform, const WORDS: usize = 1> {
    pub(super) engine: &'e Shootdown<Soft<P, WORDS>>,
    pub(super) cpu: CpuId,
    not_send: PhantomData<*mut ()>,
}

impl<'e, P: Platform, const WORDS: usize> OnCpu<'e, P, WORDS> {
    /// Pins the engine to this CPU.
    #[must_use]
    pub fn pin(&self) -> PinnedCpu<'e, Soft<P, WORDS>> {
        P::set_cpu(self.cpu);
        // SAFETY: only this thread is this CPU. It takes interrupts only at interrupt points, and
        // no other `PinnedCpu` of this CPU is in use there.
        unsafe { self.engine.pin() }
    }

    /// Uses a page of the space that is loaded.
    pub fn touch(&self, page: usize) -> Touch {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.tlb(|tlb| tlb.touch(&machine.tables, page))
    }

    /// Uses a page of the kernel.
    pub fn touch_kernel(&self, page: usize) -> Touch {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.tlb(|tlb| tlb.touch_kernel(&machine.kernel, page))
    }

    /// Walks page tables as speculation may at any moment. A walk of freed tables is counted.
    pub fn speculate(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.count_walk(machine.tlb(|tlb| tlb.speculate(&machine.tables)));
    }

    /// Walks the kernel's page tables as speculation may at any moment, in user mode too. A walk of
    /// freed tables is counted.
    pub fn speculate_in_kernel(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        machine.count_walk(machine.tlb(|tlb| tlb.speculate_in_kernel(&machine.kernel)));
    }

    /// Takes the flush interrupt, if it was sent. From user mode, the CPU enters the kernel, and
    /// then user mode again.
    pub fn interrupt_point(&self) {
        let interrupt = &self.engine.machine().cpus[self.cpu.index()].interrupt;
        if interrupt.load(Relaxed) == 0 || interrupt.swap(0, Acquire) == 0 {
            return;
        }
        let pinned = self.pin();
        let is_in_user = pinned.is_in_user();
        if is_in_user {
            pinned.enter_kernel();
        }
        pinned.handle_flush_ipi();
        if is_in_user {
            pinned.enter_user();
        }
    }
}

impl<P: Platform, const WORDS: usize> OnCpu<'_, P, WORDS> {
    /// Plays the hypervisor, which stops this CPU. Until it [resumes](Self::resume), the CPU must
    /// do nothing.
    pub fn stop(&self) {
        // SAFETY: the machine's user promises that the CPU does nothing.
        unsafe { self.vcpu().stop(self.engine.machine()) };
    }

    /// Plays the hypervisor, which runs this CPU again, and empties its TLB if a flush has
    /// requested that.
    pub fn resume(&self) {
        P::set_cpu(self.cpu);
        let machine = self.engine.machine();
        // SAFETY: the TLB is emptied here.
        if unsafe { self.vcpu().resume(machine) } == Entries::Discard {
            machine.invalidate_all();
        }
    }

    /// Walks the page tables of `space` by software, with the interrupt masked, and calls
    /// `meanwhile` when it has found a table and not yet read it. A walk of freed tables is
    /// counted.
    pub fn walk_by_software(&self, space: &Space<Soft<P, WORDS>>, meanwhile: impl FnOnce()) {
        let walk = self.pin().begin_walk();
        let table = self.engine.machine().table(space);
        let upper = table.upper(space.root());
        meanwhile();
        P::set_cpu(self.cpu);
        self.engine.machine().count_walk(table.has_freed(upper));
        drop(walk);
    }

    /// Plays the handler that stops this CPU in a crash: it loads the kernel's root. After this,
    /// the CPU must do nothing until another one has [disconnected](PinnedCpu::disconnect) it.
    pub fn halt(&self) {
        P::set_cpu(self.cpu);
        self.engine.machine().load_kernel();
    }

    fn vcpu(&self) -> &VcpuWord<Soft<P, WORDS>> {
        &self.engine.machine().cpus[self.cpu.index()].vcpu
    }
}

impl<P: Platform, const WORDS: usize> Drop for OnCpu<'_, P, WORDS> {
    fn drop(&mut self) {
        self.engine.machine().cpus[self.cpu.index()].occupied.store(false, Release);
    }
}

impl<P: Platform, const WORDS: usize> fmt::Debug for OnCpu<'_, P, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnCpu").field(&self.cpu).finish()
    }
}
