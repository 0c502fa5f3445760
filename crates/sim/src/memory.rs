//! Physical memory: frames that are page tables, pages, or free, and know how often they have been
//! given away.
//!
//! A page holds one word of content, which is enough to see whether what was written is what is
//! read. A table holds its 512 entries, in the hardware's own format.

/// A frame: its address is its number times 4096.
pub type FrameNumber = u64;

/// How many entries a page table has.
pub(crate) const ENTRIES: usize = 512;

/// What a frame is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A page table, which comes filled with zeros.
    Table,
    /// A page.
    Page,
}

/// How many frames a large page has: 2 MiB.
const LARGE: usize = 512;

/// So many page tables there may be, however little memory there is.
const TABLES_LIMIT_MIN: usize = 4096;

/// All frames.
#[derive(Debug)]
pub(crate) struct Memory {
    frames: Vec<Frame>,
    /// For so many frames as a large page has, how often one of them was given away.
    large_generations: Vec<u32>,
    /// For each node.
    nodes: Vec<Node>,
    limit: usize,
    tables: usize,
    tables_limit: usize,
}

/// One node's memory: every so many-th frame.
#[derive(Debug, Default)]
struct Node {
    free: Vec<FrameNumber>,
    in_use: usize,
}

#[derive(Debug, Default)]
struct Frame {
    content: Content,
    users: u32,
    /// How often it was given away.
    generation: u32,
}

#[derive(Debug, Default)]
enum Content {
    #[default]
    Free,
    Page(u64),
    Table(Box<[u64; ENTRIES]>),
}

impl Memory {
    /// Memory of so many frames. What is never used costs the host nothing; a page costs it some
    /// bytes, and a page table 4 KiB, so that no more than one frame in 64 may be one.
    pub(crate) fn new(limit: usize, nodes: usize) -> Self {
        // Frame 0 stays unused, so that no entry's address is 0.
        let tables_limit = limit.div_ceil(64).max(TABLES_LIMIT_MIN);
        let frames = vec![Frame::default()];
        let nodes = (0..nodes).map(|_| Node::default()).collect();
        Self { frames, large_generations: Vec::new(), nodes, limit, tables: 0, tables_limit }
    }

    /// A frame of a node; or, if there is none left there, of another.
    pub(crate) fn allocate(&mut self, purpose: Purpose, node: usize) -> Option<FrameNumber> {
        (node..self.nodes.len()).chain(0..node).find_map(|node| self.allocate_on(purpose, node))
    }

    /// A frame of a node.
    pub(crate) fn allocate_on(&mut self, purpose: Purpose, node: usize) -> Option<FrameNumber> {
        if purpose == Purpose::Table && self.tables == self.tables_limit {
            return None;
        }
        while self.nodes[node].free.is_empty() && self.frames.len() <= self.limit {
            self.add_frame();
        }
        let number = self.nodes[node].free.pop()?;
        self.nodes[node].in_use += 1;
        let frame = &mut self.frames[number as usize];
        frame.users = 1;
        frame.content = match purpose {
            Purpose::Page => Content::Page(GARBAGE),
            Purpose::Table => Content::Table(Box::new([0; ENTRIES])),
        };
        self.tables += usize::from(purpose == Purpose::Table);
        Some(number)
    }

