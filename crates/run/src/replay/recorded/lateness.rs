//! How late interrupts arrive in a replay: as late as in the recording.

use shootdown_sim::machine::Idle;
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
    /// The part of a recorded time that the replay does not wait for: the simulated machine spends
    /// it itself, or the recorded one spent it after the flush.
    rest: Time,
}

impl Late {
    /// Makes the interrupts of a machine take as long as is usual in the recording.
    pub(super) fn on(machine: &mut Machine, survey: &Survey, kernel_time: KernelTime) -> Self {
        delay_interrupts(machine, survey, kernel_time);
        if kernel_time == KernelTime::Recorded {
            // Emulated CPUs have no deep idle states: they stay in the space that they have loaded.
            // The times at which they run a thread again are recorded.
            machine.idle = Idle::Poll;
        }
        // With the simulated kernel's time, requests and interrupts are nearer to each other than
        // in the recording, and the usual time of an interrupt agrees better.
        let deliveries = match kernel_time {
            KernelTime::Simulated => Deliveries::default(),
            KernelTime::Recorded => survey.deliveries.clone(),
        };
        let recorded = Time::from_ns(survey.flush_ns.unwrap_or(0));
        Self { deliveries, rest: rest_of_flush(machine) + recorded }
    }

    /// Returns the time that the interrupt to a CPU took which was sent nearest to a recorded time,
    /// without the part that the machine spends itself.
    pub(super) fn nearest(&self, target: usize, at_ns: u64) -> Option<Time> {
        let took_ns = self.deliveries.nearest_ns(target, at_ns)?;
        Some(Time::from_ns(took_ns).saturating_sub(self.rest))
    }
}

/// Returns the time of a flush interrupt without its way to the target.
fn rest_of_flush(machine: &Machine) -> Time {
    machine.interrupt.send + machine.interrupt.entry + machine.tlb.invalidate_page
}

/// Makes interrupts take as long as is usual in the recording, if they take less time on the
/// machine.
fn delay_interrupts(machine: &mut Machine, survey: &Survey, kernel_time: KernelTime) {
    let (Some(request_ns), Some(delivery_ns)) = (survey.request_ns, survey.delivery_ns) else {
        return;
    };
    let (interrupt, flush) = (&mut machine.interrupt, machine.tlb.invalidate_page);
    // The simulated kernel chooses the targets faster than the recorded one, unless it waits for
    // the recorded choice.
    if kernel_time == KernelTime::Simulated {
        let send = Time::from_ns(request_ns).saturating_sub(flush).min(DELIVERY_MAX);
        interrupt.send = interrupt.send.max(send);
    }
    let rest = rest_of_flush(machine);
    let deliver = Time::from_ns(delivery_ns).saturating_sub(rest).min(DELIVERY_MAX);
    let interrupt = &mut machine.interrupt;
    interrupt.deliver_socket = interrupt.deliver_socket.max(deliver);
    interrupt.deliver_system = interrupt.deliver_system.max(deliver);
}

/// The longest delivery that a machine may have.
const DELIVERY_MAX: Time = Time::from_ms(1);
