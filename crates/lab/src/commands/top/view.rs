//! The drawing of the state.

use std::ops::Range;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, TableState, Wrap};
use shootdown_explain::Sum;

use super::state::{Focus, Refresh, Scope, State};
use super::sums::{Entry, Order, Process, Site, per_second};
use crate::error::shown;
use crate::render::{duration, grouped, significant};

/// The smallest window in which everything is legible.
pub(super) const SMALLEST: (u16, u16) = (60, 15);
/// A window of this height has a part for the selected site's calls and advice.
const HEIGHT_WITH_DETAILS: u16 = 26;
const DETAILS_HEIGHT: u16 = 9;
/// A window of this width shows all columns of call sites.
const WIDE: u16 = 100;

/// The keys, as far as the smallest window has room, and the others.
const KEYS: &str = "q quit  p pause  s save  t total  Tab ↑↓ select  Enter calls";
const MORE_KEYS: &str = "  c r i v sort";

/// Draws the state.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let (width, height) = SMALLEST;
        let text = format!("The window is smaller than {width}×{height}.\nq quits.");
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let [title, middle, keys] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(area);
    frame.render_widget(heading(state), title);
    let message = match &*state.message {
        "" => format!("{KEYS}{MORE_KEYS}"),
        message => shown(message),
    };
    frame.render_widget(Line::from(message).style(Modifier::DIM), keys);
    if state.has_details {
        frame.render_widget(details(state), middle);
        return;
    }
    let below = if area.height >= HEIGHT_WITH_DETAILS { DETAILS_HEIGHT } else { 0 };
    let [processes, sites, selected] =
        Layout::vertical([Constraint::Fill(2), Constraint::Fill(3), Constraint::Length(below)])
            .areas(middle);
    draw_processes(frame, state, processes);
    draw_sites(frame, state, sites);
    if below > 0 {
        frame.render_widget(details(state), selected);
    }
}

/// Returns the title, and the sums of everything.
fn heading(state: &State) -> Text<'_> {
    let (sums, time) = state.shown();
    let total = sums.total();
    let clock = state.elapsed.as_secs();
    let paused = if state.refresh == Refresh::Paused { "  PAUSED" } else { "" };
    let title = format!("shootdown top: {}", shown(&state.selection));
    let time_of_day = format!("  {}:{:02}{paused}", clock / 60, clock % 60);
    let mut sums_line = match state.scope {
        Scope::Interval => format!(
            "{} requests/s, {} in vain/s, {} % of a CPU",
            rate(total.requests, time),
            rate(total.in_vain, time),
            share(total.cpu_ns, time),
        ),
        Scope::Start => format!(
            "{} requests, {} in vain, {} of CPU time",
            grouped(total.requests),
            grouped(total.in_vain),
            duration(total.cpu_ns),
        ),
    };
    if state.sums.lost > 0 {
        sums_line += &format!(", {} events lost", grouped(state.sums.lost));
    }
    Text::from(vec![
        Line::from(vec![Span::styled(title, Modifier::BOLD), Span::raw(time_of_day)]),
        Line::from(sums_line),
    ])
}

fn draw_processes(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let (sums, time) = state.shown();
    let numbers = |sum: &Sum| numbers(sum, time, state.scope).to_vec();
    let mut rows = vec![row(["".into(), "all".to_owned()], numbers(&sums.total()))];
    let processes = sums.processes(state.order);
    rows.extend(processes.iter().map(|(process, sum)| {
        let Process { pid, name } = process;
        row([pid.to_string(), shown(name)], numbers(sum))
    }));
    let place = processes.iter().position(|(process, _)| Some(*process) == state.process.as_ref());
    let selected = place.map_or(0, |place| place + 1);
    let widths = [Constraint::Length(7), Constraint::Fill(1)].into_iter().chain(NUMBERS);
    let table =
        Table::new(rows, widths).header(header(["PID", "PROCESS"], state, 0..NUMBERS.len()));
    draw_table(frame, area, table, (Some(selected), state.focus == Focus::Processes));
}

fn draw_sites(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let (sums, time) = state.shown();
    let sites = sums.sites(state.process.as_ref(), state.order);
    let selected = sites.iter().position(|(site, _)| Some(*site) == state.site.as_ref());
    // A narrow window has room for one number beside the names, which is that of the order.
    let (columns, cause) = if area.width >= WIDE {
        (0..NUMBERS.len(), 24)
    } else {
        let ordered = COLUMNS.iter().position(|order| *order == state.order).unwrap_or_default();
        (ordered..ordered + 1, 14)
    };
    let rows = sites.iter().map(|(site, entry)| {
        let numbers = numbers(&entry.sum, time, state.scope);
        row([place(entry), shown(&site.cause)], numbers[columns.clone()].to_vec())
    });
    let names = [Constraint::Fill(1), Constraint::Length(cause)];
    let widths = names.into_iter().chain(NUMBERS[columns.clone()].iter().copied());
    let header = header(["CALL SITE", "CAUSE"], state, columns.clone());
    let table = Table::new(rows, widths).header(header);
    draw_table(frame, area, table, (selected, state.focus == Focus::Sites));
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    table: Table<'_>,
    (selected, has_focus): (Option<usize>, bool),
) {
    let highlight = if has_focus { Modifier::REVERSED } else { Modifier::BOLD };
    let table = table
        .row_highlight_style(Style::from(highlight))
        .column_spacing(1)
        .block(Block::new().borders(Borders::TOP));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(selected));
}

