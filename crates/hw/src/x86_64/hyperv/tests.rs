//! The hypercalls of a processor and of an engine, recorded.

use core::ptr::NonNull;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::vec::Vec;

use shootdown::{CpuState, PageSize, Root, Shootdown, Space};

use super::*;
use crate::x86_64::recorded::steps_of;
use crate::x86_64::{Features, KernelPages, Kpti, UserMarks, X86_64};
use crate::{Bare, Kernel};

/// Records the control word and the first words of the input of each hypercall.
struct Recorder {
    input: UnsafeCell<InputPage>,
    calls: RefCell<Vec<(u64, [u64; 5])>>,
    /// The results of the next calls; then each call is done.
    results: RefCell<Vec<u64>>,
}

// SAFETY: each test has one thread.
unsafe impl Sync for Recorder {}

// SAFETY: there is one page, and one thread uses it.
unsafe impl Hypercalls for Recorder {
    fn input(&self) -> *mut InputPage {
        self.input.get()
    }
    fn call(&self, control: u64) -> u64 {
        // SAFETY: the caller has no reference to the page during the call.
        let input = unsafe { &(*self.input.get()).0 };
        let first = [0, 1, 2, 3, 4].map(|index| input[index]);
        self.calls.borrow_mut().push((control, first));
        self.results.borrow_mut().pop().unwrap_or(0xfff << 32)
    }
    fn virtual_processor(&self, cpu: CpuId) -> u32 {
        // The hypervisor's numbers need not be the kernel's.
        cpu.0 + 10
    }
}

type Processor = HyperV<X86_64, Recorder>;

fn processor(has_pcid: bool) -> Processor {
    let features = Features { has_pcid, has_invpcid: has_pcid, ..Features::NONE };
    // SAFETY: privileged instructions are only recorded.
    let processor = unsafe { X86_64::new(features, KernelPages::Global) };
    HyperV::new(processor, recorder())
}

fn recorder() -> Recorder {
    Recorder {
        input: UnsafeCell::new(InputPage::new()),
        calls: RefCell::default(),
        results: RefCell::default(),
    }
}

fn cpus(numbers: &[u32]) -> CpuSet<[u64; 1]> {
    let mut cpus = CpuSet::new();
    for &cpu in numbers {
        cpus.insert(CpuId(cpu));
    }
    cpus
}

#[test]
fn tags_are_global_where_there_are_tags() {
    use crate::Processor as _;
    let with = processor(true);
    assert_eq!((with.tagging(), with.tag_count()), (Tagging::Global, 4095));
    assert_eq!(with.broadcaster().map(|it| it.capabilities().reach), Some(Reach::Targets));
    let without = processor(false);
    assert_eq!((without.tagging(), without.tag_count()), (Tagging::PerCpu, 0));
    assert!(without.broadcaster().is_none());
}

#[test]
fn broadcast_is_one_call_that_names_its_targets() {
    let processor = processor(true);
    let two = Extent::pages(0x5000, 2, PageSize::SIZE_4K);
    assert_eq!(processor.broadcast(&cpus(&[1, 3]), Tag(7), two), Ok(()));
    let calls = processor.hypercalls.calls.take();
    assert_eq!(calls, [(1 << 32 | 3, [0, 0b110, 1 << 11 | 1 << 13, 0x5001, 0])]);
    assert_eq!(processor.complete(), 0);
}

#[test]
fn partial_list_is_continued() {
    let processor = processor(true);
    processor.hypercalls.results.replace([1 << 32].to_vec());
    let many = Extent::pages(0, 16, PageSize::SIZE_2M);
    assert_eq!(processor.broadcast(&cpus(&[1]), Tag(7), many), Ok(()));
    let calls = processor.hypercalls.calls.take();
    let controls: Vec<_> = calls.iter().map(|(control, _)| *control).collect();
    assert_eq!(controls, [2 << 32 | 3, 1 << 48 | 2 << 32 | 3]);
}

/// `HV_STATUS_INVALID_PARAMETER`, at once and after a part of the list.
const REFUSED: u64 = 5;

