//! Replicas: upper page tables of a CPU's own. To the engine, a replica is a space that one CPU
//! uses.

use shootdown::{Extent, Machine as _, Pending, PinnedCpu};
use shootdown_vm::{Change, Freed, Placement, Policy, Replication};

use crate::kernel::load::{Reclaim, Replicas, USER_CODE_START};
use crate::kernel::machine::with_pinned;
use crate::kernel::machine::{Machine, SharedSpace, engine, reclaim, replicas, wait_masked};

/// Returns `true` if this machine can have replicas, and gains by them.
///
/// A broadcast interrupts no CPU, so there is nothing to gain. And where a CPU could write to a
/// page unnoticed, the page is flushed before its batch, which the memory manager does not do for
/// replicas. Tags may be the same on all CPUs: each replica then takes one of them.
pub(crate) fn are_possible() -> bool {
    let machine = engine().machine();
    machine.broadcaster().is_none() && machine.traps_stale_writes()
}

/// Returns a policy with the replicas that this run is for. Threads then map memory in regions of
/// their own: otherwise all of them would use the same tables of the last level.
pub(crate) fn with_replicas(policy: Policy) -> Policy {
    let replication = match replicas() {
        Replicas::Never => return policy,
        Replicas::IfWorth => Replication::IfWorth,
        Replicas::Always | Replicas::Unflushed => Replication::Always,
    };
    Policy { replication, placement: Placement::PerThread, ..policy }
}

/// Starts a flush of a space and of the replicas of other CPUs that share the changed tables.
pub(crate) fn flush(
    space: &SharedSpace,
    sharers: &[&SharedSpace],
    change: &Change,
) -> Pending<'static, Machine> {
    // The fault that this run is for.
    let sharers = if replicas() == Replicas::Unflushed { &[] } else { sharers };
    with_pinned(|pin| {
        let mut pending = flush_tree(&pin, space, change);
        for sharer in sharers {
            pending.join(flush_tree(&pin, sharer, change));
        }
        pending
    })
}

/// Adds a replica to a flush.
pub(crate) fn flush_also(
    pending: &mut Pending<'static, Machine>,
    replica: &SharedSpace,
    change: &Change,
) {
    pending.join(with_pinned(|pin| flush_tree(&pin, replica, change)));
}

/// Flushes one of several trees that lead to the same tables. If tables are freed, interrupts the
/// CPUs that could walk them: there is no horizon for several trees.
fn flush_tree(
    pin: &PinnedCpu<'static, Machine>,
    space: &SharedSpace,
    change: &Change,
) -> Pending<'static, Machine> {
    if change.freed == Freed::Pages {
        return change.flush_by_engine(engine().machine(), pin, space);
    }
    let extents = change.extents.as_slice().iter();
    let flushes = extents.map(|extent| pin.flush(space, extent.freeing_tables()));
    let all = flushes.reduce(|mut all, next| {
        all.join(next);
        all
    });
    all.unwrap_or_else(|| Pending::done(engine()))
}

/// Makes the CPU of a replica drop everything that it has cached by way of the replica.
pub(crate) fn drop_cached(replica: &SharedSpace) {
    let everything = Extent::whole().freeing_tables();
    let mut pending = with_pinned(|pin| pin.flush(replica, everything));
    wait_masked(|| pending.wait());
}

/// Returns `true` if a fault that this run is for leaves a reclaimed page out of the flush of
/// replicas. Without the code, user threads would crash.
pub(crate) fn leaves_out(address: u64) -> bool {
    let has_fault = replicas() == Replicas::Unflushed || reclaim() == Reclaim::Unflushed;
    has_fault && address != USER_CODE_START
}
