//! The sums of flushes: by cause, and by call site. A call site is a cause with the program's part
//! of the call stack.
//!
//! Stacks are sampled. A flush without one belongs to the site of the last sampled flush of its
//! task with the same cause, or of its space; if there is none, to the next one. The stack of a
//! flush that asked no CPU, because no other one ran the program, counts for others as well.

use std::collections::HashMap;

use serde::Serialize;
use shootdown_recording::record::{Frame, SpaceId, TaskId};

use crate::analysis::{Analysis, Flush};
use crate::causes::CauseId;
use crate::costs::Costs;
use crate::doing::OperationId;
use crate::stacks::Chains;

/// Sums of several flushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// Number of flushes.
    pub flushes: u64,
    /// Number of CPUs that were asked to flush.
    pub requests: u64,
    /// Number of interrupts that were sent.
    pub interrupts: u64,
    /// Number of requests to CPUs that were idle, or ran another program.
    pub in_vain: u64,
    /// CPU time of senders and targets, in nanoseconds.
    pub cpu_ns: u64,
    /// The part of `cpu_ns` that was measured.
    pub measured_ns: u64,
}

/// A call site.
#[derive(Clone, Debug)]
pub struct Site {
    /// The cause.
    pub cause: CauseId,
    /// The calls of the program, the innermost first; empty if no stack was sampled.
    pub frames: Vec<Frame>,
    /// The sums of its flushes.
    pub sum: Sum,
    /// Number of its flushes with a call stack of their own.
    pub sampled: u64,
    pub(crate) key: Key,
}

/// The causes and call sites of a recording.
#[derive(Debug)]
pub struct Explanation {
    /// The sum of all flushes.
    pub total: Sum,
    /// The sum of each cause, by cost.
    pub causes: Vec<(CauseId, Sum)>,
    /// The call sites, by cost.
    pub sites: Vec<Site>,
    /// The requests of others to CPUs that ran the program, by number.
    pub suffered: Vec<Suffered>,
    /// The site of each flush.
    pub(crate) site_of: Vec<Key>,
    /// The site of each operation that flushed.
    pub(crate) of_operation: HashMap<OperationId, Key>,
}

/// Flushes that another program or the kernel requested from CPUs that ran the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suffered {
    /// The cause.
    pub cause: CauseId,
    /// The name of the thread that requested them; `None` if no stack was sampled.
    pub sender: Option<String>,
    /// `true` if a thread of the kernel requested them.
    pub is_kernel: bool,
    /// The sums of the flushes.
    pub sum: Sum,
    pub(crate) key: Key,
}

/// A call site: a cause, and the number of a chain of functions. Without a chain, no stack of the
/// cause was sampled.
pub(crate) type Key = (CauseId, Option<u32>);

/// The last sites of tasks and spaces.
#[derive(Default)]
struct Last {
    tasks: HashMap<(TaskId, CauseId), u32>,
    spaces: HashMap<(Option<SpaceId>, CauseId), u32>,
}

impl Last {
    fn set(&mut self, flush: &Flush, chain: u32) {
        self.tasks.insert((flush.task, flush.cause), chain);
        self.spaces.insert((flush.space, flush.cause), chain);
    }

    fn of(&self, flush: &Flush) -> Option<u32> {
        let of_task = self.tasks.get(&(flush.task, flush.cause));
        of_task.or_else(|| self.spaces.get(&(flush.space, flush.cause))).copied()
    }
}

impl Explanation {
    /// Sums the flushes of a recording.
    #[must_use]
    pub fn of(analysis: &Analysis, costs: Costs) -> Self {
        let mut chains = Chains::default();
        let site_of = assign(analysis, &mut chains);
        let mut sites: HashMap<Key, Site> = HashMap::new();
        let mut causes: HashMap<CauseId, Sum> = HashMap::new();
        let mut total = Sum::default();
        let mut of_operation = HashMap::new();
        let own = |(flush, _): &(&Flush, &Key)| flush.space.is_some();
        for (flush, &key) in analysis.flushes.iter().zip(&site_of).filter(own) {
            let site = sites.entry(key).or_insert_with(|| Site {
                cause: flush.cause,
                frames: Vec::new(),
                sum: Sum::default(),
                sampled: 0,
                key,
            });
            if let Some(stack) = flush.stack {
                site.sampled += u64::from(flush.requests > 0);
                if site.frames.is_empty() {
                    site.frames = analysis.frames.program(stack);
                }
            }
            if flush.requests == 0 {
                continue;
            }
            let cause = causes.entry(flush.cause).or_default();
            for sum in [&mut total, cause, &mut site.sum] {
                sum.add(flush, costs);
            }
            if let Some(operation) = flush.operation {
                of_operation.insert(operation, key);
            }
        }
        let mut sites: Vec<_> = sites.into_values().filter(|it| it.sum.requests > 0).collect();
        sites.sort_by_key(|site| (std::cmp::Reverse(site.sum.cpu_ns), site.key));
        let mut causes: Vec<_> = causes.into_iter().collect();
        causes.sort_by_key(|(cause, sum)| (std::cmp::Reverse(sum.cpu_ns), *cause));
        let suffered = suffered(analysis, &site_of, costs);
        Self { total, causes, sites, suffered, site_of, of_operation }
    }

