//! A TLB that never forgets, and page tables that know when what they mapped has been reused.

use core::sync::atomic::Ordering::{AcqRel, Relaxed};
use std::collections::HashMap;
use std::vec::Vec;

use super::{Frame, Platform};
use crate::extent::Extent;
use crate::ids::{Root, Tag};
use crate::machine::Entries;
use crate::memory::Word;

/// One flat page table. All accesses are relaxed but for one: what order there is, the engine must
/// bring about.
pub(super) struct Table<P: Platform> {
    /// Per page: 0 where nothing is mapped, else one more than how often its frame had been freed.
    entries: Vec<P::Word>,
    /// Per page: how often its frame has been freed.
    frames: Vec<P::Frame>,
    /// How often page tables were unhooked, and others put in their place.
    tables: P::Word,
    /// How often unhooked page tables were given away.
    unhooked: P::Frame,
    /// How often those in place were: once for each space that died with this root.
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

    pub(super) fn take(&self, page: usize) -> bool {
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

    /// The space is dead.
    pub(super) fn free_in_place(&self) {
        self.in_place.reuse();
    }

    /// The page tables that a walk finds.
    fn upper(&self, root: Root) -> Upper {
        Upper { root, tables: self.tables.load(Relaxed), in_place: self.in_place.use_count() }
    }

    /// Whether page tables that were found so have been given away. Those in place are other memory
    /// than those unhooked, and who walks the former need not be ordered with the freeing of the
    /// latter.
    fn has_freed(&self, upper: Upper) -> bool {
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

    /// Whether the frame has been given away since the translation was made. (An older count, as
    /// a relaxed load may return, is no such sign.)
    fn is_stale(&self, page: usize, translation: Translation) -> bool {
        translation.frame_use < self.frames[page].use_count()
    }
}

/// A translation knows where it was made, and which use of its frame that was.
#[derive(Clone, Copy, Debug)]
struct Translation {
    root: Root,
    frame_use: u64,
}

/// The upper levels of a root, as they were when they were cached.
#[derive(Clone, Copy, Debug)]
struct Upper {
    root: Root,
    /// Which of the root's page tables: the n-th.
    tables: u64,
    /// How often those in place had been given away.
    in_place: u64,
}

/// Stands for the kernel's table.
const KERNEL: Root = Root(u64::MAX);

/// What came of touching a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Touch {
    /// The page is mapped, and its frame is still its own.
    Ok,
    /// Nothing is mapped there.
    Fault,
    /// The frame has been freed, or is another space's: the CPU has used a dead translation.
    Stale,
}

/// One CPU's translations.
#[derive(Debug)]
pub(super) struct Tlb {
    root: Option<Root>,
    tag: Tag,
    pages: HashMap<(Tag, usize), Translation>,
    kernel_pages: HashMap<usize, Translation>,
    upper: HashMap<Tag, Upper>,
}

impl Tlb {
    pub(super) fn new() -> Self {
        Self {
            root: None,
            tag: Tag::KERNEL,
            pages: HashMap::new(),
            kernel_pages: HashMap::new(),
            upper: HashMap::new(),
        }
    }

    /// Loads a root, after one last speculative walk through the old one. Returns whether either
    /// walked freed tables.
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

    /// Walks page tables as speculation may at any moment: those whose upper levels are cached
    /// under the tag that is loaded, whosever they are, or else those of the loaded root, which are
    /// cached then. Returns whether they have been freed since they were cached.
    pub(super) fn speculate<P: Platform>(&mut self, tables: &[Table<P>]) -> bool {
        if let Some(root) = self.root {
            self.upper.entry(self.tag).or_insert_with(|| table(tables, root).upper(root));
        }
        let cached = self.upper.get(&self.tag);
        cached.is_some_and(|&upper| table(tables, upper.root).has_freed(upper))
    }

    pub(super) fn touch<P: Platform>(&mut self, tables: &[Table<P>], page: usize) -> Touch {
        let Some(root) = self.root else { return Touch::Fault };
        let table = table(tables, root);
        let cached = self.pages.get(&(self.tag, page)).copied();
        let Some(translation) = cached.or_else(|| table.walk(root, page)) else {
            return Touch::Fault;
        };
        self.pages.insert((self.tag, page), translation);
        let is_dead = translation.root != root || table.is_stale(page, translation);
        if is_dead { Touch::Stale } else { Touch::Ok }
    }

    pub(super) fn touch_kernel<P: Platform>(&mut self, table: &Table<P>, page: usize) -> Touch {
        let cached = self.kernel_pages.get(&page).copied();
        let Some(translation) = cached.or_else(|| table.walk(KERNEL, page)) else {
            return Touch::Fault;
        };
        self.kernel_pages.insert(page, translation);
        if table.is_stale(page, translation) { Touch::Stale } else { Touch::Ok }
    }

    /// Drops pages, after one last speculative walk. Returns whether that walked freed tables.
    pub(super) fn invalidate<P: Platform>(
        &mut self,
        tables: &[Table<P>],
        tag: Tag,
        extent: Extent,
    ) -> bool {
        assert!(tag == self.tag && self.root.is_some(), "only the loaded tag can be named");
        assert!(!extent.is_whole(), "a whole extent is for invalidate_tag");
        let walked_freed = self.speculate(tables);
        self.drop_told(tag, extent);
        walked_freed
    }

    /// Drops all of a tag, after one last speculative walk. Returns whether that walked freed
    /// tables.
    pub(super) fn invalidate_tag<P: Platform>(&mut self, tables: &[Table<P>], tag: Tag) -> bool {
        let walked_freed = self.speculate(tables);
        self.discard(tag);
        walked_freed
    }

    fn discard(&mut self, tag: Tag) {
        self.pages.retain(|&(of, _), _| of != tag);
        self.upper.remove(&tag);
    }

    /// Drops what a broadcast names, whatever is loaded.
    pub(super) fn drop_told(&mut self, tag: Tag, extent: Extent) {
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
    }

    pub(super) fn invalidate_all(&mut self) {
        self.pages.clear();
        self.kernel_pages.clear();
        self.upper.clear();
    }
}

fn table<P: Platform>(tables: &[Table<P>], root: Root) -> &Table<P> {
    &tables[root.0 as usize]
}
