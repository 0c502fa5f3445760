//! Physical memory: frames that are page tables, pages or free, and that count how often they were
//! freed.
//!
//! The content of a page is one word, which is enough to check that reads return what was written.
//! The content of a table is its 512 entries, in the hardware's format.

/// A frame: its address is its number times 4096.
pub type FrameNumber = u64;

/// Number of entries of a page table.
pub(crate) const ENTRIES: usize = 512;

/// Use of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A page table, initially filled with zeros.
    Table,
    /// A page.
    Page,
}

/// Number of frames of a large page (2 MiB).
const LARGE: usize = 512;

/// Number of batches of free frames that a CPU keeps. (Linux until 5.13: `pcp->high = 6 * batch`;
/// since then it follows from watermarks, and is at least four batches.)
const KEPT_BATCHES_MAX: usize = 6;

/// Number of emptied page tables of a node that a CPU keeps: 1 MiB. (Linux until 5.3, on ia64 and
/// sh: quicklists.)
const KEPT_TABLES_MAX: usize = 256;

/// Number of page tables that are always allowed, however small the memory is.
const TABLES_LIMIT_MIN: usize = 4096;

/// All frames.
#[derive(Debug)]
pub(crate) struct Memory {
    frames: Vec<Frame>,
    /// For each group of frames that a large page can occupy, how often one of them was freed.
    large_generations: Vec<u32>,
    /// For each node.
    nodes: Vec<Node>,
    limit: usize,
    tables: usize,
    tables_limit: usize,
}

/// The memory of one of `n` nodes: every `n`-th frame.
#[derive(Debug, Default)]
struct Node {
    free: Vec<FrameNumber>,
    /// The free frames that each CPU keeps for itself, the last freed at the end. (Linux:
    /// `per_cpu_pages`.)
    kept: Vec<Vec<FrameNumber>>,
    /// The free frames, filled with zeros, that each CPU keeps for page tables.
    kept_tables: Vec<Vec<FrameNumber>>,
    in_use: usize,
}

#[derive(Debug, Default)]
struct Frame {
    content: Content,
    users: u32,
    /// Number of times that the frame was freed.
    generation: u32,
    /// Set while a CPU has locked the frame, which is a page table.
    is_locked: bool,
    /// Set while the frame is a page table that was emptied for good.
    is_emptied: bool,
}

#[derive(Debug, Default)]
enum Content {
    #[default]
    Free,
    Page(u64),
    Table(Box<[u64; ENTRIES]>),
}

impl Memory {
    /// Creates memory of `limit` frames for a number of CPUs. A frame that was never used costs the
    /// host nothing, a page some bytes, and a page table 4 KiB; so at most one frame in 64 can be a
    /// page table.
    pub(crate) fn new(limit: usize, nodes: usize, cpus: usize) -> Self {
        // Frame 0 is never used, so that no entry has address 0.
        let tables_limit = limit.div_ceil(64).max(TABLES_LIMIT_MIN);
        let frames = vec![Frame::default()];
        let none = || vec![Vec::new(); cpus];
        let node = |_| Node { kept: none(), kept_tables: none(), ..Node::default() };
        let nodes = (0..nodes).map(node).collect();
        Self { frames, large_generations: Vec::new(), nodes, limit, tables: 0, tables_limit }
    }

    /// Allocates a frame of a node, or of another node if that node has none left.
    pub(crate) fn allocate(
        &mut self,
        purpose: Purpose,
        node: usize,
        cpu: usize,
    ) -> Option<FrameNumber> {
        let mut nodes = (node..self.nodes.len()).chain(0..node);
        nodes.find_map(|node| self.allocate_on(purpose, node, cpu))
    }

