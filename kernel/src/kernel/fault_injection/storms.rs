//! Storms: every wait ends, with any cycle of CPUs that wait for each other.
//!
//! All CPUs run one space, so each flush rings all other CPUs. Each CPU flushes as fast as it can
//! with interrupts masked, and every CPU must finish.

#![expect(unsafe_code, reason = "switches to a space")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Extent, PinnedCpu, Space};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::fault_injection::engine::{Machine, with_pinned};
use crate::kernel::fault_injection::off;
use crate::kernel::fault_injection::scenarios::empty_space;
use crate::kernel::fault_injection::user::wait_until;
use crate::kernel::sync::Once;

struct Storm {
    name: &'static str,
    /// One turn of a CPU.
    turn: fn(&'static Space<Machine>, u32, u64),
    /// `true` if this machine can run the storm.
    is_supported: bool,
}

const STORMS: &[Storm] = &[
    Storm { name: "all-flush-masked", turn: flush_masked, is_supported: true },
    Storm { name: "all-flush-several", turn: flush_several, is_supported: true },
    Storm { name: "some-go-offline", turn: flush_or_go_offline, is_supported: true },
    Storm {
        name: "some-are-switched-off",
        turn: flush_or_switch_off,
        is_supported: Arch::CAN_RESTART_CPUS,
    },
];

/// Number of the current storm, from 1; 0 if there is none. `run` stores it with release after the
/// space and the number of turns, and `take_part` loads it with acquire.
static STORM: AtomicU64 = AtomicU64::new(0);
static TURNS_EACH: AtomicU64 = AtomicU64::new(0);
/// Number of CPUs that have finished the storm. `run` loads it with acquire before it starts
/// another storm.
static FINISHED: AtomicU64 = AtomicU64::new(0);
static SPACE: Once<Space<Machine>> = Once::new();

/// Runs all storms, on the first CPU. If a wait does not end, the kernel panics, or the program
/// that started the emulator stops it.
pub(crate) fn run(memory: &mut BootMemory, cpus: u32, rounds: u64) {
    off::set_up(memory, cpus);
    for (number, Storm { name, is_supported, .. }) in (1..).zip(STORMS) {
        if !is_supported {
            println!("storm name={name} verdict=absent");
            continue;
        }
        SPACE.publish(empty_space(memory));
        FINISHED.store(0, Ordering::Relaxed);
        TURNS_EACH.store(rounds, Ordering::Relaxed);
        STORM.store(number, Ordering::Release);
        Arch::send(&mut (1..cpus), Interrupt::Wake);
        run_turns(number, 0, 0);
        wait_until(|| {
            off::start_again();
            FINISHED.load(Ordering::Acquire) == u64::from(cpus)
        });
        STORM.store(0, Ordering::Release);
        println!("storm name={name} cpus={cpus} rounds={rounds} verdict=over");
    }
}

/// Takes part in the current storm, on CPUs other than the first, unless its number is `last`.
/// Returns the number of the last storm that this CPU has finished.
pub(crate) fn take_part(last: u64) -> u64 {
    match STORM.load(Ordering::Acquire) {
        0 => last,
        number if number == last => last,
        number => {
            run_turns(number, Arch::cpu(), 0);
            number
        }
    }
}

/// Resumes a storm on a CPU that was switched off at `turn` and has been started again. Returns the
/// number of the storm.
pub(crate) fn resume(cpu: u32, turn: u64) -> u64 {
    let number = STORM.load(Ordering::Acquire);
    with_pinned(PinnedCpu::online);
    run_turns(number, cpu, turn + 1);
    number
}

/// Runs the turns of a storm from `first` on.
fn run_turns(number: u64, cpu: u32, first: u64) {
    let Storm { turn, .. } = STORMS[number as usize - 1];
    let space = SPACE.get();
    for number in first..TURNS_EACH.load(Ordering::Relaxed) {
        // SAFETY: spaces of scenarios and their page tables stay allocated. The CPU is online.
        with_pinned(|pin| unsafe { pin.switch(space) });
        turn(space, cpu, number);
    }
    with_pinned(PinnedCpu::leave_space);
    FINISHED.fetch_add(1, Ordering::AcqRel);
}

fn page(cpu: u32) -> Extent {
    Extent::page(0x80_0000 + u64::from(cpu) * 0x1000)
}

/// Flushes, and waits with interrupts masked while the others wait for this CPU.
fn flush_masked(space: &'static Space<Machine>, cpu: u32, _: u64) {
    assert!(Arch::interrupts_masked());
    with_pinned(|pin| pin.flush(space, page(cpu))).wait();
}

/// Begins a second flush, of the whole space, before it waits for the first.
fn flush_several(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    let mut first = with_pinned(|pin| pin.flush(space, page(cpu)));
    let second = with_pinned(|pin| pin.flush(space, Extent::whole()));
    first.join(second);
    if turn.is_multiple_of(16) {
        first.join(with_pinned(|pin| pin.flush_kernel(Extent::whole())));
    }
    // CPUs with even numbers wait with interrupts enabled.
    if cpu.is_multiple_of(2) {
        Arch::unmask_interrupts();
    }
    first.wait();
    Arch::mask_interrupts();
}

/// Flushes; CPUs with odd numbers also go offline and online.
fn flush_or_go_offline(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    if cpu.is_multiple_of(2) || turn.is_multiple_of(8) {
        return flush_masked(space, cpu, turn);
    }
    with_pinned(PinnedCpu::offline);
    // About as long as a flush takes. No CPU waits for this one.
    (0..50).for_each(|_| Arch::spin_hint());
    with_pinned(PinnedCpu::online);
}

/// Flushes; CPUs with odd numbers are sometimes switched off, and the first CPU starts them again.
fn flush_or_switch_off(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    flush_masked(space, cpu, turn);
    if cpu == 0 {
        off::start_again();
    }
    if !cpu.is_multiple_of(2) && turn.is_multiple_of(4) {
        off::switch_off(turn);
    }
}
