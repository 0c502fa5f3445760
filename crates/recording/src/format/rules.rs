//! The properties of every valid recording. A writer refuses each record that a reader would
//! refuse.

use super::{CPUS_MAX, FRAMES_MAX, HEADER_BYTES_MAX, NAME_BYTES_MAX, SPACES_MAX, TASKS_MAX};
use crate::record::{Event, FrameId, Record, SpaceId, TaskId};
use shootdown_program::varint::Malformed;
use thiserror::Error;

/// Checks the records in order, and counts them.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    cpus: u32,
    tasks: u32,
    frames: u32,
    /// Number of records.
    pub(super) records: u64,
    /// Number of lost events.
    pub(super) lost: u64,
    /// Time of the last record.
    pub(super) time_ns: u64,
}

impl Rules {
    pub(super) fn new(cpus: u32) -> Self {
        Self { cpus, tasks: 0, frames: 0, records: 0, lost: 0, time_ns: 0 }
    }

    /// Counts a record. Returns an error, and changes nothing, if the record is invalid here.
    #[inline]
    pub(super) fn admit(&mut self, record: &Record) -> Result<(), Invalid> {
        self.check_time_and_cpu(record.time_ns, record.cpu)?;
        match &record.event {
            Event::Task { task, space, name, .. } | Event::Spawn { task, space, name } => {
                check_space(*space, name)?;
                self.declare(*task)?;
            }
            Event::Exec { space, name } => check_space(*space, name)?,
            Event::Running { task }
            | Event::Switch { next: task, .. }
            | Event::Wake { task, .. } => {
                self.check_task(*task)?;
            }
            Event::Interrupts { targets } | Event::Requests { targets } => {
                self.check_targets(targets)?;
            }
            Event::Frame { frame, caller, function } => {
                check_names([&function.function, &function.file])?;
                self.check_frame(*caller)?;
                self.declare_frame(*frame)?;
            }
            Event::Stack { frame, .. } => self.check_frame(*frame)?,
            Event::Name { frame, function, file } => {
                check_names([function, file])?;
                self.check_call(*frame)?;
            }
            Event::Lost { count } => {
                self.lost = self.lost.checked_add(*count).ok_or(Invalid::TooManyLost)?;
            }
            Event::Exit
            | Event::Call(_)
            | Event::Return { .. }
            | Event::Fault { .. }
            | Event::Flush { .. }
            | Event::Counted { .. } => {}
        }
        self.count(record.time_ns);
        Ok(())
    }

    /// Counts a record of a kind that this version does not know.
    pub(super) fn skip(&mut self, time_ns: u64, cpu: u32) -> Result<(), Invalid> {
        self.check_time_and_cpu(time_ns, cpu)?;
        self.count(time_ns);
        Ok(())
    }

    fn count(&mut self, time_ns: u64) {
        self.records += 1;
        self.time_ns = time_ns;
    }

    fn check_time_and_cpu(&self, time_ns: u64, cpu: u32) -> Result<(), Invalid> {
        check(time_ns >= self.time_ns, Invalid::TimeBackwards)?;
        check(cpu < self.cpus, Invalid::UnknownCpu(cpu))
    }

    fn declare(&mut self, task: TaskId) -> Result<(), Invalid> {
        check(self.tasks < TASKS_MAX, Invalid::TooManyTasks)?;
        check(task.0 == self.tasks + 1, Invalid::TaskOutOfSequence(task))?;
        self.tasks += 1;
        Ok(())
    }

    fn declare_frame(&mut self, frame: FrameId) -> Result<(), Invalid> {
        check(self.frames < FRAMES_MAX, Invalid::TooManyFrames)?;
        check(frame.0 == self.frames + 1, Invalid::FrameOutOfSequence(frame))?;
        self.frames += 1;
        Ok(())
    }

    fn check_frame(&self, frame: FrameId) -> Result<(), Invalid> {
        check(frame.0 <= self.frames, Invalid::UnknownFrame(frame))
    }

    /// Checks the number of a call, which is not [`FrameId::NONE`].
    fn check_call(&self, frame: FrameId) -> Result<(), Invalid> {
        check(frame != FrameId::NONE, Invalid::UnknownFrame(frame))?;
        self.check_frame(frame)
    }

    fn check_task(&self, task: TaskId) -> Result<(), Invalid> {
        check(task.0 <= self.tasks, Invalid::UnknownTask(task))
    }

    fn check_targets(&self, targets: &[u32]) -> Result<(), Invalid> {
        check(targets.is_sorted_by(|a, b| a < b), Invalid::TargetsUnsorted)?;
        match targets.last() {
            Some(&cpu) if cpu >= self.cpus => Err(Invalid::UnknownCpu(cpu)),
            _ => Ok(()),
        }
    }
}

/// Checks the number of a space, and the name of a task in it.
fn check_space(space: SpaceId, name: &str) -> Result<(), Invalid> {
    check(space.0 < SPACES_MAX, Invalid::TooManySpaces)?;
    check_names([name])
}

