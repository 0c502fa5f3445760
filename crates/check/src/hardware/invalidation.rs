//! Asynchronous invalidations. On every CPU, an invalidation may take effect as late as when its
//! issuer waits for it.

use std::fmt;

use super::{Hardware, Overwritten, PAGE_NUMBERS, Violation};
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
}

/// The CPUs that an invalidation reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Only the CPU that issues it.
    Own,
    /// All CPUs and the device.
    Everybody,
}

/// The entries that an invalidation removes.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum What {
    /// A set of pages, one bit each, under `tag` or the loaded one, and the cached pointers to
    /// tables if `upper` is set.
    Pages { tag: Option<u16>, pages: u64, upper: bool },
    /// All entries under a tag.
    Tag(u16),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |set: u64| -> Vec<_> {
            (0..PAGE_NUMBERS).filter(|page| set >> page & 1 == 1).collect()
        };
        match *self {
            Self::Pages { tag: None, pages, .. } => write!(f, "pages {:?}", list(pages)),
            Self::Pages { tag: Some(tag), pages, .. } => {
                write!(f, "pages {:?} under tag {tag}", list(pages))
            }
            Self::Tag(tag) => write!(f, "tag {tag}"),
        }
    }
}

impl Hardware {
    /// Begins an invalidation.
    pub(crate) fn issue(&mut self, issuer: usize, reach: Reach, what: What) {
        let unpublished = self.unpublished(issuer);
        self.invalidations.push(Invalidation { issuer, reach, what, unpublished });
    }

    /// Completes all invalidations that a CPU has issued: the CPUs that they reach hold none of the
    /// entries.
    pub(crate) fn complete_issued(&mut self, memory: &Memory, cpu: usize) -> Option<Violation> {
        let all = std::mem::take(&mut self.invalidations);
        let (own, others): (Vec<_>, _) = all.into_iter().partition(|it| it.issuer == cpu);
        self.invalidations = others;
        let mut violation = None;
        for invalidation in own {
            for target in 0..self.cpus.len() {
                if target == cpu || invalidation.reach == Reach::Everybody {
                    let found = self.apply(memory, target, &invalidation);
                    violation = violation.or(found);
                }
            }
        }
        violation
    }

    fn apply(&mut self, memory: &Memory, cpu: usize, by: &Invalidation) -> Option<Violation> {
        let (is_remote, tag) = (cpu != by.issuer, self.cpus[cpu].tag);
        match by.what {
            What::Pages { tag: of, pages, upper } => {
                let (of, is_covered) = (of.unwrap_or(tag), |page| pages >> page & 1 == 1);
                if is_remote && tag == of {
                    self.wait_for_accesses(cpu, is_covered);
                }
                self.invalidate_under(cpu, of, is_covered, upper);
            }
            What::Tag(of) => {
                if is_remote && tag == of {
                    self.wait_for_accesses(cpu, |_| true);
                }
                self.forget(cpu, Some(of));
            }
        }
        self.refetch_unpublished(memory, cpu, by.issuer, &by.unpublished);
        self.fill(memory, cpu)
    }
}
