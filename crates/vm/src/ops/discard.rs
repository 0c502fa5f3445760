//! Discarding pages in place: their contents become zeros where they are, and nothing is flushed.
//!
//! An allocator with an arena for each thread returns memory that only one thread has used, and
//! soon uses it again. If `madvise` clears the entries, it must interrupt every CPU that runs the
//! space, and nearly all of these interrupts are in vain. Instead, a few private anonymous pages
//! are filled with zeros, and stay mapped. A CPU finds zeros also by an old translation, so there
//! is nothing to flush, and the next access needs no fault. The pages are listed, and freed later,
//! many with one flush: see [`free_discarded`](crate::Vm::free_discarded).
//!
//! # Which pages
//!
//! Small pages that only this space maps. If the range has any other page, or pages that no access
//! is allowed to, all its pages are discarded in the usual way, which flushes. Shared areas, files,
//! large pages, and spaces that devices use are left out for the same reason: another user could
//! rely on the contents. The page of zeros stays mapped, because it shows zeros already.
//!
//! Zeroing a page costs about a third of the interruption of a CPU. So at most three pages are
//! zeroed for each notification that a flush would send, and none if the space runs on one CPU. If
//! CPUs have [replicas](crate::replicas), a flush mostly notifies no CPU. But the next access to a
//! page that was zeroed needs no fault, so each other replica counts as a notification.
//!
//! # Lists
//!
//! A space lists at most [`DISCARDED_MAX`] pages. If it has more than two replicas, it has several
//! lists, because CPUs would wait for one: the pages of a page table are on the list that follows
//! from its address. To make room, half of a list's pages are freed; with replicas, only pages of
//! the same tables, because a flush of other pages would concern other CPUs.
//!
//! # Claims
//!
//! The entry is claimed while the page is zeroed, as in copy-on-write. So no migration copies the
//! old contents at the same time, no call frees the page, and the number of its users does not
//! grow: a fork needs the lock. If another call clears the claim, it has discarded the page, and
//! has left the release to this call.
//!
//! CPUs that cache the translation use the page during the claim. A store at that time is as the
//! program's own race with `madvise`: it comes before the zeros or after them. Marks in the entry
//! are kept, because a CPU that caches the entry as dirty does not mark it again.
//!
//! (Linux has no such operation. `MADV_FREE` also leaves pages mapped; it flushes, because it
//! decides by the dirty mark whether a page may be freed. Here the contents decide.)

use alloc::vec::Vec;
use core::ops::Range;

use crate::PAGE_BYTES;
use crate::area::{Area, LargePages};
use crate::coherence::{Discards, Flush};
use crate::discarded::{Choice, DISCARDED_MAX, Listed};
use crate::format::{EMPTY, Format, Leaf};
use crate::gather::Gather;
use crate::mappings::Mappings;
use crate::platform::Platform;
use crate::sharers::Sharers;
use crate::space::AddressSpace;
use crate::system::System;
use crate::table::{Found, change_leaf};

/// Number of pages that are zeroed at most for each notification that a flush would send. Zeroing a
/// page costs 0.1 to 0.2 µs, and an interrupt costs the two CPUs together about 0.6 µs.
const PAGES_PER_NOTIFICATION: usize = 3;
/// Number of replicas up to which all pages are on one list, which then has room for more of them.
/// With more replicas, CPUs would wait for the list: on the simulated `xeon-2s`, `madvise` takes 4
/// to 30 % longer on 4 and 8 CPUs.
const ONE_LIST_REPLICAS_MAX: usize = 2;

impl<S: System> AddressSpace<S> {
    /// Chooses how pages are discarded from now on, in this space and in spaces that are forked
    /// from it. Has no effect if the [policy](crate::Policy::discards) is to discard immediately.
    /// With [`Discards::Immediate`], pages that were discarded in place are freed.
    pub fn set_discards(&self, discards: Discards) {
        self.mappings.discarded.set(discards);
        if discards == Discards::Immediate {
            self.vm.free_discarded_of(&self.mappings, &Choice::All);
        }
    }

    /// Discards the pages in a part of an area in place. Returns `false` if this cannot be done, or
    /// costs more than a flush: nothing is changed then.
    pub(crate) fn discard_in_place(
        &self,
        area: &Area<S::Platform>,
        part: &Range<u64>,
        gather: &mut Gather<'_, S>,
    ) -> bool {
        let Some(pages) = self.pages_to_zero(area, part) else { return false };
        let mut zeroed = 0;
        for page in pages {
            zeroed += usize::from(self.zero(&page, gather));
        }
        self.vm.discards.count_in_place(zeroed);
        true
    }

