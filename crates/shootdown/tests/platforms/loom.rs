//! The software machine under loom: every interleaving, and every value that a load may return.
//!
//! loom chooses the interleavings to explore by conflicting accesses, but compares each access only
//! with the *last* access to the same word. So a thread that loads a word and then writes it hides
//! from loom that another thread loaded the word before. If one thread does `load`, and another one
//! `load; compare_exchange`, loom 0.7.2 explores a single order. Most lock-free code has this form,
//! and so has this engine.
//!
//! Therefore each word can have one *witness* per CPU. The CPU inspects its witness at each access,
//! and all other CPUs modify it at each write. So a load and a write conflict even if other
//! accesses lie between them. A witness is a reference count, because that is loom's only object
//! that can be inspected and modified without ordering anything. Witnesses multiply the
//! interleavings, so tests that use [them](with_witnesses) bound the preemptions.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use shootdown::soft::{Frame, Platform};
use shootdown::{CpuId, Word};

/// Largest number of CPUs in a test.
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

/// A word that loom explores. It is boxed, to be as small as an `AtomicU64`, because loom's stacks
/// are small.
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
                // Dropped along with the word, because a drop at this point would order threads.
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

/// A frame that is not atomic: loom fails if a use and the reuse after it are not ordered.
pub(crate) struct LoomFrame(UnsafeCell<u64>);

// SAFETY: loom checks each access to its cell, and an unordered access fails the test.
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
