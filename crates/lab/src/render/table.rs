//! Tables, which are printed as text, as CSV or as part of a page.

use std::fmt::{self, Write as _};

use super::page::{alarming, escaped};
use super::{duration, grouped};

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    columns: Vec<Column>,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Column {
    /// The heading over this and its neighbouring columns on pages, or an empty string.
    group: String,
    name: String,
    align: Align,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug)]
enum Line {
    Row(Vec<Cell>),
    /// A heading over the rows that follow, on pages.
    Part(&'static str),
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Text(String),
    Count(u64),
    Nanoseconds(u64),
    /// A count of events that must not occur.
    Alarm(u64),
    /// Text, or markup on pages.
    Markup(String),
}

/// A number that is read from a `T`, and the names of its column.
#[derive(Debug)]
pub(crate) struct Figure<T> {
    /// The name of the column in text tables, or an empty string if they do not have the column.
    pub(crate) in_text: &'static str,
    /// The heading over the column and its neighbours on pages, and the name of the column there.
    pub(crate) on_page: (&'static str, &'static str),
    pub(crate) cell: fn(&T) -> Cell,
}

/// Returns a figure made of its parts.
pub(crate) const fn figure<T>(
    in_text: &'static str,
    group: &'static str,
    name: &'static str,
    cell: fn(&T) -> Cell,
) -> Figure<T> {
    Figure { in_text, on_page: (group, name), cell }
}

/// The medium that a table is printed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    Text,
    Page,
}

impl Table {
    /// Adds columns that are aligned to the left.
    pub(crate) fn left<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.columns("", Align::Left, names)
    }

    /// Adds columns that are aligned to the right.
    pub(crate) fn right<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        self.columns("", Align::Right, names)
    }

    /// Adds columns that are aligned to the right and share a heading on pages.
    pub(crate) fn group<N: Into<String>>(
        self,
        group: &str,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        self.columns(group, Align::Right, names)
    }

    /// Adds a column for a figure.
    pub(crate) fn figure<T>(self, figure: &Figure<T>, medium: Medium) -> Self {
        match (medium, figure.on_page) {
            (Medium::Text, _) => self.right([figure.in_text]),
            (Medium::Page, (group, name)) => self.group(group, [name]),
        }
    }

    fn columns<N: Into<String>>(
        mut self,
        group: &str,
        align: Align,
        names: impl IntoIterator<Item = N>,
    ) -> Self {
        let column = |name: N| Column { group: group.to_owned(), name: name.into(), align };
        self.columns.extend(names.into_iter().map(column));
        self
    }

    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.lines.push(Line::Row(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a heading over the rows that follow, on pages.
    pub(crate) fn part(&mut self, name: &'static str) {
        self.lines.push(Line::Part(name));
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|column| column.name.as_str())
    }

    fn rows(&self) -> impl Iterator<Item = &[Cell]> {
        self.lines.iter().filter_map(|line| match line {
            Line::Row(cells) => Some(&cells[..]),
            Line::Part(_) => None,
        })
    }

    /// Returns the table as CSV with a line of column names.
    pub(crate) fn csv(&self) -> String {
        let rows = self.rows().map(|row| csv_line(row.iter().map(Cell::csv)));
        [csv_line(self.names().map(str::to_owned))].into_iter().chain(rows).collect()
    }

    /// Returns the table as a part of a page.
    pub(crate) fn html(&self) -> String {
        let mut html = "<div class=\"wide\"><table>\n".to_owned();
        if self.columns.iter().any(|column| !column.group.is_empty()) {
            html += "<tr class=\"groups\"><td>";
            for columns in self.columns[1..].chunk_by(|one, other| one.group == other.group) {
                let name = match columns[0].group.as_str() {
                    "" => String::new(),
                    name => format!("<span>{}</span>", escaped(name)),
                };
                let _ = write!(html, "<th colspan=\"{}\">{name}", columns.len());
            }
            html.push('\n');
        }
        let names: String = self.names().map(|name| format!("<th>{}", escaped(name))).collect();
        let _ = writeln!(html, "<tr>{names}");
        for line in &self.lines {
            let _ = match line {
                Line::Part(name) => {
                    let columns = self.columns.len();
                    writeln!(html, "<tr class=\"part\"><th colspan=\"{columns}\">{name}")
                }
                Line::Row(cells) => {
                    let cells = cells.iter().map(|cell| format!("<td>{}", cell.html()));
                    writeln!(html, "<tr>{}", cells.collect::<String>())
                }
            };
        }
        html + "</table></div>\n"
    }
}

/// Prints the table as text with aligned columns, two spaces apart.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows().map(|row| row.iter().map(Cell::text).collect());
        let lines: Vec<Vec<String>> =
            [self.names().map(str::to_owned).collect()].into_iter().chain(rows).collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.columns.len()).map(width).collect();
        let rules = widths.iter().map(|&width| "─".repeat(width)).collect();
        for cells in [&lines[0], &rules].into_iter().chain(&lines[1..]) {
            let mut line = String::new();
            for ((cell, width), column) in cells.iter().zip(&widths).zip(&self.columns) {
                line += &match column.align {
                    Align::Left => format!("{cell:width$}  "),
                    Align::Right => format!("{cell:>width$}  "),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

impl Cell {
    pub(crate) fn is_zero(&self) -> bool {
        matches!(self, Self::Count(0) | Self::Nanoseconds(0) | Self::Alarm(0))
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) | Self::Markup(text) => text.clone(),
            Self::Count(count) | Self::Alarm(count) => grouped(*count),
            Self::Nanoseconds(ns) => duration(*ns),
        }
    }

    fn html(&self) -> String {
        match self {
            Self::Markup(html) => html.clone(),
            Self::Alarm(count) => alarming(*count),
            // On narrow pages, a gain may stand below its value.
            _ => escaped(&self.text()).replace(" (×", "<wbr> (×"),
        }
    }

    fn csv(&self) -> String {
        match self {
            Self::Text(text) | Self::Markup(text) => text.clone(),
            Self::Count(number) | Self::Alarm(number) | Self::Nanoseconds(number) => {
                number.to_string()
            }
        }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Returns a line of CSV. Cells are in quotes if RFC 4180 requires them.
pub(crate) fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted = |cell: String| {
        if cell.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell
        }
    };
    cells.map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_commas_and_quotes() {
        let mut table = Table::default().left(["a", "b, c"]);
        table.row([Cell::from("a, \"b\""), Cell::Count(1234)]);
        assert_eq!(table.csv(), "a,\"b, c\"\n\"a, \"\"b\"\"\",1234\n");
    }

    #[test]
    fn part_heading_spans_all_columns() {
        let mut table = Table::default().left([""]).group("both", ["one", "two"]);
        table.part("values");
        table.row(["name", "1", "2"]);
        insta::assert_snapshot!(table.html());
    }
}