    /// Returns the pages to zero, which are then on the list. `None` if pages should be discarded
    /// in the usual way.
    fn pages_to_zero(&self, area: &Area<S::Platform>, part: &Range<u64>) -> Option<Vec<Found>> {
        let (vm, mappings) = (&self.vm, &*self.mappings);
        let is_on = vm.policy.discards == Discards::InPlace
            && mappings.discarded.discards() == Discards::InPlace
            && area.is_private_anonymous()
            && part.end - part.start <= DISCARDED_MAX as u64 * PAGE_BYTES;
        if !is_on {
            return None;
        }
        let notifications = vm.coherence.notifications_max(&mappings.coherent)?;
        let notifications = notifications + self.other_sharers(part);
        let notifications = notifications.max(mappings.replicas.in_use().saturating_sub(1));
        let mut pages = Vec::new();
        for found in mappings.tables.entries(&vm.platform, part.clone()) {
            let leaf = found.leaf::<S::Format>().filter(|_| found.slot.level == 0)?;
            if leaf.frame == vm.zero_page {
                continue;
            }
            if leaf.protection.is_empty() || pages.len() == PAGES_PER_NOTIFICATION * notifications {
                return None;
            }
            pages.push(found);
        }
        if !pages.is_empty() {
            self.list_discarded(area, &pages, part)?;
        }
        Some(pages)
    }

    /// Number of other CPUs whose replicas link to the tables of a range.
    fn other_sharers(&self, range: &Range<u64>) -> usize {
        let platform = &self.vm.platform;
        let mut sharers = Sharers::default();
        if self.mappings.replicas.are_used() {
            let add = |table| sharers.add_of(platform, table);
            self.mappings.tables.each_leaf_table(platform, range, add);
        }
        sharers.count_without(platform.cpu())
    }

    /// Lists pages of an area, which is locked, as discarded. `None` if there is no room for them.
    fn list_discarded(
        &self,
        area: &Area<S::Platform>,
        pages: &[Found],
        part: &Range<u64>,
    ) -> Option<()> {
        let (vm, mappings) = (&self.vm, &*self.mappings);
        vm.discards.register(&self.mappings);
        let now_ns = vm.platform.now_ns();
        let table_bytes = S::Format::span(1);
        let first_table = part.start / table_bytes;
        let list = self.list_for(first_table);
        let add = || mappings.discarded.add(list, pages.iter().map(|found| found.address), now_ns);
        let make_room = || {
            if !mappings.replicas.are_used() {
                let all = Choice::OldestHalf(list, 0..u64::MAX);
                return vm.free_discarded_of(&self.mappings, &all);
            }
            // A flush of pages of other tables would concern CPUs that a flush of these does not.
            // The area is locked: for the lock of the space, all CPUs would wait.
            let start = (first_table * table_bytes).max(area.range.start);
            let end = part.end.next_multiple_of(table_bytes).min(area.range.end);
            let near = Choice::OldestHalf(list, start..end);
            vm.free_discarded_if(&self.mappings, &near, |_| true)
        };
        let added = add().or_else(|| {
            make_room();
            add()
        })?;
        vm.discards.count_added(added, now_ns);
        Some(())
    }

    /// Returns the list for the pages of a table. Frees those on the list that was used alone
    /// before.
    fn list_for(&self, table_number: u64) -> Listed {
        let Mappings { discarded, replicas, .. } = &*self.mappings;
        if replicas.in_use() <= ONE_LIST_REPLICAS_MAX {
            return discarded.only_list();
        }
        if !discarded.is_only_list_empty() {
            self.vm.free_discarded_of(&self.mappings, &Choice::Alone);
        }
        discarded.list_of(table_number)
    }

    /// Zeroes a page. If another call changes the entry, or another space has the page, discards it
    /// in the usual way, and returns `false`.
    fn zero(&self, page: &Found, gather: &mut Gather<'_, S>) -> bool {
        let Found { address, slot, entry } = *page;
        let platform = &self.vm.platform;
        let claim = self.mappings.new_claim();
        let is_page = |leaf: Leaf| leaf.frame != self.vm.zero_page && !leaf.protection.is_empty();
        let claimed =
            change_leaf::<S::Format>(platform, slot, entry, |leaf| is_page(leaf).then_some(claim));
        let Some(leaf) = claimed else {
            gather.clear(&(address..address + PAGE_BYTES), LargePages::Own);
            return false;
        };
        if platform.user_count(leaf.frame) == 1 {
            platform.zero_in_place(leaf.frame);
            if platform.compare_exchange(slot.at, claim, S::Format::leaf(leaf)).is_ok() {
                return true;
            }
        }
        let _ = platform.compare_exchange(slot.at, claim, EMPTY);
        gather.remove_page(address, leaf, 0);
        false
    }
}