    /// Returns the site of a flush of the program; `None` of another one.
    #[must_use]
    pub fn site_of(&self, analysis: &Analysis, flush: usize) -> Option<&Site> {
        analysis.flushes.get(flush)?.space?;
        self.sites.iter().find(|site| site.key == self.site_of[flush])
    }

    /// Returns the name of the thread that requested a flush for another program or the kernel.
    #[must_use]
    pub fn sender_of(&self, analysis: &Analysis, flush: usize) -> Option<&str> {
        analysis.flushes.get(flush).filter(|flush| flush.space.is_none())?;
        self.suffered.iter().find(|row| row.key == self.site_of[flush])?.sender.as_deref()
    }

    /// Returns each flush of the program that asked a CPU, with the index of its site in `sites`.
    pub fn flushes<'a>(
        &'a self,
        analysis: &'a Analysis,
    ) -> impl Iterator<Item = (&'a Flush, usize)> {
        let index: HashMap<_, _> = self.sites.iter().map(|site| site.key).zip(0..).collect();
        let flushes = analysis.flushes.iter().zip(&self.site_of);
        flushes
            .filter(|(flush, _)| flush.requests > 0 && flush.space.is_some())
            .map(move |(flush, key)| (flush, index[key]))
    }
}

/// Returns the sums of the flushes of others.
fn suffered(analysis: &Analysis, site_of: &[Key], costs: Costs) -> Vec<Suffered> {
    let mut senders: HashMap<Key, Option<String>> = HashMap::new();
    let mut sums: HashMap<(Key, bool), Sum> = HashMap::new();
    let flushes = analysis.flushes.iter().zip(site_of);
    for (flush, &key) in flushes.filter(|(flush, _)| flush.space.is_none()) {
        sums.entry((key, flush.task == TaskId::KERNEL)).or_default().add(flush, costs);
        if let Some(stack) = flush.stack {
            let name = analysis.frames.program(stack).pop().map(|frame| frame.function);
            senders.insert(key, name);
        }
    }
    let mut suffered: Vec<_> = sums
        .into_iter()
        .map(|((key, is_kernel), sum)| {
            let sender = senders.get(&key).cloned().flatten();
            Suffered { cause: key.0, sender, is_kernel, sum, key }
        })
        .collect();
    suffered.sort_by(|one, other| {
        let order = |it: &Suffered| (std::cmp::Reverse(it.sum.requests), it.cause);
        order(one).cmp(&order(other)).then_with(|| one.sender.cmp(&other.sender))
    });
    suffered
}

/// Returns the site of each flush.
fn assign(analysis: &Analysis, chains: &mut Chains) -> Vec<Key> {
    let flushes = &analysis.flushes;
    let mut found: Vec<Key> = flushes.iter().map(|flush| (flush.cause, None)).collect();
    let mut last = Last::default();
    let mut assign_in = |order: &mut dyn Iterator<Item = usize>, last: &mut Last| {
        for index in order {
            let flush = &flushes[index];
            let own = flush.stack.map(|stack| analysis.frames.site_of(stack, chains));
            if let Some(chain) = own {
                last.set(flush, chain);
            }
            found[index].1 = found[index].1.or(own).or_else(|| last.of(flush));
        }
    };
    assign_in(&mut (0..flushes.len()), &mut last);
    // Those before the first sample: as the next one.
    assign_in(&mut (0..flushes.len()).rev(), &mut Last::default());
    found
}

impl Sum {
    /// Returns each number with that of another sum, by an operation such as an addition.
    #[must_use]
    pub fn combined(&self, other: &Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            flushes: by(self.flushes, other.flushes),
            requests: by(self.requests, other.requests),
            interrupts: by(self.interrupts, other.interrupts),
            in_vain: by(self.in_vain, other.in_vain),
            cpu_ns: by(self.cpu_ns, other.cpu_ns),
            measured_ns: by(self.measured_ns, other.measured_ns),
        }
    }

    /// Adds a flush.
    pub fn add(&mut self, flush: &Flush, costs: Costs) {
        self.flushes += 1;
        self.requests += u64::from(flush.requests);
        self.interrupts += u64::from(flush.interrupts);
        self.in_vain += u64::from(flush.in_vain);
        self.cpu_ns += Analysis::cpu_ns(flush, costs);
        if flush.is_measured {
            self.measured_ns += flush.sender_ns;
        }
    }
}
