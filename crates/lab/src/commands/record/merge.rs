//! The merge of the sorted events of many buffers into one sorted sequence.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

use shootdown_recording::raw::{During, RawEvent, RawKind, Tid};

use super::decode::Decoder;
use super::page::{Cursor, PageFormat, Step};
use super::spool::{Spooled, Stream};

/// Calls `emit` with every event of `spooled` in ascending order of time. One page of each stream
/// is in memory at a time.
///
/// # Errors
///
/// The errors of reading the pages, and those of `emit`.
pub(super) fn merge<E: From<io::Error>>(
    spooled: &Spooled,
    format: PageFormat,
    decoder: &Decoder,
    mut emit: impl FnMut(RawEvent) -> Result<(), E>,
) -> Result<(), E> {
    let reader = |stream| Reader::new(spooled, stream, format, decoder);
    let mut readers: Vec<_> = spooled.streams.iter().map(reader).collect();
    let mut heads = BinaryHeap::new();
    let mut events = Vec::with_capacity(readers.len());
    for (index, reader) in readers.iter_mut().enumerate() {
        let event = reader.next()?;
        heads.extend(event.as_ref().map(|event| Reverse((event.time_ns, index))));
        events.push(event);
    }
    while let Some(Reverse((_, index))) = heads.pop() {
        let next = readers[index].next()?;
        heads.extend(next.as_ref().map(|event| Reverse((event.time_ns, index))));
        if let Some(event) = std::mem::replace(&mut events[index], next) {
            emit(event)?;
        }
    }
    Ok(())
}

/// The events of one stream.
struct Reader<'a> {
    spooled: &'a Spooled,
    stream: &'a Stream,
    format: PageFormat,
    decoder: &'a Decoder,
    page_index: usize,
    page: Vec<u8>,
    cursor: Option<Cursor>,
    /// The time of the previous event.
    time_ns: u64,
    /// Number of lost events that are reported at the end of the stream.
    lost_unreported: u64,
}

impl<'a> Reader<'a> {
    fn new(
        spooled: &'a Spooled,
        stream: &'a Stream,
        format: PageFormat,
        decoder: &'a Decoder,
    ) -> Self {
        Self {
            spooled,
            stream,
            format,
            decoder,
            page_index: 0,
            page: Vec::new(),
            cursor: None,
            time_ns: 0,
            lost_unreported: stream.lost_unreported,
        }
    }

    /// Returns the next event that belongs in a recording.
    fn next(&mut self) -> io::Result<Option<RawEvent>> {
        loop {
            let Some(cursor) = &mut self.cursor else {
                match self.next_page()? {
                    Turned::End => {
                        let count = std::mem::take(&mut self.lost_unreported);
                        return Ok((count > 0).then(|| self.lost(count)));
                    }
                    Turned::Page { lost: None } => continue,
                    Turned::Page { lost: Some(count) } => return Ok(Some(self.lost(count))),
                }
            };
            match cursor.next(&self.page) {
                None => self.cursor = None,
                // The rest of the page is lost. The number of its events is unknown.
                Some(Step::Damaged) => return Ok(Some(self.lost(0))),
                Some(Step::Event { time_ns, bytes }) => {
                    // While the kernel adjusts the clock, a CPU may read an earlier time.
                    self.time_ns = time_ns.max(self.time_ns);
                    let bytes = self.page.get(bytes).unwrap_or_default();
                    let event = self.decoder.event(self.time_ns, self.stream.cpu, bytes);
                    if event.is_some() {
                        return Ok(event);
                    }
                }
            }
        }
    }

    /// Advances to the next page.
    fn next_page(&mut self) -> io::Result<Turned> {
        if !self.spooled.read(self.stream, self.page_index, &mut self.page)? {
            return Ok(Turned::End);
        }
        self.page_index += 1;
        // The page had a header when it was added to the spool.
        let Some(header) = self.format.header(&self.page) else {
            return Ok(Turned::Page { lost: Some(0) });
        };
        self.cursor = Some(header.cursor());
        self.time_ns = self.time_ns.max(header.time_ns);
        Ok(Turned::Page { lost: header.lost })
    }

    fn lost(&self, count: u64) -> RawEvent {
        RawEvent {
            time_ns: self.time_ns,
            cpu: self.stream.cpu,
            // A lost event belongs to no task.
            tid: Tid(0),
            during: During::Interrupt,
            kind: RawKind::Lost { count },
        }
    }
}

/// The next page, with the number of events lost before it (see
/// [`Header::lost`](super::page::Header::lost)), or the end.
enum Turned {
    End,
    Page { lost: Option<u64> },
}

#[cfg(test)]
mod tests {
    use super::super::spool::Spool;
    use super::*;
    use crate::output::{Existing, Output};

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

    /// Returns the time and the CPU of each event, and the number of lost events.
    fn merged(streams: &[(u32, &[Vec<u8>])], lost: u64) -> Vec<(u64, u32, Option<u64>)> {
        let format = PageFormat::parse(FORMAT).expect("a format");
        let directory = tempfile::tempdir().expect("a directory");
        let output = Output::new(&directory.path().join("x"), Existing::Keep).expect("an output");
        let cpus = streams.iter().map(|(cpu, _)| *cpu);
        let mut spool = Spool::new(&output, cpus).expect("a file");
        for (index, (_, pages)) in streams.iter().enumerate() {
            for page in *pages {
                spool.add(index, page, &format.header(page).expect("a header")).expect("room");
            }
            spool.set_lost(index, lost);
        }
        let mut found = Vec::new();
        merge(&spool.finish().expect("room"), format, &Decoder::for_tests(), |event| {
            let lost = match event.kind {
                RawKind::Lost { count } => Some(count),
                _ => None,
            };
            found.push((event.time_ns, event.cpu, lost));
            Ok::<_, io::Error>(())
        })
        .expect("pages");
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
