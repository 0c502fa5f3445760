//! The CPU that uses the pages that the first CPU changes. It executes commands in user mode.

#![expect(unsafe_code, reason = "switches to spaces")]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use shootdown::{PinnedCpu, Space};
use shootdown_hw::Processor as _;
use shootdown_vm::Access;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Task, User, UserExit};
use crate::kernel::fault_injection::engine::{Machine, engine, with_pinned};
use crate::kernel::fault_injection::stop;
use crate::kernel::sync::{Mutex, masked};

/// The CPU that executes commands.
pub(crate) const CPU: u32 = 1;
/// Address of the user code in each space.
pub(crate) const CODE: usize = 0x40_0000;

/// A command for the CPU.
#[derive(Clone, Copy)]
pub(crate) enum Command {
    /// Reads the word at an address.
    Read(usize),
    /// Writes the word at an address.
    Write(usize),
    /// Reads a word repeatedly until [`end`].
    KeepReading(usize),
    /// Writes a word repeatedly until [`end`].
    KeepWriting(usize),
    /// Polls a word in user mode, without interrupts for the kernel, until the word changes.
    Poll(usize),
    /// Switches to a space.
    Run(&'static Space<Machine>),
    /// Becomes lazy, with the space still loaded, and halts.
    Idle,
    /// Leaves the space, and halts.
    Leave,
    /// Leaves the space, and invalidates everything: entries that a fault has left would be used by
    /// the next scenario that is given their tag.
    Empty,
    /// Stops as in a crash, wherever it is, until it is [disconnected](super::stop).
    Stop,
    /// Sleeps so deeply that flushes must not wake it: leaves the space, goes offline, and halts.
    Sleep,
    /// Comes back online after [`Sleep`](Self::Sleep).
    WakeUp,
}

/// The result of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The access succeeded, and read or wrote this word.
    Word(u64),
    /// The access faulted.
    Refused(Access),
}

/// The command that is being executed. `begin` sets it. `run_command` clears it after it has stored
/// the [result](FOUND).
static COMMAND: Mutex<Option<Command>> = Mutex::new(None);
static FOUND: Mutex<Found> = Mutex::new(Found::Word(0));
/// Number of rounds of a repeated access. When `begin` has loaded 2 with acquire, the page has been
/// used.
static ROUNDS: AtomicU64 = AtomicU64::new(0);
/// `end` stores it with release after the flush is complete, and `keep` loads it with acquire. The
/// round after that load must find the new page.
static STOP: AtomicBool = AtomicBool::new(false);

/// `true` while the CPU is in user mode without interrupts for the kernel. The CPU stores it with
/// release when the engine knows, and `begin` loads it with acquire.
static IS_ISOLATED: AtomicBool = AtomicBool::new(false);

/// Number of flush interrupts that the CPU has taken.
static FLUSH_INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// Handles a flush interrupt, and counts it.
pub(crate) fn handle_flush_interrupt() {
    if Arch::cpu() == CPU {
        FLUSH_INTERRUPTS.fetch_add(1, Ordering::Relaxed);
        enter_kernel();
    }
    with_pinned(PinnedCpu::handle_flush_ipi);
}

fn enter_kernel() {
    if IS_ISOLATED.swap(false, Ordering::Relaxed) {
        with_pinned(PinnedCpu::enter_kernel);
    }
}

/// Number of flush interrupts that the CPU has taken.
pub(crate) fn flush_interrupts() -> u64 {
    FLUSH_INTERRUPTS.load(Ordering::Relaxed)
}

/// The word that write commands store.
pub(crate) const WRITTEN: u64 = 0x5757;

/// Number of accesses in one round of a repeated access.
const OFTEN: usize = 200;

/// Executes the command for this CPU if there is one. Call this on all CPUs but the first.
pub(crate) fn run_command(cpu: u32) {
    let command = *COMMAND.lock();
    if let Some(command) = command.filter(|_| cpu == CPU) {
        let found = perform(command);
        *FOUND.lock() = found;
        *COMMAND.lock() = None;
    }
}

/// Returns `true` if there is a command for this CPU.
pub(crate) fn has_command(cpu: u32) -> bool {
    cpu == CPU && !has_ended()
}