    /// Frames in a row for a large page, the first of which has a number that is a multiple of so
    /// many; each is a page's like others. They are of all nodes, as memory is.
    pub(crate) fn allocate_large(&mut self) -> Option<FrameNumber> {
        // Those that were never used are not there yet. Frame 0 is nobody's.
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

    /// Counts one user more.
    pub(crate) fn share(&mut self, page: FrameNumber) {
        self.used(page).users += 1;
    }

    pub(crate) fn users(&self, page: FrameNumber) -> u64 {
        u64::from(self.frames[page as usize].users)
    }

    /// Counts one user less. Returns whether the frame is free now.
    pub(crate) fn release(&mut self, number: FrameNumber) -> bool {
        let frame = self.used(number);
        frame.users -= 1;
        if frame.users > 0 {
            return false;
        }
        let was_table = matches!(frame.content, Content::Table(_));
        frame.content = Content::Free;
        frame.generation = frame.generation.wrapping_add(1);
        let large = &mut self.large_generations[number as usize / LARGE];
        *large = large.wrapping_add(1);
        let node = self.node_of(number);
        self.nodes[node].free.push(number);
        self.nodes[node].in_use -= 1;
        self.tables -= usize::from(was_table);
        true
    }

    /// How often the frame was given away: a translation that is older than this is dead.
    #[inline]
    pub(crate) fn generation(&self, frame: FrameNumber) -> u32 {
        self.frames.get(frame as usize).map_or(u32::MAX, |frame| frame.generation)
    }

    /// The same for a page of 2^`shift` bytes; of a large one, how often any of its frames was
    /// given away, for while it is large, none is. (Of one above 2 MiB, the first 2 MiB.)
    #[inline]
    pub(crate) fn page_generation(&self, frame: FrameNumber, shift: u8) -> u32 {
        if shift == 12 {
            return self.generation(frame);
        }
        self.large_generations.get(frame as usize / LARGE).copied().unwrap_or(u32::MAX)
    }

    /// How many frames are in use.
    pub(crate) fn in_use(&self) -> usize {
        self.nodes.iter().map(|node| node.in_use).sum()
    }

    /// How many frames each node has.
    pub(crate) fn frames_of_node(&self) -> usize {
        self.limit / self.nodes.len()
    }

    /// How many frames of a node are not in use.
    pub(crate) fn free_of(&self, node: usize) -> usize {
        self.frames_of_node().saturating_sub(self.nodes[node].in_use)
    }

    /// The node whose memory a frame is.
    pub(crate) fn node_of(&self, frame: FrameNumber) -> usize {
        // Frame 0 is nobody's.
        (frame as usize).wrapping_sub(1) % self.nodes.len()
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The entry of a table; 0, which maps nothing, if the frame is no table.
    #[inline]
    pub(crate) fn entry(&self, table: FrameNumber, index: usize) -> u64 {
        match self.frames.get(table as usize).map(|frame| &frame.content) {
            Some(Content::Table(entries)) => entries[index],
            _ => 0,
        }
    }

    /// The place of an entry, if the frame is a table.
    #[inline]
    pub(crate) fn entry_mut(&mut self, table: FrameNumber, index: usize) -> Option<&mut u64> {
        match self.frames.get_mut(table as usize).map(|frame| &mut frame.content) {
            Some(Content::Table(entries)) => Some(&mut entries[index]),
            _ => None,
        }
    }

    pub(crate) fn read(&self, page: FrameNumber) -> u64 {
        match self.frames.get(page as usize).map(|frame| &frame.content) {
            Some(Content::Page(content)) => *content,
            _ => GARBAGE,
        }
    }

    /// Writes to a page. What is no page stays as it is: whoever writes there has been caught.
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

/// What is in a page that nobody has written yet.
const GARBAGE: u64 = 0xdead_beef_dead_beef;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_reused_only_when_the_last_user_is_gone() {
        let mut memory = Memory::new(1, 1);
        let page = memory.allocate(Purpose::Page, 0).unwrap();
        memory.share(page);
        assert!(!memory.release(page));
        assert_eq!(memory.allocate(Purpose::Table, 0), None);
        assert!(memory.release(page));
        assert_eq!(memory.generation(page), 1);
        assert_eq!(memory.allocate(Purpose::Table, 0), Some(page));
        assert_eq!(memory.entry(page, 7), 0);
        assert_eq!(memory.in_use(), 1);
    }

    #[test]
    fn a_large_page_is_of_frames_in_a_row_that_go_one_by_one() {
        let mut memory = Memory::new(4 * LARGE, 3);
        let first = memory.allocate(Purpose::Page, 0).unwrap();
        let large = memory.allocate_large().unwrap();
        assert_eq!(large, 512);
        assert_eq!(memory.in_use(), 513);
        assert_eq!([0, 1, 2].map(|node| memory.free_of(node)), [511; 3]);
        assert!((large..large + 512).all(|frame| memory.users(frame) == 1));
        // What is left of the same is not one any more, until all are free.
        let generation = memory.page_generation(large, 21);
        assert!(memory.release(large + 5));
        assert_eq!(memory.page_generation(large, 21), generation + 1);
        assert_eq!(memory.allocate_large(), Some(1024));
        assert_eq!(memory.allocate_large(), Some(1536));
        assert_eq!(memory.allocate_large(), None);
        assert!(
            (large..large + 512).filter(|&frame| frame != large + 5).all(|f| memory.release(f))
        );
        assert_eq!(memory.allocate_large(), Some(large));
        // The frames before it, which nobody has taken, are still there.
        let small = (0..3).flat_map(|node| core::iter::repeat_n(node, 512));
        assert_eq!(small.filter_map(|node| memory.allocate_on(Purpose::Page, node)).count(), 511);
        assert!(memory.release(first));
        assert_eq!(Memory::new(600, 1).allocate_large(), None);
        assert_eq!(Memory::new(LARGE, 1).allocate_large(), None);
    }

    #[test]
    fn a_node_gives_its_own_frames_first() {
        let mut memory = Memory::new(8, 4);
        let mut allocate = |node| memory.allocate(Purpose::Page, node).unwrap();
        let of_two = [allocate(2), allocate(2)];
        let elsewhere = allocate(2);
        assert!(of_two.iter().all(|&frame| memory.node_of(frame) == 2));
        assert_eq!(memory.node_of(elsewhere), 3);
        assert_eq!([0, 1, 2, 3].map(|node| memory.free_of(node)), [2, 2, 0, 1]);
        assert_eq!(memory.allocate_on(Purpose::Page, 2), None);
        assert!(memory.release(of_two[0]));
        assert_eq!(memory.allocate_on(Purpose::Page, 2), Some(of_two[0]));
        assert_eq!(memory.in_use(), 3);
    }
}
