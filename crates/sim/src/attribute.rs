//! Attribution of the time of a CPU to its causes.

use crate::causes::{Cause, TimeByCause};
use crate::clock::Step;
use crate::sim::Sim;
use crate::time::Time;

impl Sim {
    /// Calls `f`, and attributes its time to `cause`, except for parts that have causes of their
    /// own. If the calling thread leaves its CPU in between, the CPU's time has other causes.
    #[inline]
    pub fn attribute<R>(&self, cause: Cause, f: impl FnOnce() -> R) -> R {
        let before = self.set_cause(cause);
        let result = f();
        // The thread may run on another CPU now.
        self.set_cause(before);
        result
    }

    /// Lets `time` pass on this CPU as [`spend`](Self::spend) does, and attributes it to `cause`.
    /// Costs the simulator less than [`attribute`](Self::attribute).
    #[inline]
    pub fn spend_as(&self, cause: Cause, time: Time) {
        if !self.is_in_context() {
            return;
        }
        let (step, target, before) = {
            let mut clock = self.clock.borrow_mut();
            let number = self.cpu();
            let began = clock.cpus[number].now;
            let target = (began + time).min(Time::END);
            let step = clock.step(number, target);
            let causes = &mut clock.cpus[number].causes;
            if step == Step::Reached {
                return causes.attribute_last(target - began, cause);
            }
            (step, target, causes.change(cause, began))
        };
        self.finish_advance(step, target);
        self.set_cause(before);
    }

    /// Attributes this CPU's time to `cause` from now on. Returns the cause before.
    #[inline]
    pub fn set_cause(&self, cause: Cause) -> Cause {
        let cpu = &mut self.clock.borrow_mut().cpus[self.cpu()];
        cpu.causes.change(cause, cpu.now)
    }

    /// The times by cause of each CPU until `now`, the present. The times of each CPU add up to
    /// `now`.
    #[must_use]
    pub fn time_by_cause(&self, now: Time) -> Vec<TimeByCause> {
        self.clock.borrow().cpus.iter().map(|cpu| cpu.causes.at(now)).collect()
    }
}
