//! The purpose of an interrupt: `ipi_send_cpu` has the sender, but not whether it flushes. And the
//! CPUs from which a flush was requested: an event for each, gathered into one set.

use std::mem;

use crate::raw::{CallSite, During, Function, RawEvent, RawKind, Tid};

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
    /// The targets of the flush that a task is requesting, and of one that an interrupt is.
    targets: [Vec<u32>; 2],
}

/// An interrupt may queue and send a wake-up after a task has queued a call, before the task sends.
#[derive(Clone, Debug, Default)]
struct Queued {
    by_task: Option<Function>,
    by_interrupt: Option<Function>,
}

impl Calls {
    /// Records that a function is queued on `target`.
    pub(super) fn queue(&mut self, during: During, function: Function, target: u32) {
        *self.queued.slot(during) = Some(function);
        if function == Function::FlushSpace {
            self.targets[during as usize].push(target);
        }
    }

    /// Takes the targets of the requests that are complete when `event` happens, one set for each
    /// request. Linux queues the calls of a request one after the other, so that any other event in
    /// the same context ends it. An interrupt does not end the request of the task below it.
    pub(super) fn complete_before(&mut self, event: &RawEvent) -> Vec<Vec<u32>> {
        let next = match event.kind {
            RawKind::QueueCall { function: Function::FlushSpace, target } => Some(target),
            _ => None,
        };
        let is_complete = |during: During, targets: &[u32]| match (during, event.during) {
            (During::Task, During::Interrupt) => false,
            (During::Interrupt, During::Task) => true,
            // Two requests may follow each other, if the kernel did not have to interrupt.
            _ => next.is_none_or(|next| targets.contains(&next)),
        };
        self.take_targets(is_complete)
    }

    /// Takes the targets of all requests.
    pub(super) fn complete(&mut self) -> Vec<Vec<u32>> {
        self.take_targets(|_, _| true)
    }

    fn take_targets(&mut self, is_complete: impl Fn(During, &[u32]) -> bool) -> Vec<Vec<u32>> {
        let mut complete = Vec::new();
        for during in [During::Interrupt, During::Task] {
            let targets = &mut self.targets[during as usize];
            if !targets.is_empty() && is_complete(during, targets) {
                targets.sort_unstable();
                complete.push(mem::take(targets));
            }
        }
        complete
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
        calls.queue(During::Task, Function::Other, 1);
        calls.queue(During::Task, Function::FlushSpace, 1);
        assert!(sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
        assert!(!sends(&mut calls, Evidence::Queues, CallSite::CallFunction), "it was sent");
        calls.queue(During::Task, Function::FlushSpace, 1);
        calls.queue(During::Task, Function::Other, 1);
        assert!(!sends(&mut calls, Evidence::Queues, CallSite::CallFunction));
    }

    #[test]
    fn wake_up_by_interrupt_keeps_queued_flush() {
        let mut calls = Calls::default();
        calls.queue(During::Task, Function::FlushSpace, 1);
        calls.queue(During::Interrupt, Function::Other, 1);
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

    fn event(during: During, kind: RawKind) -> RawEvent {
        RawEvent { time_ns: 0, cpu: 0, tid: TASK, during, kind }
    }

    #[test]
    fn targets_of_a_request_are_gathered_until_the_next_event() {
        let mut calls = Calls::default();
        let queue = |target| RawKind::QueueCall { function: Function::FlushSpace, target };
        for target in [3, 1, 2] {
            let none = calls.complete_before(&event(During::Task, queue(target)));
            assert!(none.is_empty());
            calls.queue(During::Task, Function::FlushSpace, target);
        }
        let interrupt = event(During::Interrupt, RawKind::Exit);
        assert!(calls.complete_before(&interrupt).is_empty(), "the task goes on below");
        let again = event(During::Task, queue(3));
        assert_eq!(calls.complete_before(&again), [[1, 2, 3]], "a second request");
        calls.queue(During::Task, Function::FlushSpace, 3);
        calls.queue(During::Interrupt, Function::FlushSpace, 4);
        calls.queue(During::Interrupt, Function::Other, 5);
        assert_eq!(calls.complete_before(&interrupt), [[4]]);
        assert_eq!(calls.complete_before(&event(During::Task, RawKind::Exit)), [[3]]);
        assert!(calls.complete().is_empty());
    }
}
