//! A coherence that leaves lazy CPUs alone, and says of page tables exactly which of them such a
//! CPU may still walk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use shootdown::{Horizon, Root};
use shootdown_vm::{Change, Flush, Lifetimes, Policy, Retired};

use super::{Host, RELEASED, empty_tables, unmap_lock, unused};

/// Tells CPUs that are not lazy; the others forget what they know when they come back.
#[derive(Clone)]
pub struct Lagging<const LOCK: u8 = RELEASED> {
    host: Host,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// For each CPU.
    lazy: Vec<Option<Lazy>>,
    /// How many flushes there were of each space.
    flushes: HashMap<u64, u64>,
    /// Dead spaces that CPUs are lazy on.
    owed: BTreeSet<u64>,
    /// Dead spaces that nobody is lazy on any more.
    dead: VecDeque<Root>,
    /// Whether spaces that nobody held are handed out, too, instead of at once being free.
    hands_out_all: bool,
    expels: usize,
    reaps: usize,
}

/// What a CPU is lazy on, and how many flushes of it it has seen.
#[derive(Clone, Copy)]
struct Lazy {
    root: Root,
    seen: u64,
}

impl<const LOCK: u8> Lagging<LOCK> {
    pub fn new(host: &Host) -> Self {
        let lazy = vec![None; host.0.tlbs.len()];
        let state = State { lazy, ..State::default() };
        Self { host: host.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// As Shootdown's engine, which never says that a space is free at once.
    pub fn hand_out_all(&self) {
        self.state.lock().hands_out_all = true;
    }

    /// The CPU goes lazy on a space, whether or not it was already: it has used it meanwhile, and
    /// knows of all flushes.
    pub fn go_lazy(&self, cpu: usize, root: Root) {
        let mut state = self.state.lock();
        self.let_go(&mut state, cpu, Some(root));
        self.host.0.tlbs[cpu].lock().forget_space(root);
        let seen = state.flushes_of(root);
        state.lazy[cpu] = Some(Lazy { root, seen });
    }

    /// The CPU lets go of the space that it is lazy on.
    pub fn let_go_of_space(&self, cpu: usize) {
        self.let_go(&mut self.state.lock(), cpu, None);
    }

    /// What a lazy CPU may do at any moment: it walks to some addresses, and remembers the ways.
    /// The machine notices when it comes by a table that was freed.
    pub fn speculate(&self, cpu: usize, addresses: impl IntoIterator<Item = u64>) {
        let state = self.state.lock();
        if let Some(Lazy { root, .. }) = state.lazy[cpu] {
            addresses.into_iter().for_each(|address| self.host.speculate(cpu, root, address));
        }
    }

    /// How often lazy CPUs were told of unhooked tables.
    pub fn expels(&self) -> usize {
        self.state.lock().expels
    }

    /// How often lazy CPUs were told of dead spaces.
    pub fn reaps(&self) -> usize {
        self.state.lock().reaps
    }

    fn let_go(&self, state: &mut State, cpu: usize, next: Option<Root>) {
        let Some(Lazy { root, .. }) = state.lazy[cpu].take() else { return };
        self.host.0.tlbs[cpu].lock().forget_space(root);
        if next != Some(root) && state.holders(root).next().is_none() && state.owed.remove(&root.0)
        {
            state.dead.push_back(root);
        }
    }
}

impl State {
    fn flushes_of(&self, root: Root) -> u64 {
        self.flushes.get(&root.0).copied().unwrap_or(0)
    }

    fn holders(&self, root: Root) -> impl Iterator<Item = usize> {
        let is_holder = move |&cpu: &usize| self.lazy[cpu].is_some_and(|lazy| lazy.root == root);
        (0..self.lazy.len()).filter(is_holder)
    }
}

unused!(Defer, [const LOCK: u8] Lagging<LOCK>);
unused!(Batching, [const LOCK: u8] Lagging<LOCK>);
unused!(Scheduling, [const LOCK: u8] Lagging<LOCK>);

impl<const LOCK: u8> Flush for Lagging<LOCK> {
    type Space = Root;
    type Pending = (Root, Change, Horizon);

    fn policy(&self) -> Policy {
        Policy { empty_tables: empty_tables(LOCK), ..Policy::new(unmap_lock(LOCK)) }
    }

    fn space(&self, root: Root) -> Root {
        root
    }

    fn flush(&self, &root: &Root, change: &Change) -> Self::Pending {
        self.host.0.flushes.lock().push(change.clone());
        let mut state = self.state.lock();
        let flush = state.flushes_of(root) + 1;
        state.flushes.insert(root.0, flush);
        let lazy = state.lazy.iter().flatten();
        let seen = lazy.filter(|lazy| lazy.root == root).map(|lazy| lazy.seen).min();
        (root, change.clone(), Horizon::new(flush, seen.unwrap_or(flush)))
    }

    fn wait(&self, (root, change, horizon): Self::Pending) -> Horizon {
        self.host.begin_wait();
        let state = self.state.lock();
        for (tlb, lazy) in self.host.0.tlbs.iter().zip(&state.lazy) {
            if lazy.is_none_or(|lazy| lazy.root != root) {
                tlb.lock().forget(root, &change);
            }
        }
        horizon
    }
}

impl<const LOCK: u8> Lifetimes for Lagging<LOCK> {
    fn flush_walkers(&self, &root: &Root) -> Horizon {
        let mut state = self.state.lock();
        state.expels += 1;
        let flush = state.flushes_of(root);
        for cpu in Vec::from_iter(state.holders(root)) {
            self.host.0.tlbs[cpu].lock().forget_space(root);
            state.lazy[cpu] = Some(Lazy { root, seen: flush });
        }
        Horizon::new(flush, flush)
    }

    fn retire(&self, &root: &Root) -> Retired {
        self.host.0.retired.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut state = self.state.lock();
        for (tlb, lazy) in self.host.0.tlbs.iter().zip(&state.lazy) {
            if lazy.is_none_or(|lazy| lazy.root != root) {
                tlb.lock().forget_space(root);
            }
        }
        let is_held = state.holders(root).next().is_some();
        if is_held {
            state.owed.insert(root.0);
        } else if state.hands_out_all {
            state.dead.push_back(root);
        } else {
            return Retired::Free;
        }
        drop(state);
        self.host.begin_wait();
        Retired::Held
    }

    fn take_dead(&self) -> Option<Root> {
        self.state.lock().dead.pop_front()
    }

    fn reap(&self) {
        let mut state = self.state.lock();
        state.reaps += 1;
        for cpu in 0..state.lazy.len() {
            if state.lazy[cpu].is_some_and(|lazy| state.owed.contains(&lazy.root.0)) {
                self.let_go(&mut state, cpu, None);
            }
        }
    }
}
