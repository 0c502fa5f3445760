//! Pages that change their size, with Shootdown's engine: the CPUs that are interrupted.

#![expect(unsafe_code, reason = "switching is unsafe")]

use std::ops::Range;

use crate::platform::{Host, READ, READ_WRITE, TestSystem, unused};
use shootdown::soft::{self, Config, Soft};
use shootdown::{CpuId, Horizon, Pending, Presence, Root, Shootdown};
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, Change, Flush, LARGE_PAGE_BYTES, Lifetimes, PAGE_BYTES,
    Place, Policy, Retired, Scheduling, Sharing, UnmapLock, Vm,
};

type Machine = Soft<soft::Host>;
type Space = AddressSpace<TestSystem<Engine>>;

const LARGE: Range<u64> = 1 << 30..(1 << 30) + LARGE_PAGE_BYTES;
/// The CPU that performs all operations, and the CPU that is lazy.
const ACTIVE: CpuId = CpuId(0);
const LAZY: CpuId = CpuId(1);

/// The engine. Spaces and engines of a test are never freed.
#[derive(Clone, Copy, Debug)]
struct Engine(&'static Shootdown<Machine>);

impl Engine {
    fn new(tolerates_mixed_sizes: bool) -> Self {
        let config = Config { cpus: 2, tolerates_mixed_sizes, ..Config::DEFAULT };
        let engine = Self(Box::leak(Box::new(Machine::engine(config))));
        for cpu in [ACTIVE, LAZY] {
            engine.0.enter(cpu).pin().online();
        }
        engine
    }

    fn interrupts_sent(self) -> u64 {
        self.0.cpu(ACTIVE).stats().interrupts_sent
    }

    fn presence(self, cpu: CpuId) -> Presence {
        self.0.cpu(cpu).presence(self.0.machine())
    }
}

unused!(Defer, [] Engine);
unused!(Batching, [] Engine);

impl Flush for Engine {
    type Space = &'static shootdown::Space<Machine>;
    type Pending = Pending<'static, Machine>;

    fn policy(&self) -> Policy {
        Policy::new(UnmapLock::Released)
    }

    /// Creates a space with an unused root: the software machine has its own page tables, which no
    /// test uses.
    fn space(&self, _: Root) -> Self::Space {
        Box::leak(Box::new(self.0.space(Root(0))))
    }

    fn flush(&self, space: &Self::Space, change: &Change) -> Self::Pending {
        change.flush_by_engine(self.0.machine(), &self.0.enter(ACTIVE).pin(), space)
    }

    fn wait(&self, mut pending: Self::Pending) -> Horizon {
        for cpu in pending.waiting().iter() {
            self.0.enter(cpu).interrupt_point();
        }
        pending.wait();
        pending.horizon()
    }
}

impl Lifetimes for Engine {
    fn retire(&self, _: &Self::Space) -> Retired {
        Retired::Free
    }
}

impl Scheduling for Engine {
    unsafe fn switch(&self, space: &Self::Space) {
        // SAFETY: the space is never freed.
        unsafe { self.0.enter(LAZY).pin().switch(space) };
    }

    fn enter_lazy(&self) {
        self.0.enter(LAZY).pin().enter_lazy();
    }

    fn leave_space(&self) {
        self.0.enter(LAZY).pin().leave_space();
    }

    fn interrupt(&self) {
        self.0.enter(LAZY).interrupt_point();
    }
}

/// A space with one page written in a block that can be a large page.
fn space_with_page(engine: Engine) -> Space {
    let user_addresses = LARGE.start..LARGE.end + LARGE_PAGE_BYTES;
    let host = Host::with_addresses(4 * 512, 2, user_addresses);
    let space = AddressSpace::new(&Vm::new(host, engine).unwrap()).unwrap();
    space.map(Place::Fixed(LARGE), READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    space.fault(LARGE.start, Access::Write).unwrap();
    space
}

/// Runs an operation while a CPU is lazy on the space. Returns the number of interrupts sent, and
/// `true` if the CPU is still lazy on the space afterwards.
fn under_lazy(space: &Space, operation: impl FnOnce(&Space)) -> (u64, bool) {
    let engine = *space.vm().coherence();
    // SAFETY: the space is never freed.
    unsafe { engine.switch(space.coherent()) };
    engine.enter_lazy();
    let before = engine.interrupts_sent();
    operation(space);
    let is_lazy = matches!(engine.presence(LAZY), Presence::Lazy(_));
    (engine.interrupts_sent() - before, is_lazy)
}

fn collapse(space: &Space) {
    assert_eq!(space.collapse(LARGE), Ok(1));
}

/// Splits the large page.
fn protect_part(space: &Space) {
    space.protect(LARGE.start..LARGE.start + PAGE_BYTES, READ).unwrap();
    assert_eq!(space.stats().split, 1);
}

#[test]
fn lazy_cpu_is_interrupted_for_resize() {
    let space = space_with_page(Engine::new(false));
    assert_eq!(under_lazy(&space, collapse), (1, false));
    assert_eq!(under_lazy(&space, protect_part), (1, false));
    space.protect(LARGE, READ_WRITE).unwrap();
    assert_eq!(under_lazy(&space, collapse), (1, false));
    // Small pages may be mapped there next.
    let discard = |space: &Space| space.advise(LARGE, Advice::DontNeed).unwrap();
    assert_eq!(under_lazy(&space, discard), (1, false));
}

#[test]
fn lazy_cpu_is_not_interrupted_if_sizes_mix() {
    let space = space_with_page(Engine::new(true));
    assert_eq!(under_lazy(&space, collapse), (0, true));
    assert_eq!(under_lazy(&space, protect_part), (0, true));
}

/// The operation changes no size, so the machine's tolerance does not matter.
#[test]
fn discard_does_not_interrupt_lazy_cpu() {
    for tolerates_mixed_sizes in [false, true] {
        let space = space_with_page(Engine::new(tolerates_mixed_sizes));
        let discard = |space: &Space| space.advise(LARGE, Advice::DontNeed).unwrap();
        assert_eq!(under_lazy(&space, discard), (0, true));
    }
}

/// All CPUs that could walk the table have been notified: it is free when the collapse returns.
#[test]
fn collapsed_table_is_freed_after_resize() {
    let space = space_with_page(Engine::new(false));
    let host = space.vm().platform().clone();
    let tables = host.tables_in_use();
    assert_eq!(under_lazy(&space, collapse), (1, false));
    assert_eq!(host.tables_in_use(), tables - 1);
}
