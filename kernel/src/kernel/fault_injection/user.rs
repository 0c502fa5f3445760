//! The CPU that uses what another one changes: it does what it is told, in user mode.

#![expect(unsafe_code, reason = "switches to spaces")]

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use shootdown::{Here, Space};
use shootdown_vm::Access;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Task, User, UserExit};
use crate::kernel::fault_injection::engine::{Machine, here};

/// The CPU whose it is.
pub(crate) const CPU: u32 = 1;
/// Where each space has the code of user mode.
pub(crate) const CODE: usize = 0x40_0000;

/// What it is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Order {
    /// To read a word.
    Read = 1,
    /// To write a word.
    Write,
    /// To read a word again and again, until it is told to stop.
    KeepReading,
    /// To write a word again and again.
    KeepWriting,
    /// To run a space.
    Run,
    /// To run nothing, with the space still loaded, and halt.
    Idle,
    /// To let go of the space, and halt.
    Leave,
}

impl Order {
    const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::KeepReading,
        Self::KeepWriting,
        Self::Run,
        Self::Idle,
        Self::Leave,
    ];

    /// By its number.
    fn of(number: u64) -> Self {
        let order = Self::ALL.into_iter().find(|order| *order as u64 == number);
        order.expect("only orders are given")
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The access was done, and found this.
    Word(u64),
    /// It was refused.
    Refused(Access),
}

const NOTHING: u64 = 0;
/// Released by `begin`, with all that belongs to the order, and acquired by `obey`; given back the
/// other way with what was found.
static ORDER: AtomicU64 = AtomicU64::new(NOTHING);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static SPACE: AtomicPtr<Space<Machine>> = AtomicPtr::new(ptr::null_mut());
/// How often it has been through what it is to do again and again. `begin` acquires it: the page
/// has been used by then.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// Released by `end`, after the flush was waited for, and acquired by `keep`: what it does after
/// that must find what is new.
static STOP: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU64 = AtomicU64::new(0);

/// No word of a trial has this value.
const REFUSED: u64 = u64::MAX - 3;

/// What it writes.
pub(crate) const WRITTEN: u64 = 0x5757;

/// How often it does something before it looks whether it is to stop.
const OFTEN: usize = 200;

/// On all CPUs but the first: carries out the order that there is for this CPU.
pub(crate) fn obey(cpu: u32) {
    if has_order(cpu) {
        perform();
        ORDER.store(NOTHING, Ordering::Release);
    }
}

/// Whether there is an order for this CPU.
pub(crate) fn has_order(cpu: u32) -> bool {
    cpu == CPU && !has_ended()
}

fn perform() {
    let address = ADDRESS.load(Ordering::Relaxed);
    let found = match Order::of(ORDER.load(Ordering::Acquire)) {
        Order::Read => access(Task::Read, address, 1),
        Order::Write => access(Task::WriteOften, address, 1),
        Order::KeepReading => keep(Task::ReadWhile, address),
        Order::KeepWriting => keep(Task::WriteOften, address),
        Order::Run => run(),
        Order::Idle => {
            here(Here::enter_lazy);
            Found::Word(0)
        }
        Order::Leave => {
            here(Here::leave);
            Found::Word(0)
        }
    };
    let word = match found {
        Found::Word(word) => word,
        Found::Refused(access) => REFUSED + access as u64,
    };
    FOUND.store(word, Ordering::Relaxed);
}

fn run() -> Found {
    let space = SPACE.load(Ordering::Relaxed);
    // SAFETY: spaces of trials stay, and their roots are theirs.
    here(|here| unsafe { here.switch(&*space) });
    Found::Word(0)
}

/// Until it is told to stop, and once more after that: what it finds then is what counts.
fn keep(task: Task, address: usize) -> Found {
    loop {
        let is_last = STOP.load(Ordering::Acquire) != 0;
        let found = access(task, address, OFTEN);
        ROUNDS.fetch_add(1, Ordering::Release);
        if is_last {
            return found;
        }
        Arch::relax();
    }
}

/// In user mode. What interrupts it is handled there.
fn access(task: Task, address: usize, count: usize) -> Found {
    let mut user = User::new(CODE, task, (address, 0), count, 0);
    if task == Task::WriteOften {
        user.value = WRITTEN as usize;
    }
    if task == Task::ReadWhile {
        // What it reads first is what it goes on to read.
        match access(Task::Read, address, 1) {
            Found::Word(word) => user.value = word as usize,
            refused @ Found::Refused(_) => return refused,
        }
    }
    loop {
        match Arch::run_user(&mut user) {
            UserExit::Done => return Found::Word(user.value as u64),
            UserExit::Fault { access, .. } => return Found::Refused(access),
            UserExit::Interrupt => {}
        }
    }
}

/// From the CPU that changes page tables: has the other one begin something.
pub(crate) fn begin(order: Order, address: usize) {
    STOP.store(0, Ordering::Relaxed);
    ROUNDS.store(0, Ordering::Relaxed);
    ADDRESS.store(address, Ordering::Relaxed);
    ORDER.store(order as u64, Ordering::Release);
    Arch::send(&mut [CPU].into_iter(), Interrupt::Wake);
    if matches!(order, Order::KeepReading | Order::KeepWriting) {
        wait_until(|| ROUNDS.load(Ordering::Acquire) >= 2 || has_ended());
    }
}

/// Has it end what it does again and again. Returns what it then found.
pub(crate) fn end() -> Found {
    STOP.store(1, Ordering::Release);
    wait_until(has_ended);
    let word = FOUND.load(Ordering::Relaxed);
    match word.checked_sub(REFUSED) {
        Some(0) => Found::Refused(Access::Read),
        Some(1) => Found::Refused(Access::Write),
        Some(_) => Found::Refused(Access::Execute),
        None => Found::Word(word),
    }
}

/// Has it do something, and returns what came of it.
pub(crate) fn tell(order: Order, address: usize) -> Found {
    begin(order, address);
    end()
}

/// Has it run a space.
pub(crate) fn run_space(space: &'static Space<Machine>) {
    SPACE.store(ptr::from_ref(space).cast_mut(), Ordering::Relaxed);
    tell(Order::Run, 0);
}

/// Has it let go of its space, with everything that it may hold dropped: the next trial begins
/// anew.
pub(crate) fn leave() {
    tell(Order::Leave, 0);
}

fn has_ended() -> bool {
    ORDER.load(Ordering::Acquire) == NOTHING
}

/// Even on a host that has other things to do.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Waits, with interrupts let in.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let start_ns = Arch::now_ns();
    while !is_so() {
        assert!(Arch::now_ns() - start_ns < PATIENCE_NS, "the other CPU does not answer");
        Arch::unmask_interrupts();
        Arch::relax();
        Arch::mask_interrupts();
    }
}
