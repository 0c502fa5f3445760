//! The merge of the sorted events of many buffers into one sorted sequence, while the buffers are
//! read.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};

use super::decode::Decoder;
use super::page::{Cursor, PageFormat, Step};

/// A merge in progress. Its memory is bounded by the pages that were added and not emitted yet.
pub(super) struct Merge<'a> {
    format: PageFormat,
    decoder: &'a Decoder,
    streams: Vec<Stream>,
    /// The time and the stream of each stream's next event.
    heads: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<'a> Merge<'a> {
    /// Creates a merge of one stream for each of `cpus`.
    pub(super) fn new(
        cpus: impl IntoIterator<Item = u32>,
        format: PageFormat,
        decoder: &'a Decoder,
    ) -> Self {
        let streams = cpus.into_iter().map(Stream::new).collect();
        Self { format, decoder, streams, heads: BinaryHeap::new() }
    }

    /// Adds the next page of the stream with this index.
    ///
    /// # Panics
    ///
    /// If there is no stream with this index.
    pub(super) fn add(&mut self, stream: usize, page: Box<[u8]>) {
        self.streams[stream].pages.push_back(page);
        if self.streams[stream].head.is_none() {
            self.refill(stream);
        }
    }

    /// Calls `emit` in ascending order of time with every event up to `end_ns`. No page that is
    /// added later may have an earlier event.
    ///
    /// # Errors
    ///
    /// Those of `emit`.
    pub(super) fn emit_until<E>(
        &mut self,
        end_ns: u64,
        mut emit: impl FnMut(RawEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(&Reverse((time_ns, stream))) = self.heads.peek() {
            if time_ns > end_ns {
                break;
            }
            self.heads.pop();
            let event = self.streams[stream].head.take();
            self.refill(stream);
            event.map_or(Ok(()), &mut emit)?;
        }
        Ok(())
    }

    /// Emits the remaining events, and reports losses that no page reports. `lost` has the total
    /// number of lost events of each stream.
    ///
    /// # Errors
    ///
    /// Those of `emit`.
    pub(super) fn finish<E>(
        mut self,
        lost: &[u64],
        mut emit: impl FnMut(RawEvent) -> Result<(), E>,
    ) -> Result<(), E> {
        self.emit_until(u64::MAX, &mut emit)?;
        for (stream, total) in self.streams.iter().zip(lost) {
            let unreported = total.saturating_sub(stream.lost);
            if unreported > 0 {
                emit(stream.loss(unreported))?;
            }
        }
        Ok(())
    }

    /// Advances a stream to its next event.
    fn refill(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        stream.head = stream.next(self.format, self.decoder);
        self.heads.extend(stream.head.as_ref().map(|event| Reverse((event.time_ns, index))));
    }
}

/// The events of one buffer.
struct Stream {
    cpu: u32,
    /// The page that is read.
    page: Box<[u8]>,
    cursor: Option<Cursor>,
    /// The pages after `page`.
    pages: VecDeque<Box<[u8]>>,
    /// The next event.
    head: Option<RawEvent>,
    /// The time of the last event that was read.
    time_ns: u64,
    /// Number of lost events that pages have reported.
    lost: u64,
}

impl Stream {
    fn new(cpu: u32) -> Self {
        let (page, pages) = (Box::default(), VecDeque::new());
        Self { cpu, page, cursor: None, pages, head: None, time_ns: 0, lost: 0 }
    }

    /// Returns the next event that belongs in a recording; `None` if its page has not been added.
    fn next(&mut self, format: PageFormat, decoder: &Decoder) -> Option<RawEvent> {
        loop {
            let Some(cursor) = &mut self.cursor else {
                match self.next_page(format)? {
                    None => continue,
                    Some(count) => return Some(self.loss(count)),
                }
            };
            match cursor.next(&self.page) {
                None => self.cursor = None,
                // The rest of the page is lost. The number of its events is unknown.
                Some(Step::Damaged) => return Some(self.loss(0)),
                Some(Step::Event { time_ns, bytes }) => {
                    // While the kernel adjusts the clock, a CPU may read an earlier time.
                    self.time_ns = time_ns.max(self.time_ns);
                    let bytes = self.page.get(bytes).unwrap_or_default();
                    let event = decoder.event(self.time_ns, self.cpu, bytes);
                    if event.is_some() {
                        return event;
                    }
                }
            }
        }
    }

    /// Advances to the next page, if it has been added. Returns the number of events that were lost
    /// before it, if some were (see [`Header::lost`](super::page::Header::lost)).
    #[expect(clippy::option_option, reason = "no page, or a page without a loss")]
    fn next_page(&mut self, format: PageFormat) -> Option<Option<u64>> {
        self.page = self.pages.pop_front()?;
        // The page had a header when it was read.
        let Some(header) = format.header(&self.page) else { return Some(Some(0)) };
        self.cursor = Some(header.cursor());
        self.time_ns = self.time_ns.max(header.time_ns);
        self.lost = self.lost.saturating_add(header.lost.unwrap_or_default());
        Some(header.lost)
    }

    fn loss(&self, count: u64) -> RawEvent {
        RawEvent {
            time_ns: self.time_ns,
            cpu: self.cpu,
            // A lost event belongs to no task.
            tid: Tid(0),
            during: During::Interrupt,
            kind: RawKind::Lost { count },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const FORMAT: &str = "field: u64 timestamp; offset:0; size:8;\n\
        field: local_t commit; offset:8; size:8;\nfield: char data; offset:16; size:4080;\n";
    /// Flags: events were lost, and their number is stored at the end of the page.
    const LOST: u64 = 3 << 30;

    /// Returns a page of `sched_process_exit` events of task 5, `deltas_ns` apart, with an unknown
    /// event before each.
    fn page(time_ns: u64, deltas_ns: &[u32], lost: Option<u64>) -> Vec<u8> {
        let id = Decoder::id_for_tests("sched/sched_process_exit");
        let mut events = Vec::new();
        for delta_ns in deltas_ns {
            for (id, delta_ns) in [(200, 0), (id, *delta_ns)] {
                events.extend((2 | delta_ns << 5).to_le_bytes());
                events.extend([id, 0, 0, 0, 5, 0, 0, 0]);
            }
        }
        let commit = events.len() as u64 | lost.map_or(0, |_| LOST);
        let count = lost.map_or(Vec::new(), |lost| lost.to_le_bytes().to_vec());
        [&time_ns.to_le_bytes()[..], &commit.to_le_bytes(), &events, &count].concat()
    }

    type Found = Vec<(u64, u32, Option<u64>)>;

    /// Adds the time and the CPU of an event, and the number of lost events.
    fn note(found: &mut Found, event: &RawEvent) -> Result<(), Infallible> {
        let lost = match event.kind {
            RawKind::Lost { count } => Some(count),
            _ => None,
        };
        found.push((event.time_ns, event.cpu, lost));
        Ok(())
    }

    /// Merges whole streams. `lost` is the total loss of each.
    fn merged(streams: &[(u32, &[Vec<u8>])], lost: u64) -> Found {
        let format = PageFormat::parse(FORMAT).expect("a format");
        let decoder = Decoder::for_tests();
        let mut merge = Merge::new(streams.iter().map(|(cpu, _)| *cpu), format, &decoder);
        for (index, (_, pages)) in streams.iter().enumerate() {
            pages.iter().for_each(|page| merge.add(index, page.clone().into()));
        }
        let mut found = Vec::new();
        let losses = vec![lost; streams.len()];
        let Ok(()) = merge.finish(&losses, |event| note(&mut found, &event));
        found
    }

    #[test]
    fn streams_are_merged_by_time_across_pages() {
        let first = [page(100, &[10, 10], None), page(150, &[10], None)];
        let second = [page(90, &[5, 20, 35, 100], None)];
        let times: Vec<_> =
            merged(&[(0, &first), (3, &second), (1, &[])], 0).iter().map(|e| (e.0, e.1)).collect();
        assert_eq!(times, [(95, 3), (110, 0), (115, 3), (120, 0), (150, 3), (160, 0), (250, 3)]);
    }

    #[test]
    fn events_after_the_complete_time_wait_for_other_streams() {
        let format = PageFormat::parse(FORMAT).expect("a format");
        let decoder = Decoder::for_tests();
        let mut merge = Merge::new([0, 1], format, &decoder);
        let mut found = Vec::new();
        merge.add(0, page(100, &[10, 10, 100], None).into());
        let Ok(()) = merge.emit_until(120, |event| note(&mut found, &event));
        merge.add(1, page(130, &[10], None).into());
        merge.add(0, page(300, &[5], None).into());
        let Ok(()) = merge.emit_until(139, |event| note(&mut found, &event));
        assert_eq!(found.iter().map(|event| event.0).collect::<Vec<_>>(), [110, 120]);
        let Ok(()) = merge.finish(&[0, 0], |event| note(&mut found, &event));
        assert_eq!(found[2..], [(140, 1, None), (220, 0, None), (305, 0, None)]);
    }

    #[test]
    fn lost_events_are_reported_in_order() {
        let pages = [page(100, &[1], None), page(200, &[1], Some(7)), page(300, &[], Some(0))];
        let events = [(101, 4, None), (200, 4, Some(7)), (201, 4, None), (300, 4, Some(0))];
        assert_eq!(merged(&[(4, &pages)], 7), events);
        assert_eq!(merged(&[(4, &pages)], 9)[4..], [(300, 4, Some(2))]);
    }

    #[test]
    fn time_never_decreases_in_stream() {
        let pages = [page(100, &[9], None), page(105, &[1, 9], None)];
        let times: Vec<_> = merged(&[(0, &pages)], 0).iter().map(|event| event.0).collect();
        assert_eq!(times, [109, 109, 115]);
    }
}
