//! *Domains*: a broadcast that reaches the CPUs of some domains only (Arm: TLBI domains).
//!
//! The domains of a flush are those of the CPUs that its scan found present: the CPUs of the
//! space's mask that could be using the space now. A CPU that is not among them catches up when it
//! comes back, by the handshake of every flush; whether the broadcast happened to reach it makes no
//! difference. So the space does not count as clean everywhere, and the domains need not be exact:
//! they must contain the CPUs that are present, and may contain others.
//!
//! Only operations on a whole tag can name domains. A flush of a few pages therefore has a choice:
//! to drop the pages on every CPU, or the tag on few CPUs, which then refill their TLBs. One of 64
//! flushes still reaches every CPU, to close the [gap](super::GAP_MAX).

use crate::base::costs::NotifyCosts;
use crate::parts::cpu_set::{CpuBits, CpuSet};
use crate::state::broadcaster::Broadcaster;

/// The costs of a broadcast in the domains of the CPUs of `present`, if it costs less than a
/// broadcast of `operations` to every CPU (`None`: of the whole tag).
pub(super) fn narrower<B: CpuBits>(
    broadcaster: &impl Broadcaster,
    wide: &NotifyCosts,
    present: &CpuSet<B>,
    operations: Option<usize>,
) -> Option<NotifyCosts> {
    let in_domains = broadcaster.costs_in_domains(present)?;
    let further = operations.unwrap_or(1) as u64 - 1;
    let wide_ns = wide.broadcast_ns.saturating_add(wide.operation_ns.saturating_mul(further));
    let refill_ns = if operations.is_none() { 0 } else { in_domains.refill_ns };
    let broadcast_ns = in_domains.broadcast_ns.saturating_add(refill_ns);
    (broadcast_ns < wide_ns).then_some(NotifyCosts { broadcast_ns, ..*wide })
}
