//! The smoke test of the architecture: tests each operation once, before anything relies on it.

#![expect(unsafe_code, reason = "creates stacks, and loads roots that it has created")]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use shootdown::{Broadcaster, CpuId, CpuSet, Entries, Extent, PageSize, Root, Tag};
use shootdown_hw::Processor;
use shootdown_vm::{Access, EMPTY, Frame, PAGE_BYTES, Protection};

use crate::kernel::arch::{
    Arch, Architecture, Interrupt, Task, User, UserExit, set_interrupt_handler,
};
use crate::kernel::boot_memory::{BootMemory, entry, set_entry};
use crate::kernel::console::println;
use crate::kernel::counts::CPUS_MAX;
use crate::kernel::memory::page::word_at;

static ONLINE: AtomicU32 = AtomicU32::new(0);
static FLUSHES: [AtomicU32; CPUS_MAX] = [const { AtomicU32::new(0) }; CPUS_MAX];
static WAKES: [AtomicU32; CPUS_MAX] = [const { AtomicU32::new(0) }; CPUS_MAX];
static TIMERS: AtomicU32 = AtomicU32::new(0);

/// Addresses of user code and data.
const CODE: usize = 0x40_0000;
const DATA: usize = 0x80_0000;

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Runs the test on the first CPU, and starts the other CPUs.
pub(crate) fn run(memory: &mut BootMemory, cpus: u32) {
    assert_eq!(Arch::cpu(), 0);
    assert!(Arch::interrupts_masked());
    set_interrupt_handler(interrupt);
    for cpu in 1..cpus {
        Arch::start_cpu(cpu, memory.stack_end());
    }
    wait_until("CPUs come online", || ONLINE.load(Ordering::Acquire) == cpus - 1);
    interrupts(cpus);
    timer();
    stacks(memory);
    user(memory);
    invalidations(memory);
    println!("smoke cpus={cpus} ns={}", Arch::now_ns());
    IS_OVER.store(true, Ordering::Release);
    Arch::send(&mut (1..cpus), Interrupt::Wake);
}

/// Takes part in the test, on CPUs other than the first. Returns immediately if the test is over.
pub(crate) fn run_on_other(cpu: u32) {
    assert_eq!(Arch::cpu(), cpu);
    if is_over() {
        return;
    }
    ONLINE.fetch_add(1, Ordering::AcqRel);
    while !is_over() {
        Arch::wait_for_interrupt();
    }
}

fn is_over() -> bool {
    IS_OVER.load(Ordering::Acquire)
}

fn interrupt(interrupt: Interrupt) {
    let cpu = Arch::cpu() as usize;
    match interrupt {
        Interrupt::Flush => &FLUSHES[cpu],
        Interrupt::Wake => &WAKES[cpu],
        Interrupt::Timer => &TIMERS,
    }
    .fetch_add(1, Ordering::AcqRel);
}

/// Waits until `condition` returns `true`. Panics with `event` after 5 s.
fn wait_until(event: &str, condition: impl Fn() -> bool) {
    assert!(Arch::wait_until(5_000_000_000, condition), "{event}: not within 5 s");
}

/// Tests that each CPU gets interrupts of each kind, and gets one that all get.
fn interrupts(cpus: u32) {
    for cpu in 1..cpus {
        let count = |counts: &[AtomicU32]| counts[cpu as usize].load(Ordering::Acquire);
        Arch::send(&mut [cpu].into_iter(), Interrupt::Wake);
        wait_until("an interrupt", || count(&WAKES) == 1);
        Arch::send(&mut [cpu].into_iter(), Interrupt::Flush);
        wait_until("another interrupt", || count(&FLUSHES) == 1);
        assert_eq!(count(&WAKES), 1);
    }
    Arch::send(&mut (1..cpus), Interrupt::Flush);
    wait_until("an interrupt for all", || {
        (1..cpus as usize).all(|cpu| FLUSHES[cpu].load(Ordering::Acquire) == 2)
    });
}

fn timer() {
    let start_ns = Arch::now_ns();
    Arch::set_timer_ns(2_000_000);
    while TIMERS.load(Ordering::Acquire) == 0 {
        Arch::wait_for_interrupt();
        assert!(Arch::interrupts_masked());
    }
    assert!(Arch::now_ns() - start_ns >= 2_000_000, "the timer is early");
    Arch::set_timer_ns(1_000_000);
    Arch::unmask_interrupts();
    wait_until("the timer of a busy CPU", || TIMERS.load(Ordering::Acquire) == 2);
    Arch::mask_interrupts();
    assert_eq!(TIMERS.load(Ordering::Acquire), 2, "the timer interrupts only once");
}

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);
static ROUNDS: AtomicUsize = AtomicUsize::new(0);

