//! Does the architecture do what is asked of it? Each thing once, before anything rests on it.

#![expect(unsafe_code, reason = "makes stacks and page tables by hand")]

use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use shootdown::{Entries, Root, Tag};
use shootdown_bare::Processor;
use shootdown_vm::{Access, Format, Frame, Leaf, Marks, PAGE_BYTES, Protection};

use crate::arch::{Arch, Architecture, Boot, Interrupt, Status, Task, User, UserExit};
use crate::console::println;
use crate::entry::end;
use crate::load::Load;

type Tables = <Arch as Architecture>::Format;

const STACK_BYTES: usize = 64 << 10;
const CPUS_MAX: usize = 64;

static ONLINE: AtomicU32 = AtomicU32::new(0);
static FLUSHES: [AtomicU32; CPUS_MAX] = [const { AtomicU32::new(0) }; CPUS_MAX];
static WAKES: [AtomicU32; CPUS_MAX] = [const { AtomicU32::new(0) }; CPUS_MAX];
static TIMERS: AtomicU32 = AtomicU32::new(0);

/// The memory manager wants a heap; what is tested here does not.
struct NoHeap;

// SAFETY: it never gives anything away.
unsafe impl GlobalAlloc for NoHeap {
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        core::ptr::null_mut()
    }
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[global_allocator]
static HEAP: NoHeap = NoHeap;

/// Where user code and data are.
const CODE: usize = 0x40_0000;
const DATA: usize = 0x80_0000;

/// Physical memory, from the bottom up, and never back.
struct Memory {
    next: u64,
    end: u64,
}

impl Memory {
    fn frame(&mut self) -> Frame {
        self.frames(1)
    }

    /// Some in a row, all zeros.
    fn frames(&mut self, count: u64) -> Frame {
        let frame = Frame(self.next.div_ceil(PAGE_BYTES));
        self.next = (frame.0 + count) * PAGE_BYTES;
        assert!(self.next <= self.end, "too little memory");
        // SAFETY: it is nobody's.
        unsafe { seen(frame).write_bytes(0, (count * PAGE_BYTES) as usize) };
        frame
    }

    fn stack_end(&mut self) -> usize {
        let frames = STACK_BYTES as u64 / PAGE_BYTES;
        seen(self.frames(frames)) as usize + STACK_BYTES
    }
}

/// Where the kernel sees a frame.
fn seen(frame: Frame) -> *mut u8 {
    (Arch::PHYSICAL_MEMORY + frame.address() as usize) as *mut u8
}

pub(crate) fn run(boot: &Boot, load: &Load) -> ! {
    let mut memory = Memory { next: boot.memory.start, end: boot.memory.end };
    assert_eq!(Arch::cpu(), 0);
    assert!(Arch::interrupts_masked());
    for cpu in 1..load.cpus {
        Arch::start_cpu(cpu, memory.stack_end());
    }
    wait_until("CPUs come online", || ONLINE.load(Ordering::Acquire) == load.cpus - 1);
    interrupts(load.cpus);
    timer();
    stacks(&mut memory);
    user(&mut memory);
    println!("smoke cpus={} ns={}", load.cpus, Arch::now_ns());
    end(Status::Passed)
}

pub(crate) fn run_on_other(cpu: u32) -> ! {
    assert_eq!(Arch::cpu(), cpu);
    ONLINE.fetch_add(1, Ordering::AcqRel);
    loop {
        Arch::wait_for_interrupt();
    }
}

