//! What time it is, by the time-stamp counter, and when to be told, by the APIC's timer.
//!
//! How fast the two count is found out at the start, by the one clock whose speed is known: the
//! timer of the first PCs (8254), which QEMU's `pc` and `q35` have, and Bochs. Errors of the one
//! and the other differ, so the timer may come before its time; it is then set again.

#![expect(unsafe_code, reason = "writes to the device")]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use x86::instructions::port::Port;

use super::{apic, cpu};

/// What is multiplied with is that many times as large.
const SCALE_SHIFT: u32 = 32;
const NS_PER_S: u64 = 1_000_000_000;

/// Nanoseconds are counted from here.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick of the time-stamp counter, scaled.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// Ticks of the APIC's timer per nanosecond, scaled.
static TIMER_TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// No interrupt is awaited.
const NEVER: u64 = 0;

/// Finds out how fast the counters are. Once, on the first CPU, when its APIC is set up.
///
/// Two measurements must agree: an emulator may be kept from running for so long that the 8254
/// comes round unseen.
pub(super) fn calibrate() {
    const ATTEMPTS: usize = 20;
    start_pit();
    apic::count_silently();
    let mut last = Speeds::measure();
    for _ in 0..ATTEMPTS {
        let speeds = Speeds::measure();
        if speeds.agree_with(last) {
            START.store(time_stamp(), Ordering::Relaxed);
            NS_PER_TICK.store(speeds.ns_per_tick, Ordering::Relaxed);
            TIMER_TICKS_PER_NS.store(speeds.timer_ticks_per_ns, Ordering::Relaxed);
            return;
        }
        last = speeds;
    }
    panic!("no two measurements of the time-stamp counter agree: the last is {last:?}");
}

/// How fast the counters are, scaled.
#[derive(Clone, Copy, Debug)]
struct Speeds {
    ns_per_tick: u64,
    timer_ticks_per_ns: u64,
}

impl Speeds {
    fn measure() -> Self {
        /// From 0.8 to 20 ms, at 5 GHz to 200 MHz: the 8254 comes round after 55 ms.
        const TICKS: u64 = 4_000_000;
        let first = Sample::take();
        while time_stamp() - first.time_stamp < TICKS {
            core::hint::spin_loop();
        }
        let last = Sample::take();
        // Both count down; the 8254 from 65536, and again.
        let pit_ticks = u64::from(first.pit.wrapping_sub(last.pit));
        assert!(pit_ticks > 100, "there is no 8254 to tell the time by");
        let ticks = last.time_stamp - first.time_stamp;
        let timer_ticks = u64::from(first.timer.wrapping_sub(last.timer));
        let ns = pit_ticks * NS_PER_S / PIT_HZ;
        Self {
            ns_per_tick: (ns << SCALE_SHIFT) / ticks,
            timer_ticks_per_ns: (timer_ticks << SCALE_SHIFT) / ns,
        }
    }

    /// Within a hundredth.
    fn agree_with(self, other: Self) -> bool {
        let agree = |one: u64, other: u64| one.abs_diff(other) < other / 100;
        agree(self.ns_per_tick, other.ns_per_tick)
            && agree(self.timer_ticks_per_ns, other.timer_ticks_per_ns)
    }
}

/// What the three counters say at about the same time.
#[derive(Clone, Copy)]
struct Sample {
    time_stamp: u64,
    pit: u16,
    timer: u32,
}

impl Sample {
    /// The one that was taken fastest of some, for the emulator may be interrupted meanwhile.
    fn take() -> Self {
        let take = || {
            let time_stamp = time_stamp();
            let sample = Self { time_stamp, pit: read_pit(), timer: apic::ticks_left() };
            (self::time_stamp() - time_stamp, sample)
        };
        let mut best = take();
        for _ in 0..7 {
            let next = take();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }
}

/// Ticks since some moment, the same on all CPUs of the machines that are meant. Not before
/// anything that is earlier in the program has been done.
pub(super) fn time_stamp() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: a barrier, and reads.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// Since [`calibrate`].
pub(super) fn now_ns() -> u64 {
    // A CPU whose counter is a little behind the first one's is not before the start.
    let ticks = time_stamp().saturating_sub(START.load(Ordering::Relaxed));
    scale(ticks, NS_PER_TICK.load(Ordering::Relaxed))
}

/// See [`Architecture::set_timer_ns`](super::Architecture::set_timer_ns).
pub(super) fn set_timer_ns(delay_ns: u64) {
    let due = now_ns().saturating_add(delay_ns).max(NEVER + 1);
    cpu::deadline_ns().store(due, Ordering::Relaxed);
    arm(delay_ns);
}

/// The timer's interrupt has come: whether it is the one that was asked for, and due.
pub(super) fn is_due() -> bool {
    let deadline = cpu::deadline_ns();
    let (due, now) = (deadline.load(Ordering::Relaxed), now_ns());
    if due == NEVER {
        return false;
    }
    if now < due {
        arm(due - now);
        return false;
    }
    deadline.store(NEVER, Ordering::Relaxed);
    true
}

fn arm(delay_ns: u64) {
    let ticks = scale(delay_ns, TIMER_TICKS_PER_NS.load(Ordering::Relaxed));
    // 0 would stop it; and for what is later than it can count, it is set again.
    apic::set_timer(u32::try_from(ticks).unwrap_or(u32::MAX).max(1));
}

fn scale(value: u64, factor: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(factor)) >> SCALE_SHIFT).unwrap_or(u64::MAX)
}

const PIT_HZ: u64 = 1_193_182;
const PIT_COMMAND: u16 = 0x43;
const PIT_COUNTER_0: u16 = 0x40;

/// Has its first counter count down from 65536, over and over. Its interrupt is masked.
fn start_pit() {
    const COUNTER_0_RATE: u8 = 0x34;
    // SAFETY: the ports are the 8254's.
    unsafe {
        Port::new(PIT_COMMAND).write(COUNTER_0_RATE);
        Port::new(PIT_COUNTER_0).write(0_u8);
        Port::new(PIT_COUNTER_0).write(0_u8);
    }
}

fn read_pit() -> u16 {
    const LATCH_COUNTER_0: u8 = 0;
    // SAFETY: as above.
    unsafe {
        Port::new(PIT_COMMAND).write(LATCH_COUNTER_0);
        let mut counter = Port::new(PIT_COUNTER_0);
        u16::from_le_bytes([counter.read(), counter.read()])
    }
}
