//! Entry points of the CPUs, and the selection of the mode.

#![expect(unsafe_code, reason = "the architecture calls these functions by their names")]

use core::sync::atomic::{AtomicBool, Ordering};

use crate::kernel::arch::{Arch, Architecture, Boot, Status};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::end::end;
use crate::kernel::load::{BadLine, Load, Mode};
use crate::kernel::{fault_injection, run, smoke};

/// `true` if a workload is run. The first CPU stores it before it starts other CPUs.
static RUNS_WORKLOAD: AtomicBool = AtomicBool::new(false);

// SAFETY: no other function has this name. `arch::upcalls` declares it with this type.
#[unsafe(no_mangle)]
extern "Rust" fn main_on_first_cpu(boot: &Boot) -> ! {
    Arch::set_up_cpu(0);
    let load = Load::parse(boot.load)
        .unwrap_or_else(|BadLine(line)| panic!("unsupported load: `{}`", line.escape_ascii()));
    let cpus = load.settings.cpus;
    println!("boot {} cpus={} memory={:#x}", Arch::NAME, cpus, boot.memory.end);
    match load.mode {
        Mode::Workload => {
            RUNS_WORKLOAD.store(true, Ordering::Release);
            run::run(boot, &load)
        }
        Mode::Smoke => smoke::run(&mut BootMemory::new(boot), cpus),
        Mode::FaultInjection => {
            let mut memory = BootMemory::new(boot);
            fault_injection::set_up(&mut memory, &load.settings);
            smoke::run(&mut memory, cpus);
            fault_injection::run(&mut memory, &load)
        }
        #[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
        Mode::Guests => fault_injection::guests::run(&mut BootMemory::new(boot), cpus),
        #[cfg(not(any(target_arch = "aarch64", target_arch = "riscv64")))]
        Mode::Guests => panic!("there are no guests on {}", Arch::NAME),
    }
    end(Status::Passed)
}

// SAFETY: no other function has this name. `arch::upcalls` declares it with this type.
#[unsafe(no_mangle)]
extern "Rust" fn main_on_other_cpu(cpu: u32) -> ! {
    Arch::set_up_cpu(cpu);
    if RUNS_WORKLOAD.load(Ordering::Acquire) {
        run::run_on_other();
    }
    #[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
    fault_injection::guests::run_on_other(cpu);
    smoke::run_on_other(cpu);
    fault_injection::run_on_other(cpu);
    loop {
        Arch::wait_for_interrupt();
    }
}
