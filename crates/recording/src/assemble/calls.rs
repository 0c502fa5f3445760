//! What an interrupt is for: `ipi_send_cpu` says who sent it, but not whether it flushes.

use crate::raw::{CallSite, During, Function, Tid};

/// What the source has to tell interrupts by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Evidence {
    /// `tlb_flush` only, with [`FlushReason::Request`](crate::record::FlushReason).
    #[default]
    Requests,
    /// `csd_queue_cpu` as well, which says what is to be called.
    Queues,
}

/// What a CPU is about to ask others.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls {
    /// What was queued last, since the last interrupt was sent.
    queued: Queued,
    /// Who announced a flush, since functions were called last.
    request: Option<Tid>,
}

/// A wake-up may be sent by an interrupt that comes between a task's queueing and its sending.
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

    /// An interrupt is sent: whether it asks for a flush.
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
    fn what_was_queued_last_is_what_the_interrupt_is_for() {
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
    fn a_wake_up_by_an_interrupt_does_not_come_between_a_task_and_its_flush() {
        let mut calls = Calls::default();
        calls.queue(During::Task, Function::FlushSpace);
        calls.queue(During::Interrupt, Function::Other);
        let interrupt = During::Interrupt;
        assert!(!calls.send(Evidence::Queues, interrupt, TASK, CallSite::Other));
        assert!(sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
    }

    #[test]
    fn without_queues_a_request_of_the_same_task_is_needed_once_for_each_interrupt() {
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
