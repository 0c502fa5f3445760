//! Tracing, from before the command begins until after it ended.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use indicatif::{HumanBytes, HumanCount};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shootdown_recording::Ended;

use super::decode::Decoder;
use super::error::RecordError;
use super::page::PageFormat;
use super::rings::{Counts, Drained, Rings};
use super::signals::{Signals, Wish};
use super::spool::{Spool, Spooled};
use super::stopped_child::Held;
use super::tracefs::{Instance, Scope, Tracefs};
use super::user::User;
use crate::output::Output;

/// How long buffers may stay as they are that are not full enough to be worth it.
const PATIENCE: Duration = Duration::from_millis(100);

/// Two instances that trace, and where their events go.
#[derive(Debug)]
pub(super) struct Session<'a> {
    command: Instance,
    system: Instance,
    rings: Rings,
    spool: Spool<'a>,
}

/// What was traced.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) pages: Spooled,
    pub(super) format: PageFormat,
    /// How many of the command's tasks still live.
    pub(super) left: usize,
}

impl<'a> Session<'a> {
    /// Makes the instances, which do not trace yet, and a spool beside `output`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or there is no room for them.
    pub(super) fn new(
        tracefs: &Tracefs,
        decoder: &Decoder,
        buffer_kib: u32,
        output: &'a Output,
    ) -> Result<Self, RecordError> {
        let instance = |scope| Instance::new(tracefs, scope, decoder.events(scope), buffer_kib);
        let (command, system) = (instance(Scope::Command)?, instance(Scope::System)?);
        let rings = Rings::open([&command, &system])?;
        let spool = Spool::new(output, rings.cpus())?;
        Ok(Self { command, system, rings, spool })
    }

    /// Begins to trace: the task `pid` and its descendants, and what the system does.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn start(&self, pid: u32) -> Result<(), RecordError> {
        self.command.follow(pid)?;
        self.command.start()?;
        self.system.start()
    }

    /// How many CPUs a recording of this machine has.
    pub(super) fn cpus(&self) -> u32 {
        self.rings.cpus().max().map_or(1, |cpu| cpu.saturating_add(1))
    }

    /// Keeps the buffers from overflowing until the command ended, or the user wants no more.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, or the disk is full.
    pub(super) fn run(&mut self, held: &mut Held, user: &mut User) -> Result<Ended, RecordError> {
        loop {
            let drained = self.rings.drain(&mut self.spool)?;
            let (Counts { events, lost }, bytes) = (self.rings.counts, self.spool.bytes());
            let (events, bytes) = (HumanCount(events), HumanBytes(bytes));
            user.show(format!("recording: {events} events, {lost} lost, {bytes}"));
            if let Some(status) = held.ended()? {
                return Ok(ended(status));
            }
            let note = "waiting for the command to end; Ctrl-C again stops recording it";
            if user.wish(note) == Wish::EndNow {
                return Ok(Ended::Interrupted);
            }
            if drained == Drained::Empty {
                self.wait(held, &user.signals)?;
            }
        }
    }

    /// Stops tracing, and takes what is left in the buffers.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub(super) fn end(mut self) -> Result<Captured, RecordError> {
        self.command.stop()?;
        self.system.stop()?;
        while self.rings.drain(&mut self.spool)? == Drained::MaybeMore {}
        let mut stream = 0;
        for instance in [&self.command, &self.system] {
            for cpu in instance.cpus()? {
                self.spool.set_lost(stream, instance.lost(cpu)?);
                stream += 1;
            }
        }
        let left = self.command.followed()?;
        let pages = self.spool.finish()?;
        Ok(Captured { pages, format: self.rings.format(), left })
    }

    /// Until a buffer is worth emptying, the command ends or the user wants something.
    fn wait(&self, held: &Held, signals: &Signals) -> Result<(), RecordError> {
        let ended = held.ended_fd();
        let mut fds: Vec<_> = self.rings.fds().collect();
        fds.push(ended.as_fd());
        let signals = signals.fds();
        fds.extend(signals.iter().map(|signal| signal.as_fd()));
        let mut fds: Vec<_> =
            fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(PATIENCE.subsec_nanos()) };
        match poll(&mut fds, Some(&patience)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(RecordError::system("waiting for events")(io::Error::from(error))),
        }
    }
}

fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exited(code),
        (None, signal) => Ended::Signalled(signal.unwrap_or_default()),
    }
}