fn check_names<const N: usize>(names: [&str; N]) -> Result<(), Invalid> {
    check(names.iter().all(|name| name.len() <= NAME_BYTES_MAX), Invalid::LongName)
}

fn check(is_met: bool, otherwise: Invalid) -> Result<(), Invalid> {
    if is_met { Ok(()) } else { Err(otherwise) }
}

/// The reason why a recording is invalid, although its checksums match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The JSON of the header is invalid from this column on.
    #[error("the header has an error in column {column}")]
    Header {
        /// Number of the column; the first is 1.
        column: usize,
    },
    /// The JSON of the totals is invalid from this column on.
    #[error("the totals have an error in column {column}")]
    TotalsSyntax {
        /// Number of the column; the first is 1.
        column: usize,
    },
    /// The header is longer than [`HEADER_BYTES_MAX`].
    #[error("the header is longer than {HEADER_BYTES_MAX} bytes")]
    LongHeader,
    /// The number of CPUs is 0 or more than [`CPUS_MAX`].
    #[error("{0} CPUs are not between 1 and {CPUS_MAX}")]
    Cpus(u32),
    /// The header describes this kind of records twice, or differently from this version.
    #[error("kind {0} is described twice, or differently from this version")]
    Schema(u8),
    /// A block has the wrong index: a block is missing or duplicated.
    #[error("a block is missing or duplicated")]
    BlockOrder,
    /// The records of a block end before or after its last byte.
    #[error("a block and its records do not end together")]
    BlockEnd,
    /// The header does not describe the kind of a record.
    #[error("a record is of kind {0}, which the header does not describe")]
    UnknownKind(u8),
    /// A number is too large for its field.
    #[error("a number is too large for its field")]
    Number,
    /// A number does not name a choice of its field.
    #[error("{0} is not among the choices of its field")]
    Choice(u64),
    /// A name is not UTF-8.
    #[error("a name is not UTF-8")]
    Text,
    /// A name is longer than [`NAME_BYTES_MAX`].
    #[error("a name is longer than {NAME_BYTES_MAX} bytes")]
    LongName,
    /// A record is earlier than the record before it.
    #[error("time goes backwards")]
    TimeBackwards,
    /// A CPU is not below the number of CPUs in the header.
    #[error("there is no CPU {0}")]
    UnknownCpu(u32),
    /// The targets of an interrupt are not in ascending order.
    #[error("targets are not in ascending order")]
    TargetsUnsorted,
    /// A record refers to a task that has not been introduced.
    #[error("task {} was never introduced", .0.0)]
    UnknownTask(TaskId),
    /// A task is introduced with a number that is not the next one.
    #[error("task {} is introduced out of sequence", .0.0)]
    TaskOutOfSequence(TaskId),
    /// The recording has more than [`TASKS_MAX`] tasks.
    #[error("there are more than {TASKS_MAX} tasks")]
    TooManyTasks,
    /// A record refers to a call that has not been introduced.
    #[error("call {} was never introduced", .0.0)]
    UnknownFrame(FrameId),
    /// A call is introduced with a number that is not the next one.
    #[error("call {} is introduced out of sequence", .0.0)]
    FrameOutOfSequence(FrameId),
    /// The recording has more than [`FRAMES_MAX`] calls in its call stacks.
    #[error("there are more than {FRAMES_MAX} calls")]
    TooManyFrames,
    /// The number of an address space is not below [`SPACES_MAX`].
    #[error("there are more than {SPACES_MAX} spaces")]
    TooManySpaces,
    /// The number of lost events exceeds 64 bits.
    #[error("more events were lost than can be counted")]
    TooManyLost,
    /// The totals differ from those of the records.
    #[error("the totals are not those of the records")]
    Totals,
    /// Bytes follow the end mark.
    #[error("something follows the end")]
    Surplus,
}

