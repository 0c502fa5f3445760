//! How late interrupts arrive in a replay: as late as in the recording.

use shootdown_sim::machine::{Idle, TlbInIdle};
use shootdown_sim::{Machine, Time};

use super::super::delivery::Deliveries;
use super::super::steps::KernelTime;
use super::super::survey::Survey;

/// The beginning of the name of a processor that QEMU emulates. It is slow in everything, by some
/// factor of 50, and its interrupts take up to milliseconds. If those of the replay take as long,
/// the rest of the kernel must also: otherwise more requests are made in that time, and more of
/// them coalesce.
const EMULATED: &str = "QEMU TCG";

/// Returns how long calls take in the kernel.
pub(super) fn kernel_time(survey: &Survey) -> KernelTime {
    match survey.header.processor.starts_with(EMULATED) {
        true => KernelTime::Recorded,
        false => KernelTime::Simulated,
    }
}

/// How late recorded interrupts arrived.
pub(super) struct Late {
    deliveries: Deliveries,
    /// The part of a delivery that the simulated machine spends itself.
    rest: Time,
}

impl Late {
    /// Makes the interrupts of a machine take as long as is usual in the recording.
    pub(super) fn on(machine: &mut Machine, survey: &Survey, kernel_time: KernelTime) -> Self {
        delay_interrupts(machine, survey, kernel_time);
        if kernel_time == KernelTime::Recorded {
            keep_tlbs_in_idle(machine);
        }
        // With the simulated kernel's time, requests and interrupts are nearer to each other than
        // in the recording, and the usual time of an interrupt agrees better.
        let deliveries = match kernel_time {
            KernelTime::Simulated => Deliveries::default(),
            KernelTime::Recorded => survey.deliveries.clone(),
        };
        Self { deliveries, rest: rest_of_flush(machine) }
    }

    /// Returns the time that the interrupt to a CPU took which was sent nearest to a recorded time,
    /// without the part that the machine spends itself.
    pub(super) fn nearest(&self, target: usize, at_ns: u64) -> Option<Time> {
        let took_ns = self.deliveries.nearest_ns(target, at_ns)?;
        Some(Time::from_ns(took_ns).min(LATE_MAX).saturating_sub(self.rest))
    }
}

/// Makes idle CPUs keep what their TLBs hold, and so the space that they have loaded: emulated CPUs
/// have no deep idle states.
fn keep_tlbs_in_idle(machine: &mut Machine) {
    if let Idle::States(states) = &mut machine.idle {
        for state in states {
            state.tlb = TlbInIdle::Kept;
        }
    }
}

/// Returns the time of a flush interrupt without its way to the target.
fn rest_of_flush(machine: &Machine) -> Time {
    machine.interrupt.send + machine.interrupt.entry + machine.tlb.invalidate_page
}

/// Makes interrupts take as long as is usual in the recording, if they take less time on the
/// machine.
fn delay_interrupts(machine: &mut Machine, survey: &Survey, kernel_time: KernelTime) {
    // The simulated kernel chooses the targets faster than the recorded one, unless it waits.
    let send_ns = match kernel_time {
        KernelTime::Simulated => survey.request_ns,
        KernelTime::Recorded => survey.send_ns,
    };
    let (Some(send_ns), Some(delivery_ns)) = (send_ns, survey.delivery_ns) else { return };
    let (interrupt, flush) = (&mut machine.interrupt, machine.tlb.invalidate_page);
    let send = Time::from_ns(send_ns).saturating_sub(flush).min(DELIVERY_MAX);
    interrupt.send = interrupt.send.max(send);
    let rest = rest_of_flush(machine);
    let deliver = Time::from_ns(delivery_ns).saturating_sub(rest).min(DELIVERY_MAX);
    let interrupt = &mut machine.interrupt;
    interrupt.deliver_socket = interrupt.deliver_socket.max(deliver);
    interrupt.deliver_system = interrupt.deliver_system.max(deliver);
}

/// The longest time of a flush interrupt. An emulated CPU for which the host has no time takes
/// longer; but accesses that wait for a flush fault again and again meanwhile, for which there is a
/// limit.
const LATE_MAX: Time = Time::from_ms(10);

/// The longest delivery that a machine may have.
const DELIVERY_MAX: Time = Time::from_ms(1);
