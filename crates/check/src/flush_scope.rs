//! Who may be interrupted for a space: whoever uses it, or is on its way from or to any space,
//! while others change it. Everyone else catches up by itself.

use crate::hash::mix;
use crate::memory::Memory;

/// What a CPU does with spaces, as far as others can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It uses none: it idles, or runs the kernel alone.
    None,
    /// It is about to use one, or to leave one.
    Switching,
    /// It uses the space with this root.
    Of(usize),
}

/// What a flush tells others of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushScope {
    /// Pages: whoever does not use them need not know.
    Pages,
    /// Page tables, too, which lazy CPUs may walk: anybody may be told.
    Tables,
}

/// A flush that is under way.
#[derive(Clone, Copy, Debug)]
struct Flush {
    cpu: usize,
    root: usize,
    scope: FlushScope,
    /// Whom it may tell, a bit each: who has used the space since it began.
    may_tell: u64,
}

/// Who uses what, and who flushes what.
#[derive(Debug)]
pub(crate) struct Announcement {
    uses: Vec<Use>,
    /// CPUs that use nothing any more, and whose last stores are not visible yet: others must take
    /// them to be where they were.
    leaving: u64,
    flushes: Vec<Flush>,
}

impl Announcement {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { uses: vec![Use::None; cpus], leaving: 0, flushes: Vec::new() }
    }

    /// A CPU does something else from now on.
    pub(crate) fn changes(&mut self, memory: &Memory, cpu: usize, to: Use) {
        self.leaving &= !(1 << cpu);
        if to == Use::None {
            self.leaving |= 1 << cpu;
            return self.has_stored(memory, cpu);
        }
        self.uses[cpu] = to;
        for flush in &mut self.flushes {
            if to == Use::Switching || to == Use::Of(flush.root) {
                flush.may_tell |= 1 << cpu;
            }
        }
    }

    /// A store of a CPU has become visible: its last one, perhaps.
    pub(crate) fn has_stored(&mut self, memory: &Memory, cpu: usize) {
        if self.leaving >> cpu & 1 == 1 && !memory.has_stored(cpu) {
            self.leaving &= !(1 << cpu);
            self.uses[cpu] = Use::None;
        }
    }

    /// A CPU is about to flush a space.
    pub(crate) fn begin_flush(&mut self, cpu: usize, root: usize, scope: FlushScope) {
        let is_concerned = |&(_, it): &(usize, &Use)| *it == Use::Switching || *it == Use::Of(root);
        let users = self.uses.iter().enumerate().filter(is_concerned);
        let may_tell = users.fold(0, |set, (user, _)| set | 1 << user);
        self.flushes.push(Flush { cpu, root, scope, may_tell });
    }

    /// It has waited for it.
    pub(crate) fn end_flush(&mut self, cpu: usize) {
        if let Some(last) = self.flushes.iter().rposition(|flush| flush.cpu == cpu) {
            self.flushes.remove(last);
        }
    }

    /// Whether anybody flushes.
    pub(crate) fn is_any_flushing(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Whether a CPU may interrupt another: for one of its flushes. What it does besides is not
    /// looked at.
    pub(crate) fn may_interrupt(&self, cpu: usize, target: usize) -> bool {
        let mut own = self.flushes.iter().filter(|flush| flush.cpu == cpu).peekable();
        own.peek().is_none()
            || own
                .any(|flush| flush.scope == FlushScope::Tables || flush.may_tell >> target & 1 == 1)
    }

    pub(crate) fn hash(&self) -> u64 {
        let mut hash = self.leaving;
        for &it in &self.uses {
            hash = mix(
                hash,
                match it {
                    Use::None => 0,
                    Use::Switching => 1,
                    Use::Of(root) => 2 + root as u64,
                },
            );
        }
        for flush in &self.flushes {
            let tables = u64::from(flush.scope == FlushScope::Tables);
            hash = mix(hash, (flush.cpu << 16 | flush.root << 1) as u64 | tables);
            hash = mix(hash, flush.may_tell);
        }
        hash
    }
}
