//! A page of the kernel's ring buffer: a header, and then events, each with the time since the
//! previous event.
//!
//! The code does not trust the bytes, although the kernel wrote them. It never panics, and bytes
//! that cannot be an event end the page with [`Step::Damaged`].

use std::ops::Range;

use super::layout::{Field, Fields};

/// Size of the header of an event: 5 bits of type or length, and 27 bits of time.
const HEADER: usize = 4;
const TYPE_BITS: u32 = 5;
const TIME_BITS: u32 = 27;
/// The bits of the committed length. The other bits of the word are flags.
const LENGTH_MASK: u64 = (1 << 20) - 1;
/// Flag: events were overwritten before this page.
const MISSED: u64 = 1 << 31;
/// Flag: the number of overwritten events follows the last event.
const MISSED_STORED: u64 = 1 << 30;
/// Number of bits of an absolute time. The higher bits are those of the page's time.
const ABSOLUTE_BITS: u32 = 59;

/// The layout of the header of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFormat {
    time: Field,
    commit: Field,
    data: Field,
}

impl PageFormat {
    /// Parses the file `header_page`. Returns `None` if a field is missing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let fields = Fields::parse(text);
        let field = |name| fields.field(name);
        Some(Self { time: field("timestamp")?, commit: field("commit")?, data: field("data")? })
    }

    /// Returns the size of a page in bytes.
    pub(super) fn page_bytes(&self) -> usize {
        self.data.offset.saturating_add(self.data.size)
    }

    /// Returns the header of `page`, or `None` if the page is shorter than its header requires.
    pub(super) fn header(&self, page: &[u8]) -> Option<Header> {
        let time_ns = self.time.number(page)?;
        let commit = self.commit.number(page)?;
        let length = (commit & LENGTH_MASK) as usize;
        let events = self.data.offset..self.data.offset.checked_add(length)?;
        page.get(events.clone())?;
        let count = Field { offset: events.end, size: self.commit.size };
        let mut used = events.end;
        let lost = match (commit & MISSED != 0, commit & MISSED_STORED != 0) {
            (false, _) => None,
            (true, false) => Some(0),
            (true, true) => {
                used = used.checked_add(count.size)?;
                Some(count.number(page)?)
            }
        };
        Some(Header { time_ns, events, lost, used })
    }
}

/// The header of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The time to which the first event's time is relative.
    pub(super) time_ns: u64,
    /// The bytes of the events.
    events: Range<usize>,
    /// Number of events that were lost before this page, or 0 if events were lost and the number is
    /// unknown. `None` if no event was lost.
    pub(super) lost: Option<u64>,
    /// Number of bytes of the page that are used.
    pub(super) used: usize,
}

impl Header {
    /// Returns a cursor at the first event.
    pub(super) fn cursor(&self) -> Cursor {
        let Self { time_ns, events, .. } = self;
        Cursor { time_ns: *time_ns, page_time_ns: *time_ns, rest: events.clone() }
    }
}

/// A position in the events of a page.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    time_ns: u64,
    page_time_ns: u64,
    rest: Range<usize>,
}

/// The next item of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An event with its time and its bytes in the page.
    Event { time_ns: u64, bytes: Range<usize> },
    /// Bytes that no kernel writes. The rest of the page cannot be read.
    Damaged,
}

impl Cursor {
    /// Returns the next item of `page`, or `None` at its end. Call this with the page that the
    /// cursor was made for.
    pub(super) fn next(&mut self, page: &[u8]) -> Option<Step> {
        while !self.rest.is_empty() {
            match self.take(page) {
                Some(Some(bytes)) => return Some(Step::Event { time_ns: self.time_ns, bytes }),
                Some(None) => {}
                None => {
                    self.rest.start = self.rest.end;
                    return Some(Step::Damaged);
                }
            }
        }
        None
    }

    /// Advances over one entry. Returns `Some(None)` if the entry is not an event, and `None` if
    /// the bytes are not a valid entry.
    fn take(&mut self, page: &[u8]) -> Option<Option<Range<usize>>> {
        let start = self.rest.start;
        let page = page.get(..self.rest.end)?;
        let head = word(page, start)?;
        let (kind, delta) = (head & ((1 << TYPE_BITS) - 1), u64::from(head >> TYPE_BITS));
        let first = start + HEADER;
        let bytes = match kind {
            // An entry without a length: the rest of the page was not written.
            29 if delta == 0 => {
                self.rest.start = self.rest.end;
                return Some(None);
            }
            0 | 29 => {
                // The length includes its own four bytes.
                let length = (word(page, first)? as usize).checked_sub(HEADER)?;
                let from = first + HEADER;
                from..from.checked_add(length)?
            }
            30 | 31 => first + HEADER..first + HEADER,
            words => first..first + 4 * words as usize,
        };
        // The next entry starts at a multiple of four.
        let end = bytes.end.checked_next_multiple_of(4)?;
        page.get(start..end)?;
        self.rest.start = end;
        self.time_ns = match kind {
            30 => {
                let more = u64::from(word(page, first)?) << TIME_BITS;
                self.time_ns.wrapping_add(delta).wrapping_add(more)
            }
            31 => {
                let time = delta | u64::from(word(page, first)?) << TIME_BITS;
                time | self.page_time_ns >> ABSOLUTE_BITS << ABSOLUTE_BITS
            }
            _ => self.time_ns.wrapping_add(delta),
        };
        Some((kind < 29).then_some(bytes))
    }
}

