//! What threads do in user mode, and the page faults that bring them back.

use shootdown_vm::{Access, Coherence as _, FaultError, PAGE_BYTES};

use crate::arch::{Arch, Architecture, Task, User, UserExit};
use crate::coherence::Engine;
use crate::contents;
use crate::counts;
use crate::process::{Holds, Process, StepError};
use crate::scheduler;
use crate::sync::masked;

/// Where the code of user threads is in every process: below what workloads use.
pub(crate) const CODE: u64 = 16 * PAGE_BYTES;

/// So often an access is tried again before it is given up: far more often than a page is ever
/// taken away, or claimed by another CPU, between a fault and the next try.
const FAULTS_MAX: u32 = 100_000;

/// Reads or writes the first word of a page, which holds what `holds` says.
pub(crate) fn touch(
    process: &Process,
    address: u64,
    access: Access,
    holds: Holds,
) -> Result<(), StepError> {
    let (task, value) = match access {
        Access::Write => (Task::Write, contents::word(process, address)),
        Access::Read | Access::Execute => (Task::Read, 0),
    };
    let mut user = user(task, address, 1, value);
    let (mut faults, mut refused) = (0, None);
    loop {
        match stay(&mut user, refused.take()) {
            UserExit::Done => break,
            UserExit::Interrupt => {
                scheduler::preemption_point();
                return_to_user(process);
            }
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
    if access != Access::Write {
        contents::check(process, address, holds, user.value as u64);
    }
    Ok(())
}

fn fault(process: &Process, address: u64, access: Access) -> Result<(), StepError> {
    counts::here().faults.add(1);
    Engine.enter_kernel();
    let fault = process.space().fault(address, access);
    return_to_user(process);
    let is_of_code = (CODE..CODE + PAGE_BYTES).contains(&address);
    match fault {
        Err(FaultError::NoArea | FaultError::NotPermitted) if is_of_code => {
            Err(StepError::CodeIsGone)
        }
        resolved => Ok(resolved?),
    }
}

/// Computes for so long, and gives the CPU up at the end of each timeslice. Interrupts that come
/// meanwhile come on top.
pub(crate) fn compute(process: &Process, mut left_ns: u64) -> Result<(), StepError> {
    let interrupted_ns = || counts::here().interrupted_ns.read();
    let mut user = user(Task::Spin, 0, usize::MAX, 0);
    let mut refused = None;
    while left_ns > 0 {
        let (begin_ns, interrupted_before) = (Arch::now_ns(), interrupted_ns());
        let end_ns = begin_ns.saturating_add(left_ns);
        scheduler::interrupt_at(end_ns.min(scheduler::slice_ends_ns()));
        let exit = stay(&mut user, refused.take());
        let spent_ns = Arch::now_ns() - begin_ns;
        left_ns = left_ns.saturating_sub(spent_ns - (interrupted_ns() - interrupted_before));
        if let UserExit::Fault { address, access } = exit {
            fault(process, address, access)?;
            refused = Some(address);
            continue;
        }
        if left_ns > 0 {
            scheduler::preemption_point();
            return_to_user(process);
        }
    }
    scheduler::interrupt_at(u64::MAX);
    Ok(())
}

/// The calling thread goes on in user mode.
pub(crate) fn return_to_user(process: &Process) {
    // SAFETY: a process stays until its last thread has let go of it, and its space is retired
    // before its page tables are freed.
    #[expect(unsafe_code, reason = "the seam's `return_to_user` is unsafe")]
    unsafe {
        Engine.return_to_user(process.space().coherent());
    }
}

/// The calling thread makes a system call.
pub(crate) fn enter_kernel() {
    Engine.enter_kernel();
}

/// Runs in user mode until something happens. What was refused last is forgotten on the CPU that
/// tries again, for what it remembers is its own.
fn stay(user: &mut User, refused: Option<u64>) -> UserExit {
    masked(|| {
        counts::here().user_runs.add(1);
        if let Some(address) = refused {
            Arch::forget_refused(address);
        }
        Arch::run_user(user)
    })
}

fn user(task: Task, address: u64, count: usize, value: u64) -> User {
    let stride = PAGE_BYTES as usize;
    let (address, value, pc) = (address as usize, value as usize, CODE as usize);
    User { task: task as usize, address, count, stride, value, pc, machine: [0; 4] }
}
