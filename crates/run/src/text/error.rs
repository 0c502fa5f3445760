//! Errors of a text, with their positions.

use core::fmt;

/// A position in a text: line and column, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The reason why a text is not a workload, or why its workload cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextError {
    /// The place of the error.
    pub at: Position,
    /// The cause, in one line.
    pub cause: String,
    /// How to correct the text, as an imperative.
    pub remedy: String,
}

impl TextError {
    pub(super) fn new(at: Position, cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { at, cause: cause.into(), remedy: remedy.into() }
    }

    /// Returns the line of the error with its number, and a line with a caret below the column.
    /// Control characters of the line are replaced, because a terminal would interpret them.
    #[must_use]
    pub fn excerpt(&self, source: &str) -> String {
        let Position { line, column } = self.at;
        let text = source.lines().nth(line as usize - 1).unwrap_or_default();
        let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let (margin, gap) = (line.to_string(), column as usize - 1);
        let blank = " ".repeat(margin.len());
        format!("  {margin} | {shown}\n  {blank} | {}^", " ".repeat(gap))
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.cause)
    }
}

impl core::error::Error for TextError {}

/// Returns names as a list for a remedy.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_has_caret_below_column() {
        let error = TextError::new(Position { line: 2, column: 5 }, "", "");
        assert_eq!(error.excerpt("a\n\tb\u{1b} c\n"), "  2 |  b  c\n    |     ^");
    }
}
