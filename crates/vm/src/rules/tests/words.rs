//! The words that CPUs share, as loom explores them.
//!
//! loom compares an access only with the last access to the same word that could conflict. If a CPU
//! loads a word and then writes it, loom overlooks that the write conflicts with an earlier load of
//! another CPU. Therefore each word has a *witness* for each CPU, as in the tests of the engine
//! (`crates/shootdown/tests/platforms/loom.rs`): the CPU inspects its witness at each access, and
//! all other CPUs modify it at each write. A witness is a reference count, because that is loom's
//! only object that can be inspected and modified without ordering anything.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use std::sync::OnceLock;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as Word;

loom::thread_local! {
    static CPU: Cell<usize> = Cell::new(0);
}

/// The CPU that this thread runs on.
pub(super) fn cpu() -> usize {
    CPU.with(Cell::get)
}

/// Makes this thread run on a CPU.
pub(super) fn run_on(cpu: usize) {
    CPU.with(|here| here.set(cpu));
}

std::thread_local! {
    // All threads of loom are on one thread of the machine.
    static CPUS: Cell<usize> = const { Cell::new(1) };
}

/// Sets the number of CPUs, before the first word is made.
pub(super) fn set_cpus(count: usize) {
    CPUS.set(count);
}

/// A word with witnesses, in a box because loom's stacks are small.
pub(crate) struct AtomicU64(Box<Witnessed>);

struct Witnessed {
    word: Word,
    witnesses: OnceLock<Vec<Arc<()>>>,
    modifications: parking_lot::Mutex<Vec<Arc<()>>>,
}

impl AtomicU64 {
    pub(crate) fn new(value: u64) -> Self {
        let modifications = parking_lot::Mutex::default();
        Self(Box::new(Witnessed {
            word: Word::new(value),
            witnesses: OnceLock::new(),
            modifications,
        }))
    }

    fn read(&self) -> &Word {
        let witnesses =
            self.0.witnesses.get_or_init(|| (0..CPUS.get()).map(|_| Arc::new(())).collect());
        let _ = Arc::strong_count(&witnesses[cpu()]);
        &self.0.word
    }

    fn write(&self) -> &Word {
        let word = self.read();
        for (of, witness) in self.0.witnesses.get().into_iter().flatten().enumerate() {
            if of != cpu() {
                let modified = Arc::clone(witness);
                // Dropped along with the word, because a drop at this point would order threads.
                self.0.modifications.lock().push(modified);
            }
        }
        word
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.read().load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.write().store(value, order);
    }

    pub(crate) fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.write().swap(value, order)
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.write().fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.write().fetch_sub(value, order)
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.write().fetch_or(value, order)
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.write().fetch_and(value, order)
    }

    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        self.write().fetch_update(set, fetch, update)
    }

    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.write().compare_exchange(current, new, success, failure)
    }
}

/// A word that one CPU at a time writes. loom executes stores to one word in one order only, so
/// that it overlooks stores that could take effect in another. The cell shows it that each store
/// comes after the store before it.
pub(crate) struct OwnedWord {
    word: AtomicU64,
    writes: UnsafeCell<()>,
}

// SAFETY: loom checks each access to the cell, and an unordered access fails the test.
#[expect(unsafe_code, reason = "loom's cells are checked by loom")]
unsafe impl Sync for OwnedWord {}

impl OwnedWord {
    pub(crate) fn new(value: u64) -> Self {
        Self { word: AtomicU64::new(value), writes: UnsafeCell::new(()) }
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.writes.with_mut(|_| ());
        self.word.store(value, order);
    }
}
