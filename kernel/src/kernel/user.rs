//! The work of threads in user mode, and their page faults.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shootdown_hw::Processor as _;
use shootdown_program::StepError;
use shootdown_program::interpreter::FAULTS_MAX;
use shootdown_vm::{Access, FaultError, PAGE_BYTES, Scheduling as _};

use crate::kernel::arch::{Arch, Architecture, Task, User, UserExit};
use crate::kernel::coherence::Engine;
use crate::kernel::counts;
use crate::kernel::load::USER_CODE_START as CODE;
use crate::kernel::machine::engine;
use crate::kernel::process::Process;
use crate::kernel::scheduler;
use crate::kernel::sync::masked;

/// Reads or writes the first word of a page, and returns it.
pub(crate) fn touch(process: &Process, address: u64, access: Access) -> Result<u64, StepError> {
    let (task, value) = match access {
        Access::Write => (Task::Write, process.data.words.at(address)),
        Access::Read | Access::Execute => (Task::Read, 0),
    };
    let mut user = user(task, address, 1, value);
    work(process, &mut user)?;
    Ok(user.value as u64)
}

fn fault(process: &Process, address: u64, access: Access) -> Result<(), StepError> {
    counts::this_cpu().faults.add(1);
    let fault = process.space().fault(address, access);
    let is_code = (CODE..CODE + PAGE_BYTES).contains(&address);
    match fault {
        Err(FaultError::NoArea | FaultError::NotPermitted) if is_code => {
            Err(StepError::Unsupported("page 16 holds user code"))
        }
        resolved => Ok(resolved?),
    }
}

/// Computes for `time_ns` of an otherwise idle CPU, and yields the CPU at the end of each
/// timeslice. The time of interrupts and delays by the emulator come on top.
pub(crate) fn compute(process: &Process, time_ns: u64) -> Result<(), StepError> {
    let turns = u128::from(time_ns) * 1000 / u128::from(TURN_PS.load(Relaxed));
    let count = usize::try_from(turns).unwrap_or(usize::MAX).max(1);
    work(process, &mut user(Task::Spin, 0, count, 0))
}

/// Time of one iteration of the loop in which user threads compute, in picoseconds.
static TURN_PS: AtomicU64 = AtomicU64::new(1000);

/// Measures the time of an iteration. Call this once, on the first CPU, while the other CPUs wait.
/// `process` must not be used for anything else, and this CPU must have loaded its space.
pub(crate) fn calibrate(process: &Process) -> Result<(), StepError> {
    const TURNS: usize = 100_000;
    // The first run faults in the code.
    work(process, &mut user(Task::Spin, 0, TURNS, 0))?;
    let begin_ns = Arch::now_ns();
    work(process, &mut user(Task::Spin, 0, TURNS, 0))?;
    let elapsed_ns = Arch::now_ns() - begin_ns;
    TURN_PS.store((elapsed_ns * 1000 / TURNS as u64).max(1), Relaxed);
    Ok(())
}

/// Runs in user mode until the task is done.
fn work(process: &Process, user: &mut User) -> Result<(), StepError> {
    let (mut faults, mut refused) = (0, None);
    loop {
        match stay(process, user, refused.take()) {
            UserExit::Done => return Ok(()),
            UserExit::Interrupt => scheduler::preemption_point(),
            UserExit::Fault { address, access } => {
                faults += 1;
                if faults > FAULTS_MAX {
                    return Err(StepError::Stuck);
                }
                fault(process, address, access)?;
                refused = Some(address);
            }
        }
    }
}

/// Enters user mode, and returns after the first event. `refused` is the address of an access that
/// was refused and will be tried again: this CPU must not use the translation by which it was
/// refused.
fn stay(process: &Process, user: &mut User, refused: Option<u64>) -> UserExit {
    masked(|| {
        counts::this_cpu().user_runs.add(1);
        // SAFETY: a process lives until its last thread has left it, and its space is retired
        // before its page tables are freed.
        #[expect(unsafe_code, reason = "the seam's `return_to_user` is unsafe")]
        unsafe {
            process.space().return_to_user_here();
        }
        if let Some(address) = refused {
            engine().machine().processor().forget_refused(address);
        }
        let exit = Arch::run_user(user);
        Engine.enter_kernel();
        exit
    })
}

fn user(task: Task, address: u64, count: usize, value: u64) -> User {
    User::new(CODE as usize, task, (address as usize, PAGE_BYTES as usize), count, value as usize)
}
