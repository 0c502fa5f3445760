//! The costs of notifying CPUs: hints to the cache, and measured delays.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use shootdown::{
    Broadcast, Broadcaster, CpuBits, CpuId, CpuSet, CpuState, CpuStats, Entries, Extent, Machine,
    Memory, NotifyCosts, PinnedCpu, Reach, Root, Shootdown, Space, Tag, TagSlot, Tagging,
};

const PAGE: Extent = Extent::page(0x1000);

/// Number of hints, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hints {
    reads: u64,
    writes: u64,
}

/// Properties of the machine.
#[derive(Clone, Copy)]
struct Config {
    cpus: u32,
    answers_early: bool,
    /// The costs by which the engine chooses; `None` if the machine cannot broadcast.
    costs: Option<NotifyCosts>,
    /// Time that CPUs take to answer.
    answer_ns: u64,
    /// Time that a broadcast takes to complete.
    completion_ns: u64,
}

const CONFIG: Config =
    Config { cpus: 2, answers_early: false, costs: None, answer_ns: 0, completion_ns: 0 };

/// A machine without a TLB, whose one thread is each CPU in turn. It counts hints.
struct Measured {
    config: Config,
    cpus: Vec<CpuState<Self>>,
    current: AtomicU32,
    reads: AtomicU64,
    writes: AtomicU64,
    now_ns: AtomicU64,
}

// SAFETY: there is one thread, and the words are the host's atomics.
unsafe impl Memory for Measured {
    type Word = AtomicU64;

    const PREFETCHES_FOR_WRITE: bool = true;

    fn fence(&self) {
        fence(SeqCst);
    }
    fn prefetch(&self, _: &AtomicU64) {
        self.reads.fetch_add(1, Relaxed);
    }
    fn prefetch_for_write(&self, _: &AtomicU64) {
        self.writes.fetch_add(1, Relaxed);
    }
}

// SAFETY: there is one thread and no TLB. The tests take the interrupts.
unsafe impl Machine for Measured {
    type CpuBits = [u64; 1];
    type TagSlots = [TagSlot; 2];
    type TagWords = [AtomicU64; 2];
    type Broadcaster = Self;

    fn state(&self, cpu: CpuId) -> &CpuState<Self> {
        &self.cpus[cpu.index()]
    }
    fn cpu(&self) -> CpuId {
        CpuId(self.current.load(Relaxed))
    }
    fn interrupts_masked(&self) -> bool {
        true
    }
    fn publish(&self) {}
    fn answers_early(&self) -> bool {
        self.config.answers_early
    }
    fn tagging(&self) -> Tagging {
        if self.config.costs.is_some() { Tagging::Global } else { Tagging::PerCpu }
    }
    fn tag_count(&self) -> usize {
        60
    }
    fn cpu_limit(&self) -> usize {
        self.cpus.len()
    }
    unsafe fn load(&self, _: Root, _: Tag, _: Entries) {}
    fn load_kernel(&self) {}
    fn invalidate(&self, _: Tag, _: Extent) {}
    fn invalidate_tag(&self, _: Tag) {}
    fn invalidate_kernel(&self, _: Extent) {}
    fn invalidate_all(&self) {}
    fn ring(&self, _: &CpuSet<Self::CpuBits>) {}
    fn broadcaster(&self) -> Option<&Self> {
        self.config.costs.map(|_| self)
    }
    fn reclaim(&self, _: NonNull<Space<Self>>) {}
    fn wait_hint(&self, waiting: &CpuSet<Self::CpuBits>) {
        panic!("there is no other thread, so {waiting:?} will not answer");
    }
}

// SAFETY: there is no TLB.
unsafe impl Broadcaster for Measured {
    fn capabilities(&self) -> Broadcast {
        Broadcast { reach: Reach::Everyone, pages_per_operation: 1, operation_ceiling: 8 }
    }
    fn costs(&self) -> NotifyCosts {
        self.config.costs.expect("the machine has a broadcaster")
    }
    fn broadcast<B: CpuBits>(&self, _: &CpuSet<B>, _: Tag, _: Extent) {}
    fn broadcast_kernel(&self, _: Extent) {}
    fn complete(&self) -> u64 {
        self.config.completion_ns
    }
    /// The engine reads the clock before and after it waits for answers.
    fn clock_ns(&self) -> u64 {
        self.now_ns.fetch_add(self.config.answer_ns, Relaxed)
    }
}

/// All CPUs online. All but CPU 0 use the space.
struct System {
    engine: Shootdown<Measured>,
    space: Space<Measured>,
}

impl System {
    fn new(config: Config) -> Self {
        let engine = Shootdown::new(Measured {
            config,
            cpus: (0..config.cpus).map(|_| CpuState::new()).collect(),
            current: AtomicU32::new(0),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            now_ns: AtomicU64::new(1),
        });
        let space = engine.space(Root(0));
        let system = Self { engine, space };
        (0..config.cpus).for_each(|cpu| system.pin(cpu).online());
        for cpu in 1..config.cpus {
            // SAFETY: the space lives as long as the engine, and does not move.
            unsafe { system.pin(cpu).switch(&system.space) };
        }
        system
    }