impl From<Malformed> for Invalid {
    fn from(malformed: Malformed) -> Self {
        match malformed {
            Malformed::End => Self::BlockEnd,
            Malformed::Number | Malformed::Unknown => Self::Number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Frame, Layer, Left, Waker};

    fn refused(event: Event) -> Option<Invalid> {
        Rules::new(4).admit(&Record { time_ns: 0, cpu: 0, event }).err()
    }

    fn spawn(task: u32, space: u32, name_bytes: usize) -> Event {
        let name = "x".repeat(name_bytes);
        Event::Spawn { task: TaskId(task), space: SpaceId(space), name }
    }

    #[test]
    fn numbers_that_index_are_bounded() {
        let task = TaskId(1);
        let name = String::new;
        let unknown = Some(Invalid::UnknownTask(task));
        assert_eq!(refused(Event::Running { task }), unknown);
        assert_eq!(refused(Event::Switch { next: task, left: Left::Dead }), unknown);
        assert_eq!(refused(Event::Wake { task, by: Waker::Running }), unknown);
        assert_eq!(refused(spawn(2, 0, 0)), Some(Invalid::TaskOutOfSequence(TaskId(2))));
        assert_eq!(refused(spawn(0, 0, 0)), Some(Invalid::TaskOutOfSequence(TaskId::KERNEL)));
        assert_eq!(refused(spawn(1, SPACES_MAX, 0)), Some(Invalid::TooManySpaces));
        let exec = Event::Exec { space: SpaceId(SPACES_MAX), name: name() };
        assert_eq!(refused(exec), Some(Invalid::TooManySpaces));
        assert_eq!(refused(spawn(1, 0, 256)), Some(Invalid::LongName));
        assert_eq!(refused(spawn(1, SPACES_MAX - 1, 255)), None);
        let interrupts = |targets: Vec<u32>| Event::Interrupts { targets };
        for event in [interrupts, |targets| Event::Requests { targets }] {
            let to = |targets: &[u32]| refused(event(targets.to_vec()));
            assert_eq!(to(&[0, 4]), Some(Invalid::UnknownCpu(4)));
            assert_eq!(to(&[2, 1]), Some(Invalid::TargetsUnsorted));
            assert_eq!(to(&[1, 1]), Some(Invalid::TargetsUnsorted));
            assert_eq!(to(&[0, 1, 3]), None);
        }
    }

    #[test]
    fn tasks_are_numbered_in_sequence_up_to_bound() {
        let mut rules = Rules::new(1);
        let mut admit =
            |task| rules.admit(&Record { time_ns: 0, cpu: 0, event: spawn(task, 0, 0) });
        for task in 1..=TASKS_MAX {
            assert_eq!(admit(task), Ok(()));
        }
        assert_eq!(admit(TASKS_MAX + 1), Err(Invalid::TooManyTasks));
    }

    #[test]
    fn frames_are_numbered_after_their_callers() {
        let mut rules = Rules::new(1);
        let mut admit = |event| rules.admit(&Record { time_ns: 0, cpu: 0, event });
        let frame = |frame, caller, name_bytes| {
            let (function, file) = ("f".repeat(name_bytes), String::new());
            let function = Frame { layer: Layer::User, function, file, line: 7 };
            Event::Frame { frame: FrameId(frame), caller: FrameId(caller), function }
        };
        let stack = |frame| Event::Stack { frame: FrameId(frame), requests: 1 };
        assert_eq!(admit(stack(0)), Ok(()), "an empty stack");
        assert_eq!(admit(frame(1, 1, 1)), Err(Invalid::UnknownFrame(FrameId(1))));
        assert_eq!(admit(frame(2, 0, 1)), Err(Invalid::FrameOutOfSequence(FrameId(2))));
        assert_eq!(admit(frame(1, 0, NAME_BYTES_MAX + 1)), Err(Invalid::LongName));
        assert_eq!(admit(frame(1, 0, NAME_BYTES_MAX)), Ok(()));
        assert_eq!(admit(stack(2)), Err(Invalid::UnknownFrame(FrameId(2))));
        assert_eq!((admit(frame(2, 1, 1)), admit(stack(2))), (Ok(()), Ok(())));
        let name = |frame, bytes| {
            let (function, file) = (String::new(), "f".repeat(bytes));
            Event::Name { frame: FrameId(frame), function, file }
        };
        assert_eq!(admit(name(0, 1)), Err(Invalid::UnknownFrame(FrameId::NONE)));
        assert_eq!(admit(name(3, 1)), Err(Invalid::UnknownFrame(FrameId(3))));
        assert_eq!(admit(name(2, NAME_BYTES_MAX + 1)), Err(Invalid::LongName));
        assert_eq!(admit(name(2, NAME_BYTES_MAX)), Ok(()));
    }

    #[test]
    fn refused_record_changes_nothing() {
        let mut rules = Rules::new(2);
        let mut admit = |time_ns, cpu, event| {
            let result = rules.admit(&Record { time_ns, cpu, event });
            (result, rules.records, rules.lost, rules.time_ns)
        };
        let lost = |count| Event::Lost { count };
        assert_eq!(admit(5, 1, lost(u64::MAX)), (Ok(()), 1, u64::MAX, 5));
        assert_eq!(admit(6, 0, lost(1)), (Err(Invalid::TooManyLost), 1, u64::MAX, 5));
        assert_eq!(admit(4, 0, lost(0)), (Err(Invalid::TimeBackwards), 1, u64::MAX, 5));
        assert_eq!(admit(6, 2, lost(0)), (Err(Invalid::UnknownCpu(2)), 1, u64::MAX, 5));
        assert_eq!(admit(7, 0, spawn(1, 0, 256)), (Err(Invalid::LongName), 1, u64::MAX, 5));
        assert_eq!(admit(5, 0, spawn(1, 0, 0)), (Ok(()), 2, u64::MAX, 5));
    }
}
