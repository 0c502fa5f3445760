//! The hypercalls `HvCallFlushVirtualAddressSpace` and `HvCallFlushVirtualAddressList`, and their
//! variants for more than 64 virtual processors.

use shootdown::Extent;

/// Bytes of an input page, in words.
const WORDS: usize = 512;

/// The input of a hypercall: one page of memory, aligned to its size.
#[derive(Clone, Debug)]
#[repr(C, align(4096))]
pub struct InputPage(pub [u64; WORDS]);

impl InputPage {
    /// A page of zeros.
    #[must_use]
    pub const fn new() -> Self {
        Self([0; WORDS])
    }
}

impl Default for InputPage {
    fn default() -> Self {
        Self::new()
    }
}

/// Largest number of pages of 4 KiB that one element of the list names.
pub const PAGES_PER_RANGE: usize = 4096;

/// Largest number of elements of a list. A flush that needs more drops everything. A full page
/// would have room for about 440 besides the largest set of processors, and the hypervisor needs as
/// many steps as there are pages.
pub const RANGES_MAX: usize = 32;

/// The bits of a result that are a status; 0 is success.
pub const STATUS: u64 = 0xffff;

const FLUSH_SPACE: u64 = 0x0002;
const FLUSH_LIST: u64 = 0x0003;
const FLUSH_SPACE_EX: u64 = 0x0013;
const FLUSH_LIST_EX: u64 = 0x0014;

/// `HV_FLUSH_ALL_VIRTUAL_ADDRESS_SPACES`.
const ALL_SPACES: u64 = 1 << 1;
/// `HV_FLUSH_NON_GLOBAL_MAPPINGS_ONLY`.
const NOT_GLOBAL: u64 = 1 << 2;

/// `HvGenericSetSparse4k`: a word for each 64 processors that has one.
const SPARSE: u64 = 0;

/// The fields of a control word, or of a result.
const SET_WORDS_SHIFT: u32 = 17;
const COUNT_SHIFT: u32 = 32;
const START_SHIFT: u32 = 48;
const COUNT_MASK: u64 = 0xfff;

/// A hypercall whose input was encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The control word, without the index of the first element.
    control: u64,
    /// Number of elements of the list; 0 if the call has no list.
    count: u64,
    /// Number of elements that are done.
    done: u64,
}

impl Flush {
    /// Encodes the flush of an extent of all address spaces on these virtual processors.
    ///
    /// An extent that [frees tables](Extent::frees_tables) drops everything but global pages,
    /// because the specification does not say that a list also drops entries of upper levels.
    ///
    /// # Panics
    ///
    /// If a virtual processor has a number above 4095.
    pub fn encode<I: Iterator<Item = u32>>(
        input: &mut InputPage,
        processors: impl Fn() -> I,
        extent: Extent,
    ) -> Self {
        let words = &mut input.0;
        // The address space is ignored: all are named.
        words[0] = 0;
        words[1] = ALL_SPACES | NOT_GLOBAL;
        let is_small = processors().all(|processor| processor < 64);
        let (set_words, first) = if is_small {
            words[2] = processors().fold(0, |mask, processor| mask | 1 << processor);
            (0, 3)
        } else {
            let banks = sparse_set(words, processors);
            (banks, 4 + banks)
        };
        let ranges = if extent.frees_tables() { None } else { ranges(extent) };
        let count = ranges.map_or(0, |ranges| {
            let list = words[first..].iter_mut().zip(ranges);
            list.map(|(word, range)| *word = range).count()
        });
        let code = match (is_small, count) {
            (true, 0) => FLUSH_SPACE,
            (true, _) => FLUSH_LIST,
            (false, 0) => FLUSH_SPACE_EX,
            (false, _) => FLUSH_LIST_EX,
        };
        let control = code | (set_words as u64) << SET_WORDS_SHIFT | (count as u64) << COUNT_SHIFT;
        Self { control, count: count as u64, done: 0 }
    }

    /// The control word of the next call.
    #[must_use]
    pub const fn control(self) -> u64 {
        self.control | self.done << START_SHIFT
    }

    /// Takes the result of a successful call. Returns `true` if the list is done: the hypervisor
    /// may return after a part of it.
    #[must_use]
    pub const fn advance(&mut self, result: u64) -> bool {
        self.done = result >> COUNT_SHIFT & COUNT_MASK;
        self.done >= self.count
    }
}

/// Writes a set of processors from word 2 on: its format, the banks of 64 processors that it has,
/// and a mask for each. Returns the number of banks.
fn sparse_set<I: Iterator<Item = u32>>(
    words: &mut [u64; WORDS],
    processors: impl Fn() -> I,
) -> usize {
    let banks = processors().fold(0, |banks, processor| {
        assert!(processor < 4096, "a set has room for 4096 virtual processors");
        banks | 1_u64 << (processor / 64)
    });
    words[2] = SPARSE;
    words[3] = banks;
    let of_bank = |bank: u32| {
        let members = processors().filter(|processor| processor / 64 == bank);
        members.fold(0, |mask, processor| mask | 1_u64 << (processor % 64))
    };
    let present = (0..64).filter(|bank| banks >> bank & 1 != 0);
    let written = words[4..].iter_mut().zip(present);
    written.map(|(word, bank)| *word = of_bank(bank)).count()
}