pub(crate) fn interrupt(interrupt: Interrupt) {
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
        core::hint::spin_loop();
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
fn stacks(memory: &mut Memory) {
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

/// Maps a page in the tables of a root.
fn map(memory: &mut Memory, root: Frame, address: usize, frame: Frame, protection: Protection) {
    let entry = |table: Frame, level| {
        let index = Tables::index(address as u64, level);
        // SAFETY: tables are of 512 entries, and nobody else's.
        unsafe { &mut *seen(table).cast::<u64>().add(index) }
    };
    let mut table = root;
    for level in (1..Tables::LEVELS).rev() {
        let at = entry(table, level);
        if *at == 0 {
            *at = Tables::table(memory.frame());
        }
        table = Tables::as_table(*at).expect("it was made as one");
    }
    *entry(table, 0) = Tables::leaf(Leaf { frame, protection, marks: Marks::empty() });
}

fn user(memory: &mut Memory) {
    let (root, code, data, constant) =
        (memory.frame(), memory.frame(), memory.frame(), memory.frame());
    let source = Arch::user_code();
    // SAFETY: the frame is ours, and the code less than a page.
    unsafe { seen(code).copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    Arch::prepare_root(Root(root.address()));
    map(memory, root, CODE, code, Protection::READ | Protection::EXECUTE);
    map(memory, root, DATA, data, Protection::READ | Protection::WRITE);
    map(memory, root, DATA + 0x1000, constant, Protection::READ);
    let processor = Arch::processor();
    processor.publish();
    // SAFETY: the root maps the kernel, and stays.
    unsafe { processor.load(Root(root.address()), Tag::KERNEL, Entries::Discard) };

    let user = |task, address, count, value| User {
        task: task as usize,
        address,
        count,
        stride: 8,
        value,
        pc: CODE,
        machine: [0; 4],
    };
    let mut writer = user(Task::Write, DATA, 4, 0x1234);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);
    // SAFETY: nobody runs in user mode now.
    let words = unsafe { core::slice::from_raw_parts(seen(data).cast::<u64>(), 5) };
    assert_eq!(words, [0x1234, 0x1234, 0x1234, 0x1234, 0]);
    let mut reader = user(Task::Read, DATA + 24, 2, 7);
    assert_eq!(Arch::run_user(&mut reader), UserExit::Done);
    assert_eq!(reader.value, 0, "of the last word");

    let mut waiter = user(Task::ReadWhile, DATA, 3, 0x1234);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 0));
    let mut waiter = user(Task::ReadWhile, DATA, 3, 0x4321);
    assert_eq!(Arch::run_user(&mut waiter), UserExit::Done);
    assert_eq!((waiter.value, waiter.count), (0x1234, 2), "it differs at once");

    faults(memory, root, &user);

    let mut spinner = user(Task::Spin, 0, usize::MAX, 0);
    spin_for_a_while(&mut spinner);
    // It goes on where it was.
    spin_for_a_while(&mut spinner);
    // SAFETY: this root stays.
    unsafe { processor.load_kernel(Arch::kernel_root()) };
}

/// Interrupts user code when it has done something, which may take several times: where an emulator
/// is not given a CPU by its host, the time is up before it has begun.
fn spin_for_a_while(spinner: &mut User) {
    let before = spinner.count;
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
    panic!("user code does not get on");
}

/// What is refused is told, and gone on with when it is mended.
fn faults(memory: &mut Memory, root: Frame, user: &dyn Fn(Task, usize, usize, usize) -> User) {
    let processor = Arch::processor();
    let hole = DATA + 0x2000;
    let mut reader = user(Task::Read, hole, 1, 5);
    let exit = Arch::run_user(&mut reader);
    assert_eq!(exit, UserExit::Fault { address: hole as u64, access: Access::Read });
    let frame = memory.frame();
    map(memory, root, hole, frame, Protection::READ);
    processor.publish();
    assert_eq!(Arch::run_user(&mut reader), UserExit::Done);
    assert_eq!(reader.value, 0);

    let mut writer = user(Task::WriteOften, hole, 2, 9);
    let exit = Arch::run_user(&mut writer);
    assert_eq!(exit, UserExit::Fault { address: hole as u64, access: Access::Write });
    map(memory, root, hole, frame, Protection::READ | Protection::WRITE);
    processor.publish();
    Arch::forget_refused(hole as u64);
    assert_eq!(Arch::run_user(&mut writer), UserExit::Done);

    let mut jumper = user(Task::Spin, 0, 1, 0);
    jumper.pc = DATA;
    let exit = Arch::run_user(&mut jumper);
    let refused = UserExit::Fault { address: DATA as u64, access: Access::Execute };
    assert_eq!(exit, refused, "data is not executed");
    // What the kernel has is not user mode's to touch.
    let mut thief = user(Task::Read, main_address(), 1, 0);
    assert!(matches!(Arch::run_user(&mut thief), UserExit::Fault { access: Access::Read, .. }));
}

fn main_address() -> usize {
    run as *const () as usize
}
