//! Storms: nobody may wait for ever, whoever waits for whom.
//!
//! All CPUs run one space, so that each flush rings all others; each flushes as fast as it can,
//! with interrupts masked; and nobody may be left behind.

#![expect(unsafe_code, reason = "switches to a space")]

use core::sync::atomic::{AtomicU64, Ordering};

use shootdown::{Extent, PinnedCpu, Space};

use crate::kernel::arch::{Arch, Architecture, Interrupt};
use crate::kernel::boot_memory::BootMemory;
use crate::kernel::console::println;
use crate::kernel::fault_injection::engine::{Machine, pin};
use crate::kernel::fault_injection::off;
use crate::kernel::fault_injection::scenarios::empty_space;
use crate::kernel::fault_injection::user::wait_until;
use crate::kernel::sync::Once;

struct Storm {
    name: &'static str,
    /// What a CPU does in one turn.
    round: fn(&'static Space<Machine>, u32, u64),
    /// Whether it is on this machine.
    is_here: bool,
}

const STORMS: &[Storm] = &[
    Storm { name: "all-flush-masked", round: flush_masked, is_here: true },
    Storm { name: "all-flush-several", round: flush_several, is_here: true },
    Storm { name: "some-go-offline", round: flush_or_go_offline, is_here: true },
    Storm {
        name: "some-are-switched-off",
        round: flush_or_switch_off,
        is_here: Arch::STARTS_AGAIN,
    },
];

/// Which storm is on, from 1. Released by `run`, with where and how often, and acquired by
/// `take_part`.
static STORM: AtomicU64 = AtomicU64::new(0);
static ROUNDS_EACH: AtomicU64 = AtomicU64::new(0);
/// How many CPUs are through with it. `run` acquires it, before it has another begin.
static THROUGH: AtomicU64 = AtomicU64::new(0);
static SPACE: Once<Space<Machine>> = Once::new();

/// On the first CPU. What does not end is a panic, or found by whoever started the emulator.
pub(crate) fn run(memory: &mut BootMemory, cpus: u32, rounds: u64) {
    off::set_up(memory, cpus);
    for (number, Storm { name, is_here, .. }) in (1..).zip(STORMS) {
        if !is_here {
            println!("storm name={name} verdict=absent");
            continue;
        }
        SPACE.publish(empty_space(memory));
        THROUGH.store(0, Ordering::Relaxed);
        ROUNDS_EACH.store(rounds, Ordering::Relaxed);
        STORM.store(number, Ordering::Release);
        Arch::send(&mut (1..cpus), Interrupt::Wake);
        weather(number, 0, 0);
        wait_until(|| {
            off::start_again();
            THROUGH.load(Ordering::Acquire) == u64::from(cpus)
        });
        STORM.store(0, Ordering::Release);
        println!("storm name={name} cpus={cpus} rounds={rounds} verdict=over");
    }
}

/// On the others, when they have nothing else to do: takes part, if a storm is on that this CPU has
/// not been through. Returns the last that it has.
pub(crate) fn take_part(last: u64) -> u64 {
    match STORM.load(Ordering::Acquire) {
        0 => last,
        number if number == last => last,
        number => {
            weather(number, Arch::cpu(), 0);
            number
        }
    }
}

/// On a CPU that was switched off at this turn, and has been started again: goes on, and returns
/// the storm that it has been through.
pub(crate) fn come_back(cpu: u32, turn: u64) -> u64 {
    let number = STORM.load(Ordering::Acquire);
    pin(PinnedCpu::online);
    weather(number, cpu, turn + 1);
    number
}

/// From this turn on.
fn weather(number: u64, cpu: u32, first_turn: u64) {
    let Storm { round, .. } = STORMS[number as usize - 1];
    let space = SPACE.get();
    for turn in first_turn..ROUNDS_EACH.load(Ordering::Relaxed) {
        switch(space);
        round(space, cpu, turn);
    }
    pin(PinnedCpu::leave_space);
    THROUGH.fetch_add(1, Ordering::AcqRel);
}

fn switch(space: &'static Space<Machine>) {
    // SAFETY: spaces of scenarios stay, and their roots are theirs. The CPU is online.
    pin(|pin| unsafe { pin.switch(space) });
}

fn page(cpu: u32) -> Extent {
    Extent::page(0x80_0000 + u64::from(cpu) * 0x1000)
}

/// Waits with interrupts masked, while the others wait for it.
fn flush_masked(space: &'static Space<Machine>, cpu: u32, _: u64) {
    assert!(Arch::interrupts_masked());
    pin(|pin| pin.flush(space, page(cpu))).wait();
}

/// Begins a second flush before it waits for the first, and of all the kernel.
fn flush_several(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    let mut first = pin(|pin| pin.flush(space, page(cpu)));
    let second = pin(|pin| pin.flush(space, Extent::whole()));
    first.join(second);
    if turn.is_multiple_of(16) {
        first.join(pin(|pin| pin.flush_kernel(Extent::whole())));
    }
    // Some wait where they can be interrupted.
    if cpu.is_multiple_of(2) {
        Arch::unmask_interrupts();
    }
    first.wait();
    Arch::mask_interrupts();
}

/// Odd ones come and go.
fn flush_or_go_offline(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    if cpu.is_multiple_of(2) || turn.is_multiple_of(8) {
        return flush_masked(space, cpu, turn);
    }
    pin(PinnedCpu::offline);
    // For as long as a flush takes, and it is not waited for.
    (0..50).for_each(|_| Arch::spin_hint());
    pin(PinnedCpu::online);
}

/// Odd ones are switched off now and then, and the first starts them again.
fn flush_or_switch_off(space: &'static Space<Machine>, cpu: u32, turn: u64) {
    flush_masked(space, cpu, turn);
    if cpu == 0 {
        off::start_again();
    }
    if !cpu.is_multiple_of(2) && turn.is_multiple_of(4) {
        off::switch_off(turn);
    }
}
