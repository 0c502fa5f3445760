//! The costs of a machine, with which the engine makes two choices: to invalidate page by page or
//! to discard the whole tag; and to notify other CPUs with interrupts or with a broadcast.

/// Costs of invalidation on one CPU, from which [`Machine::batch_ceiling`] is derived.
///
/// [`Machine::batch_ceiling`]: crate::Machine::batch_ceiling
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushCosts {
    /// Time to invalidate one page; 0 if one instruction invalidates any number of pages.
    pub invalidate_page_ns: u64,
    /// Time to discard a whole tag, without the page-table walks that refill the TLB afterwards.
    pub full_flush_ns: u64,
}

impl Default for FlushCosts {
    /// The costs of x86 server cores: about 250 cycles for `INVLPG`, and 500 cycles for a write to
    /// CR3 that discards translations.
    #[inline]
    fn default() -> Self {
        Self { invalidate_page_ns: 100, full_flush_ns: 200 }
    }
}

impl FlushCosts {
    /// Number of pages up to which an interrupted CPU invalidates page by page while the sender
    /// waits for it.
    ///
    /// `flush_ceiling` is the number of pages at which both methods cost the same on a CPU that no
    /// other CPU waits for:
    ///
    /// ```text
    /// flush_ceiling · page = full + refill
    /// ```
    ///
    /// The sender of a batch waits until the target has invalidated, but not until the target has
    /// refilled its TLB. So the time to invalidate is lost on both CPUs, and the time to refill on
    /// one:
    ///
    /// ```text
    /// 2 · batch_ceiling · page = 2 · full + refill = full + flush_ceiling · page
    /// ```
    #[inline]
    pub(crate) fn batch_ceiling(self, flush_ceiling: usize) -> usize {
        let Some(full) = self.full_flush_ns.checked_div(self.invalidate_page_ns) else {
            return flush_ceiling;
        };
        let full = usize::try_from(full).unwrap_or(usize::MAX);
        (flush_ceiling.saturating_add(full) / 2).min(flush_ceiling)
    }
}

/// Costs of notifying other CPUs, with which the engine chooses between interrupts and broadcasts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotifyCosts {
    /// Time to interrupt one or more CPUs: to send, and to wait for the first answer.
    pub interrupt_ns: u64,
    /// Additional time for each CPU that is interrupted: the sender's longer wait, and the time
    /// that the target loses.
    pub interrupt_each_ns: u64,
    /// Time to issue and complete a broadcast of one operation while no other CPU broadcasts.
    pub broadcast_ns: u64,
    /// Additional time for each CPU that the broadcast names; 0 if broadcasts name no CPUs.
    pub broadcast_each_ns: u64,
    /// Additional time for each operation of a broadcast after the first.
    pub operation_ns: u64,
}

impl NotifyCosts {
    /// Costs with which a broadcast is always the cheaper method.
    ///
    /// For a kernel that waits for flushes under locks, where CPUs that spin for such a lock have
    /// the interrupt masked and do not answer.
    ///
    /// If the machine [broadcasts](crate::Broadcaster) to every CPU and every space has a
    /// [global](crate::Tagging::Global) tag, flushes then interrupt no CPU, and a wait on the CPU
    /// of the flush depends on no other CPU. The engine still sends interrupts, and waits for
    /// answers, in these cases:
    ///
    /// - a flush that [frees tables](crate::Extent::freeing_tables) or is
    ///   [for a resize](crate::PinnedCpu::flush_for_resize), while a CPU is on its way out of the
    ///   space: a broadcast may not reach such a CPU
    ///   ([`flush_gathered`](crate::PinnedCpu::flush_gathered) does not interrupt it);
    /// - [`flush_walkers`](crate::PinnedCpu::flush_walkers), if there is such a CPU;
    /// - [`reap`](crate::PinnedCpu::reap);
    /// - [`Lifetime::Shoot`](crate::Lifetime::Shoot), when a space is retired;
    /// - a wait with the interrupt unmasked, or on another CPU than that of the flush: it
    ///   interrupts the CPU that has issued the broadcast;
    /// - a machine with too few tags for its CPUs, which cannot broadcast.
    #[must_use]
    pub const fn broadcasts_only(self) -> Self {
        Self { interrupt_ns: u64::MAX, ..self }
    }
}

#[cfg(test)]
mod tests;
