//! `shootdown top`: a live table of the processes and call sites that cause TLB shootdowns.
//!
//! In reading order: a `window` is a recording that is being made, and `live` its analysis, both
//! those of other commands. `sums` adds windows up. `state` has what the user sees and has chosen,
//! and `view` draws it, or `batch` prints it.

mod batch;
mod live;
mod state;
mod sums;
mod view;
mod window;

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use shootdown_explain::Remedies;

use crate::commands::record::{RecordError, Signals, StackOptions, StopRequest};
use crate::error::{Failure, bad_input, cannot_run, shown, user_errors};
use crate::output::{Existing, Output, OutputError, print};
use crate::selection::{self, Selection};

use state::{Action, State};
use sums::Sums;
use window::Window;

pub(crate) const EXAMPLES: &str = include_str!("../../../help/top.txt").trim_ascii_end();

/// The time between two looks for keys and signals.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The part of the time that computing the table may take: one in this number.
const IDLE_PARTS: u32 = 10;

/// The options of `shootdown top`.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("selected").args(["pid", "cgroup", "all"]))]
pub(crate) struct Top {
    #[command(flatten)]
    selection: Selection,
    /// The time between two refreshes: 2s, 500ms
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = selection::parse_time)]
    interval: Duration,
    /// Print the tables as text after each interval, without a terminal
    #[arg(long)]
    batch: bool,
    #[command(flatten)]
    stacks: StackOptions,
}

impl Top {
    /// Shows the table until the user quits.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        if !self.batch && (!io::stdout().is_terminal() || !io::stdin().is_terminal()) {
            return Err(TopError::NoTerminal.into());
        }
        let folder = tempfile::tempdir().map_err(TopError::System)?;
        let mut signals = Signals::listen().map_err(TopError::System)?;
        let mut session = Session::start(self, folder.path())?;
        if self.batch {
            let result = session.print(&mut signals);
            let ended = session.end();
            result?;
            return Ok(ended?);
        }
        let terminal = ratatui::try_init().map_err(TopError::System)?;
        let result = session.show(terminal, &mut signals);
        // Before anything is printed.
        ratatui::restore();
        let ended = session.end();
        result?;
        Ok(ended?)
    }

    /// Returns the selection, which is all processes if the user gave none.
    fn selection(&self) -> Selection {
        let Selection { pid, cgroup, .. } = &self.selection;
        Selection { all: pid.is_empty() && cgroup.is_none(), ..self.selection.clone() }
    }

    /// Returns the selection as the title has it.
    fn title(&self) -> String {
        let Selection { pid, cgroup, .. } = &self.selection;
        match cgroup {
            Some(cgroup) => format!("--cgroup {}", cgroup.display()),
            None if pid.is_empty() => "all processes".to_owned(),
            None => {
                let numbers: Vec<_> = pid.iter().map(u32::to_string).collect();
                format!("--pid {}", numbers.join(","))
            }
        }
    }
}

/// The windows one after another.
#[derive(Debug)]
struct Session<'t> {
    top: &'t Top,
    path: PathBuf,
    /// `None` after the programs have ended.
    window: Option<Window>,
    /// The sums of the windows before.
    before: Sums,
    remedies: Remedies,
    started: Instant,
}

impl<'t> Session<'t> {
    /// Starts the first window, and waits until it has begun or has failed.
    fn start(top: &'t Top, folder: &Path) -> Result<Self, TopError> {
        let path = folder.join("recording");
        let window =
            Window::start(&path, &top.selection(), &top.stacks).map_err(TopError::System)?;
        while !window.live.has_begun() {
            if let Some(ended) = window.ended() {
                ended?;
                break;
            }
            std::thread::sleep(LOOK_EVERY / 10);
        }
        let (before, started) = (Sums::default(), Instant::now());
        let remedies = Remedies::new();
        Ok(Self { top, path, window: Some(window), before, remedies, started })
    }

