//! The software machine under loom: every interleaving, and every value that a load may return.
//!
//! loom decides which interleavings to try from the accesses that conflict, and compares each
//! access with the *last* one to the same word only. A thread that loads a word and then writes it
//! therefore hides from loom that another thread loaded it before: of two threads of which one does
//! `load` and the other `load; compare_exchange`, loom 0.7.2 tries a single order. That is how most
//! lock-free code looks, ours included. So each word can be accompanied by one witness per CPU,
//! which that CPU inspects at each access, and all others modify at each write: whatever lies
//! between, the two conflict. Witnesses are reference counts, the only object of loom's that can
//! be inspected and modified without ordering anything. They multiply the interleavings, so tests
//! bound the preemptions where they use [them](with_witnesses).

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use shootdown::soft::{Frame, Platform};
use shootdown::{CpuId, Word};

/// The most CPUs that any test has.
const CPUS: usize = 4;

std::thread_local! {
    static WITNESSES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `model` with witnesses for every word.
pub(crate) fn with_witnesses<T>(model: impl FnOnce() -> T) -> T {
    WITNESSES.set(true);
    let result = model();
    WITNESSES.set(false);
    result
}

/// Threads, words and frames that loom explores.
#[derive(Debug)]
pub(crate) struct Loom;

/// A word that loom explores, as small as a real one: loom's stacks are.
pub(crate) struct LoomWord(Box<Witnessed>);

struct Witnessed {
    value: AtomicU64,
    witnesses: OnceLock<[Arc<()>; CPUS]>,
    modifications: Mutex<Vec<Arc<()>>>,
}

impl Witnessed {
    fn witnesses(&self) -> &[Arc<()>; CPUS] {
        self.witnesses.get_or_init(|| std::array::from_fn(|_| Arc::new(())))
    }

    fn read(&self) -> &AtomicU64 {
        if !WITNESSES.get() {
            return &self.value;
        }
        let _ = Arc::strong_count(&self.witnesses()[Loom::cpu().index()]);
        &self.value
    }

    fn write(&self) -> &AtomicU64 {
        if !WITNESSES.get() {
            return &self.value;
        }
        for (cpu, witness) in self.witnesses().iter().enumerate() {
            if cpu != Loom::cpu().index() {
                let modified = Arc::clone(witness);
                // Given back when the word is dropped: to do so now would order threads.
                self.modifications.lock().unwrap().push(modified);
            }
        }
        self.read()
    }
}

impl Word for LoomWord {
    fn new(value: u64) -> Self {
        Self(Box::new(Witnessed {
            value: AtomicU64::new(value),
            witnesses: OnceLock::new(),
            modifications: Mutex::new(Vec::new()),
        }))
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.read().load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.write().store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.write().swap(value, order)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.write().fetch_add(value, order)
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.write().fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.write().fetch_and(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.write().compare_exchange(current, new, success, failure)
    }
}

/// A frame that is not atomic: loom fails where a use and the reuse after it are unordered.
pub(crate) struct LoomFrame(UnsafeCell<u64>);

// SAFETY: loom's cell is checked: an unordered access to it fails the test.
unsafe impl Sync for LoomFrame {}

impl Frame for LoomFrame {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }
    fn use_count(&self) -> u64 {
        // SAFETY: loom has just checked that no write is concurrent.
        self.0.with(|count| unsafe { *count })
    }
    fn reuse(&self) {
        // SAFETY: loom has just checked that no other access is concurrent.
        self.0.with_mut(|count| unsafe { *count += 1 });
    }
}

loom::thread_local! {
    static CPU: Cell<CpuId> = Cell::new(CpuId(0));
}

impl Platform for Loom {
    type Word = LoomWord;
    type Frame = LoomFrame;
    fn fence() {
        fence(Ordering::SeqCst);
    }
    fn spin_hint() {
        loom::thread::yield_now();
    }
    fn cpu() -> CpuId {
        CPU.with(Cell::get)
    }
    fn set_cpu(cpu: CpuId) {
        CPU.with(|this| this.set(cpu));
    }
}
