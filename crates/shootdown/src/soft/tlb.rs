//! A TLB that never evicts, and page tables that detect the use of a freed frame.

use core::hash::Hash;
use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::vec::Vec;

use super::{Frame, Platform};
use crate::base::ids::{Root, Tag};
use crate::base::memory::Word;
use crate::parts::extent::Extent;
use crate::state::machine::Entries;

/// One flat page table. All accesses but one are relaxed, so that only the engine orders them.
pub(super) struct Table<P: Platform> {
    /// For each page, 0 if it is not mapped; otherwise one more than its frame's number of reuses
    /// when it was mapped.
    entries: Vec<P::Word>,
    /// For each page, its frame, which counts its reuses.
    frames: Vec<P::Frame>,
    /// Number of times that page tables were unhooked and replaced.
    tables: P::Word,
    /// The unhooked page tables, which count how often they were freed.
    unhooked: P::Frame,
    /// The page tables in place, which are freed once for each dead space that had this root.
    in_place: P::Frame,
}

impl<P: Platform> Table<P> {
    pub(super) fn new(page_count: usize) -> Self {
        Self {
            entries: (0..page_count).map(|_| P::Word::new(0)).collect(),
            frames: (0..page_count).map(|_| P::Frame::new()).collect(),
            tables: P::Word::new(0),
            unhooked: P::Frame::new(),
            in_place: P::Frame::new(),
        }
    }

    pub(super) fn map(&self, page: usize) {
        self.entries[page].store(self.frames[page].use_count() + 1, Relaxed);
    }

    pub(super) fn unmap(&self, page: usize) {
        self.entries[page].store(0, Relaxed);
    }

    pub(super) fn try_unmap(&self, page: usize) -> bool {
        self.entries[page].swap(0, AcqRel) != 0
    }

    pub(super) fn free(&self, page: usize) {
        self.frames[page].reuse();
    }

    pub(super) fn unhook_tables(&self) {
        self.tables.fetch_add(1, Relaxed);
    }

    pub(super) fn free_tables(&self) {
        self.unhooked.reuse();
    }

    /// Frees the page tables in place, because their space is dead.
    pub(super) fn free_in_place(&self) {
        self.in_place.reuse();
    }

    /// The upper levels that a walk finds now.
    pub(super) fn upper(&self, root: Root) -> Upper {
        Upper { root, tables: self.tables.load(Relaxed), in_place: self.in_place.use_count() }
    }

    /// Returns `true` if the page tables below these upper levels have been freed. Tables in place
    /// and unhooked tables are different memory, so a walk of the former does not have to be
    /// ordered with the freeing of the latter.
    pub(super) fn has_freed(&self, upper: Upper) -> bool {
        if upper.tables == self.tables.load(Relaxed) {
            upper.in_place < self.in_place.use_count()
        } else {
            upper.tables < self.unhooked.use_count()
        }
    }

    fn walk(&self, root: Root, page: usize) -> Option<Translation> {
        let frame_use = self.entries[page].load(Relaxed).checked_sub(1)?;
        Some(Translation { root, frame_use })
    }

    /// Returns `true` if the frame has been freed since the translation was made. (A relaxed load
    /// may return an older count, which does not show that.)
    fn is_stale(&self, page: usize, translation: Translation) -> bool {
        translation.frame_use < self.frames[page].use_count()
    }
}

/// A translation, with the root that it was made from and its frame's number of reuses then.
#[derive(Clone, Copy, Debug)]
struct Translation {
    root: Root,
    frame_use: u64,
}

/// The upper levels of a root at the time when they were cached.
#[derive(Clone, Copy, Debug)]
pub(super) struct Upper {
    root: Root,
    /// Number of times that the root's page tables had been replaced.
    tables: u64,
    /// Number of times that the tables in place had been freed.
    in_place: u64,
}

/// The root of the kernel's table.
const KERNEL: Root = Root(u64::MAX);

/// Result of touching a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Touch {
    /// The page is mapped, and its frame has not been freed.
    Ok,
    /// The page is not mapped.
    Fault,
    /// The frame has been freed, or belongs to another space: the CPU has used a stale translation.
    Stale,
}

