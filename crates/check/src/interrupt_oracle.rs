//! Decides which CPUs a flush of a space may interrupt: those that use the space, and those that
//! are switching from or to any space, at some time during the flush. All other CPUs catch up by
//! themselves.

use crate::memory::Memory;

/// A CPU's use of spaces, as far as other CPUs can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceUse {
    /// The CPU uses no space: it idles, or runs the kernel alone.
    None,
    /// The CPU is about to use a space, or to leave one.
    Switching,
    /// The CPU uses the space with this root.
    Active(usize),
}

/// The kind of entries that a flush invalidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// Pages only. A CPU that does not use the space must not be interrupted.
    Pages,
    /// Page tables as well. A lazy CPU may walk them, so any CPU may be interrupted.
    Tables,
}

/// A flush that has not returned.
#[derive(Clone, Copy, Debug, Hash)]
struct Flush {
    cpu: usize,
    root: usize,
    scope: FlushScope,
    /// CPUs that the flush may interrupt, one bit each: those that have used the space since it
    /// began.
    targets: u64,
}

/// The spaces that CPUs use, and the flushes that have not returned.
#[derive(Debug, Hash)]
pub(crate) struct InterruptOracle {
    uses: Vec<SpaceUse>,
    /// CPUs that use no space any more but whose last stores are not visible yet, one bit each.
    /// Other CPUs must assume that these CPUs still use their old space.
    leaving: u64,
    flushes: Vec<Flush>,
}

impl InterruptOracle {
    pub(crate) fn new(cpus: usize) -> Self {
        Self { uses: vec![SpaceUse::None; cpus], leaving: 0, flushes: Vec::new() }
    }

    /// Sets a CPU's use of spaces.
    pub(crate) fn set_use(&mut self, memory: &Memory, cpu: usize, to: SpaceUse) {
        self.leaving &= !(1 << cpu);
        if to == SpaceUse::None {
            self.leaving |= 1 << cpu;
            return self.has_stored(memory, cpu);
        }
        self.uses[cpu] = to;
        for flush in &mut self.flushes {
            if to == SpaceUse::Switching || to == SpaceUse::Active(flush.root) {
                flush.targets |= 1 << cpu;
            }
        }
    }

    /// Handles a store of a CPU that became visible, which may be its last one.
    pub(crate) fn has_stored(&mut self, memory: &Memory, cpu: usize) {
        if self.leaving >> cpu & 1 == 1 && !memory.has_stored(cpu) {
            self.leaving &= !(1 << cpu);
            self.uses[cpu] = SpaceUse::None;
        }
    }

    /// Begins a flush of a space by a CPU.
    pub(crate) fn begin_flush(&mut self, cpu: usize, root: usize, scope: FlushScope) {
        let is_user = |&(_, it): &(usize, &SpaceUse)| {
            *it == SpaceUse::Switching || *it == SpaceUse::Active(root)
        };
        let users = self.uses.iter().enumerate().filter(is_user);
        let targets = users.fold(0, |set, (user, _)| set | 1 << user);
        self.flushes.push(Flush { cpu, root, scope, targets });
    }

    /// Ends the CPU's last flush.
    pub(crate) fn end_flush(&mut self, cpu: usize) {
        if let Some(last) = self.flushes.iter().rposition(|flush| flush.cpu == cpu) {
            self.flushes.remove(last);
        }
    }

    /// Returns `true` if any CPU is flushing.
    pub(crate) fn is_any_flushing(&self) -> bool {
        !self.flushes.is_empty()
    }

    /// Returns `true` if one of the CPU's flushes may interrupt `target`. Interrupts of a CPU that
    /// is not flushing are not checked.
    pub(crate) fn may_interrupt(&self, cpu: usize, target: usize) -> bool {
        let mut own = self.flushes.iter().filter(|flush| flush.cpu == cpu).peekable();
        own.peek().is_none()
            || own
                .any(|flush| flush.scope == FlushScope::Tables || flush.targets >> target & 1 == 1)
    }
}