#[test]
fn refused_hypercall_is_an_error() {
    for results in [[REFUSED].as_slice(), &[REFUSED, 1 << 32]] {
        let processor = processor(true);
        processor.hypercalls.results.replace(results.to_vec());
        let many = Extent::pages(0, 16, PageSize::SIZE_2M);
        assert_eq!(processor.broadcast(&cpus(&[1]), Tag(7), many), Err(Refused));
        assert_eq!(processor.hypercalls.calls.borrow().len(), results.len());
    }
    assert_eq!(processor(true).broadcast_kernel(Extent::whole()), Err(Refused));
}

/// The tags of user halves are those of kernel halves with one more bit.
#[test]
fn wrapped_halves_keep_their_tags() {
    use crate::Processor as _;
    fn no_marks() -> &'static UserMarks {
        unreachable!("no CPU enters user mode")
    }
    for (has_pcid, tags) in [(true, 2047), (false, 0)] {
        let features = Features { has_pcid, has_invpcid: has_pcid, ..Features::NONE };
        // SAFETY: privileged instructions are only recorded.
        let kpti =
            unsafe { Kpti::new(X86_64::new(features, KernelPages::PerTag), no_marks as fn() -> _) };
        assert_eq!(HyperV::new(kpti, recorder()).tag_count(), tags);
    }
}

/// A guest with three CPUs. One thread is each of them in turn.
struct Guest {
    cpus: [CpuState<Bare<Self>>; 3],
    current: Cell<u32>,
    rung: Cell<CpuSet<[u64; 1]>>,
}

// SAFETY: each test has one thread.
unsafe impl Sync for Guest {}

// SAFETY: one thread is each CPU in turn, and instructions are only recorded.
unsafe impl Kernel for Guest {
    type Processor = Processor;
    type CpuBits = [u64; 1];

    fn state(&self, cpu: CpuId) -> &CpuState<Bare<Self>> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.current.get())
    }
    fn root(&self) -> Root {
        Root(0x9000)
    }
    fn cpu_limit(&self) -> usize {
        3
    }
    fn ring(&self, cpus: &CpuSet<[u64; 1]>) {
        self.rung.set(cpus.clone());
    }
    fn reclaim(&self, _: NonNull<Space<Bare<Self>>>) {}
}

/// CPUs 1 and 2 have run a space, and CPU 2 has left it. The hypercall names CPU 1 alone, and the
/// wait for the flush is over at once. If the hypervisor refuses, CPU 1 is interrupted.
#[test]
fn engine_flushes_by_hypercall_or_interrupt() {
    // Interrupts count as masked while instructions are recorded.
    let _ = steps_of(|| [false, true].map(flush_with_another_cpu_present));
}

fn flush_with_another_cpu_present(is_refused: bool) {
    let states = [(); 3].map(|()| CpuState::new());
    let guest = Guest { cpus: states, current: Cell::new(0), rung: Cell::default() };
    // Without a trial of interrupts.
    let processor = processor(true).with_costs(ASSUMED_COSTS.broadcasts_only());
    processor.hypercalls.results.replace(is_refused.then_some(REFUSED).into_iter().collect());
    let engine = Shootdown::new(Bare::new(guest, processor));
    let space = engine.space(Root(0x7000));
    let on = |cpu| {
        engine.machine().kernel().current.set(cpu);
        // SAFETY: there is one thread, and no handler.
        unsafe { engine.pin() }
    };
    for cpu in 0..3 {
        on(cpu).online();
        // SAFETY: the space outlives its use, and does not move.
        unsafe { on(cpu).switch(&space) };
    }
    on(2).leave_space();
    let pin = on(0);
    let mut pending = pin.flush(&space, Extent::page(0x5000));
    let rung = engine.machine().kernel().rung.take();
    if is_refused {
        assert!(!pending.poll());
        on(1).handle_flush_ipi();
        on(0);
    }
    assert!(pending.poll());
    let rung: Vec<_> = rung.iter().map(|cpu| cpu.0).collect();
    assert_eq!(rung, if is_refused { Vec::from([1]) } else { Vec::new() });
    let calls = engine.machine().processor().hypercalls.calls.take();
    assert_eq!(calls, [(1 << 32 | 3, [0, 0b110, 1 << 11, 0x5000, 0])]);
    assert_eq!(engine.cpu(CpuId(0)).stats().broadcasts_sent, u64::from(!is_refused));
}