/// Returns the calls and the advice of the selected site, or of the first one.
fn details(state: &State) -> Paragraph<'static> {
    let (sums, _) = state.shown();
    let sites = sums.sites(state.process.as_ref(), state.order);
    let selected = sites.iter().find(|(site, _)| Some(*site) == state.site.as_ref());
    let block = Block::new().borders(Borders::TOP);
    let Some((Site { cause, frames }, entry)) = selected.or(sites.first()) else {
        let text = "No thread of these programs asked another CPU to flush.";
        return Paragraph::new(text).block(block);
    };
    let advice = entry.advice.as_deref().unwrap_or("none");
    let mut lines = vec![
        Line::from(format!("{} by {}", place(entry), shown(cause))).style(Modifier::BOLD),
        Line::from(format!("advice: {}", shown(advice))),
    ];
    if frames.is_empty() {
        lines.push(Line::from("  (no call stack was sampled)"));
    }
    lines.extend(frames.iter().map(|call| Line::from(format!("  {}", shown(call)))));
    Paragraph::new(lines).wrap(Wrap { trim: false }).block(block)
}

fn place(entry: &Entry) -> String {
    entry.caller.as_deref().map_or("an unknown place".to_owned(), shown)
}

/// The orders by the columns of numbers.
const COLUMNS: [Order; 4] = [Order::Requests, Order::Interrupts, Order::InVain, Order::Cost];
const NUMBERS: [Constraint; 4] =
    [Constraint::Length(7), Constraint::Length(7), Constraint::Length(7), Constraint::Length(8)];

/// Returns the names of the columns. That of the order is underlined.
fn header(names: [&'static str; 2], state: &State, columns: Range<usize>) -> Row<'static> {
    let titles = match state.scope {
        Scope::Interval => ["REQ/S", "INT/S", "VAIN/S", "CPU %"],
        Scope::Start => ["REQ", "INT", "VAIN", "CPU"],
    };
    let numbers = columns.map(|column| {
        let (title, order) = (titles[column], COLUMNS[column]);
        let style = if order == state.order { Modifier::UNDERLINED } else { Modifier::empty() };
        Text::styled(title, style).right_aligned()
    });
    Row::new(names.map(Text::raw).into_iter().chain(numbers)).style(Modifier::BOLD)
}

fn row(names: [String; 2], numbers: Vec<String>) -> Row<'static> {
    let numbers = numbers.into_iter().map(|number| Text::raw(number).right_aligned());
    Row::new(names.map(Text::raw).into_iter().chain(numbers))
}

/// Returns the numbers of a row, in the order of the columns.
fn numbers(sum: &Sum, time: Duration, scope: Scope) -> [String; 4] {
    let counts = [sum.requests, sum.interrupts, sum.in_vain];
    let (counts, cpu) = match scope {
        Scope::Interval => (counts.map(|count| rate(count, time)), share(sum.cpu_ns, time)),
        Scope::Start => (counts.map(grouped), duration(sum.cpu_ns)),
    };
    let [requests, interrupts, in_vain] = counts;
    [requests, interrupts, in_vain, cpu]
}

fn rate(count: u64, time: Duration) -> String {
    match per_second(count, time) {
        rate if rate >= 10.0 || rate == 0.0 => grouped(rate.round() as u64),
        rate => significant(rate).chars().take(4).collect(),
    }
}

/// Returns a time in percent of one CPU's time.
fn share(cpu_ns: u64, time: Duration) -> String {
    match per_second(cpu_ns, time) / 1e7 {
        percent if percent > 0.0 && percent < 0.01 => "<0.01".to_owned(),
        percent => significant(percent),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sums::tests::example;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn state() -> State {
        let mut state = State { selection: "all processes".to_owned(), ..State::default() };
        let rows = [
            (4711, "munmap", "free_buffer (pool.c:97)", 5000),
            (4711, "mprotect", "protect (a_file_with_a_long_name.c:1234)", 300),
            (12, "zero page upgraded", "insert (table.c:71)", 900),
        ];
        state.update(example(&rows), Duration::from_secs(2));
        state
    }

    /// Returns the lines of a window.
    fn lines(state: &State, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, state)).expect("a window");
        let cells = terminal.backend().buffer().content();
        let line =
            |cells: &[ratatui::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width.into()).map(line).collect()
    }

    #[test]
    fn smallest_window_has_both_tables_and_keys() {
        insta::assert_snapshot!(lines(&state(), SMALLEST.0, SMALLEST.1).join("\n"));
    }

    #[test]
    fn large_window_has_calls_and_advice() {
        let mut state = state();
        state.scope = Scope::Start;
        insta::assert_snapshot!(lines(&state, 110, 30).join("\n"));
    }

    #[test]
    fn details_fill_a_small_window() {
        let mut state = state();
        state.has_details = true;
        let lines = lines(&state, 60, 15).join("\n");
        assert!(
            lines.contains("advice: reuse the mapping") && lines.contains("madvise (libc.so.6)")
        );
    }

    #[test]
    fn every_size_is_drawn() {
        let mut state = state();
        for has_details in [false, true] {
            state.has_details = has_details;
            for (width, height) in [(1, 1), (59, 15), (60, 14), (60, 15), (80, 25), (300, 100)] {
                assert_eq!(lines(&state, width, height).len(), usize::from(height));
            }
        }
        assert!(lines(&state, 59, 15)[0].contains("smaller than 60×15"));
    }

    #[test]
    fn hostile_names_do_not_reach_the_terminal() {
        let mut state = State::default();
        let rows = [(1, "a\u{1b}[2J", "b\u{202e}\n", 1)];
        state.update(example(&rows), Duration::from_secs(1));
        let lines = lines(&state, 120, 40).concat();
        assert!(!lines.contains(['\u{1b}', '\u{202e}', '\n']) && lines.contains("\\u{1b}[2J"));
    }
}
