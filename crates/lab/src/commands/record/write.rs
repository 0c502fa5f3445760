//! Writing the traced events as a recording, while they are traced.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;

use shootdown_recording::raw::{RawEvent, RawKind};
use shootdown_recording::{Assembler, Ended, Header, Observer, Source, Startup, Writer};
use shootdown_stacks::Sampler;

use super::blocks::{Blocks, LimitReached};
use super::counted::Counted;
use super::files::Files;
use super::merge::Merge;
use super::queue::{End, Item, Queue};
use super::recorded::Written;
use super::stacks::{CallStacks, Placed};

/// Number of events between two reports of progress.
const EVENTS_PER_REPORT: u64 = 1 << 14;
/// The largest part of a command that is kept, in bytes, because headers have a size limit.
const COMMAND_BYTES_MAX: usize = 16 << 10;

/// Returns the header of a recording of `command` on this machine.
pub(super) fn header(command: &[OsString], cpus: u32) -> Header {
    let line = |path, key: Option<&str>| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = match key {
            None => text.lines().next(),
            Some(key) => text.lines().find_map(|line| {
                let (found, value) = line.split_once(':')?;
                (found.trim() == key).then_some(value)
            }),
        };
        line.unwrap_or_default().trim().to_owned()
    };
    let processor = Some(line("/proc/cpuinfo", Some("model name")));
    let processor = processor.filter(|name| !name.is_empty());
    Header {
        recorder: format!("shootdown {}", env!("CARGO_PKG_VERSION")),
        source: Source::Tracefs,
        kernel: line("/proc/sys/kernel/osrelease", None),
        processor: processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cpus,
        command: bounded(command),
    }
}

/// The recording, and the way in which it ended.
#[derive(Debug)]
pub(super) struct Assembled<'f> {
    pub(super) written: Written,
    pub(super) extent: Extent,
    /// The file, unless it already has its name.
    pub(super) files: Option<Files<'f>>,
}

/// The part of the traced events that the recording contains.
#[derive(Debug)]
pub(super) enum Extent {
    Whole,
    /// The disk was full, or failed. The recording ends before.
    CutByDisk(io::Error),
    /// The recording reached its largest size, and ends before.
    CutByLimit,
    /// The user discarded the recording.
    Discarded,
}

/// Writes the events of `queue` to the files, until the queue ends or the last file is full. The
/// file is then a valid recording, unless it is discarded, or the disk has failed.
///
/// # Errors
///
/// If not even an empty recording can be written.
pub(super) fn assemble<'f>(
    queue: &Queue,
    (merge, sampler): (Merge<'_>, Option<Sampler>),
    (header, observer): (&Header, Option<Observer>),
    startup: Startup,
    files: Files<'f>,
) -> io::Result<Assembled<'f>> {
    let writer = Writer::create(files.blocks()?, header)?;
    let (mut assembler, stacks) = (Assembler::new(writer, startup), CallStacks::new(sampler));
    if let Some(observer) = observer {
        assembler = assembler.observed_by(observer);
    }
    let (written, counted) = (Written::default(), VecDeque::new());
    let files = Some(files);
    let mut assembly = Assembly { queue, header, assembler, files, stacks, counted, written };
    let ended = assembly.run(merge).and_then(|end| match end {
        End::Discarded => Ok(Extent::Discarded),
        End::Complete { ended, .. } => assembly.assembler.end(ended).map(|()| Extent::Whole),
    });
    let extent = ended.unwrap_or_else(|error| {
        // If the disk has failed, the file lacks its totals, and readers report that.
        let _ = assembly.assembler.cut();
        cut(error)
    });
    let Assembly { written, stacks, files, .. } = assembly;
    Ok(Assembled { written: Written { stacks_lost: stacks.lost(), ..written }, extent, files })
}

fn cut(error: io::Error) -> Extent {
    if error.get_ref().is_some_and(|error| error.is::<LimitReached>()) {
        Extent::CutByLimit
    } else {
        Extent::CutByDisk(error)
    }
}

