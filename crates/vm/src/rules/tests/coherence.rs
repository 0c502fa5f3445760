//! The smallest coherence for these programs: a flush reads which CPUs are present when it is sent,
//! and invalidates on them when it is waited for.

use alloc::vec::Vec;
use core::convert::Infallible;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use shootdown::{BatchIsFull, Horizon, Root, StaleWrites};

use super::machine::{Host, Target};
use crate::coherence::{Batching, Change, Defer, Flush, Lifetimes, Policy, Retired, Scheduling};
use crate::platform::Platform;

/// Number of spaces and replicas in a batch.
const BATCH_MAX: usize = 2;

pub(crate) struct Present {
    pub(super) host: Host,
    /// The address that a CPU uses right before it loads another root.
    pub(super) last_use: u64,
}

/// Pages that were unmapped, and the roots to which they belong.
#[derive(Default)]
pub(crate) struct Unmapped {
    roots: Vec<Root>,
    pages: Vec<(Root, u64)>,
}

impl Present {
    fn targets(&self, root: Root, change: Option<&Change>) -> Vec<Target> {
        let cpus = self.host.present(root).into_iter();
        cpus.map(|cpu| (cpu, root.0, change.cloned())).collect()
    }
}

impl Flush for Present {
    type Space = Root;
    type Pending = Vec<Target>;

    fn policy(&self) -> Policy {
        self.host.0.policy
    }
    fn space(&self, root: Root) -> Root {
        root
    }
    fn flush(&self, &root: &Root, change: &Change) -> Vec<Target> {
        self.targets(root, Some(change))
    }
    fn replica(&self, _: &Root, root: Root) -> Option<Root> {
        Some(root)
    }
    fn flush_replicas(&self, space: &Root, replicas: &[&Root], change: &Change) -> Vec<Target> {
        let mut targets = self.flush(space, change);
        for replica in replicas {
            self.flush_also(&mut targets, replica, change);
        }
        targets
    }
    fn flush_also(&self, targets: &mut Vec<Target>, &replica: &Root, change: &Change) {
        targets.extend(self.targets(replica, Some(change)));
    }
    fn drop_replica(&self, &replica: &Root) {
        self.wait(self.targets(replica, None));
    }
    fn wait(&self, targets: Vec<Target>) -> Horizon {
        for target in &targets {
            self.host.invalidate(target);
        }
        Horizon::CLEAR
    }
    /// CPU 0 discards in place.
    fn notifications_max(&self, _: &Root) -> Option<usize> {
        (self.host.cpu() == 0).then_some(1)
    }
    fn is_used_elsewhere(&self, _: &Root) -> bool {
        true
    }
}

impl Defer for Present {
    type Deferred = Infallible;
}

impl Batching for Present {
    type Batch = Unmapped;

    fn add_space(&self, batch: &mut Unmapped, &root: &Root) -> Result<(), BatchIsFull> {
        if !batch.roots.contains(&root) {
            if batch.roots.len() == BATCH_MAX {
                return Err(BatchIsFull);
            }
            batch.roots.push(root);
            self.host.0.batched.fetch_add(1, Relaxed);
        }
        Ok(())
    }
    fn unmapped(&self, batch: &mut Unmapped, &root: &Root, address: u64, _: StaleWrites) {
        assert!(batch.roots.contains(&root), "the space is not in the batch");
        batch.pages.push((root, address));
    }
    fn unmapped_in_replica(
        &self,
        batch: &mut Unmapped,
        &root: &Root,
        address: u64,
    ) -> Result<(), BatchIsFull> {
        self.add_space(batch, &root)?;
        batch.pages.push((root, address));
        Ok(())
    }
    fn flush_batch(&self, batch: Unmapped) {
        for (root, address) in batch.pages {
            self.wait(self.flush(&root, &Change::reclaimed(address)));
        }
        self.host.0.batched.fetch_sub(batch.roots.len() as u64, Release);
    }
    fn is_batched(&self, _: &Root) -> bool {
        self.host.0.batched.load(Acquire) != 0
    }
}

impl Lifetimes for Present {
    fn retire(&self, _: &Root) -> Retired {
        Retired::Free
    }
}

impl Scheduling for Present {
    #[expect(unsafe_code, reason = "the trait's `switch` is unsafe")]
    unsafe fn switch(&self, &root: &Root) {
        self.host.load_root(root, self.last_use);
    }
    fn enter_lazy(&self) {}
    fn leave_space(&self) {}
    fn interrupt(&self) {}
}
