//! A hypervisor that stops virtual CPUs, and empties their TLBs on request before it runs them
//! again (KVM: `KVM_VCPU_PREEMPTED` and `KVM_VCPU_FLUSH_TLB`).
//!
//! A CPU is stopped only where its interrupts are unmasked. On hardware, a hypervisor also stops
//! CPUs that have masked them.

use core::panic::Location;
use core::ptr;

use crate::clock::{Vcpu, Vector};
use crate::lines::{Access, LineId};
use crate::sim::Sim;
use crate::time::Time;

impl Sim {
    /// Stops a CPU from `at`, or from when it next has its interrupts unmasked, until `until`.
    pub fn stop_cpu(&self, cpu: usize, at: Time, until: Time) {
        self.is_guest.set(true);
        // The CPU cannot act before this one, which acts now.
        let is_before = self.is_in_context() && cpu < self.cpu();
        let at = if is_before { at.max(self.now() + Time::TICK) } else { at };
        self.deliver_at(cpu, Vector::Stop { until }, at);
    }

    /// Requests that the hypervisor empties the TLB of `cpu` before it runs the CPU again. Returns
    /// `false` if the CPU is running: then there is no request.
    ///
    /// Costs accesses to the CPU's word, if the hypervisor may [stop](Self::stop_cpu) CPUs.
    pub fn defer_flush(&self, cpu: usize) -> bool {
        if !self.is_guest.get() {
            return false;
        }
        // The word that the CPU and the hypervisor share: one in each CPU's state, which is larger
        // than a line and never moves.
        let line = LineId::of_host(ptr::from_ref(&self.clock.borrow().cpus[cpu]) as usize);
        self.access(line, Access::Load, Some(Location::caller()));
        if !self.is_stopped(cpu) {
            return false;
        }
        self.access(line, Access::Atomic, Some(Location::caller()));
        // The CPU may have returned during the access, which takes effect now.
        let vcpu = &mut self.clock.borrow_mut().cpus[cpu].vcpu;
        let is_away = *vcpu != Vcpu::Running;
        if is_away {
            *vcpu = Vcpu::AwayWithRequest;
        }
        is_away
    }

    /// Returns `true` if the hypervisor does not run `cpu`.
    #[must_use]
    pub fn is_stopped(&self, cpu: usize) -> bool {
        self.clock.borrow().cpus[cpu].vcpu != Vcpu::Running
    }

    /// Stops this CPU, whose interrupts are masked, until the given time.
    pub(crate) fn take_stop(&self, until: Time) {
        let (cpu, began) = (self.cpu(), self.now());
        // The hypervisor's accesses cost the guest nothing.
        self.clock.borrow_mut().cpus[cpu].vcpu = Vcpu::Away;
        self.spend(until.saturating_sub(began));
        let found = core::mem::take(&mut self.clock.borrow_mut().cpus[cpu].vcpu);
        let is_requested = found == Vcpu::AwayWithRequest;
        if is_requested {
            let invalidation = self.next_invalidation();
            self.tlbs.borrow_mut()[cpu].invalidate_all(invalidation);
        }
        let away = self.now() - began;
        self.count(|counts| {
            counts.away += away;
            counts.flushes_full += u64::from(is_requested);
        });
    }
}