    /// Allocates a frame of a node: one that the CPU keeps, another one, or one that another CPU
    /// keeps. `None` if the node has none left.
    pub(crate) fn allocate_on(
        &mut self,
        purpose: Purpose,
        node: usize,
        cpu: usize,
    ) -> Option<FrameNumber> {
        if purpose == Purpose::Table && self.tables == self.tables_limit {
            return None;
        }
        let kept = self.nodes[node].kept[cpu].pop();
        let number = kept.or_else(|| self.take_free(node)).or_else(|| {
            let Node { kept, kept_tables, .. } = &mut self.nodes[node];
            kept.iter_mut().chain(kept_tables).find_map(Vec::pop)
        })?;
        self.begin_use(number, purpose);
        Some(number)
    }

    /// Allocates a table of a node that the CPU has kept. `None` if it keeps none.
    pub(crate) fn take_table(&mut self, node: usize, cpu: usize) -> Option<FrameNumber> {
        let number = self.nodes[node].kept_tables[cpu].pop()?;
        self.begin_use(number, Purpose::Table);
        Some(number)
    }

    fn begin_use(&mut self, number: FrameNumber, purpose: Purpose) {
        let node = self.node_of(number);
        self.nodes[node].in_use += 1;
        let frame = &mut self.frames[number as usize];
        frame.users = 1;
        frame.content = match purpose {
            Purpose::Page => Content::Page(GARBAGE),
            Purpose::Table => Content::Table(Box::new([0; ENTRIES])),
        };
        self.tables += usize::from(purpose == Purpose::Table);
    }

    /// Takes a frame that no CPU keeps.
    fn take_free(&mut self, node: usize) -> Option<FrameNumber> {
        while self.nodes[node].free.is_empty() && self.frames.len() <= self.limit {
            self.add_frame();
        }
        self.nodes[node].free.pop()
    }

    /// Returns `true` if a CPU keeps no frame of a node.
    pub(crate) fn keeps_none(&self, node: usize, cpu: usize) -> bool {
        self.nodes[node].kept[cpu].is_empty()
    }

    /// Moves up to a [batch](Self::batch) of free frames of a node to those that a CPU keeps, and
    /// returns them.
    pub(crate) fn keep_batch(&mut self, node: usize, cpu: usize) -> &[FrameNumber] {
        for _ in 0..self.batch() {
            let Some(frame) = self.take_free(node) else { break };
            self.nodes[node].kept[cpu].push(frame);
        }
        &self.nodes[node].kept[cpu]
    }

    /// If a CPU keeps too many frames of a node, returns a [batch](Self::batch) of them to the
    /// node, those that were freed first.
    pub(crate) fn return_batch(&mut self, node: usize, cpu: usize) -> Vec<FrameNumber> {
        let batch = self.batch();
        let Node { free, kept, .. } = &mut self.nodes[node];
        let kept = &mut kept[cpu];
        if kept.len() <= KEPT_BATCHES_MAX * batch {
            return Vec::new();
        }
        let returned: Vec<_> = kept.drain(..batch).collect();
        free.extend_from_slice(&returned);
        returned
    }

    /// Number of frames that go to or from a CPU together (`zone_batchsize` of `mm/page_alloc.c`).
    fn batch(&self) -> usize {
        let pages = (self.frames_of_node() >> 10).min((1 << 20) / 4096);
        let batch = (pages / 4).max(1);
        let power = 1 << (batch + batch / 2).ilog2();
        (power - 1).max(1)
    }

    /// Allocates the consecutive frames of a large page, and returns the first, which is a multiple
    /// of their number. Each frame is then a separate page. The frames belong to all nodes, because
    /// consecutive frames do.
    pub(crate) fn allocate_large(&mut self) -> Option<FrameNumber> {
        // Frames that were never used do not exist yet. Frame 0 belongs to no node.
        let are_free = |&first: &usize| {
            self.frames.iter().skip(first).take(LARGE).all(|frame| frame.users == 0)
        };
        let mut candidates = (LARGE..(self.limit + 2).saturating_sub(LARGE)).step_by(LARGE);
        let first = candidates.find(are_free)?;
        while self.frames.len() < first + LARGE {
            self.add_frame();
        }
        let numbers = first as FrameNumber..(first + LARGE) as FrameNumber;
        for node in &mut self.nodes {
            let before = node.free.len();
            node.free.retain(|number| !numbers.contains(number));
            node.in_use += before - node.free.len();
            for kept in node.kept.iter_mut().chain(&mut node.kept_tables) {
                let before = kept.len();
                kept.retain(|number| !numbers.contains(number));
                node.in_use += before - kept.len();
            }
        }
        for frame in &mut self.frames[first..first + LARGE] {
            (frame.users, frame.content) = (1, Content::Page(GARBAGE));
        }
        Some(numbers.start)
    }