fn word(page: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(page.get(offset..offset.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
        \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
        \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
        \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";

    fn format() -> PageFormat {
        PageFormat::parse(HEADER_PAGE).expect("a header")
    }

    fn page(time_ns: u64, flags: u64, words: &[u32], after: &[u8]) -> Vec<u8> {
        let mut page = time_ns.to_le_bytes().to_vec();
        page.extend(((4 * words.len() as u64) | flags).to_le_bytes());
        page.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        page.extend(after);
        page
    }

    fn head(kind: u32, delta: u32) -> u32 {
        kind | delta << TYPE_BITS
    }

    fn steps(page: &[u8]) -> Vec<Step> {
        let mut cursor = format().header(page).expect("a page").cursor();
        std::iter::from_fn(|| cursor.next(page)).collect()
    }

    #[test]
    fn page_size_is_read_from_header_page() {
        assert_eq!(format().page_bytes(), 4096);
        assert!(PageFormat::parse("\tfield: u64 timestamp;\toffset:0;\tsize:8;\n").is_none());
    }

    #[test]
    fn event_times_add_up() {
        let words = [head(2, 5), 1, 2, head(0, 7), 4 + 8, 3, 4, head(1, 1), 9];
        let events = [
            Step::Event { time_ns: 1005, bytes: 20..28 },
            Step::Event { time_ns: 1012, bytes: 36..44 },
            Step::Event { time_ns: 1013, bytes: 48..52 },
        ];
        assert_eq!(steps(&page(1000, 0, &words, &[])), events);
    }

    #[test]
    fn time_entries_and_padding_are_not_events() {
        let words = [head(30, 3), 2, head(1, 0), 7, head(31, 9), 1, head(1, 1), 7];
        let extended = 1000 + 3 + (2 << 27);
        let absolute = (1 << 27) + 9 + 1;
        let found = steps(&page(1000, 0, &words, &[]));
        assert_eq!(found[0], Step::Event { time_ns: extended, bytes: 28..32 });
        assert_eq!(found[1], Step::Event { time_ns: absolute, bytes: 44..48 });
        // A discarded event advances the time, and padding without a length ends the page.
        let words = [head(29, 4), 8, 0, head(1, 1), 7, head(29, 0), head(1, 1), 7];
        let events = [Step::Event { time_ns: 1005, bytes: 32..36 }];
        assert_eq!(steps(&page(1000, 0, &words, &[])), events);
    }

    #[test]
    fn stored_number_of_lost_events_is_read() {
        let lost = |flags, after: &[u8]| {
            format().header(&page(0, flags, &[head(1, 0), 0], after)).map(|header| header.lost)
        };
        assert_eq!(lost(0, &[]), Some(None));
        assert_eq!(lost(MISSED, &[]), Some(Some(0)));
        assert_eq!(lost(MISSED | MISSED_STORED, &77_u64.to_le_bytes()), Some(Some(77)));
        assert_eq!(lost(MISSED | MISSED_STORED, &[]), None);
    }

    #[test]
    fn event_beyond_end_of_page_is_damage() {
        for words in [&[head(3, 1), 1, 2][..], &[head(0, 1)], &[head(0, 1), 3], &[head(0, 1), 99]] {
            assert_eq!(steps(&page(1000, 0, words, &[])), [Step::Damaged]);
        }
        assert_eq!(format().header(&page(0, 64, &[], &[])), None);
        assert_eq!(format().header(&[0; 15]), None);
    }

    #[test]
    fn random_bytes_neither_panic_nor_loop() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        let mut events = 0;
        for _ in 0..2000 {
            let words: Vec<u32> = (0..64).map(|_| random() as u32 % (1 << 12)).collect();
            let whole = page(random(), random() & (MISSED | MISSED_STORED), &words, &[0; 8]);
            let cut = &whole[..random() as usize % whole.len()];
            for page in [&whole[..], cut] {
                let Some(header) = format().header(page) else { continue };
                let mut cursor = header.cursor();
                while let Some(step) = cursor.next(page) {
                    if let Step::Event { bytes, .. } = step {
                        assert!(page.get(bytes).is_some());
                        events += 1;
                    }
                }
            }
        }
        assert!(events > 1000, "{events}");
    }
}