    /// Shows the table until the user quits.
    fn show(
        &mut self,
        mut terminal: DefaultTerminal,
        signals: &mut Signals,
    ) -> Result<(), TopError> {
        let mut state = State { selection: self.top.title(), ..State::default() };
        let end = self.top.selection.duration.map(|time| self.started + time);
        let mut next = self.started;
        loop {
            self.follow(&mut state)?;
            let now = Instant::now();
            if now >= next && self.window.is_some() {
                state.update(self.sums(), self.started.elapsed());
                // A large table is computed less often.
                next = now + self.top.interval.max(now.elapsed() * IDLE_PARTS);
            }
            terminal.draw(|frame| view::draw(frame, &state)).map_err(TopError::System)?;
            let is_over = end.is_some_and(|end| now >= end);
            if is_over || signals.stop_request() != StopRequest::None {
                return Ok(());
            }
            if !event::poll(LOOK_EVERY).map_err(TopError::System)? {
                continue;
            }
            let Event::Key(key) = event::read().map_err(TopError::System)? else { continue };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            match state.key(key) {
                Action::None => {}
                Action::Quit => return Ok(()),
                Action::Save => {
                    state.message = match self.save() {
                        Ok(path) => format!("saved: shootdown explain {}", shown(path)),
                        Err(error) => format!("not saved: {error}"),
                    };
                }
            }
        }
    }

    /// Prints the tables after each interval until the user or the time ends this.
    fn print(&mut self, signals: &mut Signals) -> Result<(), Failure> {
        let mut state = State { selection: self.top.title(), ..State::default() };
        let end = self.top.selection.duration.map(|time| self.started + time);
        let mut next = self.started + self.top.interval;
        loop {
            self.follow(&mut state)?;
            let now = Instant::now();
            let is_over = end.is_some_and(|end| now >= end)
                || self.window.is_none()
                || signals.stop_request() != StopRequest::None;
            if is_over || now >= next {
                state.update(self.sums(), self.started.elapsed());
                print(&batch::tables(&state))?;
                next = now + self.top.interval;
            }
            if is_over {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY.min(next.saturating_duration_since(now)));
        }
    }

    fn sums(&self) -> Sums {
        let live = self.window.as_ref().map(|window| window.live.sums(&self.remedies));
        live.unwrap_or_default().with(&self.before)
    }

    /// Starts the next window if this one has ended.
    fn follow(&mut self, state: &mut State) -> Result<(), TopError> {
        let Some(ended) = self.window.as_ref().and_then(Window::ended) else { return Ok(()) };
        self.before = self.sums();
        self.window = None;
        match ended? {
            crate::commands::record::Reason::Full => self.next(),
            _ => {
                state.update(self.before.clone(), self.started.elapsed());
                state.message = "the programs have ended; q quits".to_owned();
                Ok(())
            }
        }
    }

    fn next(&mut self) -> Result<(), TopError> {
        let Top { stacks, .. } = self.top;
        let window = Window::start(&self.path, &self.top.selection(), stacks);
        self.window = Some(window.map_err(TopError::System)?);
        Ok(())
    }

    /// Ends the window, keeps its recording in the working directory, and starts the next window.
    fn save(&mut self) -> Result<PathBuf, TopError> {
        if let Some(window) = self.window.take() {
            let live = window.live.clone();
            window.stop()?;
            self.before = live.sums(&self.remedies).with(&self.before);
            let saved = self.copy();
            self.next()?;
            return saved;
        }
        self.copy()
    }

    /// Copies the recording of the last window under a name that is free.
    fn copy(&self) -> Result<PathBuf, TopError> {
        for number in 1.. {
            let path = PathBuf::from(format!("top-{number}.shootdown"));
            if path.exists() {
                continue;
            }
            let output = Output::new(&path, Existing::Keep)?;
            let mut part = output.create_part()?;
            let mut recording = std::fs::File::open(&self.path).map_err(TopError::System)?;
            io::copy(&mut recording, &mut part).map_err(TopError::System)?;
            output.keep(part)?;
            return Ok(path);
        }
        unreachable!("a number is free");
    }

    /// Stops tracing.
    fn end(self) -> Result<(), TopError> {
        match self.window.map(Window::stop) {
            // The user quit before the recording began.
            None | Some(Ok(_) | Err(RecordError::Interrupted)) => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }
}

user_errors! {
    /// The table cannot be shown.
    #[derive(Debug, thiserror::Error)]
    enum TopError {
        #[error("standard input or output is not a terminal")]
        NoTerminal => bad_input("shootdown top --batch"),
        #[error(transparent)]
        Record(error: #[from] RecordError) => match error {
            RecordError::NoProcess { .. }
            | RecordError::NoCgroup { .. }
            | RecordError::NothingSelected => bad_input(error.help().remedy),
            _ => cannot_run(error.help().remedy),
        },
        #[error(transparent)]
        Output(error: #[from] OutputError) => cannot_run(error.help().remedy),
        #[error("{0}")]
        System(_: io::Error) => cannot_run("check the terminal, and the free space of the disk"),
    }
}