/// Tests that two threads can take turns.
fn stacks(memory: &mut BootMemory) {
    extern "C" fn second(argument: usize) -> ! {
        assert_eq!(argument, 42);
        assert!(Arch::interrupts_masked());
        loop {
            ROUNDS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the first thread has left its stack there, and is resumed once a round.
            unsafe { Arch::switch_stack(SECOND.as_ptr(), FIRST.load(Ordering::Relaxed)) };
        }
    }
    // SAFETY: nothing has used the stack.
    let fresh = unsafe { Arch::new_stack(memory.stack_end(), second, 42) };
    SECOND.store(fresh, Ordering::Relaxed);
    for round in 1..=3 {
        // SAFETY: the second thread has left its stack there, or `new_stack` has prepared it.
        unsafe { Arch::switch_stack(FIRST.as_ptr(), SECOND.load(Ordering::Relaxed)) };
        assert_eq!(ROUNDS.load(Ordering::Relaxed), round);
    }
}

fn thread(task: Task, address: usize, count: usize, value: usize) -> User {
    User::new(CODE, task, (address, 8), count, value)
}

fn user(memory: &mut BootMemory) {
    let (root, data, constant) = (memory.root_with_code(CODE), memory.frame(), memory.frame());
    memory.map(root, DATA, data, Protection::READ | Protection::WRITE);
    memory.map(root, DATA + 0x1000, constant, Protection::READ);
    let processor = Arch::processor();
    processor.publish();
    // SAFETY: the root maps the kernel, and stays allocated.
    unsafe { processor.load(Root(root.address()), Tag::KERNEL, Entries::Discard) };

    let mut writer = thread(Task::Write, DATA, 4, 0x1234);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);
    let words = [0, 1, 2, 3, 4].map(|index| word_at(data, index).load(Ordering::Relaxed));
    assert_eq!(words, [0x1234, 0x1234, 0x1234, 0x1234, 0]);
    let mut reader = thread(Task::Read, DATA + 24, 2, 7);
    assert_eq!(Arch::run_user(&mut reader), UserExit::Done);
    assert_eq!(reader.value, 0, "the value is that of the last word");

    let mut waiter = thread(Task::ReadWhile, DATA, 3, 0x1234);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 0));
    let mut waiter = thread(Task::ReadWhile, DATA, 3, 0x4321);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 2), "the first word differs");

    faults(memory, root);

    let mut spinner = thread(Task::Spin, 0, usize::MAX, 0);
    spin_until_interrupted(&mut spinner);
    spin_until_interrupted(&mut spinner);
    // SAFETY: the kernel's root stays allocated.
    unsafe { processor.load_kernel(Arch::kernel_root()) };
}

/// Runs until the timer interrupts user mode. Tests that `spinner` has made progress.
fn spin_until_interrupted(spinner: &mut User) {
    let before = spinner.count;
    // On a host that shares its CPUs, the time may be over before user mode is entered.
    for _ in 0..100 {
        let timers = TIMERS.load(Ordering::Acquire);
        Arch::set_timer_ns(1_000_000);
        assert_eq!(Arch::run_user(spinner), UserExit::Interrupt);
        assert_eq!(TIMERS.load(Ordering::Acquire), timers + 1);
        assert!(Arch::interrupts_masked());
        if spinner.count < before {
            return;
        }
    }
    panic!("user mode makes no progress");
}

