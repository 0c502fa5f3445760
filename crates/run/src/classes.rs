//! The classes of interrupts, as the rows of results have them.

use shootdown_sim::Counts;

use crate::numbers::numbers;

numbers! {
    /// The classes of the flush interrupts that were sent, and the bound.
    ///
    /// The first three add up to the number of interrupts. The last three bound the gain of a
    /// design that records which CPUs use a page table: see
    /// [`classify_interrupts`](shootdown_sim::Sim::classify_interrupts).
    pub struct Classes {
        /// Interrupts that removed a translation which the target would have used.
        pub interrupts_useful: u64,
        /// Interrupts that removed a translation before whose next use the target would have caught
        /// up by itself.
        pub interrupts_early: u64,
        /// Interrupts whose target held no translation of the flushed addresses.
        pub interrupts_in_vain: u64,
        /// Useful and early interrupts.
        pub bound: u64,
        /// Interrupts whose target had read the page table of 2 MiB that a flushed address belongs
        /// to, since it last dropped everything.
        pub interrupts_touched_2mib: u64,
        /// As before, for the table of 1 GiB.
        pub interrupts_touched_1gib: u64,
        /// As before, for the table of 512 GiB.
        pub interrupts_touched_512gib: u64,
    }
}

impl Classes {
    /// Returns the means over several runs. The classes add up to the mean number of interrupts.
    #[must_use]
    pub fn mean(counts: &[Counts]) -> Self {
        let runs = counts.len().max(1) as u64;
        // Rounded to the nearest number.
        let mean = |of: fn(&Counts) -> u64| (counts.iter().map(of).sum::<u64>() + runs / 2) / runs;
        let sent = mean(|counts| counts.interrupts_sent);
        let in_vain = mean(Counts::in_vain).min(sent);
        let useful = mean(Counts::useful).min(sent - in_vain);
        Self {
            interrupts_useful: useful,
            interrupts_early: sent - in_vain - useful,
            interrupts_in_vain: in_vain,
            bound: sent - in_vain,
            interrupts_touched_2mib: mean(|counts| counts.interrupts_touched_2mib),
            interrupts_touched_1gib: mean(|counts| counts.interrupts_touched_1gib),
            interrupts_touched_512gib: mean(|counts| counts.interrupts_touched_512gib),
        }
    }

    /// Returns the number of interrupts divided by the bound, or `None` if there is no bound.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let sent = self.bound + self.interrupts_in_vain;
        (self.bound > 0).then(|| sent as f64 / self.bound as f64)
    }
}

impl From<&Counts> for Classes {
    fn from(counts: &Counts) -> Self {
        Self::mean(core::slice::from_ref(counts))
    }
}
