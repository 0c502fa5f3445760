//! A recording from its start to its end: the programs are found or started, traced, and written.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::HumanCount;
use shootdown_recording::raw::Tid;
use shootdown_recording::{Ended, Startup};
use shootdown_stacks::Sampler;

use super::account::Account;
use super::decode::Decoder;
use super::error::RecordError;
use super::files::{Files, Outputs};
use super::follow::{Follow, Load};
use super::merge::Merge;
use super::priority::{self, Background};
use super::queue::{End, Queue};
use super::recorded::Reason;
use super::session::{Captured, Session};
use super::signals::StopRequest;
use super::stopped_child::StoppedChild;
use super::target::{self, Target, Until};
use super::tasks::Tasks;
use super::user::User;
use super::write::{self, Assembled};
use super::{Record, Watch};
use crate::error::shown;

pub(super) const MIB: usize = 1 << 20;
/// The time between two looks for a request of the user while the recording is completed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A recording that was captured and written.
pub(super) struct Capture<'o> {
    pub(super) captured: Captured,
    pub(super) ended: Ended,
    pub(super) reason: Reason,
    pub(super) assembled: Assembled<'o>,
    pub(super) program: OsString,
}

/// Starts the command or finds the programs, and traces them until they end, or until the user, the
/// time or a full disk stops the recorder.
pub(super) fn capture<'o>(
    (mut session, sampler): (Session, Option<Sampler>),
    (options, load): (&Record, Option<Load>),
    account: Option<&Account>,
    (decoder, outputs, files): (&Decoder, &Outputs, Files<'o>),
    (user, watch): (&mut User, Option<&mut dyn Watch>),
) -> Result<Capture<'o>, RecordError> {
    let mut tasks = Tasks::default();
    let queue = Queue::new(options.memory_mib as usize * MIB);
    let to = (&session, &queue, sampler.as_ref());
    let (mut target, recorded) = begin(to, (options, load), account, &mut tasks)?;
    if user.signals.stop_request() != StopRequest::None {
        return Err(RecordError::Interrupted);
    }
    let words = match &target {
        Target::Command { .. } => options.command.clone(),
        Target::Running => target::description(&options.selection),
    };
    let program = words.first().cloned().unwrap_or_default();
    let header = write::header(&words, session.cpus());
    let observer = watch.map(|watch| watch.begin(&header));
    let startup = Startup { recorded, tasks: tasks.into_tasks().collect() };
    let merge = Merge::new(session.streams(), session.format(), decoder);
    let end = options.selection.duration.map(|duration| Instant::now() + duration);
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (queue, header) = (&queue, &header);
        let writer = scope.spawn(move || {
            let _stop = queue.stop_at_end();
            let is_observed = observer.is_some();
            let background = if is_observed { Background::ordinary() } else { Background::enter() };
            let _ = sender.send(background);
            write::assemble(queue, (merge, sampler), (header, observer), startup, files)
        });
        let background = receiver.recv().unwrap_or_else(|_| Background::enter());
        let traced = trace(&mut session, &mut target, end, (queue, background), user);
        let captured = traced.and_then(|reason| Ok((session.end(queue)?, reason)));
        background.hurry();
        let (captured, reason) = match captured {
            Ok(captured) => captured,
            Err(error) => {
                queue.end(End::Discarded);
                return Err(error);
            }
        };
        let ended = ended(target, reason, &program, user).inspect_err(|_| {
            queue.end(End::Discarded);
        })?;
        queue.end(End::Complete { ended, lost: captured.lost.clone() });
        finish(queue, user);
        let assembled = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let assembled = assembled.map_err(|error| outputs.latest.unwritable(error))?;
        Ok(Capture { captured, ended, reason, assembled, program })
    })
}

/// Starts tracing the command, which does not run yet, or the programs that run.
fn begin(
    (session, queue, sampler): (&Session, &Queue, Option<&Sampler>),
    (options, load): (&Record, Option<Load>),
    account: Option<&Account>,
    tasks: &mut Tasks,
) -> Result<(Target, Vec<Tid>), RecordError> {
    // The tasks are listed twice, because one may start between the first list and the first event.
    tasks.update()?;
    let prefer = |processes: &_| sampler.into_iter().for_each(|it| it.prefer(processes));
    if !options.command.is_empty() {
        let child = StoppedChild::start(&options.command, account, options.program_output)?;
        prefer(&BTreeSet::from([child.pid()]));
        if options.purpose.follow(load, session.cpus() as usize) == Follow::Kernel {
            session.follow([child.pid()].into_iter())?;
        }
        session.start(queue)?;
        tasks.update()?;
        let until = if options.until_all_end { Until::AllEnd } else { Until::CommandEnds };
        let recorded = vec![Tid(child.pid())];
        return Ok((Target::Command { child, until }, recorded));
    }
    let mut recorded = BTreeSet::new();
    for round in 0..2 {
        let processes = target::selected(&options.selection, tasks)?;
        prefer(&processes);
        let new = tasks.threads(&processes).map(|task| task.tid.0);
        let new: Vec<_> = new.filter(|tid| recorded.insert(*tid)).collect();
        session.follow(new.into_iter())?;
        if round == 0 {
            session.start(queue)?;
            tasks.update()?;
        }
    }
    if recorded.is_empty() {
        return Err(RecordError::NothingSelected);
    }
    Ok((Target::Running, recorded.into_iter().map(Tid).collect()))
}

/// Lets the command run, and traces until the end.
fn trace(
    session: &mut Session,
    target: &mut Target,
    end: Option<Instant>,
    to: (&Queue, Background),
    user: &mut User,
) -> Result<Reason, RecordError> {
    // The command and the writing thread, which exist already, do not inherit the priority.
    if !priority::raise() {
        user.note("the recorder's priority could not be raised, so more events may be lost");
    }
    if let Target::Command { child, .. } = target {
        child.release()?;
    }
    session.run(target, end, to, user)
}

/// Returns the end of the program.
fn ended(
    target: Target,
    reason: Reason,
    program: &OsStr,
    user: &mut User,
) -> Result<Ended, RecordError> {
    let Target::Command { mut child, .. } = target else {
        return Ok(if reason == Reason::Ended { Ended::Exited(0) } else { Ended::Interrupted });
    };
    let Some(status) = child.ended()? else {
        user.note(&format!("`{}` still runs, as process {}", shown(program), child.pid()));
        return Ok(Ended::Interrupted);
    };
    match child.failure() {
        Some(error) => Err(RecordError::NotStarted { program: program.to_owned(), error }),
        None if reason == Reason::Full => Ok(Ended::Interrupted),
        None => Ok(target::ended(status)),
    }
}

/// Waits until the recording is written, unless the user discards it.
fn finish(queue: &Queue, user: &mut User) {
    user.reset();
    while let Err(events) = queue.wait_for_stop(LOOK_EVERY) {
        user.show(format!("writing: {} events", HumanCount(events)));
        let note = "writing the recording; press Ctrl-C again to discard it";
        if user.stop_request(note) == StopRequest::Now {
            queue.end(End::Discarded);
        }
    }
}