/// Tests that refused accesses are reported, and succeed when the page table allows them.
fn faults(memory: &mut BootMemory, root: Frame) {
    let processor = Arch::processor();
    let hole = DATA + 0x2000;
    let mut reader = thread(Task::Read, hole, 1, 5);
    let exit = Arch::run_user(&mut reader);
    assert_eq!(exit, UserExit::Fault { address: hole as u64, access: Access::Read });
    let frame = memory.frame();
    memory.map(root, hole, frame, Protection::READ);
    processor.publish();
    assert_eq!(Arch::run_user(&mut reader), UserExit::Done);
    assert_eq!(reader.value, 0);

    let mut writer = thread(Task::Write, hole, 2, 9);
    let exit = Arch::run_user(&mut writer);
    assert_eq!(exit, UserExit::Fault { address: hole as u64, access: Access::Write });
    memory.map(root, hole, frame, Protection::READ | Protection::WRITE);
    processor.publish();
    processor.forget_refused(hole as u64);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);

    let mut jumper = thread(Task::Spin, 0, 1, 0);
    jumper.pc = DATA;
    let exit = Arch::run_user(&mut jumper);
    let refused = UserExit::Fault { address: DATA as u64, access: Access::Execute };
    assert_eq!(exit, refused, "data was executed");
    // User mode must not read the kernel's memory.
    let mut thief = thread(Task::Read, main_address(), 1, 0);
    assert!(matches!(Arch::run_user(&mut thief), UserExit::Fault { access: Access::Read, .. }));
}

fn main_address() -> usize {
    run as *const () as usize
}

/// Tests that each kind of invalidation drops a cached translation.
fn invalidations(memory: &mut BootMemory) {
    type Invalidation<'a> = (&'static str, &'a dyn Fn());
    let (root, data) = (memory.root_with_code(CODE), memory.frame());
    let processor = Arch::processor();
    let tag = Tag(processor.tag_count().min(1) as u16);
    // SAFETY: the root maps the kernel, and stays allocated.
    let load = |entries| unsafe { processor.load(Root(root.address()), tag, entries) };
    let page = Extent::page(DATA as u64);
    // Enough pages for operations of more than one kind, where the processor has some for ranges.
    let many =
        |before: u64| Extent::pages(DATA as u64 - before * PAGE_BYTES, 67, PageSize::SIZE_4K);
    let everywhere = |extent| {
        if let Some(broadcaster) = processor.broadcaster() {
            let mut cpus = CpuSet::<[u64; 1]>::new();
            cpus.insert(CpuId(0));
            broadcaster.broadcast(&cpus, tag, extent).expect("the broadcast is not refused");
            broadcaster.complete();
        } else {
            processor.invalidate_tag(tag);
        }
    };
    let invalidations: [Invalidation; 10] = [
        ("a page", &|| processor.invalidate(tag, page)),
        ("a page and tables", &|| processor.invalidate(tag, page.freeing_tables())),
        ("a tag", &|| processor.invalidate_tag(tag)),
        ("all", &|| processor.invalidate_all()),
        ("a root, discarding", &|| load(Entries::Discard)),
        ("the first of many", &|| processor.invalidate(tag, many(0))),
        ("one of many", &|| processor.invalidate(tag, many(64))),
        ("the last of many", &|| processor.invalidate(tag, many(66))),
        ("many, everywhere", &|| everywhere(many(66))),
        ("a tag, everywhere", &|| everywhere(Extent::whole())),
    ];
    // Invalidations of a global page. Loading a root does not drop it, nor does invalidating a tag:
    // Bochs keeps the page then, and QEMU does not.
    let kernel_invalidations: [Invalidation; 4] = [
        ("a kernel page", &|| processor.invalidate_kernel(page)),
        ("a kernel page and tables", &|| processor.invalidate_kernel(page.freeing_tables())),
        ("all kernel pages", &|| processor.invalidate_kernel(Extent::whole())),
        ("all, global pages included", &|| processor.invalidate_all()),
    ];
    memory.map(root, DATA, data, Protection::READ);
    let table = memory.last_table(root, DATA);
    let mapped = entry(table, DATA, 0);
    let is_dropped = |mapped, (name, invalidate): Invalidation| {
        set_entry(table, DATA, 0, mapped);
        processor.publish();
        processor.forget_refused(DATA as u64);
        let mut reader = thread(Task::Read, DATA, 1, 0);
        assert_eq!(Arch::run_user(&mut reader), UserExit::Done, "{name}");
        set_entry(table, DATA, 0, EMPTY);
        processor.publish();
        invalidate();
        let mut reader = thread(Task::Read, DATA, 1, 0);
        let refused = UserExit::Fault { address: DATA as u64, access: Access::Read };
        assert_eq!(Arch::run_user(&mut reader), refused, "{name}");
    };
    load(Entries::Discard);
    for invalidation in invalidations {
        is_dropped(mapped, invalidation);
    }
    for invalidation in kernel_invalidations {
        is_dropped(Arch::global(mapped), invalidation);
    }
    // SAFETY: the kernel's root stays allocated.
    unsafe { processor.load_kernel(Arch::kernel_root()) };
}
