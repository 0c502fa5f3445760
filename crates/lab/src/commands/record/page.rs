//! A page of the kernel's ring buffer: a header, then events one after the other, each with the
//! time since the one before.
//!
//! The kernel wrote it, yet nothing here trusts it: whatever the bytes, there is no panic, and
//! what cannot be an event ends the page as [`Step::Damaged`].

use std::ops::Range;

use super::layout::{Field, Fields};

/// An event's header: five bits of type or length, 27 of time.
const HEADER: usize = 4;
const TYPE_BITS: u32 = 5;
const TIME_BITS: u32 = 27;
/// Of the committed length, the rest of the word being flags.
const LENGTH_MASK: u64 = (1 << 20) - 1;
/// Events were overwritten before this page.
const MISSED: u64 = 1 << 31;
/// How many stands behind the last event.
const MISSED_STORED: u64 = 1 << 30;
/// An absolute time has 59 bits; the rest is that of the page.
const ABSOLUTE_BITS: u32 = 59;

/// How a page's header is laid out.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFormat {
    time: Field,
    commit: Field,
    data: Field,
}

impl PageFormat {
    /// Of the file `header_page`; `None` if it lacks a field.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let fields = Fields::parse(text);
        let field = |name| fields.field(name);
        Some(Self { time: field("timestamp")?, commit: field("commit")?, data: field("data")? })
    }

    /// How large a page is, in bytes.
    pub(super) fn page_bytes(&self) -> usize {
        self.data.offset.saturating_add(self.data.size)
    }

    /// The header of `page`; `None` if the page is shorter than the header says.
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

/// What a page's header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// From which the first event counts.
    pub(super) time_ns: u64,
    /// Where the events are.
    events: Range<usize>,
    /// How many events were lost before this page, if any were; 0 if it doesn't say.
    pub(super) lost: Option<u64>,
    /// How many bytes of the page mean something.
    pub(super) used: usize,
}

impl Header {
    /// At the first event.
    pub(super) fn cursor(&self) -> Cursor {
        let Self { time_ns, events, .. } = self;
        Cursor { time_ns: *time_ns, page_time_ns: *time_ns, rest: events.clone() }
    }
}

/// A place among the events of a page.
#[derive(Clone, Debug)]
pub(super) struct Cursor {
    time_ns: u64,
    page_time_ns: u64,
    rest: Range<usize>,
}

/// What is next in a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An event, at this time, in these bytes of the page.
    Event { time_ns: u64, bytes: Range<usize> },
    /// Something that no kernel writes: what follows can't be told.
    Damaged,
}

impl Cursor {
    /// The next event of `page`, which must be the one that the cursor is of; `None` at its end.
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

    /// Passes one entry: `Some(None)` if it is no event, `None` if it is impossible.
    fn take(&mut self, page: &[u8]) -> Option<Option<Range<usize>>> {
        let start = self.rest.start;
        let page = page.get(..self.rest.end)?;
        let head = word(page, start)?;
        let (kind, delta) = (head & ((1 << TYPE_BITS) - 1), u64::from(head >> TYPE_BITS));
        let first = start + HEADER;
        let bytes = match kind {
            // Nothing more was written to this page.
            29 if delta == 0 => {
                self.rest.start = self.rest.end;
                return Some(None);
            }
            0 | 29 => {
                // The length counts its own four bytes.
                let length = (word(page, first)? as usize).checked_sub(HEADER)?;
                let from = first + HEADER;
                from..from.checked_add(length)?
            }
            30 | 31 => first + HEADER..first + HEADER,
            words => first..first + 4 * words as usize,
        };
        // The next entry begins at a multiple of four.
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
    fn the_size_of_a_page_is_what_the_kernel_says() {
        assert_eq!(format().page_bytes(), 4096);
        assert!(PageFormat::parse("\tfield: u64 timestamp;\toffset:0;\tsize:8;\n").is_none());
    }

    #[test]
    fn times_add_up_and_lengths_are_words_or_bytes() {
        let words = [head(2, 5), 1, 2, head(0, 7), 4 + 8, 3, 4, head(1, 1), 9];
        let events = [
            Step::Event { time_ns: 1005, bytes: 20..28 },
            Step::Event { time_ns: 1012, bytes: 36..44 },
            Step::Event { time_ns: 1013, bytes: 48..52 },
        ];
        assert_eq!(steps(&page(1000, 0, &words, &[])), events);
    }

    #[test]
    fn long_times_absolute_times_and_padding_are_no_events() {
        let words = [head(30, 3), 2, head(1, 0), 7, head(31, 9), 1, head(1, 1), 7];
        let extended = 1000 + 3 + (2 << 27);
        let absolute = (1 << 27) + 9 + 1;
        let found = steps(&page(1000, 0, &words, &[]));
        assert_eq!(found[0], Step::Event { time_ns: extended, bytes: 28..32 });
        assert_eq!(found[1], Step::Event { time_ns: absolute, bytes: 44..48 });
        // A discarded event counts by its time, and what was never written ends the page.
        let words = [head(29, 4), 8, 0, head(1, 1), 7, head(29, 0), head(1, 1), 7];
        let events = [Step::Event { time_ns: 1005, bytes: 32..36 }];
        assert_eq!(steps(&page(1000, 0, &words, &[])), events);
    }

    #[test]
    fn lost_events_are_counted_where_the_kernel_had_room_to_say_how_many() {
        let lost = |flags, after: &[u8]| {
            format().header(&page(0, flags, &[head(1, 0), 0], after)).map(|header| header.lost)
        };
        assert_eq!(lost(0, &[]), Some(None));
        assert_eq!(lost(MISSED, &[]), Some(Some(0)));
        assert_eq!(lost(MISSED | MISSED_STORED, &77_u64.to_le_bytes()), Some(Some(77)));
        assert_eq!(lost(MISSED | MISSED_STORED, &[]), None);
    }

    #[test]
    fn an_event_that_reaches_over_the_end_is_damage() {
        for words in [&[head(3, 1), 1, 2][..], &[head(0, 1)], &[head(0, 1), 3], &[head(0, 1), 99]] {
            assert_eq!(steps(&page(1000, 0, words, &[])), [Step::Damaged]);
        }
        assert_eq!(format().header(&page(0, 64, &[], &[])), None);
        assert_eq!(format().header(&[0; 15]), None);
    }

    #[test]
    fn random_bytes_never_panic_and_always_end() {
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
