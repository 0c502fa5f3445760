//! The sums that the user sees, the user's choices, and the keys that change them.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::sums::{Order, Process, Site, Sums};

/// The table whose rows the arrow keys select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Focus {
    #[default]
    Processes,
    Sites,
}

/// The time for which numbers stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Scope {
    /// The time between the last two refreshes, per second.
    #[default]
    Interval,
    /// All time since the start.
    Start,
}

/// A change of the table, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Refresh {
    #[default]
    Running,
    Paused,
}

/// An action of a key beyond the display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    None,
    Save,
    Quit,
}

/// The state of the display.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// The programs that are observed, as the title has them.
    pub(super) selection: String,
    /// All sums since the start.
    pub(super) sums: Sums,
    /// Those of the last interval, and its length.
    pub(super) recent: (Sums, Duration),
    /// Time since the start.
    pub(super) elapsed: Duration,
    pub(super) order: Order,
    pub(super) scope: Scope,
    pub(super) refresh: Refresh,
    pub(super) focus: Focus,
    /// `true` if the calls and the advice of the selected site fill the screen.
    pub(super) has_details: bool,
    /// `None` selects all processes.
    pub(super) process: Option<Process>,
    pub(super) site: Option<Site>,
    /// A line for the user, such as the name of a saved recording.
    pub(super) message: String,
}

impl State {
    /// Returns the sums that are shown, and the time for which they stand.
    pub(super) fn shown(&self) -> (&Sums, Duration) {
        match self.scope {
            Scope::Interval => (&self.recent.0, self.recent.1),
            Scope::Start => (&self.sums, self.elapsed),
        }
    }

    /// Shows new sums, unless the display is paused.
    pub(super) fn update(&mut self, sums: Sums, elapsed: Duration) {
        if self.refresh == Refresh::Paused {
            return;
        }
        let time = elapsed.saturating_sub(self.elapsed);
        self.recent = (sums.since(&self.sums), time);
        (self.sums, self.elapsed) = (sums, elapsed);
    }

    /// Applies a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Action {
        self.message.clear();
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Action::Quit;
            }
            KeyCode::Esc if self.has_details => self.has_details = false,
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char('s') => return Action::Save,
            KeyCode::Char('p' | ' ') => {
                self.refresh = match self.refresh {
                    Refresh::Running => Refresh::Paused,
                    Refresh::Paused => Refresh::Running,
                };
            }
            KeyCode::Char('t') => {
                self.scope = match self.scope {
                    Scope::Interval => Scope::Start,
                    Scope::Start => Scope::Interval,
                };
            }
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Focus::Processes => Focus::Sites,
                    Focus::Sites => Focus::Processes,
                };
            }
            KeyCode::Enter => self.has_details = !self.has_details,
            KeyCode::Down | KeyCode::Char('j') => self.select(Step::Next),
            KeyCode::Up | KeyCode::Char('k') => self.select(Step::Previous),
            KeyCode::Char(letter) => {
                let order = Order::ALL.into_iter().find(|order| order.key() == letter);
                self.order = order.unwrap_or(self.order);
            }
            _ => {}
        }
        Action::None
    }

    /// Selects the row after or before the selected one.
    fn select(&mut self, step: Step) {
        let (sums, _) = self.shown();
        match self.focus {
            Focus::Processes => {
                // The first row stands for all processes.
                let processes = sums.processes(self.order).into_iter();
                let rows = std::iter::once(None).chain(processes.map(|(it, _)| Some(it.clone())));
                let rows: Vec<_> = rows.collect();
                self.process = step.of(&rows, &self.process).flatten();
            }
            Focus::Sites => {
                let sites = sums.sites(self.process.as_ref(), self.order);
                let rows: Vec<_> = sites.into_iter().map(|(site, _)| Some(site.clone())).collect();
                self.site = step.of(&rows, &self.site).flatten();
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Next,
    Previous,
}

impl Step {
    /// Returns the row after or before `selected`, or the first row if `selected` is gone.
    fn of<T: Clone + PartialEq>(self, rows: &[T], selected: &T) -> Option<T> {
        let last = rows.len().checked_sub(1)?;
        let place = rows.iter().position(|row| row == selected);
        let next = match (self, place) {
            (_, None) => 0,
            (Self::Next, Some(place)) => (place + 1).min(last),
            (Self::Previous, Some(place)) => place.saturating_sub(1),
        };
        Some(rows[next].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sums::tests::example;
    use super::*;

    fn state() -> State {
        let mut state = State::default();
        let sums = example(&[(1, "munmap", "a", 5), (2, "munmap", "a", 7), (2, "fork", "b", 9)]);
        state.update(sums, Duration::from_secs(1));
        state
    }

    fn press(state: &mut State, codes: &[KeyCode]) -> Action {
        codes.iter().map(|code| state.key(KeyEvent::from(*code))).last().expect("a key")
    }

    #[test]
    fn arrows_select_process_and_its_sites() {
        let mut state = state();
        press(&mut state, &[KeyCode::Down]);
        assert_eq!(state.process.as_ref().map(|process| process.pid), Some(2));
        press(&mut state, &[KeyCode::Tab, KeyCode::Down, KeyCode::Down, KeyCode::Down]);
        assert_eq!(state.site.as_ref().map(|site| &*site.cause), Some("munmap"));
        press(&mut state, &[KeyCode::Tab, KeyCode::Up, KeyCode::Up]);
        assert_eq!(state.process, None, "the row of all processes");
    }

    #[test]
    fn pause_keeps_sums_until_it_ends() {
        let mut state = state();
        press(&mut state, &[KeyCode::Char('p')]);
        state.update(Sums::default(), Duration::from_secs(2));
        assert_eq!(state.sums.total().requests, 21);
        press(&mut state, &[KeyCode::Char(' ')]);
        state.update(Sums::default(), Duration::from_secs(3));
        assert_eq!(state.sums.total().requests, 0);
    }

    #[test]
    fn letters_sort_save_and_quit() {
        let mut state = state();
        for order in Order::ALL {
            assert_eq!(press(&mut state, &[KeyCode::Char(order.key())]), Action::None);
            assert_eq!(state.order, order);
        }
        assert_eq!(press(&mut state, &[KeyCode::Char('s')]), Action::Save);
        assert_eq!(press(&mut state, &[KeyCode::Enter, KeyCode::Esc]), Action::None);
        assert_eq!(press(&mut state, &[KeyCode::Esc]), Action::Quit);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(control_c), Action::Quit);
    }
}
