//! The purpose of an interrupt: `ipi_send_cpu` has the sender, but not whether it flushes.

use crate::raw::{CallSite, During, Function, Tid};

/// The events of the source that distinguish flush interrupts from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Only `tlb_flush` with [`FlushReason::Request`](crate::record::FlushReason).
    #[default]
    Requests,
    /// `tlb_flush`, and `csd_queue_cpu`, which names the function that is called.
    Queues,
}

/// The calls that a CPU is about to request.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// The last functions that were queued since the last interrupt was sent.
    queued: Queued,
    /// The task that announced a flush since the last function call.
    request: Option<Tid>,
}

/// An interrupt may queue and send a wake-up after a task has queued a call, before the task sends.
#[derive(Clone, Debug, Default)]
struct Queued {
    by_task: Option<Function>,
    by_interrupt: Option<Function>,
}

impl Calls {
    pub(super) fn queue(&mut self, during: During, function: Function) {
        *self.queued.slot(during) = Some(function);
    }

    pub(super) fn request(&mut self, tid: Tid) {
        self.request = Some(tid);
    }

    /// Records that an interrupt is sent. Returns `true` if it requests a flush.
    pub(super) fn send(
        &mut self,
        evidence: Evidence,
        during: During,
        tid: Tid,
        site: CallSite,
    ) -> bool {
        let queued = self.queued.slot(during).take();
        if site == CallSite::Other {
            return false;
        }
        let request = self.request.take();
        match evidence {
            Evidence::Queues => queued == Some(Function::FlushSpace),
            Evidence::Requests => request == Some(tid),
        }
    }
}

impl Queued {
    fn slot(&mut self, during: During) -> &mut Option<Function> {
        match during {
            During::Task => &mut self.by_task,
            During::Interrupt => &mut self.by_interrupt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: Tid = Tid(7);

    fn sends(calls: &mut Calls, evidence: Evidence, site: CallSite) -> bool {
        calls.send(evidence, During::Task, TASK, site)
    }

    #[test]
    fn last_queued_function_is_the_purpose() {
        let mut calls = Calls::default();
        calls.queue(During::Task, Function::Other);
        calls.queue(During::Task, Function::FlushSpace);
        assert!(sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
        assert!(!sends(&mut calls, Evidence::Queues, CallSite::CallFunction), "it was sent");
        calls.queue(During::Task, Function::FlushSpace);
        calls.queue(During::Task, Function::Other);
        assert!(!sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
    }

    #[test]
    fn wake_up_by_interrupt_keeps_queued_flush() {
        let mut calls = Calls::default();
        calls.queue(During::Task, Function::FlushSpace);
        calls.queue(During::Interrupt, Function::Other);
        let interrupt = During::Interrupt;
        assert!(!calls.send(Evidence::Queues, interrupt, TASK, CallSite::Other));
        assert!(sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
    }

    #[test]
    fn each_interrupt_needs_a_request_without_queues() {
        let mut calls = Calls::default();
        assert!(!sends(&mut calls, Evidence::Requests, CallSite::CallFunction));
        calls.request(TASK);
        assert!(!sends(&mut calls, Evidence::Requests, CallSite::Other), "a wake-up");
        assert!(sends(&mut calls, Evidence::Requests, CallSite::CallFunction));
        assert!(!sends(&mut calls, Evidence::Requests, CallSite::CallFunction), "another call");
        calls.request(Tid(8));
        assert!(!sends(&mut calls, Evidence::Requests, CallSite::CallFunction), "another task");
    }
}
