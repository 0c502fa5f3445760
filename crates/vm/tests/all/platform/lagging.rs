//! A coherence that does not interrupt lazy CPUs, and reports exactly which page tables such a CPU
//! may still walk.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use shootdown::{Horizon, Root};
use shootdown_vm::{Change, Flush, Lifetimes, Policy, Retired};

use super::{Host, RELEASED, empty_tables, unmap_lock, unused};

/// Invalidates on CPUs that are not lazy. Lazy CPUs invalidate everything when they become active.
#[derive(Clone)]
pub struct Lagging<const LOCK: u8 = RELEASED> {
    host: Host,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// One per CPU.
    lazy: Vec<Option<Lazy>>,
    /// Number of flushes of each space.
    flushes: HashMap<u64, u64>,
    /// Dead spaces that CPUs are lazy on.
    retired_lazy: BTreeSet<u64>,
    /// Dead spaces that no CPU is lazy on any more.
    dead: VecDeque<Root>,
    /// `true` if `retire` never returns `Free`: all roots are then returned by `take_dead`.
    never_free: bool,
    walker_flushes: usize,
    reaps: usize,
}

/// The space that a CPU is lazy on, and the number of its flushes that the CPU has seen.
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

    /// Makes `retire` never return `Free`, as with Shootdown's engine.
    pub fn never_return_free(&self) {
        self.state.lock().never_free = true;
    }

    /// Makes a CPU lazy on a space, or active on it and then lazy again: the CPU has seen all
    /// flushes.
    pub fn go_lazy(&self, cpu: usize, root: Root) {
        let mut state = self.state.lock();
        self.leave(&mut state, cpu, Some(root));
        self.host.0.tlbs[cpu].lock().invalidate_space(root);
        let seen = state.flushes_of(root);
        state.lazy[cpu] = Some(Lazy { root, seen });
    }

    /// Makes a CPU leave the space that it is lazy on.
    pub fn leave_space(&self, cpu: usize) {
        self.leave(&mut self.state.lock(), cpu, None);
    }

    /// Walks to some addresses on a lazy CPU, and caches the paths, as a CPU may do at any time.
    /// The machine detects a walk of a freed table.
    pub fn speculate(&self, cpu: usize, addresses: impl IntoIterator<Item = u64>) {
        let state = self.state.lock();
        if let Some(Lazy { root, .. }) = state.lazy[cpu] {
            addresses.into_iter().for_each(|address| self.host.speculate(cpu, root, address));
        }
    }

    /// Number of times that lazy CPUs were interrupted because of unhooked tables.
    pub fn walker_flushes(&self) -> usize {
        self.state.lock().walker_flushes
    }

    /// Number of times that lazy CPUs were interrupted because of dead spaces.
    pub fn reaps(&self) -> usize {
        self.state.lock().reaps
    }

    fn leave(&self, state: &mut State, cpu: usize, next: Option<Root>) {
        let Some(Lazy { root, .. }) = state.lazy[cpu].take() else { return };
        self.host.0.tlbs[cpu].lock().invalidate_space(root);
        if next != Some(root)
            && state.lazy_cpus(root).next().is_none()
            && state.retired_lazy.remove(&root.0)
        {
            state.dead.push_back(root);
        }
    }
}

impl State {
    fn flushes_of(&self, root: Root) -> u64 {
        self.flushes.get(&root.0).copied().unwrap_or(0)
    }

    fn lazy_cpus(&self, root: Root) -> impl Iterator<Item = usize> {
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
                tlb.lock().invalidate(root, &change);
            }
        }
        horizon
    }
}

impl<const LOCK: u8> Lifetimes for Lagging<LOCK> {
    fn flush_walkers(&self, &root: &Root) -> Horizon {
        let mut state = self.state.lock();
        state.walker_flushes += 1;
        let flush = state.flushes_of(root);
        for cpu in Vec::from_iter(state.lazy_cpus(root)) {
            self.host.0.tlbs[cpu].lock().invalidate_space(root);
            state.lazy[cpu] = Some(Lazy { root, seen: flush });
        }
        Horizon::new(flush, flush)
    }

    fn retire(&self, &root: &Root) -> Retired {
        self.host.0.retired.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut state = self.state.lock();
        for (tlb, lazy) in self.host.0.tlbs.iter().zip(&state.lazy) {
            if lazy.is_none_or(|lazy| lazy.root != root) {
                tlb.lock().invalidate_space(root);
            }
        }
        let is_locked_here = state.lazy_cpus(root).next().is_some();
        if is_locked_here {
            state.retired_lazy.insert(root.0);
        } else if state.never_free {
            state.dead.push_back(root);
        } else {
            return Retired::Free;
        }
        drop(state);
        self.host.begin_wait();
        Retired::Loaded
    }

    fn take_dead(&self) -> Option<Root> {
        self.state.lock().dead.pop_front()
    }

    fn reap(&self) {
        let mut state = self.state.lock();
        state.reaps += 1;
        for cpu in 0..state.lazy.len() {
            if state.lazy[cpu].is_some_and(|lazy| state.retired_lazy.contains(&lazy.root.0)) {
                self.leave(&mut state, cpu, None);
            }
        }
    }
}
