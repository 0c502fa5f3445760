//! Does the architecture do what is asked of it? Each thing once, before anything rests on it.

#![expect(unsafe_code, reason = "makes stacks, and loads roots that it has made")]

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

/// Where user code and data are.
const CODE: usize = 0x40_0000;
const DATA: usize = 0x80_0000;

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// On the first CPU; the others are running when it is over.
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

/// On the others: until it is over. Nothing for who comes later.
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

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start_ns = Arch::now_ns();
    while !is_so() {
        assert!(Arch::now_ns() - start_ns < 5_000_000_000, "{what}: not within 5 s");
        Arch::spin_hint();
    }
}

/// Each CPU gets each kind, those that halt and one that is busy; masked, it waits.
fn interrupts(cpus: u32) {
    for cpu in 1..cpus {
        let seen = |counts: &[AtomicU32]| counts[cpu as usize].load(Ordering::Acquire);
        Arch::send(&mut [cpu].into_iter(), Interrupt::Wake);
        wait_until("an interrupt", || seen(&WAKES) == 1);
        Arch::send(&mut [cpu].into_iter(), Interrupt::Flush);
        wait_until("another interrupt", || seen(&FLUSHES) == 1);
        assert_eq!(seen(&WAKES), 1);
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
    wait_until("the timer, of who is busy", || TIMERS.load(Ordering::Acquire) == 2);
    Arch::mask_interrupts();
    assert_eq!(TIMERS.load(Ordering::Acquire), 2, "once is once");
}

static FIRST: AtomicUsize = AtomicUsize::new(0);
static SECOND: AtomicUsize = AtomicUsize::new(0);
static ROUNDS: AtomicUsize = AtomicUsize::new(0);

/// Two threads take turns.
fn stacks(memory: &mut BootMemory) {
    extern "C" fn second(argument: usize) -> ! {
        assert_eq!(argument, 42);
        assert!(Arch::interrupts_masked());
        loop {
            ROUNDS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the first thread is at the same place, and gone on with once a round.
            unsafe { Arch::switch_stack(SECOND.as_ptr(), FIRST.load(Ordering::Relaxed)) };
        }
    }
    // SAFETY: the stack is fresh.
    let fresh = unsafe { Arch::new_stack(memory.stack_end(), second, 42) };
    SECOND.store(fresh, Ordering::Relaxed);
    for round in 1..=3 {
        // SAFETY: as above.
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
    // SAFETY: the root maps the kernel, and stays.
    unsafe { processor.load(Root(root.address()), Tag::KERNEL, Entries::Discard) };

    let mut writer = thread(Task::Write, DATA, 4, 0x1234);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);
    let words = [0, 1, 2, 3, 4].map(|index| word_at(data, index).load(Ordering::Relaxed));
    assert_eq!(words, [0x1234, 0x1234, 0x1234, 0x1234, 0]);
    let mut reader = thread(Task::Read, DATA + 24, 2, 7);
    assert_eq!(Arch::run_user(&mut reader), UserExit::Done);
    assert_eq!(reader.value, 0, "of the last word");

    let mut waiter = thread(Task::ReadWhile, DATA, 3, 0x1234);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 0));
    let mut waiter = thread(Task::ReadWhile, DATA, 3, 0x4321);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 2), "it differs at once");

    faults(memory, root);

    let mut spinner = thread(Task::Spin, 0, usize::MAX, 0);
    spin_until_interrupted(&mut spinner);
    spin_until_interrupted(&mut spinner);
    // SAFETY: this root stays.
    unsafe { processor.load_kernel(Arch::kernel_root()) };
}

/// It is interrupted by the timer, and goes on where it was.
fn spin_until_interrupted(spinner: &mut User) {
    let before = spinner.count;
    // Where an emulator shares its CPUs with others, the time may be up before it begins.
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
    panic!("it does not get on");
}

/// What is refused is told, and gone on with when it is mended.
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

    let mut writer = thread(Task::WriteOften, hole, 2, 9);
    let exit = Arch::run_user(&mut writer);
    assert_eq!(exit, UserExit::Fault { address: hole as u64, access: Access::Write });
    memory.map(root, hole, frame, Protection::READ | Protection::WRITE);
    processor.publish();
    Arch::forget_refused(hole as u64);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);

    let mut jumper = thread(Task::Spin, 0, 1, 0);
    jumper.pc = DATA;
    let exit = Arch::run_user(&mut jumper);
    let refused = UserExit::Fault { address: DATA as u64, access: Access::Execute };
    assert_eq!(exit, refused, "data is not executed");
    // What the kernel has is not user mode's to touch.
    let mut thief = thread(Task::Read, main_address(), 1, 0);
    assert!(matches!(Arch::run_user(&mut thief), UserExit::Fault { access: Access::Read, .. }));
}

fn main_address() -> usize {
    run as *const () as usize
}

/// What is invalidated is not used any more, in whatever way.
fn invalidations(memory: &mut BootMemory) {
    type Way<'a> = (&'static str, &'a dyn Fn());
    let (root, data) = (memory.root_with_code(CODE), memory.frame());
    let processor = Arch::processor();
    let tag = Tag(processor.tag_count().min(1) as u16);
    // SAFETY: the root maps the kernel, and stays.
    let load = |entries| unsafe { processor.load(Root(root.address()), tag, entries) };
    let page = Extent::page(DATA as u64);
    // As many as take operations of more than one kind, where there are some for ranges.
    let many =
        |before: u64| Extent::pages(DATA as u64 - before * PAGE_BYTES, 67, PageSize::SIZE_4K);
    let everywhere = |extent| {
        if let Some(broadcaster) = processor.broadcaster() {
            let mut cpus = CpuSet::<[u64; 1]>::new();
            cpus.insert(CpuId(0));
            broadcaster.broadcast(&cpus, tag, extent);
            broadcaster.complete();
        } else {
            processor.invalidate_tag(tag);
        }
    };
    let ways: [Way; 10] = [
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
    // A page that is cached for all spaces. A root that is loaded does not drop it, nor does a tag:
    // Bochs keeps it then, and QEMU does not.
    let of_the_kernel: [Way; 4] = [
        ("a page of the kernel's", &|| processor.invalidate_kernel(page)),
        ("that and tables", &|| processor.invalidate_kernel(page.freeing_tables())),
        ("all of the kernel's", &|| processor.invalidate_kernel(Extent::whole())),
        ("all, and the kernel's", &|| processor.invalidate_all()),
    ];
    memory.map(root, DATA, data, Protection::READ);
    let table = memory.last_table(root, DATA);
    let mapped = entry(table, DATA, 0);
    let is_dropped = |mapped, (name, invalidate): Way| {
        set_entry(table, DATA, 0, mapped);
        processor.publish();
        Arch::forget_refused(DATA as u64);
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
    for way in ways {
        is_dropped(mapped, way);
    }
    for way in of_the_kernel {
        is_dropped(Arch::global(mapped), way);
    }
    // SAFETY: this root stays.
    unsafe { processor.load_kernel(Arch::kernel_root()) };
}