/// The elements of a list: in each, the address of a page, and in its lower bits the number of
/// further pages. `None` if the extent is whole, or needs too many.
fn ranges(extent: Extent) -> Option<impl Iterator<Item = u64>> {
    if extent.is_whole() {
        return None;
    }
    let pages = (extent.page_count() << (extent.page_size().shift() - 12)) as u64;
    let count = pages.div_ceil(PAGES_PER_RANGE as u64);
    (count <= RANGES_MAX as u64).then(|| {
        (0..count).map(move |index| {
            let first = index * PAGES_PER_RANGE as u64;
            let further = (pages - first).min(PAGES_PER_RANGE as u64) - 1;
            extent.start().wrapping_add(first << 12) & !0xfff | further
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown::PageSize;
    use std::vec::Vec;

    fn encode(processors: &[u32], extent: Extent) -> (Flush, [u64; WORDS]) {
        let mut input = InputPage([u64::MAX; WORDS]);
        let flush = Flush::encode(&mut input, || processors.iter().copied(), extent);
        (flush, input.0)
    }

    /// TLFS, "Hypercall Inputs": call code in bits 15:0, size of the variable header in 26:17,
    /// count in 43:32, start in 59:48. `HvCallFlushVirtualAddressList`: address space, flags,
    /// processor mask, and the list from byte 24 on.
    #[test]
    fn list_matches_the_specification() {
        let extent = Extent::pages(0x7000_1000, 3, PageSize::SIZE_4K);
        let (mut flush, input) = encode(&[1, 5, 63], extent);
        assert_eq!(flush.control(), 1 << 32 | 0x0003);
        assert_eq!(input[..4], [0, 0b110, 1 << 63 | 1 << 5 | 1 << 1, 0x7000_1002]);
        assert!(input[4..].iter().all(|&word| word == u64::MAX));
        assert!(flush.advance(1 << 32));
    }

    /// `HvCallFlushVirtualAddressSpace`: no list.
    #[test]
    fn whole_extent_names_no_page() {
        let too_many = Extent::pages(0, 4095, PageSize::SIZE_1G);
        let freeing = Extent::page(0x1000).freeing_tables();
        for extent in [Extent::whole(), too_many, freeing] {
            let (mut flush, input) = encode(&[0], extent);
            assert_eq!((flush.control(), &input[..3]), (0x0002, &[0, 0b110, 1][..]));
            assert!(flush.advance(0), "there is no list to be done");
        }
    }

    /// TLFS, "Sparse Virtual Processor Set": format, mask of banks, and 64 bits for each bank that
    /// the mask has. The size of the variable header is the number of banks.
    #[test]
    fn processors_beyond_63_need_sparse_set() {
        let (flush, input) = encode(&[2, 130, 191], Extent::page(0x5000));
        assert_eq!(flush.control(), 1 << 32 | 2 << 17 | 0x0014);
        let set = [0, 0b101, 1 << 2, 1 << 63 | 1 << 2];
        assert_eq!(input[..7], [&[0, 0b110][..], &set, &[0x5000]].concat());
        let (flush, input) = encode(&[64], Extent::whole());
        assert_eq!(flush.control(), 1 << 17 | 0x0013);
        assert_eq!(input[..5], [0, 0b110, 0, 0b10, 1]);
    }

    #[test]
    #[should_panic = "room for 4096 virtual processors"]
    fn processor_4096_is_refused() {
        let (_, input) = encode(&[4095], Extent::whole());
        assert_eq!(input[3..5], [1 << 63, 1 << 63]);
        encode(&[4096], Extent::whole());
    }

    #[test]
    fn ranges_cover_every_page_once() {
        let all = |extent| ranges(extent).map(Iterator::collect::<Vec<_>>);
        assert_eq!(all(Extent::pages(0x1000, 1, PageSize::SIZE_4K)), Some([0x1000].to_vec()));
        assert_eq!(all(Extent::pages(0x20_0000, 1, PageSize::SIZE_2M)), Some([0x20_01ff].to_vec()));
        // 4608 pages: one range of 4096, and one of 512.
        let nine = all(Extent::pages(0x4000_0000, 9, PageSize::SIZE_2M));
        assert_eq!(nine, Some([0x4000_0fff, 0x4100_01ff].to_vec()));
        let most = all(Extent::pages(0, 256, PageSize::SIZE_2M)).unwrap();
        assert_eq!(most.len(), RANGES_MAX);
        assert_eq!(all(Extent::pages(0, 257, PageSize::SIZE_2M)), None);
    }

    /// The hypervisor may return in the middle of a list.
    #[test]
    fn list_continues_where_it_stopped() {
        let (mut flush, _) = encode(&[0], Extent::pages(0, 24, PageSize::SIZE_2M));
        assert_eq!(flush.control(), 3 << 32 | 0x0003);
        assert!(!flush.advance(2 << 32));
        assert_eq!(flush.control(), 2 << 48 | 3 << 32 | 0x0003);
        assert!(flush.advance(3 << 32));
    }
}