fn perform(command: Command) -> Found {
    match command {
        Command::Read(address) => return access(Task::Read, address, 1),
        Command::Write(address) => return access(Task::Write, address, 1),
        Command::KeepReading(address) => return keep(Task::ReadWhile, address),
        Command::KeepWriting(address) => return keep(Task::Write, address),
        Command::Poll(address) => return poll(address),
        // SAFETY: spaces of scenarios and their page tables stay allocated.
        Command::Run(space) => with_pinned(|pin| unsafe { pin.switch(space) }),
        Command::Idle => with_pinned(PinnedCpu::enter_lazy),
        Command::Leave => with_pinned(PinnedCpu::leave_space),
        Command::Empty => with_pinned(|pin| {
            pin.leave_space();
            engine().machine().processor().invalidate_all();
        }),
        Command::Stop => stop::stop(),
        Command::Sleep => with_pinned(|pin| {
            pin.leave_space();
            pin.offline();
        }),
        Command::WakeUp => with_pinned(PinnedCpu::online),
    }
    Found::Word(0)
}

/// Repeats an access until [`STOP`] is set, and once after that. Returns the result of that last
/// round.
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

/// Reads a word in user mode until it changes. Flushes of the kernel's pages do not interrupt that.
fn poll(address: usize) -> Found {
    let Found::Word(word) = access(Task::Read, address, 1) else { panic!("it is mapped") };
    let mut user = User::new(CODE, Task::ReadWhile, (address, 0), usize::MAX, word as usize);
    // The interrupt that woke the CPU was taken during that access.
    loop {
        let exit = masked(|| {
            with_pinned(PinnedCpu::enter_user);
            IS_ISOLATED.store(true, Ordering::Release);
            let exit = Arch::run_user(&mut user);
            enter_kernel();
            exit
        });
        match exit {
            UserExit::Done => return Found::Word(user.value as u64),
            UserExit::Fault { access, .. } => return Found::Refused(access),
            UserExit::Interrupt => {}
        }
    }
}

/// Accesses memory in user mode, with interrupts enabled.
fn access(task: Task, address: usize, count: usize) -> Found {
    let mut user = User::new(CODE, task, (address, 0), count, 0);
    if task == Task::Write {
        user.value = WRITTEN as usize;
    }
    if task == Task::ReadWhile {
        // The task stops as soon as it reads another word than the first.
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

/// Makes the other CPU begin a command, on the CPU that changes page tables. Returns when a
/// repeated access has used the page.
pub(crate) fn begin(command: Command) {
    STOP.store(false, Ordering::Relaxed);
    ROUNDS.store(0, Ordering::Relaxed);
    {
        // The CPU finds the command when it has the interrupt, which does not come later.
        let mut next = COMMAND.lock();
        *next = Some(command);
        Arch::send(&mut [CPU].into_iter(), Interrupt::Wake);
    }
    match command {
        Command::KeepReading(_) | Command::KeepWriting(_) => {
            wait_until(|| ROUNDS.load(Ordering::Acquire) >= 2 || has_ended());
        }
        Command::Poll(_) => wait_until(|| IS_ISOLATED.load(Ordering::Acquire) || has_ended()),
        _ => {}
    }
}

/// Stops a repeated access. Returns the result of its last round.
pub(crate) fn end() -> Found {
    STOP.store(true, Ordering::Release);
    wait_until(has_ended);
    *FOUND.lock()
}

/// Makes the other CPU execute a command, and returns the result.
pub(crate) fn execute(command: Command) -> Found {
    begin(command);
    end()
}

fn has_ended() -> bool {
    COMMAND.lock().is_none()
}

/// Long enough for a busy host.
const TIMEOUT_NS: u64 = 60_000_000_000;

/// Waits until `condition` returns `true`, and lets interrupts in while it waits.
///
/// # Panics
///
/// If that takes longer than [`TIMEOUT_NS`].
pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    let is_met = Arch::wait_until(TIMEOUT_NS, || {
        Arch::unmask_interrupts();
        // On x86-64, no interrupt is taken before the instruction after the one that unmasks.
        Arch::spin_hint();
        Arch::mask_interrupts();
        condition()
    });
    assert!(is_met, "the other CPU does not answer");
}
