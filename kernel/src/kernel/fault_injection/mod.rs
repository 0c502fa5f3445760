//! Fault injection: tests whether a missing flush is visible on this machine, whose MMU is not
//! ours.
//!
//! In each scenario, one CPU changes a page table while another has used it. Then the other CPU
//! accesses the page again. Without a fault in the engine, the access must find the new page. With
//! a [fault](fault::Fault) injected, it must find the old page, or the scenario shows nothing.
//! Emulators drop more than the engine asks for in some cases. These cases are listed with the
//! reason; a fault that is masked on one machine is visible on another.

// In reading order.
mod fault;
mod engine;
mod observed;
mod stop;
mod user;
mod scenarios;
mod reuse;
mod off;
mod storms;
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
pub(crate) mod guests;

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::PinnedCpu;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Status, set_interrupt_handler};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::load::{Load, Settings};
use fault::Fault;
use scenarios::{SCENARIOS, Scenario, Verdict, Visibility, on_this_machine};
use user::Command;

/// Number of times that each scenario is run with each fault, because one run may succeed by
/// chance.
const TIMES: usize = 3;

/// Creates the engine. Call this on the first CPU, before there are others.
pub(crate) fn set_up(memory: &mut BootMemory, settings: &Settings) {
    engine::set_up(memory, settings);
}

/// Runs all scenarios with all faults, then the storms, and ends the run. Call this on the first
/// CPU.
pub(crate) fn run(memory: &mut BootMemory, load: &Load) -> ! {
    let cpus = load.settings.cpus;
    if cpus < 2 {
        println!("trials skipped: they need two CPUs");
        end(Status::Passed);
    }
    set_interrupt_handler(|interrupt| {
        if interrupt == Interrupt::Flush {
            user::handle_flush_interrupt();
        }
    });
    engine::with_pinned(PinnedCpu::online);
    user::wait_until(|| ONLINE.load(Ordering::Acquire) == cpus - 1);
    let (mut wrong, mut number) = (0, 0);
    for scenario in SCENARIOS {
        let mut run = |fault, visibility| {
            number += 1;
            observed::shootdown_trial(number);
            wrong += usize::from(!is_right(memory, scenario, fault, visibility));
        };
        run(Fault::None, Visibility::Detected);
        for &(fault, visibilities) in scenario.faults {
            run(fault, on_this_machine(visibilities));
        }
    }
    observed::shootdown_trial(number + 1);
    storms::run(memory, cpus, load.rounds);
    engine::print_causes();
    end(if wrong == 0 { Status::Passed } else { Status::Failed });
}

/// CPUs that are online in the engine. Each CPU increments it with release; `run` loads it with
/// acquire.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// Executes commands and takes part in storms, for ever, on CPUs other than the first. Returns if
/// there is no engine.
pub(crate) fn run_on_other(cpu: u32) {
    if !engine::exists() {
        return;
    }
    let mut last_storm = if let Some(turn) = off::take_turn(cpu) {
        storms::resume(cpu, turn)
    } else {
        engine::with_pinned(PinnedCpu::online);
        ONLINE.fetch_add(1, Ordering::AcqRel);
        0
    };
    loop {
        user::run_command(cpu);
        last_storm = storms::take_part(last_storm);
        if !user::has_command(cpu) {
            Arch::wait_for_interrupt();
        }
    }
}

/// Runs a scenario with a fault, and prints the verdict. Returns `true` if the verdict is right.
fn is_right(
    memory: &mut BootMemory,
    scenario: &Scenario,
    fault: Fault,
    visibility: Visibility,
) -> bool {
    let (name, fault_name) = (scenario.name, fault.name());
    if let Visibility::Absent(why) = visibility {
        println!("trial way={name} fault={fault_name} verdict=absent why={why}");
        return true;
    }
    let mut stale = 0;
    for _ in 0..TIMES {
        let before = engine::disturbances();
        fault::select(fault);
        let verdict = (scenario.run)(memory);
        fault::remove();
        // The next scenario begins with an empty TLB.
        user::execute(Command::Empty);
        stale += usize::from(verdict == Verdict::Stale);
        let times = engine::disturbances() - before;
        if scenario.is_quiet && times != 0 {
            println!("trial way={name} fault={fault_name} verdict=disturbed times={times}");
            return false;
        }
    }
    report(scenario.name, fault, visibility, stale)
}

/// Prints the verdict of a scenario that has found the old page this number of times. Returns
/// `true` if the verdict is right.
fn report(name: &str, fault: Fault, visibility: Visibility, stale: usize) -> bool {
    let fault_name = fault.name();
    let is_right = match (fault, visibility) {
        (Fault::None | Fault::BroadcastsAreRefused, _) => stale == 0,
        (_, Visibility::Detected) => stale == TIMES,
        _ => true,
    };
    let verdict = match (stale, visibility) {
        (0, Visibility::Masked(_)) => "masked",
        (0, _) => "fresh",
        (TIMES, _) => "stale",
        _ => "mixed",
    };
    let why = if let Visibility::Masked(why) = visibility { why } else { "" };
    let right = if is_right { "yes" } else { "NO" };
    println!("trial way={name} fault={fault_name} verdict={verdict} right={right} why={why}");
    is_right
}
