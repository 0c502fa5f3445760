//! The clock, by the time-stamp counter, and the timer, by the APIC.
//!
//! The frequencies of both are measured at boot with the one clock whose frequency is known, the
//! 8254 timer of PCs. QEMU's `pc` and `q35` have it, and so has Bochs. The two measurements have
//! different errors, so the timer's interrupt may come before its time; the timer is then set
//! again.

#![expect(unsafe_code, reason = "writes to the device")]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use x86::instructions::port::Port;

use super::{apic, cpu};

/// Fixed-point factors are scaled by 2 to this power.
const SCALE_SHIFT: u32 = 32;
const NS_PER_S: u64 = 1_000_000_000;

/// The time-stamp counter at time 0.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds per tick of the time-stamp counter, scaled.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// Ticks of the APIC's timer per nanosecond, scaled.
static TIMER_TICKS_PER_NS: AtomicU64 = AtomicU64::new(0);

/// The deadline of a timer that is not set.
const NEVER: u64 = 0;

/// Measures the frequencies of the counters. Call this once, on the first CPU, when its APIC is set
/// up.
///
/// Two measurements must agree, because an emulator may be stopped for longer than a period of the
/// 8254.
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

/// Frequencies of the counters, as scaled factors.
#[derive(Clone, Copy, Debug)]
struct Speeds {
    ns_per_tick: u64,
    timer_ticks_per_ns: u64,
}

impl Speeds {
    fn measure() -> Self {
        /// A time from 0.8 to 20 ms at 5 GHz to 200 MHz. The period of the 8254 is 55 ms.
        const TICKS: u64 = 4_000_000;
        let first = Sample::take();
        while time_stamp() - first.time_stamp < TICKS {
            core::hint::spin_loop();
        }
        let last = Sample::take();
        // The 8254 and the timer count down. The 8254 starts again from 65536.
        let pit_ticks = u64::from(first.pit.wrapping_sub(last.pit));
        assert!(pit_ticks > 100, "there is no 8254 to measure time by");
        let ticks = last.time_stamp - first.time_stamp;
        let timer_ticks = u64::from(first.timer.wrapping_sub(last.timer));
        let ns = pit_ticks * NS_PER_S / PIT_HZ;
        Self {
            ns_per_tick: (ns << SCALE_SHIFT) / ticks,
            timer_ticks_per_ns: (timer_ticks << SCALE_SHIFT) / ns,
        }
    }

    /// Returns `true` if the two measurements differ by less than a hundredth.
    fn agree_with(self, other: Self) -> bool {
        let agree = |one: u64, other: u64| one.abs_diff(other) < other / 100;
        agree(self.ns_per_tick, other.ns_per_tick)
            && agree(self.timer_ticks_per_ns, other.timer_ticks_per_ns)
    }
}

/// Values of the three counters at about the same time.
#[derive(Clone, Copy)]
struct Sample {
    time_stamp: u64,
    pit: u16,
    timer: u32,
}

impl Sample {
    /// Takes several samples and returns the one that took the shortest time, because the emulator
    /// may be interrupted during a sample.
    fn take() -> Self {
        let take = |_| {
            let time_stamp = time_stamp();
            let sample = Self { time_stamp, pit: read_pit(), timer: apic::ticks_left() };
            (self::time_stamp() - time_stamp, sample)
        };
        let fastest = (0..8).map(take).min_by_key(|(ticks, _)| *ticks);
        fastest.expect("eight samples were taken").1
    }
}

/// The time-stamp counter, which is the same on all CPUs of the supported machines. It is read
/// after all earlier instructions.
pub(super) fn time_stamp() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: a barrier, and a read of a counter.
    unsafe {
        asm!("lfence", "rdtsc", out("eax") low, out("edx") high, options(nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The time since [`calibrate`].
pub(super) fn now_ns() -> u64 {
    // The counter of another CPU may be slightly behind the first CPU's.
    let ticks = time_stamp().saturating_sub(START.load(Ordering::Relaxed));
    scale(ticks, NS_PER_TICK.load(Ordering::Relaxed))
}

/// See [`Architecture::set_timer_ns`](super::Architecture::set_timer_ns).
pub(super) fn set_timer_ns(delay_ns: u64) {
    let due = now_ns().saturating_add(delay_ns).max(NEVER + 1);
    cpu::deadline_ns().store(due, Ordering::Relaxed);
    arm(delay_ns);
}

/// Returns `true` if the timer was set and is due. Call this when its interrupt comes; if it comes
/// early, this sets the timer again.
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
    // A count of 0 would stop the timer. If the delay is too long for it, `is_due` sets it again.
    apic::set_timer(u32::try_from(ticks).unwrap_or(u32::MAX).max(1));
}

fn scale(value: u64, factor: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(factor)) >> SCALE_SHIFT).unwrap_or(u64::MAX)
}

const PIT_HZ: u64 = 1_193_182;
const PIT_COMMAND: u16 = 0x43;
const PIT_COUNTER_0: u16 = 0x40;

/// Makes counter 0 count down from 65536 repeatedly. Its interrupt is masked.
fn start_pit() {
    const COUNTER_0_RATE: u8 = 0x34;
    // SAFETY: these are the ports of the 8254.
    unsafe {
        Port::new(PIT_COMMAND).write(COUNTER_0_RATE);
        Port::new(PIT_COUNTER_0).write(0_u8);
        Port::new(PIT_COUNTER_0).write(0_u8);
    }
}

fn read_pit() -> u16 {
    const LATCH_COUNTER_0: u8 = 0;
    // SAFETY: these are the ports of the 8254.
    unsafe {
        Port::new(PIT_COMMAND).write(LATCH_COUNTER_0);
        let mut counter = Port::new(PIT_COUNTER_0);
        u16::from_le_bytes([counter.read(), counter.read()])
    }
}
