//! A coherence whose CPUs come to what was unmapped by themselves, when the test says so.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use shootdown::{Horizon, Root};
use shootdown_vm::{Change, Defer, Flush, Later, Lifetimes, Policy, Retired, UnmapLock};

use super::{Host, unused};

/// Tells nobody of what was unmapped, and everybody of all else.
#[derive(Clone)]
pub struct Parking {
    host: Host,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// What CPUs are yet to come to, with the number by which it is known.
    parked: Mutex<Vec<(u64, Root, Change)>>,
    last: AtomicU64,
    told: AtomicU64,
}

impl Parking {
    pub fn new(host: &Host) -> Self {
        Self { host: host.clone(), state: Arc::default() }
    }

    /// All CPUs come to what was put off until now.
    pub fn sweep(&self) {
        let parked = std::mem::take(&mut *self.state.parked.lock());
        parked.iter().for_each(|(_, root, change)| self.tell_all(*root, change));
    }

    /// All CPUs come to the oldest.
    pub fn sweep_oldest(&self) {
        let (_, root, change) = self.state.parked.lock().remove(0);
        self.tell_all(root, &change);
    }

    /// Of how many flushes CPUs had to be told after all.
    pub fn told(&self) -> u64 {
        self.state.told.load(Relaxed)
    }

    fn tell_all(&self, root: Root, change: &Change) {
        self.host.0.tlbs.iter().for_each(|tlb| tlb.lock().forget(root, change));
    }
}

unused!(Batching, [] Parking);
unused!(Scheduling, [] Parking);

impl Flush for Parking {
    type Space = Root;
    type Pending = (Root, Change);

    fn policy(&self) -> Policy {
        Policy::new(UnmapLock::Released)
    }

    fn space(&self, root: Root) -> Root {
        root
    }

    fn flush(&self, &root: &Root, change: &Change) -> (Root, Change) {
        self.host.0.flushes.lock().push(change.clone());
        (root, change.clone())
    }

    fn wait(&self, (root, change): (Root, Change)) -> Horizon {
        self.host.begin_wait();
        self.tell_all(root, &change);
        Horizon::CLEAR
    }
}

impl Defer for Parking {
    type Deferred = u64;

    fn flush_later(&self, &root: &Root, change: &Change) -> Later<(Root, Change), u64> {
        let number = self.state.last.fetch_add(1, Relaxed);
        self.state.parked.lock().push((number, root, change.clone()));
        Later::Deferred(number)
    }

    fn is_complete(&self, &parked: &u64) -> bool {
        self.state.parked.lock().iter().all(|&(number, ..)| number != parked)
    }

    fn complete(&self, parked: u64) {
        let mut all = self.state.parked.lock();
        if let Some(index) = all.iter().position(|&(number, ..)| number == parked) {
            let (_, root, change) = all.remove(index);
            self.state.told.fetch_add(1, Relaxed);
            self.tell_all(root, &change);
        }
    }
}

impl Lifetimes for Parking {
    fn retire(&self, &root: &Root) -> Retired {
        self.host.0.tlbs.iter().for_each(|tlb| tlb.lock().forget_space(root));
        Retired::Free
    }
}