/// One CPU's translations.
#[derive(Debug, Default)]
pub(super) struct Tlb {
    root: Option<Root>,
    tag: Tag,
    pages: HashMap<(Tag, usize), Translation>,
    kernel_pages: HashMap<usize, Translation>,
    upper: HashMap<Tag, Upper>,
    kernel_upper: Option<Upper>,
}

impl Tlb {
    /// Loads a root, after a last speculative walk from the old one. Returns `true` if a walk from
    /// one of the two found freed tables.
    pub(super) fn load<P: Platform>(
        &mut self,
        tables: &[Table<P>],
        root: Option<Root>,
        tag: Tag,
        entries: Entries,
    ) -> bool {
        let walked_freed = self.speculate(tables);
        (self.root, self.tag) = (root, tag);
        if entries == Entries::Discard {
            self.discard(tag);
        }
        self.speculate(tables) || walked_freed
    }

    /// Walks page tables as speculation may at any moment. Returns `true` if they have been freed
    /// since their upper levels were cached.
    ///
    /// The walk uses the upper levels that are cached under the loaded tag, of whichever root. If
    /// there are none, it caches those of the loaded root.
    pub(super) fn speculate<P: Platform>(&mut self, tables: &[Table<P>]) -> bool {
        if let Some(root) = self.root {
            self.upper.entry(self.tag).or_insert_with(|| table(tables, root).upper(root));
        }
        let cached = self.upper.get(&self.tag);
        cached.is_some_and(|&upper| table(tables, upper.root).has_freed(upper))
    }

    /// As [`speculate`](Self::speculate), with the kernel's table.
    pub(super) fn speculate_in_kernel<P: Platform>(&mut self, table: &Table<P>) -> bool {
        let cached = *self.kernel_upper.get_or_insert_with(|| table.upper(KERNEL));
        table.has_freed(cached)
    }

    pub(super) fn touch<P: Platform>(&mut self, tables: &[Table<P>], page: usize) -> Touch {
        let Some(root) = self.root else { return Touch::Fault };
        touch(self.pages.entry((self.tag, page)), table(tables, root), root, page)
    }

    pub(super) fn touch_kernel<P: Platform>(&mut self, table: &Table<P>, page: usize) -> Touch {
        touch(self.kernel_pages.entry(page), table, KERNEL, page)
    }

    /// Drops pages under the loaded tag.
    pub(super) fn invalidate(&mut self, tag: Tag, extent: Extent) {
        assert!(tag == self.tag && self.root.is_some(), "the tag must be the loaded one");
        assert!(!extent.is_whole(), "invalidate_tag is for a whole extent");
        self.invalidate_under(tag, extent);
    }

    /// Drops all translations under a tag.
    pub(super) fn discard(&mut self, tag: Tag) {
        self.pages.retain(|&(of, _), _| of != tag);
        self.upper.remove(&tag);
    }

    /// Drops an extent under a tag, which does not have to be loaded.
    pub(super) fn invalidate_under(&mut self, tag: Tag, extent: Extent) {
        if extent.is_whole() {
            self.discard(tag);
            return;
        }
        self.pages.retain(|&(of, page), _| of != tag || !extent.covers((page as u64) << 12));
        if extent.frees_tables() {
            self.upper.remove(&tag);
        }
    }

    pub(super) fn invalidate_kernel(&mut self, extent: Extent) {
        self.kernel_pages.retain(|&page, _| !extent.covers((page as u64) << 12));
        if extent.frees_tables() {
            self.kernel_upper = None;
        }
    }

    pub(super) fn invalidate_all(&mut self) {
        self.pages.clear();
        self.kernel_pages.clear();
        self.upper.clear();
        self.kernel_upper = None;
    }
}

/// Uses a page through its cached translation, which is made by a walk if there is none.
fn touch<P: Platform, K: Hash + Eq>(
    cached: Entry<'_, K, Translation>,
    table: &Table<P>,
    root: Root,
    page: usize,
) -> Touch {
    let translation = match cached {
        Entry::Occupied(cached) => *cached.get(),
        Entry::Vacant(vacant) => match table.walk(root, page) {
            Some(translation) => *vacant.insert(translation),
            None => return Touch::Fault,
        },
    };
    let is_stale = translation.root != root || table.is_stale(page, translation);
    if is_stale { Touch::Stale } else { Touch::Ok }
}

fn table<P: Platform>(tables: &[Table<P>], root: Root) -> &Table<P> {
    &tables[root.0 as usize]
}
