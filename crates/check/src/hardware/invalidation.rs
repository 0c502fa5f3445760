//! Asynchronous invalidations. On every CPU, an invalidation may take effect as late as when its
//! issuer waits for it.

use std::fmt;

use super::{Completion, Hardware, Overwritten, PAGE_NUMBERS, Violation};
use crate::memory::Memory;

/// An invalidation that is not complete.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Invalidation {
    issuer: usize,
    reach: Reach,
    what: What,
    /// The entries that its issuer had overwritten and not published when it issued the
    /// invalidation.
    unpublished: Vec<Overwritten>,
    /// The issuer has waited for it, and the wait has ended too early.
    has_waited: bool,
}

/// The commands that the device has not completed. It may act on a command as late as when a CPU
/// finds that the command is complete.
#[derive(Debug, Default, Hash)]
pub(crate) struct DeviceQueue {
    pub(super) commands: Vec<Command>,
    /// Number of commands so far, which is the ticket of the last one.
    pub(super) issued: u64,
}

/// A command to invalidate pages of a root, one bit each, and the cached pointers to tables if
/// `upper` is set.
#[derive(Debug, Hash)]
pub(crate) struct Command {
    pub(super) ticket: u64,
    pub(super) root: usize,
    pub(super) pages: u64,
    pub(super) upper: bool,
    pub(super) issuer: usize,
    /// The entries that its issuer had overwritten and not published when it issued the command.
    pub(super) unpublished: Vec<Overwritten>,
}

/// The CPUs that an invalidation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Only the CPU that issues it.
    Own,
    /// These CPUs, one bit each, and the CPU that issues it; no other CPU and no device.
    Cpus(u64),
    /// All CPUs and the device.
    Everybody,
}

impl Reach {
    /// Returns `true` if an invalidation of `issuer` reaches a CPU, or the device, whose number is
    /// after those of CPUs.
    const fn includes(self, issuer: usize, cpu: usize) -> bool {
        match self {
            Self::Own => cpu == issuer,
            Self::Cpus(cpus) => cpu == issuer || cpus >> cpu & 1 == 1,
            Self::Everybody => true,
        }
    }
}

/// The entries that an invalidation removes.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum What {
    /// A set of pages, one bit each, under `tag` or the loaded one, and the cached pointers to
    /// tables if `upper` is set.
    Pages { tag: Option<u16>, pages: u64, upper: bool },
    /// All entries under a tag.
    Tag(u16),
    /// All entries under a tag that combine two stages.
    Combined(u16),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |set: u64| -> Vec<_> {
            (0..PAGE_NUMBERS).filter(|page| set >> page & 1 == 1).collect()
        };
        match *self {
            Self::Pages { pages: 0, .. } => f.write_str("no page"),
            Self::Pages { tag: None, pages, .. } => write!(f, "pages {:?}", list(pages)),
            Self::Pages { tag: Some(tag), pages, .. } => {
                write!(f, "pages {:?} under tag {tag}", list(pages))
            }
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::Combined(tag) => write!(f, "combined entries under tag {tag}"),
        }
    }
}

impl Hardware {
    /// Begins an invalidation.
    pub(crate) fn issue(&mut self, issuer: usize, reach: Reach, what: What) {
        if reach != Reach::Own {
            self.note_broadcast(issuer);
        }
        let unpublished = self.unpublished(issuer);
        let has_waited = false;
        self.invalidations.push(Invalidation { issuer, reach, what, unpublished, has_waited });
    }

    /// Completes the invalidations that a CPU has issued: the CPUs that they reach hold none of the
    /// entries. Broadcasts are complete as `completion` allows.
    ///
    /// They take effect in any order. The worst is that combined entries are removed first: a
    /// walker may then combine entries again that are still to be removed.
    pub(crate) fn complete_issued(
        &mut self,
        memory: &Memory,
        cpu: usize,
        completion: Completion,
    ) -> Option<Violation> {
        let all = std::mem::take(&mut self.invalidations);
        let (mut own, others): (Vec<_>, _) = all.into_iter().partition(|it| it.issuer == cpu);
        self.invalidations = others;
        own.sort_by_key(|it| !matches!(it.what, What::Combined(_)));
        let mut violation = None;
        for mut invalidation in own {
            let is_complete = completion.includes(invalidation.has_waited);
            for target in 0..self.cpus.len() {
                let is_reached = invalidation.reach.includes(cpu, target);
                if target == cpu || is_complete && is_reached {
                    let found = self.apply(memory, target, &invalidation);
                    violation = violation.or(found);
                }
            }
            let is_empty = matches!(invalidation.what, What::Pages { pages: 0, .. });
            if !is_complete && invalidation.reach != Reach::Own && !is_empty {
                invalidation.has_waited = true;
                self.invalidations.push(invalidation);
            }
        }
        violation
    }

    fn apply(&mut self, memory: &Memory, cpu: usize, by: &Invalidation) -> Option<Violation> {
        let (is_remote, tag) = (cpu != by.issuer, self.cpus[cpu].tag);
        let (of, pages) = match by.what {
            What::Pages { tag: of, pages, .. } => (of.unwrap_or(tag), pages),
            What::Tag(of) | What::Combined(of) => (of, u64::MAX),
        };
        let is_covered = |page| pages >> page & 1 == 1;
        if is_remote && tag == of {
            self.wait_for_accesses(cpu, is_covered);
            self.keep_late(cpu, is_covered);
        }
        match by.what {
            What::Pages { upper, .. } => self.invalidate_under(cpu, of, is_covered, upper),
            What::Tag(_) => self.forget(cpu, Some(of)),
            What::Combined(_) => self.forget_combined(cpu, of),
        }
        self.refetch_unpublished(memory, cpu, by.issuer, &by.unpublished);
        self.fill(memory, cpu)
    }
}
