//! A ready-made kernel's half, for kernels that have nothing special.

#![expect(unsafe_code, reason = "fulfils the kernel's half of the contract by a smaller one")]

use core::fmt;
use core::ops::Deref;
use core::ptr::NonNull;

use shootdown::{CpuBits, CpuId, CpuSet, CpuState, EngineCell, Root, Shootdown, Space};

use crate::bare::Bare;
use crate::ipi::Ipi;
use crate::kernel::Kernel;
use crate::processor::Processor;

/// The functions that only your kernel has. The rest of a [`Kernel`] is [`ReadyKernel`].
///
/// Implement [`Kernel`] instead if the kernel counts or watches its waits, has its own driver of
/// the interrupt controller, or runs as a guest that asks for [absent CPUs](Kernel::is_away).
///
/// # Safety
///
/// - [`CPU_NUMBER`](Self::CPU_NUMBER) returns the number of the CPU that runs the call. No two CPUs
///   share a number, and no CPU changes its number.
/// - [`CONTROLLER_ID`](Self::CONTROLLER_ID) returns the number by which the interrupt controller
///   knows that CPU.
/// - All of them may be called with interrupts masked and in the handler of the flush interrupt.
///   They do not use the engine, and take no lock that the CPU may hold.
pub unsafe trait Platform: Sized + 'static {
    /// The processor on which the kernel runs.
    type Processor: Processor;
    /// The interrupt that notifies CPUs of flushes.
    type Ipi: Ipi + 'static;
    /// A set of CPUs: one bit for each possible CPU.
    type CpuBits: CpuBits;

    /// Returns the number of the CPU that runs this call, from 0 on.
    const CPU_NUMBER: fn() -> u32;

    /// Returns the number by which the [interrupt controller](Ipi::send) knows a CPU.
    const CONTROLLER_ID: fn(u32) -> u64;

    /// Returns a retired space to the kernel. No CPU can use it any more. Put it on a list, and
    /// free its page tables later: the scheduler may be the caller.
    const RECLAIM: fn(NonNull<Space<ReadyMachine<Self>>>);

    /// Wakes threads that sleep until a CPU has answered. See [`Kernel::wake_waiters`].
    const WAKE_WAITERS: fn(CpuId) = |_| ();
}

/// The engine's machine on a [`Platform`].
pub type ReadyMachine<P> = Bare<ReadyKernel<P>>;

/// The kernel's half of the machine on a [`Platform`].
pub struct ReadyKernel<P: Platform> {
    cpus: &'static [CpuState<ReadyMachine<P>>],
    root: Root,
    ipi: P::Ipi,
}

// SAFETY: each CPU has the element at its number, and `Platform` promises the number. `Ipi` orders
// earlier stores before the interrupt. `ReadyEngine::init` promises the root.
unsafe impl<P: Platform> Kernel for ReadyKernel<P> {
    type Processor = P::Processor;
    type CpuBits = P::CpuBits;

    #[inline]
    fn state(&self, cpu: CpuId) -> &CpuState<ReadyMachine<P>> {
        &self.cpus[cpu.index()]
    }

    #[inline]
    fn cpu(&self) -> CpuId {
        CpuId((P::CPU_NUMBER)())
    }

    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }

    fn root(&self) -> Root {
        self.root
    }

    fn ring(&self, cpus: &CpuSet<Self::CpuBits>) {
        self.ipi.send(cpus.iter().map(|cpu| (P::CONTROLLER_ID)(cpu.0)));
    }

    fn reclaim(&self, space: NonNull<Space<ReadyMachine<P>>>) {
        (P::RECLAIM)(space);
    }

    fn wake_waiters(&self, cpu: CpuId) {
        (P::WAKE_WAITERS)(cpu);
    }
}

impl<P: Platform> fmt::Debug for ReadyKernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = self.cpus.len();
        let mut ready = f.debug_struct("ReadyKernel");
        ready.field("cpus", &cpus).field("root", &self.root);
        ready.finish_non_exhaustive()
    }
}

/// The engine of a kernel on a [`Platform`], with the state of `CPUS` CPUs, for a static. After
/// [`init`](Self::init), it dereferences to the engine.
///
/// The smallest embedding in the book shows each call.
#[derive(Debug)]
pub struct ReadyEngine<P: Platform, const CPUS: usize> {
    cpus: [CpuState<ReadyMachine<P>>; CPUS],
    engine: EngineCell<ReadyMachine<P>>,
}

