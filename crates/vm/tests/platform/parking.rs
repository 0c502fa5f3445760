//! A coherence whose CPUs come to what was unmapped by themselves, when the test says so.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use shootdown::{Horizon, Root};
use shootdown_vm::{Change, Coherence, Later, Retired, UnmapLock};

use super::Host;

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

impl Coherence for Parking {
    type Space = Root;
    type Pending = (Root, Change);
    type Batch = ();
    type Parked = u64;

    const UNMAP_LOCK: UnmapLock = UnmapLock::Released;

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

    fn flush_later(&self, &root: &Root, change: &Change) -> Later<Self> {
        let number = self.state.last.fetch_add(1, Relaxed);
        self.state.parked.lock().push((number, root, change.clone()));
        Later::Parked(number)
    }

    fn is_over(&self, &parked: &u64) -> bool {
        self.state.parked.lock().iter().all(|&(number, ..)| number != parked)
    }

    fn get_over(&self, parked: u64) {
        let mut all = self.state.parked.lock();
        if let Some(index) = all.iter().position(|&(number, ..)| number == parked) {
            let (_, root, change) = all.remove(index);
            self.state.told.fetch_add(1, Relaxed);
            self.tell_all(root, &change);
        }
    }

    fn retire(&self, &root: &Root) -> Retired {
        self.host.0.tlbs.iter().for_each(|tlb| tlb.lock().forget_space(root));
        Retired::Free
    }

    #[allow(unsafe_code, reason = "the trait's; CPUs of this machine run all spaces at once")]
    unsafe fn switch(&self, _: &Root) {}
    fn enter_lazy(&self) {}
    fn leave(&self) {}
    fn interrupt(&self) {}
}
