//! What is counted, per CPU, by the machine itself: no design can forget to.

use core::ops::AddAssign;

use crate::time::Time;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident: $kind:ty,)*) => {
        /// What a CPU did, or all of them together.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: $kind,)* }

        impl Counts {
            /// What was counted after `earlier`.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }

        impl AddAssign for Counts {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Flush interrupts that it sent, one for each target.
    interrupts_sent: u64,
    /// How often another CPU was told of a flush without an interrupt of its own, because one was
    /// on its way, or it was looking anyway.
    interrupts_coalesced: u64,
    /// Those among the interrupts sent whose target had the space loaded, but ran no thread of it.
    interrupts_to_lazy: u64,
    /// Those among them whose target had another space loaded, or none.
    interrupts_to_absent: u64,
    /// Flush interrupts that it took.
    interrupts_taken: u64,
    /// Time that it spent in them.
    interrupted: Time,
    /// Invalidations that it broadcast, by operations of the hardware.
    broadcasts: u64,
    /// How often it had firmware make another CPU invalidate.
    remote_fences: u64,
    /// Time that it waited for those two.
    broadcast_wait: Time,
    /// Time that others' broadcasts and remote fences took from it.
    stolen: Time,
    /// Tags that spaces were given.
    tags_taken: u64,
    /// How often the tags were used up, and all were taken back.
    rollovers: u64,
    /// How often it dropped all of a tag, or everything, for whatever reason.
    flushes_full: u64,
    /// How often it dropped a range, for whatever reason.
    flushes_ranged: u64,
    /// How often it dropped all of a tag because it had loaded a space, or come back to one.
    flushes_full_at_switch: u64,
    /// How often it dropped a range then.
    flushes_ranged_at_switch: u64,
    /// How many pages all those ranges had.
    pages_invalidated: u64,
    /// Loads of a root.
    root_loads: u64,
    /// Those among them that kept what was cached under the tag.
    root_loads_kept: u64,
    /// Accesses to pages.
    accesses: u64,
    /// Those among them that had to walk page tables.
    walks: u64,
    /// Context switches.
    switches: u64,
    /// Threads that came from another CPU.
    migrations: u64,
    /// Time without a thread to run.
    idle: Time,
    /// Time between the sending of a flush and the end of waiting for it.
    flush_wait: Time,
}
