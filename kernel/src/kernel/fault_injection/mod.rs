//! Fault injection: does this machine, whose MMU is not ours, show that a flush was left out?
//!
//! In each scenario, one CPU changes a page table while another has used it, and then the other
//! accesses the page again. With the engine as it is, that access must find the new page. With a
//! [fault](fault::Fault) injected, it must find the old one, or the scenario shows nothing.
//! Emulators drop more than they are told to in some cases. Those cases are listed, with the
//! reason; what one machine masks, another shows.

// In reading order.
mod fault;
mod engine;
mod user;
mod scenarios;
mod off;
mod storms;

use core::sync::atomic::{AtomicU32, Ordering};

use shootdown::PinnedCpu;

use crate::kernel::arch::{Arch, Architecture, Interrupt, Status, set_interrupt_handler};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::load::Load;
use fault::Fault;
use scenarios::{SCENARIOS, Scenario, Verdict, Visibility};
use user::Order;

/// Number of times that each scenario is run with each fault: one run may be luck.
const TIMES: usize = 3;

/// Makes the engine. On the first CPU, before there are others.
pub(crate) fn set_up(memory: &mut BootMemory, cpus: u32) {
    engine::make(memory, cpus);
}

/// On the first CPU: runs all scenarios with all faults, then the storms, and ends the run.
pub(crate) fn run(memory: &mut BootMemory, load: &Load) -> ! {
    let cpus = load.cpus;
    if cpus < 2 {
        println!("trials skipped: they take two CPUs");
        end(Status::Passed);
    }
    set_interrupt_handler(|interrupt| {
        if interrupt == Interrupt::Flush {
            engine::pin(PinnedCpu::handle_flush_ipi);
        }
    });
    engine::pin(PinnedCpu::online);
    user::wait_until(|| ONLINE.load(Ordering::Acquire) == cpus - 1);
    let mut wrong = 0;
    for scenario in SCENARIOS {
        let mut run = |fault, visibility| {
            wrong += usize::from(!is_right(memory, scenario, fault, visibility));
        };
        run(Fault::None, Visibility::Seen);
        for &(fault, visible) in scenario.faults {
            run(fault, visible.pin());
        }
    }
    storms::run(memory, cpus, load.rounds);
    end(if wrong == 0 { Status::Passed } else { Status::Failed });
}

/// CPUs that the engine knows. Each releases it when it is online; `run` acquires it.
static ONLINE: AtomicU32 = AtomicU32::new(0);

/// On the others, if there is an engine: obeys orders, and takes part in storms, for ever.
pub(crate) fn run_on_other(cpu: u32) {
    if !engine::is_made() {
        return;
    }
    let mut last_storm = if let Some(turn) = off::was_at(cpu) {
        storms::come_back(cpu, turn)
    } else {
        engine::pin(PinnedCpu::online);
        ONLINE.fetch_add(1, Ordering::AcqRel);
        0
    };
    loop {
        user::obey(cpu);
        last_storm = storms::take_part(last_storm);
        if !user::has_order(cpu) {
            Arch::wait_for_interrupt();
        }
    }
}

/// Runs a scenario with a fault, and prints the verdict.
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
        fault::choose(fault);
        let verdict = (scenario.run)(memory);
        fault::remove();
        // The next scenario begins anew, with everything dropped.
        user::tell(Order::Leave);
        stale += usize::from(verdict == Verdict::Stale);
        let times = engine::disturbances() - before;
        if scenario.is_quiet && times != 0 {
            println!("trial way={name} fault={fault_name} verdict=disturbed times={times}");
            return false;
        }
    }
    let is_right = match (fault, visibility) {
        (Fault::None, _) => stale == 0,
        (_, Visibility::Seen) => stale == TIMES,
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
