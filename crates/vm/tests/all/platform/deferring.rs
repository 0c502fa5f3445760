//! A coherence that defers the flushes of unmaps until the test performs them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use shootdown::{Horizon, Root};
use shootdown_vm::{Change, Defer, Flush, Later, Lifetimes, Policy, Retired, UnmapLock};

use super::lock::before_next_lock;
use super::{Hook, Host, unused};

/// Defers the flushes of unmaps, and performs all other flushes.
#[derive(Clone)]
pub struct Deferring {
    host: Host,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Flushes that CPUs have not performed yet, with their numbers.
    deferred: Mutex<Vec<(u64, Root, Change)>>,
    last: AtomicU64,
    notified: AtomicU64,
    /// Called once: see [`Deferring::when_deferred`] and [`Deferring::when_completed`].
    hook: Mutex<Option<Hook>>,
}

impl Deferring {
    pub fn new(host: &Host) -> Self {
        Self { host: host.clone(), state: Arc::default() }
    }

    /// Performs all deferred flushes on all CPUs.
    pub fn sweep(&self) {
        let deferred = std::mem::take(&mut *self.state.deferred.lock());
        deferred.iter().for_each(|(_, root, change)| self.invalidate_all(*root, change));
    }

    /// Performs the oldest deferred flush on all CPUs.
    pub fn sweep_oldest(&self) {
        let (_, root, change) = self.state.deferred.lock().remove(0);
        self.invalidate_all(root, &change);
    }

    /// Number of flushes for which CPUs had to be notified.
    pub fn notified(&self) -> u64 {
        self.state.notified.load(Relaxed)
    }

    /// Calls `hook` after the next flush was deferred, before its thread takes a lock.
    pub fn when_deferred(&self, hook: impl FnOnce() + Send + 'static) {
        *self.state.hook.lock() = Some(Box::new(hook));
    }

    /// Calls `hook` when the memory manager next completes a flush, before CPUs are notified.
    pub fn when_completed(&self, hook: impl FnOnce() + Send + 'static) {
        self.when_deferred(hook);
    }

    fn invalidate_all(&self, root: Root, change: &Change) {
        self.host.0.tlbs.iter().for_each(|tlb| tlb.lock().invalidate(root, change));
    }
}

unused!(Batching, [] Deferring);
unused!(Scheduling, [] Deferring);

impl Flush for Deferring {
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
        self.invalidate_all(root, &change);
        Horizon::CLEAR
    }
}

impl Defer for Deferring {
    type Deferred = u64;

    fn flush_later(&self, &root: &Root, change: &Change) -> Later<(Root, Change), u64> {
        let number = self.state.last.fetch_add(1, Relaxed);
        self.state.deferred.lock().push((number, root, change.clone()));
        if let Some(hook) = self.state.hook.lock().take() {
            before_next_lock(hook);
        }
        Later::Deferred(number)
    }

    fn is_complete(&self, &deferred: &u64) -> bool {
        self.state.deferred.lock().iter().all(|&(number, ..)| number != deferred)
    }

    fn complete(&self, deferred: u64) {
        if let Some(hook) = self.state.hook.lock().take() {
            hook();
        }
        let mut all = self.state.deferred.lock();
        if let Some(index) = all.iter().position(|&(number, ..)| number == deferred) {
            let (_, root, change) = all.remove(index);
            self.state.notified.fetch_add(1, Relaxed);
            self.invalidate_all(root, &change);
        }
    }
}

impl Lifetimes for Deferring {
    fn retire(&self, &root: &Root) -> Retired {
        self.host.0.tlbs.iter().for_each(|tlb| tlb.lock().invalidate_space(root));
        Retired::Free
    }
}