impl<P: Platform, const CPUS: usize> ReadyEngine<P, CPUS> {
    /// A place for the engine.
    #[must_use]
    pub const fn new() -> Self {
        Self { cpus: [const { CpuState::new() }; CPUS], engine: EngineCell::new() }
    }

    /// Makes the engine, with every CPU offline. `root` is a page table that maps the kernel and
    /// nothing else, or an empty one where another register has the kernel's root (AArch64,
    /// LoongArch64).
    ///
    /// # Safety
    ///
    /// Call this once, on the first CPU, before it starts other CPUs, and not in a handler. `root`
    /// must stay valid for ever. The numbers of all CPUs that use the engine are below `CPUS`.
    ///
    /// # Panics
    ///
    /// If the engine exists already, or a [`Platform::CpuBits`] has fewer than `CPUS` bits.
    pub unsafe fn init(&'static self, processor: P::Processor, ipi: P::Ipi, root: Root) {
        let kernel = ReadyKernel { cpus: &self.cpus, root, ipi };
        // SAFETY: the caller promises the same.
        unsafe { self.engine.init(Bare::new(kernel, processor)) };
    }

    /// Enables the features of the processor on this CPU, and brings the CPU online. Call this when
    /// the CPU can take the interrupt and has loaded the kernel's root.
    ///
    /// # Safety
    ///
    /// As for [`Processor::set_up_cpu`] and [`Shootdown::pin`]: on each CPU, with interrupts
    /// masked.
    ///
    /// # Panics
    ///
    /// Before [`init`](Self::init).
    pub unsafe fn start_cpu(&self) {
        // SAFETY: the caller promises the same.
        unsafe {
            self.machine().processor().set_up_cpu();
            self.pin().online();
        }
    }

    /// The handler of the flush interrupt: acknowledges the interrupt and flushes.
    ///
    /// # Safety
    ///
    /// Call this only in the handler of the [interrupt](Platform::Ipi), with interrupts masked.
    ///
    /// # Panics
    ///
    /// Before [`init`](Self::init).
    pub unsafe fn handle_interrupt(&self) {
        self.machine().kernel().ipi.acknowledge();
        // SAFETY: the handler stays on this CPU, and no guard exists here, because a CPU that holds
        // one masks the interrupt.
        unsafe { self.pin() }.handle_flush_ipi();
    }

    /// Drops what this CPU has cached of `address` with fewer permissions than the entry has by
    /// now: see [`Processor::forget_refused`]. For the handler of page faults, which finds the
    /// access allowed. No other CPU is concerned.
    ///
    /// # Panics
    ///
    /// Before [`init`](Self::init).
    pub fn forget_refused(&self, address: u64) {
        self.machine().processor().forget_refused(address);
    }
}

impl<P: Platform, const CPUS: usize> Default for ReadyEngine<P, CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform, const CPUS: usize> Deref for ReadyEngine<P, CPUS> {
    type Target = Shootdown<ReadyMachine<P>>;

    /// The engine.
    ///
    /// # Panics
    ///
    /// Before [`init`](Self::init).
    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loongarch64::instructions::Step::{CompleteAll, Invtlb, WriteIocsr};
    use crate::loongarch64::instructions::steps_of;
    use crate::loongarch64::{IocsrIpi, LoongArch64};
    use crate::x86_64::{Features, KernelPages, X2ApicIpi, X86_64, recorded};
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
    use shootdown::Extent;

    static ENGINE: ReadyEngine<Toy, 3> = ReadyEngine::new();
    /// The CPU that the test plays.
    static CPU: AtomicU32 = AtomicU32::new(0);
    static RECLAIMED: AtomicU64 = AtomicU64::new(0);

    struct Toy;

    // SAFETY: one thread plays all CPUs, one after the other.
    unsafe impl Platform for Toy {
        type Processor = LoongArch64;
        type Ipi = IocsrIpi;
        type CpuBits = [u64; 1];

        const CPU_NUMBER: fn() -> u32 = || CPU.load(Relaxed);
        const CONTROLLER_ID: fn(u32) -> u64 = |cpu| 0x10 + u64::from(cpu);
        const RECLAIM: fn(NonNull<Space<ReadyMachine<Self>>>) = |space| {
            // SAFETY: the space is a local variable of the test.
            RECLAIMED.store(unsafe { space.as_ref() }.root().0, Relaxed);
        };
    }

