//! The CPU that uses what another one changes: it carries out orders, in user mode.

#![expect(unsafe_code, reason = "switches to spaces")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shootdown::{PinnedCpu, Space};
use shootdown_vm::Access;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Task, User, UserExit};
use crate::kernel::fault_injection::engine::{Machine, pin};
use crate::kernel::sync::Mutex;

/// The CPU that carries out orders.
pub(crate) const CPU: u32 = 1;
/// Where each space has the code of user mode.
pub(crate) const CODE: usize = 0x40_0000;

/// What the CPU is told to do.
#[derive(Clone, Copy)]
pub(crate) enum Order {
    /// To read the word at an address.
    Read(usize),
    /// To write the word at an address.
    Write(usize),
    /// To read a word again and again, until [`end`].
    KeepReading(usize),
    /// To write a word again and again, until [`end`].
    KeepWriting(usize),
    /// To run a space.
    Run(&'static Space<Machine>),
    /// To run nothing, with the space still loaded, and halt.
    Idle,
    /// To drop the space, and halt.
    Leave,
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The access was done, and found or left this word.
    Word(u64),
    /// It was refused.
    Refused(Access),
}

/// The order that is being carried out. `begin` sets it, and `obey` takes it away when it has
/// stored what was [found](FOUND).
static ORDER: Mutex<Option<Order>> = Mutex::new(None);
static FOUND: Mutex<Found> = Mutex::new(Found::Word(0));
/// Number of turns of what is done again and again. `begin` acquires it: the page has been used by
/// then.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// Released by `end`, after the flush was waited for, and acquired by `keep`: the turn after that
/// must find what is new.
static STOP: AtomicBool = AtomicBool::new(false);

/// The word that is written.
pub(crate) const WRITTEN: u64 = 0x5757;

/// Number of accesses in a turn of what is done again and again.
const OFTEN: usize = 200;

/// On all CPUs but the first: carries out the order that there is for this CPU.
pub(crate) fn obey(cpu: u32) {
    let order = *ORDER.lock();
    if let Some(order) = order.filter(|_| cpu == CPU) {
        let found = carry_out(order);
        *FOUND.lock() = found;
        *ORDER.lock() = None;
    }
}

/// Whether there is an order for this CPU.
pub(crate) fn has_order(cpu: u32) -> bool {
    cpu == CPU && !has_ended()
}

fn carry_out(order: Order) -> Found {
    match order {
        Order::Read(address) => return access(Task::Read, address, 1),
        Order::Write(address) => return access(Task::WriteOften, address, 1),
        Order::KeepReading(address) => return keep(Task::ReadWhile, address),
        Order::KeepWriting(address) => return keep(Task::WriteOften, address),
        // SAFETY: spaces of scenarios stay, and their roots are theirs.
        Order::Run(space) => pin(|pin| unsafe { pin.switch(space) }),
        Order::Idle => pin(PinnedCpu::enter_lazy),
        Order::Leave => pin(PinnedCpu::leave_space),
    }
    Found::Word(0)
}

/// Accesses until it is told to stop, and once more after that: that access is what counts.
fn keep(task: Task, address: usize) -> Found {
    loop {
        let is_last = STOP.load(Ordering::Acquire);
        let found = access(task, address, OFTEN);
        ROUNDS.fetch_add(1, Ordering::Release);
        if is_last {
            return found;
        }
        Arch::spin_hint();
    }
}

/// Accesses in user mode, where interrupts are handled.
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

/// On the CPU that changes page tables: makes the other one begin something.
pub(crate) fn begin(order: Order) {
    STOP.store(false, Ordering::Relaxed);
    ROUNDS.store(0, Ordering::Relaxed);
    *ORDER.lock() = Some(order);
    Arch::send(&mut [CPU].into_iter(), Interrupt::Wake);
    if matches!(order, Order::KeepReading(_) | Order::KeepWriting(_)) {
        wait_until(|| ROUNDS.load(Ordering::Acquire) >= 2 || has_ended());
    }
}

/// Stops what is done again and again. Returns what the last access found.
pub(crate) fn end() -> Found {
    STOP.store(true, Ordering::Release);
    wait_until(has_ended);
    *FOUND.lock()
}

/// Makes the other CPU do something, and returns what it found.
pub(crate) fn tell(order: Order) -> Found {
    begin(order);
    end()
}

fn has_ended() -> bool {
    ORDER.lock().is_none()
}

/// Even on a host that has other things to do.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Waits, with interrupts let in.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let start_ns = Arch::now_ns();
    while !is_so() {
        assert!(Arch::now_ns() - start_ns < PATIENCE_NS, "the other CPU does not answer");
        Arch::unmask_interrupts();
        Arch::spin_hint();
        Arch::mask_interrupts();
    }
}
