//! What threads do in user mode, and the page faults that bring them back.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shootdown_program::StepError;
use shootdown_program::interpreter::FAULTS_MAX;
use shootdown_vm::{Access, FaultError, PAGE_BYTES, Scheduling as _};

use crate::kernel::arch::{Arch, Architecture, Task, User, UserExit};
use crate::kernel::coherence::Engine;
use crate::kernel::counts;
use crate::kernel::process::Process;
use crate::kernel::scheduler;
use crate::kernel::sync::masked;

/// Where the code of user threads is in every process: below what workloads use.
pub(crate) const CODE: u64 = 16 * PAGE_BYTES;

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
    counts::pin().faults.add(1);
    let fault = process.space().fault(address, access);
    let is_of_code = (CODE..CODE + PAGE_BYTES).contains(&address);
    match fault {
        Err(FaultError::NoArea | FaultError::NotPermitted) if is_of_code => {
            Err(StepError::Unsupported("page 16 is where user code is"))
        }
        resolved => Ok(resolved?),
    }
}

/// Computes for so long on a CPU that does nothing else, and gives it up at the end of each
/// timeslice. Interrupts, and whatever an emulator does meanwhile, come on top.
pub(crate) fn compute(process: &Process, time_ns: u64) -> Result<(), StepError> {
    let turns = u128::from(time_ns) * 1000 / u128::from(TURN_PS.load(Relaxed));
    let count = usize::try_from(turns).unwrap_or(usize::MAX).max(1);
    work(process, &mut user(Task::Spin, 0, count, 0))
}

/// How long one turn of the loop takes in which user threads compute.
static TURN_PS: AtomicU64 = AtomicU64::new(1000);

/// Finds out how long that is. Once, by the first CPU, while the others wait: with a process that
/// nobody needs for anything else, whose space this CPU has loaded.
pub(crate) fn calibrate(process: &Process) -> Result<(), StepError> {
    const TURNS: usize = 100_000;
    // The second time, its code is there.
    work(process, &mut user(Task::Spin, 0, TURNS, 0))?;
    let begin_ns = Arch::now_ns();
    work(process, &mut user(Task::Spin, 0, TURNS, 0))?;
    let took_ns = Arch::now_ns() - begin_ns;
    TURN_PS.store((took_ns * 1000 / TURNS as u64).max(1), Relaxed);
    Ok(())
}

/// Stays in user mode until all is done that is asked for.
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

/// Runs in user mode until something happens. What was refused last is forgotten on the CPU that
/// tries again, for what it remembers is its own.
fn stay(process: &Process, user: &mut User, refused: Option<u64>) -> UserExit {
    masked(|| {
        counts::pin().user_runs.add(1);
        // SAFETY: a process stays until its last thread has let go of it, and its space is retired
        // before its page tables are freed.
        #[expect(unsafe_code, reason = "the seam's `return_to_user` is unsafe")]
        unsafe {
            Engine.return_to_user(process.space().coherent());
        }
        if let Some(address) = refused {
            Arch::forget_refused(address);
        }
        let exit = Arch::run_user(user);
        Engine.enter_kernel();
        exit
    })
}

fn user(task: Task, address: u64, count: usize, value: u64) -> User {
    User::new(CODE as usize, task, (address as usize, PAGE_BYTES as usize), count, value as usize)
}
