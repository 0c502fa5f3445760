//! What it costs to tell other CPUs, as far as a kernel could know it: from the machine's numbers
//! alone, without what runs on it.

use shootdown::{Broadcast, NotifyCosts, Reach};

use shootdown_sim::{Machine, Time, machine};

/// Which of the two ways to tell other CPUs are open to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyBy {
    /// Both, where the machine has both.
    Chosen,
    /// Interrupts, as if the machine had nothing else.
    Interrupts,
    /// Broadcasts or remote fences, where the machine has them.
    Broadcasts,
}

/// What broadcasts can do on this machine, if it has any.
pub(crate) fn broadcast(machine: &Machine, notify_by: NotifyBy) -> Option<Broadcast> {
    if notify_by == NotifyBy::Interrupts {
        return None;
    }
    if let Some(cost) = &machine.broadcast {
        return Some(Broadcast {
            reach: Reach::Everyone,
            pages_per_operation: cost.pages_per_operation,
            operation_ceiling: cost.page_ceiling,
        });
    }
    machine.remote_fence.as_ref().map(|cost| Broadcast {
        reach: Reach::Targets,
        // One call names one range, and the firmware drops the whole tag for more pages.
        pages_per_operation: cost.page_ceiling.max(1),
        operation_ceiling: 1,
    })
}

/// What telling costs, for the choice between the two ways.
pub(crate) fn costs(machine: &Machine, notify_by: NotifyBy) -> NotifyCosts {
    let costs = interrupt_costs(machine);
    let costs = match (&machine.broadcast, &machine.remote_fence) {
        (Some(cost), _) => {
            let others = machine.cpu_count() as u64 - 1;
            let done = cost.complete.max(cost.occupy).max(machine.cache.fence);
            let broadcast = cost.issue + done + cost.victim * others;
            NotifyCosts {
                broadcast_ns: broadcast.ns(),
                broadcast_each_ns: 0,
                operation_ns: (cost.issue.max(cost.occupy) + cost.victim * others).ns(),
                ..costs
            }
        }
        (None, Some(cost)) => {
            let invalidation = machine.tlb.invalidate_page;
            NotifyCosts {
                broadcast_ns: (cost.call + cost.deliver + invalidation).ns(),
                broadcast_each_ns: (cost.each + cost.target + invalidation).ns(),
                operation_ns: (cost.call + cost.deliver + invalidation).ns(),
                ..costs
            }
        }
        (None, None) => costs,
    };
    match notify_by {
        NotifyBy::Broadcasts => NotifyCosts { interrupt_ns: u64::MAX, ..costs },
        NotifyBy::Chosen | NotifyBy::Interrupts => costs,
    }
}

/// The part of the costs that has to do with interrupts.
fn interrupt_costs(machine: &Machine) -> NotifyCosts {
    let cost = &machine.interrupt;
    let virtualization = machine.virtualization.as_ref();
    let extra = |of: fn(&machine::Virtualization) -> Time| virtualization.map_or(Time::ZERO, of);
    let send = cost.send + extra(|cost| cost.send_exit);
    let deliver = cost.deliver_socket + extra(|cost| cost.inject);
    let taken = cost.entry + cost.acknowledge + extra(|cost| cost.acknowledge_exit);
    // Its presence and its bell are fetched before, and its answer after.
    let lines = machine.cache.socket * 3;
    let handled = taken + machine.tlb.invalidate_page;
    let sends_each = send.ns() / cost.targets_per_send.max(1) as u64;
    NotifyCosts {
        interrupt_ns: (send + deliver + handled + lines).ns(),
        interrupt_each_ns: sends_each + (machine.cache.socket * 3 + handled + cost.exit).ns(),
        ..NotifyCosts::default()
    }
}