    #[test]
    fn flush_rings_user_of_the_space_by_controller_id() {
        // SAFETY: instructions are only recorded.
        let ipi = unsafe { IocsrIpi::new(1) };
        // SAFETY: only this test uses the engine.
        unsafe { ENGINE.init(LoongArch64::detect(), ipi, Root(0x1000)) };
        let space = ENGINE.space(Root(0x2000));
        let on = |cpu: u32| {
            CPU.store(cpu, Relaxed);
            // SAFETY: the test plays a CPU until it plays the next one.
            unsafe { ENGINE.pin() }
        };
        for cpu in 0..3 {
            CPU.store(cpu, Relaxed);
            // SAFETY: as above.
            unsafe { ENGINE.start_cpu() };
        }
        // SAFETY: the space stays in place until the end of the test.
        unsafe { on(2).switch(&space) };

        let mut flush = None;
        let sent = steps_of(|| flush = Some(on(0).flush(&space, Extent::page(0x5000))));
        assert_eq!(sent, [CompleteAll, CompleteAll, WriteIocsr(0x1040, 1 << 31 | 0x12 << 16 | 1)]);
        // SAFETY: the test plays the handler on CPU 2.
        let handled = steps_of(|| unsafe {
            on(2);
            ENGINE.handle_interrupt();
        });
        // The end of the interrupt comes first: see `Ipi::acknowledge`.
        assert_eq!(handled, [WriteIocsr(0x100c, 2), CompleteAll, Invtlb(5, 1, 0x5000)]);
        // One page, on this CPU alone.
        assert_eq!(steps_of(|| ENGINE.forget_refused(0x7000)), [Invtlb(5, 1, 0x7000)]);
        on(0);
        flush.expect("CPU 0 flushes").wait();

        on(2).leave_space();
        // SAFETY: no CPU uses the space, and it stays in place.
        unsafe { on(0).retire(NonNull::from(&space)) }.wait();
        assert_eq!(RECLAIMED.load(Relaxed), 0x2000);
    }

    static MANY: ReadyEngine<Many, 65> = ReadyEngine::new();

    /// 64 CPUs in clusters of 16, numbered as they are on a machine of one socket, and one more.
    struct Many;

    // SAFETY: one thread plays all CPUs, one after the other.
    unsafe impl Platform for Many {
        type Processor = X86_64;
        type Ipi = X2ApicIpi;
        type CpuBits = [u64; 2];

        const CPU_NUMBER: fn() -> u32 = || PLAYED.get();
        /// The second threads of all cores come after all first threads.
        const CONTROLLER_ID: fn(u32) -> u64 = |cpu| u64::from(cpu % 32 * 2 + cpu / 32);
        const RECLAIM: fn(NonNull<Space<ReadyMachine<Self>>>) = |_| {};
    }

    std::thread_local! {
        static PLAYED: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn flush_interrupts_64_cpus_by_four_commands() {
        // SAFETY: instructions are only recorded.
        let (ipi, processor) = unsafe {
            let kernel_pages = KernelPages::PerTag;
            (X2ApicIpi::new(0xf0).by_clusters(), X86_64::new(Features::NONE, kernel_pages))
        };
        let mut space = None;
        recorded::steps_of(|| {
            // SAFETY: only this test uses the engine.
            unsafe { MANY.init(processor, ipi, Root(0x1000)) };
            let space = space.insert(MANY.space(Root(0x2000)));
            for cpu in 0..65 {
                PLAYED.set(cpu);
                // SAFETY: the test plays a CPU until it plays the next one, and the space stays in
                // place until the end of the test.
                unsafe {
                    MANY.start_cpu();
                    MANY.pin().switch(space);
                }
            }
        });
        let space = space.expect("made above");
        let commands = recorded::steps_of(|| {
            // SAFETY: the thread plays CPU 64.
            let pending = unsafe { MANY.pin() }.flush(&space, Extent::page(0x5000));
            assert_eq!(pending.waiting().len(), 64);
            // No CPU answers.
            core::mem::forget(pending);
        });
        let is_command = |step: &&recorded::Step| matches!(step, recorded::Step::Wrmsr(0x830, _));
        assert_eq!(commands.iter().filter(is_command).count(), 4, "{commands:x?}");
    }
}