    fn add_frame(&mut self) {
        let new = self.frames.len() as FrameNumber;
        self.frames.push(Frame::default());
        self.large_generations.resize(self.frames.len().div_ceil(LARGE), 0);
        let of = self.node_of(new);
        self.nodes[of].free.push(new);
    }

    /// Adds a user.
    pub(crate) fn share(&mut self, page: FrameNumber) {
        self.used(page).users += 1;
    }

    pub(crate) fn users(&self, page: FrameNumber) -> u64 {
        u64::from(self.frames[page as usize].users)
    }

    /// Removes a user. Returns `true` if the frame is free now, and the CPU keeps it.
    pub(crate) fn release(&mut self, number: FrameNumber, cpu: usize) -> bool {
        let frame = self.used(number);
        frame.users -= 1;
        if frame.users > 0 {
            return false;
        }
        self.end_use(number);
        let node = self.node_of(number);
        self.nodes[node].kept[cpu].push(number);
        true
    }

    /// Records that all entries of a table are empty, and stay so.
    pub(crate) fn set_emptied(&mut self, table: FrameNumber) {
        self.used(table).is_emptied = true;
    }

    /// Frees a table that was emptied, and that the CPU keeps for the next table. Returns `false`,
    /// and changes nothing, if it was not emptied, or if the CPU keeps as many as it may.
    pub(crate) fn keep_table(&mut self, table: FrameNumber, cpu: usize) -> bool {
        let node = self.node_of(table);
        let has_room = self.nodes[node].kept_tables[cpu].len() < KEPT_TABLES_MAX;
        let is_kept = has_room && self.used(table).is_emptied;
        if is_kept {
            let is_empty = (0..ENTRIES).all(|index| self.entry(table, index) == 0);
            assert!(
                is_empty,
                "table {table} was emptied, and written: the memory manager is broken"
            );
            self.used(table).users = 0;
            self.end_use(table);
            self.nodes[node].kept_tables[cpu].push(table);
        }
        is_kept
    }

    fn end_use(&mut self, number: FrameNumber) {
        let frame = &mut self.frames[number as usize];
        let was_table = matches!(frame.content, Content::Table(_));
        (frame.content, frame.is_emptied) = (Content::Free, false);
        frame.generation = frame.generation.wrapping_add(1);
        let large = &mut self.large_generations[number as usize / LARGE];
        *large = large.wrapping_add(1);
        let node = self.node_of(number);
        self.nodes[node].in_use -= 1;
        self.tables -= usize::from(was_table);
    }

    /// Locks a page table, unless it is locked. Returns `true` if it was not.
    pub(crate) fn try_lock(&mut self, table: FrameNumber) -> bool {
        !core::mem::replace(&mut self.frames[table as usize].is_locked, true)
    }

    pub(crate) fn unlock(&mut self, table: FrameNumber) {
        self.frames[table as usize].is_locked = false;
    }

    pub(crate) fn is_locked(&self, table: FrameNumber) -> bool {
        self.frames[table as usize].is_locked
    }

    /// Number of times that the frame was freed. A translation with a smaller number is dead.
    #[inline]
    pub(crate) fn generation(&self, frame: FrameNumber) -> u32 {
        self.frames.get(frame as usize).map_or(u32::MAX, |frame| frame.generation)
    }

    /// Number of times that a page of 2^`shift` bytes was freed. For a large page, it counts each
    /// free of any of its frames, because none is freed while the page is large. For pages above
    /// 2 MiB, only the first 2 MiB count.
    #[inline]
    pub(crate) fn page_generation(&self, frame: FrameNumber, shift: u8) -> u32 {
        if shift == 12 {
            return self.generation(frame);
        }
        self.large_generations.get(frame as usize / LARGE).copied().unwrap_or(u32::MAX)
    }

