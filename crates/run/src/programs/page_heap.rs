//! The page heap of gperftools 2.x, as far as it makes system calls: `PageHeap` of
//! `src/page_heap.cc` with its default parameters, for a program that only allocates more than
//! 1 MiB at a time.
//!
//! Free spans are *normal*, or *returned* to the kernel, and only spans of the same kind are
//! merged. An allocation takes the span of either kind that fits best. If no span fits, both kinds
//! exist, and the heap would grow past a multiple of 128 MiB, the heap first returns all spans and
//! so merges them. Large allocations nearly always meet this condition. If still no span fits, the
//! heap grows. A span is also returned whenever as much was freed as the release rate demands.

use core::ops::Range;

/// Size of a page of the heap (`kPageShift`).
pub(super) const PAGE_BYTES: u64 = 8192;
/// Spans of fewer pages are on lists by their length (`kMaxPages`).
const LARGE: u64 = 128;
/// Interval of merging, in pages (`kForcedCoalesceInterval`).
const COALESCE_INTERVAL: u64 = (128 << 20) / PAGE_BYTES;
/// Largest delay of the next release, in pages (`kMaxReleaseDelay`). A release of 1049 pages or
/// more leads to this delay.
const RELEASE_DELAY_MAX: i64 = 1 << 20;

/// A system call of the heap. Pages are those of the heap, counted from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Extends the heap by these pages (`sbrk`).
    Grow(Range<u64>),
    /// Returns these pages (`madvise(MADV_DONTNEED)`).
    Return(Range<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Used,
    Normal,
    Returned,
}

#[derive(Clone, Debug)]
struct Span {
    pages: Range<u64>,
    state: State,
}

impl Span {
    const fn length(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}

/// The heap, which is empty at first.
#[derive(Debug, Default)]
pub(super) struct PageHeap {
    /// All spans, in order.
    spans: Vec<Span>,
    /// Number of pages that are freed before a span is returned.
    until_release: i64,
    /// The list from which that span is taken: the length, from 0 on, or `LARGE` for large spans.
    next_list: u64,
    requests: Vec<Request>,
}

impl PageHeap {
    pub(super) fn new() -> Self {
        Self { next_list: LARGE, ..Self::default() }
    }

    /// Removes and returns the system calls since the last call of this method.
    pub(super) fn take_requests(&mut self) -> Vec<Request> {
        core::mem::take(&mut self.requests)
    }

    /// Returns the size of the heap in pages.
    pub(super) fn size(&self) -> u64 {
        self.spans.last().map_or(0, |span| span.pages.end)
    }

    /// Allocates a span of this number of pages, and returns its first page.
    pub(super) fn allocate(&mut self, pages: u64) -> u64 {
        if let Some(first) = self.take_best(pages) {
            return first;
        }
        if self.may_coalesce(pages) {
            while self.return_next() > 0 {}
            if let Some(first) = self.take_best(pages) {
                return first;
            }
        }
        let grown = self.size()..self.size() + pages;
        self.requests.push(Request::Grow(grown.clone()));
        self.spans.push(Span { pages: grown.clone(), state: State::Used });
        // The new span counts as freed, and is merged with the normal span before it.
        self.free(grown.start);
        self.take_best(pages).expect("as much was just freed")
    }

    /// Frees the span that begins at a page.
    pub(super) fn free(&mut self, first: u64) {
        let Some(index) = self.spans.iter().position(|span| span.pages.start == first) else {
            return;
        };
        let pages = self.spans[index].length();
        self.spans[index].state = State::Normal;
        self.merge(index);
        self.until_release -= pages as i64;
        if self.until_release < 0 {
            let wait = 1000 * self.return_next() as i64;
            self.until_release = wait.min(RELEASE_DELAY_MAX);
        }
    }

    /// Allocates from the shortest span that is long enough; of several, from the first.
    fn take_best(&mut self, pages: u64) -> Option<u64> {
        let spans = self.spans.iter().enumerate();
        let fitting = spans.filter(|(_, it)| it.state != State::Used && it.length() >= pages);
        let (index, _) = fitting.min_by_key(|(_, it)| (it.length(), it.pages.start))?;
        let Span { pages: found, state } = self.spans[index].clone();
        let end = found.start + pages;
        self.spans[index] = Span { pages: found.start..end, state: State::Used };
        if end < found.end {
            self.spans.insert(index + 1, Span { pages: end..found.end, state });
        }
        Some(found.start)
    }

    /// Returns `true` if both kinds of free spans exist, they are a quarter of the heap or more,
    /// and growth would go past a multiple of 128 MiB.
    fn may_coalesce(&self, pages: u64) -> bool {
        let of = |state| {
            let spans = self.spans.iter().filter(move |span| span.state == state);
            spans.map(Span::length).sum::<u64>()
        };
        let (normal, returned, size) = (of(State::Normal), of(State::Returned), self.size());
        normal != 0
            && returned != 0
            && normal + returned >= size / 4
            && size / COALESCE_INTERVAL != (size + pages) / COALESCE_INTERVAL
    }

    /// Returns the next normal span to the kernel, list by list. Returns its length, or 0.
    fn return_next(&mut self) -> u64 {
        for _ in 0..=LARGE {
            let list = self.next_list;
            self.next_list = if list == LARGE { 0 } else { list + 1 };
            let on_list =
                |span: &Span| span.state == State::Normal && span.length().min(LARGE) == list;
            let spans = self.spans.iter().enumerate().filter(|(_, span)| on_list(span));
            let shortest = spans.min_by_key(|(_, span)| span.length());
            if let Some((index, span)) = shortest {
                let pages = span.pages.clone();
                self.requests.push(Request::Return(pages.clone()));
                self.spans[index].state = State::Returned;
                self.merge(index);
                return pages.end - pages.start;
            }
        }
        0
    }

    /// Merges a span with neighbours of the same kind.
    fn merge(&mut self, index: usize) {
        let state = self.spans[index].state;
        if self.spans.get(index + 1).is_some_and(|next| next.state == state) {
            self.spans[index].pages.end = self.spans.remove(index + 1).pages.end;
        }
        if index > 0 && self.spans[index - 1].state == state {
            self.spans[index - 1].pages.end = self.spans.remove(index).pages.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitting_span_is_reused_without_a_system_call() {
        let mut heap = PageHeap::new();
        let interval = COALESCE_INTERVAL;
        let first = heap.allocate(interval / 2);
        assert_eq!(heap.take_requests().first(), Some(&Request::Grow(0..interval / 2)));
        heap.free(first);
        let _ = heap.take_requests();
        assert_eq!(heap.allocate(interval / 2), first, "the free span fits");
        assert_eq!(heap.take_requests(), []);
    }

    /// The test of gperftools asserts the same of the real heap.
    #[test]
    fn heap_stays_below_a_gibibyte() {
        let mut heap = PageHeap::new();
        let mut asked = 0;
        for _ in 0..3 {
            let mut bytes: u64 = 100 << 20;
            while bytes < 500 << 20 {
                let first = heap.allocate(bytes.div_ceil(PAGE_BYTES));
                heap.free(first);
                asked += heap.take_requests().len();
                bytes += 20_000;
                assert!(heap.size() * PAGE_BYTES < 1 << 30, "{} pages", heap.size());
            }
        }
        assert!(
            asked > 0
                && heap.spans.windows(2).all(|pair| {
                    pair[0].pages.end == pair[1].pages.start
                        && (pair[0].state != pair[1].state || pair[0].state == State::Used)
                })
        );
    }
}