struct Assembly<'a, 'f> {
    queue: &'a Queue,
    header: &'a Header,
    assembler: Assembler<Blocks>,
    /// `None` after the next file could not be created.
    files: Option<Files<'f>>,
    stacks: CallStacks,
    /// Counters that are later than all events so far, in the order of time.
    counted: VecDeque<Counted>,
    written: Written,
}

impl Assembly<'_, '_> {
    fn run(&mut self, mut merge: Merge<'_>) -> io::Result<End> {
        loop {
            match self.queue.pop() {
                Item::Batch(batch) => {
                    self.counted.extend(batch.counted);
                    for (stream, page) in batch.pages {
                        merge.add(stream, page);
                    }
                    self.stacks.collect();
                    merge.emit_until(batch.complete_to_ns, |event| self.event(event))?;
                }
                Item::End(end) => {
                    if let End::Complete { lost, .. } = &end {
                        self.stacks.collect();
                        merge.finish(lost, |event| self.event(event))?;
                        self.write_counted(u64::MAX)?;
                        if let Some(names) = self.stacks.late_names() {
                            self.assembler.event(names)?;
                        }
                    }
                    return Ok(end);
                }
            }
        }
    }

    /// Writes the counters that were read up to a time.
    fn write_counted(&mut self, to_ns: u64) -> io::Result<()> {
        while self.counted.front().is_some_and(|it| it.time_ns <= to_ns) {
            let counted = self.counted.pop_front().into_iter();
            counted.flat_map(Counted::events).try_for_each(|event| self.assembler.event(event))?;
        }
        Ok(())
    }

    /// Begins the next file, if this one is full and only the latest part is kept.
    fn next_file(&mut self) -> io::Result<()> {
        let bytes = self.assembler.output().bytes();
        let Some(files) = self.files.take_if(|files| files.is_full(bytes)) else { return Ok(()) };
        if let Some(names) = self.stacks.late_names() {
            self.assembler.event(names)?;
        }
        self.assembler.end(Ended::Interrupted)?;
        let files = self.files.insert(files.next()?);
        self.assembler.restart(Writer::create(files.blocks()?, self.header)?)?;
        self.counted.extend(Counted::now());
        Ok(())
    }

    fn event(&mut self, event: RawEvent) -> io::Result<()> {
        self.next_file()?;
        self.write_counted(event.time_ns)?;
        let Placed { before, after, is_caused } = self.stacks.place(&event);
        self.stack(before)?;
        if is_caused {
            return Ok(());
        }
        match event.kind {
            RawKind::Lost { count } => {
                // An unknown number of lost events counts as at least one.
                self.written.lost = self.written.lost.saturating_add(count.max(1));
            }
            _ => self.written.events += 1,
        }
        if self.written.events.is_multiple_of(EVENTS_PER_REPORT) {
            self.queue.wrote(self.written.events);
        }
        self.assembler.event(event)?;
        self.stack(after)
    }

    fn stack(&mut self, stack: Option<RawEvent>) -> io::Result<()> {
        self.written.stacks += u64::from(stack.is_some());
        stack.map_or(Ok(()), |stack| self.assembler.event(stack))
    }
}

/// Returns the part of `command` that fits into a header.
fn bounded(command: &[OsString]) -> Vec<String> {
    let mut room = COMMAND_BYTES_MAX;
    let mut words = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        if word.len().max(1) > room {
            words.push("...".to_owned());
            break;
        }
        // An empty word counts as one byte.
        room -= word.len().max(1);
        words.push(word.into_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_command_is_truncated() {
        let words = |count: usize, length: usize| vec![OsString::from("x".repeat(length)); count];
        assert_eq!(bounded(&words(3, 5)), ["xxxxx"; 3]);
        let cut = bounded(&words(100, 1000));
        assert_eq!((cut.len(), cut.last().map(String::as_str)), (17, Some("...")));
        assert!(bounded(&words(100_000, 0)).len() <= COMMAND_BYTES_MAX + 1);
    }
}