    /// Number of frames in use.
    pub(crate) fn in_use(&self) -> usize {
        self.nodes.iter().map(|node| node.in_use).sum()
    }

    /// Number of frames of each node.
    pub(crate) fn frames_of_node(&self) -> usize {
        self.limit / self.nodes.len()
    }

    /// Number of a node's frames that are not in use.
    pub(crate) fn free_of(&self, node: usize) -> usize {
        self.frames_of_node().saturating_sub(self.nodes[node].in_use)
    }

    /// The node whose memory contains a frame.
    pub(crate) fn node_of(&self, frame: FrameNumber) -> usize {
        // Frame 0 belongs to no node.
        (frame as usize).wrapping_sub(1) % self.nodes.len()
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The entry of a table; 0, which maps nothing, if the frame is not a table.
    #[inline]
    pub(crate) fn entry(&self, table: FrameNumber, index: usize) -> u64 {
        match self.frames.get(table as usize).map(|frame| &frame.content) {
            Some(Content::Table(entries)) => entries[index],
            _ => 0,
        }
    }

    /// The entry of a table for modification; `None` if the frame is not a table.
    #[inline]
    pub(crate) fn entry_mut(&mut self, table: FrameNumber, index: usize) -> Option<&mut u64> {
        match self.frames.get_mut(table as usize).map(|frame| &mut frame.content) {
            Some(Content::Table(entries)) => Some(&mut entries[index]),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn read(&self, page: FrameNumber) -> u64 {
        match self.frames.get(page as usize).map(|frame| &frame.content) {
            Some(Content::Page(content)) => *content,
            _ => GARBAGE,
        }
    }

    /// Writes to a page. Other frames stay unchanged: the oracle has reported such a write.
    #[inline]
    pub(crate) fn write(&mut self, page: FrameNumber, value: u64) {
        if let Some(Frame { content: Content::Page(content), .. }) =
            self.frames.get_mut(page as usize)
        {
            *content = value;
        }
    }

    fn used(&mut self, number: FrameNumber) -> &mut Frame {
        let frame = &mut self.frames[number as usize];
        assert!(frame.users > 0, "frame {number} is free: the memory manager is broken");
        frame
    }
}

/// The initial content of a page.
const GARBAGE: u64 = 0xdead_beef_dead_beef;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_reused_after_last_user() {
        let mut memory = Memory::new(1, 1, 2);
        let page = memory.allocate(Purpose::Page, 0, 0).unwrap();
        memory.share(page);
        assert!(!memory.release(page, 0));
        assert_eq!(memory.allocate(Purpose::Table, 0, 0), None);
        assert!(memory.release(page, 0));
        assert_eq!(memory.generation(page), 1);
        assert_eq!(memory.allocate(Purpose::Table, 0, 0), Some(page));
        assert_eq!(memory.entry(page, 7), 0);
        assert_eq!(memory.in_use(), 1);
    }

    #[test]
    fn large_page_consists_of_consecutive_frames() {
        let mut memory = Memory::new(4 * LARGE, 3, 2);
        let first = memory.allocate(Purpose::Page, 0, 0).unwrap();
        let large = memory.allocate_large().unwrap();
        assert_eq!(large, 512);
        assert_eq!(memory.in_use(), 513);
        assert_eq!([0, 1, 2].map(|node| memory.free_of(node)), [511; 3]);
        assert!((large..large + 512).all(|frame| memory.users(frame) == 1));
        // The remaining frames do not form a large page until all are free.
        let generation = memory.page_generation(large, 21);
        assert!(memory.release(large + 5, 0));
        assert_eq!(memory.page_generation(large, 21), generation + 1);
        assert_eq!(memory.allocate_large(), Some(1024));
        assert_eq!(memory.allocate_large(), Some(1536));
        assert_eq!(memory.allocate_large(), None);
        assert!(
            (large..large + 512).filter(|&frame| frame != large + 5).all(|f| memory.release(f, 0))
        );
        assert_eq!(memory.allocate_large(), Some(large));
        // The frames before the first large page are still free, except for one.
        let small = (0..3).flat_map(|node| core::iter::repeat_n(node, 512));
        assert_eq!(
            small.filter_map(|node| memory.allocate_on(Purpose::Page, node, 0)).count(),
            511
        );
        assert!(memory.release(first, 0));
        assert_eq!(Memory::new(600, 1, 2).allocate_large(), None);
        assert_eq!(Memory::new(LARGE, 1, 2).allocate_large(), None);
    }

    #[test]
    fn cpu_keeps_batches_and_returns_the_oldest() {
        // A node of 64 MiB has batches of three frames.
        let mut memory = Memory::new(16 << 10, 1, 2);
        assert_eq!(memory.batch(), 3);
        assert_eq!(Memory::new(4 << 20, 1, 2).batch(), 63);
        assert!(memory.keeps_none(0, 0));
        assert_eq!(memory.keep_batch(0, 0), [1, 2, 3]);
        let used: Vec<_> = (0..20).map(|_| memory.allocate(Purpose::Page, 0, 0).unwrap()).collect();
        assert_eq!(used[..3], [3, 2, 1], "the frames that the CPU keeps come first");
        let returned: Vec<_> = used
            .iter()
            .map(|&frame| {
                memory.release(frame, 1);
                memory.return_batch(0, 1)
            })
            .filter(|returned| !returned.is_empty())
            .collect();
        assert_eq!(returned, [&used[..3]], "at the nineteenth frame, the first three");
        assert_eq!(memory.allocate(Purpose::Page, 0, 1), Some(used[19]));
        // A node that has no other frame left takes those that another CPU keeps.
        let mut small = Memory::new(1, 1, 2);
        let only = small.allocate(Purpose::Page, 0, 0).unwrap();
        assert!(small.release(only, 0));
        assert_eq!(small.allocate(Purpose::Page, 0, 1), Some(only));
    }

    #[test]
    fn cpu_keeps_256_emptied_tables() {
        let mut memory = Memory::new(300, 1, 2);
        let tables: Vec<_> =
            (0..257).map(|_| memory.allocate(Purpose::Table, 0, 0).unwrap()).collect();
        assert!(!memory.keep_table(tables[0], 0), "it was not emptied");
        tables.iter().for_each(|&table| memory.set_emptied(table));
        let kept = tables.iter().filter(|&&table| memory.keep_table(table, 0)).count();
        assert_eq!((kept, memory.in_use(), memory.free_of(0)), (256, 1, 299));
        assert_eq!(memory.take_table(0, 1), None, "another CPU keeps none");
        assert_eq!(memory.take_table(0, 0), Some(tables[255]));
        assert!(!memory.keep_table(tables[255], 0), "each use empties it again");
        // The last frames of a node are those that CPUs keep.
        let pages = (0..298).filter_map(|_| memory.allocate(Purpose::Page, 0, 1)).count();
        assert_eq!((pages, memory.allocate(Purpose::Page, 0, 1)), (298, None));
    }

    #[test]
    fn node_allocates_its_own_frames_first() {
        let mut memory = Memory::new(8, 4, 2);
        let mut allocate = |node| memory.allocate(Purpose::Page, node, 0).unwrap();
        let of_two = [allocate(2), allocate(2)];
        let elsewhere = allocate(2);
        assert!(of_two.iter().all(|&frame| memory.node_of(frame) == 2));
        assert_eq!(memory.node_of(elsewhere), 3);
        assert_eq!([0, 1, 2, 3].map(|node| memory.free_of(node)), [2, 2, 0, 1]);
        assert_eq!(memory.allocate_on(Purpose::Page, 2, 0), None);
        assert!(memory.release(of_two[0], 0));
        assert_eq!(memory.allocate_on(Purpose::Page, 2, 0), Some(of_two[0]));
        assert_eq!(memory.in_use(), 3);
    }
}