    fn pin(&self, cpu: u32) -> PinnedCpu<'_, Measured> {
        self.engine.machine().current.store(cpu, Relaxed);
        // SAFETY: the one thread is that CPU now, and the methods of a CPU's `PinnedCpu`s do not
        // nest.
        unsafe { self.engine.pin() }
    }

    /// Flushes a page on CPU 0. All other CPUs answer.
    fn flush(&self) {
        let mut pending = self.pin(0).flush(&self.space, PAGE);
        (1..self.engine.machine().config.cpus).for_each(|cpu| self.pin(cpu).handle_flush_ipi());
        self.pin(0);
        pending.wait();
    }

    fn stats(&self) -> CpuStats {
        self.engine.cpu(CpuId(0)).stats()
    }

    /// Number of hints that `operation` gives.
    fn hints<R>(&self, operation: impl FnOnce() -> R) -> (Hints, R) {
        let Measured { reads, writes, .. } = self.engine.machine();
        reads.store(0, Relaxed);
        writes.store(0, Relaxed);
        let result = operation();
        (Hints { reads: reads.load(Relaxed), writes: writes.load(Relaxed) }, result)
    }
}

/// The sender hints at each line that it is going to access, and the target at its bell.
#[test]
fn each_line_of_a_flush_is_hinted_at_once() {
    for answers_early in [false, true] {
        let system = System::new(Config { cpus: 26, answers_early, ..CONFIG });
        // It is scanned, and not rung.
        system.pin(25).leave_space();
        let (in_flush, mut pending) = system.hints(|| system.pin(0).flush(&system.space, PAGE));
        let answer = |cpu| system.hints(|| system.pin(cpu).handle_flush_ipi()).0;
        let in_answers: Vec<_> = (1..25).map(answer).collect();
        // There are ten hints after the first answer, ten after the next ten, and so on.
        let (in_poll, is_done) = system.hints(|| pending.poll());
        assert!(is_done);
        assert_eq!(in_flush, Hints { reads: 25, writes: 24 });
        assert_eq!(in_answers, [Hints { reads: 0, writes: 1 }; 24]);
        let reads = if answers_early { 2 * 23 } else { 23 };
        assert_eq!(in_poll, Hints { reads, writes: 0 });
    }
}

#[test]
fn poll_without_an_answer_gives_no_hint() {
    let system = System::new(Config { cpus: 3, ..CONFIG });
    let mut pending = system.pin(0).flush(&system.space, PAGE);
    let (hints, is_done) = system.hints(|| pending.poll());
    (1..3).for_each(|cpu| system.pin(cpu).handle_flush_ipi());
    assert!(pending.poll());
    assert_eq!((hints, is_done), (Hints { reads: 0, writes: 0 }, false));
}

#[test]
fn flush_of_the_kernel_hints_at_each_bell() {
    let system = System::new(Config { cpus: 26, ..CONFIG });
    let (hints, mut pending) = system.hints(|| system.pin(0).flush_kernel(PAGE));
    (1..26).for_each(|cpu| system.pin(cpu).handle_flush_ipi());
    assert!(pending.poll());
    assert_eq!(hints, Hints { reads: 0, writes: 25 });
}

#[test]
fn retire_and_reap_hint_at_each_cpu() {
    let system = System::new(Config { cpus: 26, ..CONFIG });
    (1..26).for_each(|cpu| system.pin(cpu).leave_space());
    // SAFETY: no CPU uses the space, and it stays in place.
    let retire = || unsafe { system.pin(0).retire(NonNull::from(&system.space)) }.wait();
    let each = Hints { reads: 25, writes: 0 };
    assert_eq!(system.hints(retire).0, each);
    assert_eq!(system.hints(|| system.pin(0).reap().wait()).0, each);
}

/// A virtual CPU that is not running answers after milliseconds.
#[test]
fn slow_answers_change_the_method() {
    let costs = NotifyCosts { interrupt_ns: 2000, broadcast_ns: 5000, ..NotifyCosts::default() };
    for (answer_ns, broadcasts) in [(2000, 0), (1_000_000, 1)] {
        let system = System::new(Config { costs: Some(costs), answer_ns, ..CONFIG });
        system.flush();
        assert_eq!((system.stats().interrupts_sent, system.stats().broadcasts_sent), (1, 0));
        system.flush();
        assert_eq!(system.stats().broadcasts_sent, broadcasts, "{answer_ns} ns");
    }
}

/// The broadcasts of other CPUs were queued before that of this CPU.
#[test]
fn queue_of_broadcasts_changes_the_method() {
    let costs = NotifyCosts { interrupt_ns: 5000, broadcast_ns: 2000, ..NotifyCosts::default() };
    for (completion_ns, interrupts) in [(2000, 0), (1_000_000, 1)] {
        let system = System::new(Config { costs: Some(costs), completion_ns, ..CONFIG });
        system.flush();
        assert_eq!((system.stats().interrupts_sent, system.stats().broadcasts_sent), (0, 1));
        system.flush();
        assert_eq!(system.stats().interrupts_sent, interrupts, "{completion_ns} ns");
    }
}
