//! A set of CPUs in shared memory (`mm_cpumask`): 512 CPUs to a cache line, as in Linux.

use core::sync::atomic::Ordering::Relaxed;

use shootdown::Word;
use shootdown_sim::SimWord;

#[derive(Debug)]
#[repr(align(64))]
struct Line([SimWord; 8]);

/// A set of CPUs, changed by locked operations.
#[derive(Debug)]
pub(crate) struct CpuMask {
    lines: Vec<Line>,
    cpus: usize,
    words: usize,
}

impl CpuMask {
    pub(crate) fn new(cpus: usize) -> Self {
        let words = cpus.div_ceil(64);
        let line = |_| Line(core::array::from_fn(|_| SimWord::with(0)));
        Self { lines: (0..words.div_ceil(8)).map(line).collect(), cpus, words }
    }

    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.word(cpu / 64).load(Relaxed) >> (cpu % 64) & 1 == 1
    }

    pub(crate) fn insert(&self, cpu: usize) {
        self.word(cpu / 64).fetch_or(1 << (cpu % 64), Relaxed);
    }

    pub(crate) fn remove(&self, cpu: usize) {
        self.word(cpu / 64).fetch_and(!(1 << (cpu % 64)), Relaxed);
    }

    /// Adds all CPUs except `but`, and removes `but`, if that is not already so
    /// (`cpumask_setall` and `cpumask_clear_cpu`).
    pub(crate) fn fill_but(&self, but: Option<usize>) {
        let wanted = |index: usize| match but {
            Some(cpu) if cpu / 64 == index => self.all(index) & !(1 << (cpu % 64)),
            _ => self.all(index),
        };
        let is_full =
            |&index: &usize| self.word(index).load(Relaxed) & wanted(index) == wanted(index);
        if !(0..self.words).all(|index| is_full(&index)) {
            (0..self.words).for_each(|index| self.word(index).store(self.all(index), Relaxed));
        }
        if let Some(cpu) = but.filter(|&cpu| self.contains(cpu)) {
            self.remove(cpu);
        }
    }

    /// Removes all members (`cpumask_clear`).
    pub(crate) fn clear(&self) {
        (0..self.words).for_each(|index| self.word(index).store(0, Relaxed));
    }

    /// The members except `but`, in order.
    pub(crate) fn others(&self, but: usize) -> Vec<usize> {
        let mut cpus = self.members();
        cpus.retain(|&cpu| cpu != but);
        cpus
    }

    /// The members, in order.
    pub(crate) fn members(&self) -> Vec<usize> {
        let mut cpus = Vec::new();
        for index in 0..self.words {
            let mut word = self.word(index).load(Relaxed);
            while word != 0 {
                cpus.push(index * 64 + word.trailing_zeros() as usize);
                word &= word - 1;
            }
        }
        cpus
    }

    /// The value of a word if all its CPUs are members.
    fn all(&self, index: usize) -> u64 {
        let cpus = self.cpus - index * 64;
        if cpus >= 64 { u64::MAX } else { (1 << cpus) - 1 }
    }

    fn word(&self, index: usize) -> &SimWord {
        &self.lines[index / 8].0[index % 8]
    }
}
