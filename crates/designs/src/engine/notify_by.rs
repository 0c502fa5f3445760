//! The costs of notifying other CPUs, as far as a kernel can know them: they depend only on the
//! machine's numbers, and not on the workload.

use shootdown::{Broadcast, DomainCosts, NotifyCosts, Reach};

use shootdown_sim::Machine;

/// The methods of notifying other CPUs that the engine may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyBy {
    /// Interrupts and broadcasts, if the machine has both.
    Chosen,
    /// Interrupts only.
    Interrupts,
    /// Broadcasts or remote fences only, if the machine has them.
    Broadcasts,
    /// As `Chosen`. A CPU that is interrupted answers before it invalidates pages.
    EarlyAnswers,
}

/// The capabilities of this machine's broadcasts; `None` if they are unavailable or must not be
/// used.
pub(crate) fn broadcast(machine: &Machine, notify_by: NotifyBy) -> Option<Broadcast> {
    if notify_by == NotifyBy::Interrupts {
        return None;
    }
    if let Some(cost) = &machine.broadcast {
        return Some(Broadcast {
            reach: if machine.domains.is_some() { Reach::Domains } else { Reach::Everyone },
            pages_per_operation: cost.pages_per_operation,
            operation_ceiling: cost.page_ceiling,
            completes_at_issue: false,
        });
    }
    machine.remote_fence.as_ref().map(|cost| Broadcast {
        reach: Reach::Targets,
        // One call names one range, and the firmware drops the whole tag for more pages.
        pages_per_operation: cost.page_ceiling.max(1),
        operation_ceiling: 1,
        completes_at_issue: true,
    })
}

/// The costs of both methods, for the engine's choice between them.
pub(crate) fn costs(machine: &Machine, notify_by: NotifyBy) -> NotifyCosts {
    let costs = interrupt_costs(machine);
    let costs = match (&machine.broadcast, &machine.remote_fence) {
        (Some(cost), _) => {
            let others = machine.cpu_count() as u64 - 1;
            let done = machine.completion_of(cost).max(machine.cache.fence);
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
        NotifyBy::Chosen | NotifyBy::Interrupts | NotifyBy::EarlyAnswers => costs,
    }
}

/// Time that a CPU takes to refill its TLB after its tag was dropped: about 130 walks. The engine's
/// `GAP_MAX` follows from the same estimate.
const REFILL_NS: u64 = 2000;

/// The costs of an invalidation of a tag by `issuer` in the domains of `cpus`; `None` if they are
/// in too many.
pub(crate) fn costs_in_domains(
    machine: &Machine,
    issuer: usize,
    cpus: &[usize],
) -> Option<DomainCosts> {
    let (domains, cost) = (machine.domains.as_ref()?, machine.broadcast.as_ref()?);
    let named = domains.covering(cpus.iter().copied());
    if named.is_empty() || named.len() > domains.most {
        return None;
    }
    let done =
        named.iter().map(|domain| machine.completion_in_domain(domains, issuer, domain.start));
    let each = cost.issue.max(domains.occupy) + cost.victim * domains.cpus as u64;
    let broadcast = cost.issue + done.max()? + each * (named.len() as u64 - 1);
    Some(DomainCosts {
        broadcast_ns: (broadcast + cost.victim * domains.cpus as u64).ns(),
        refill_ns: REFILL_NS * cpus.len() as u64,
    })
}

/// The costs of interrupts.
fn interrupt_costs(machine: &Machine) -> NotifyCosts {
    let cost = &machine.interrupt;
    // The target's presence and doorbell are transferred before the interrupt, and its reply after.
    let lines = machine.cache.socket * 3;
    let handled = cost.entry + cost.acknowledge + machine.tlb.invalidate_page;
    let sends_each = cost.send.ns() / cost.targets_per_send.max(1) as u64;
    NotifyCosts {
        interrupt_ns: (cost.send + cost.deliver_socket + handled + lines).ns(),
        interrupt_each_ns: sends_each + (lines + handled + cost.exit).ns(),
        ..NotifyCosts::default()
    }
}
