//! The CPUs that may have cached a page-table entry, as far as a kernel can know that from the
//! entry's accessed bit (Amit, "Optimizing the TLB Shootdown Algorithm with Page Access Tracking",
//! USENIX ATC 2017).
//!
//! A CPU sets the accessed bit before it caches an entry. If the kernel puts the first translation
//! into the TLB of one CPU itself, and leaves the bit clear, then the bit stays clear as long as no
//! other CPU caches the entry. The kernel keeps the number of that CPU in free bits of the entry,
//! also when it clears the entry, until the flush.

use std::collections::HashMap;

use crate::memory::{ENTRIES, FrameNumber};

/// The CPUs that may have cached an entry since it was last flushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No CPU.
    #[default]
    None,
    /// One CPU.
    One(usize),
    /// This CPU flushes the entry, which has not been used since the flush began.
    Flushing(usize),
    /// Any CPU: the entry was accessed.
    Any,
}

/// The holders of the entries of each table, if a design tracks them.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    pub(crate) is_tracked: bool,
    pub(crate) tables: HashMap<FrameNumber, Box<[Holder]>>,
}

impl Holders {
    /// The holder of an entry.
    pub(crate) fn of(&mut self, table: FrameNumber, index: usize) -> &mut Holder {
        let new = || vec![Holder::None; ENTRIES].into_boxed_slice();
        &mut self.tables.entry(table).or_insert_with(new)[index]
    }
}

/// The accessed bit of an entry whose translation is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marking {
    /// The MMU sets it.
    Set,
    /// It stays clear, because the translation comes from other tables.
    Clear,
}
