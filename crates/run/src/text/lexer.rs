//! The words of a text, with their positions.

use core::fmt;

use super::error::{Position, TextError};

/// A word of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    Name(&'t str),
    /// A number in its smallest unit: nanoseconds, or pages of 4 KiB.
    Number(u64, Unit),
    /// An operator, a bracket or another sign.
    Sign(&'static str),
    /// The end of a line.
    Line,
    /// The end of the text.
    End,
}

/// The quantity that a number or an expression is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Anything: a variable with values of several quantities.
    Any,
    Count,
    Time,
    Pages,
}

impl Unit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Any => "a value",
            Self::Count => "a number",
            Self::Time => "a time",
            Self::Pages => "a size",
        }
    }
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Number(number, _) => write!(f, "`{number}`"),
            Self::Sign(sign) => write!(f, "`{sign}`"),
            Self::Line => f.write_str("the end of the line"),
            Self::End => f.write_str("the end of the text"),
        }
    }
}

/// The signs. A sign stands before its own prefixes.
const SIGNS: [&str; 20] = [
    "..", "==", "!=", "<=", ">=", "{", "}", "(", ")", "[", "]", "=", "<", ">", "+", "-", "*", "/",
    "%", ",",
];

/// The units, each with its quantity and the number of smallest units; of sizes, in bytes.
const UNITS: [(&str, Unit, u64); 8] = [
    ("", Unit::Count, 1),
    ("ns", Unit::Time, 1),
    ("us", Unit::Time, 1_000),
    ("ms", Unit::Time, 1_000_000),
    ("s", Unit::Time, 1_000_000_000),
    ("KiB", Unit::Pages, 1 << 10),
    ("MiB", Unit::Pages, 1 << 20),
    ("GiB", Unit::Pages, 1 << 30),
];

const PAGE_BYTES: u64 = 4096;

/// Splits a text into words.
pub(super) fn tokens(text: &str) -> Result<Vec<(Position, Token<'_>)>, TextError> {
    let mut tokens = Vec::new();
    let mut last = Position { line: 1, column: 1 };
    for (number, line) in (1..).zip(text.lines()) {
        let mut rest = line;
        loop {
            let start = rest.trim_start();
            let column = 1 + (line.chars().count() - start.chars().count()) as u32;
            last = Position { line: number, column };
            if start.is_empty() || start.starts_with('#') {
                break;
            }
            let (token, length) = token(last, start)?;
            tokens.push((last, token));
            rest = &start[length..];
        }
        tokens.push((last, Token::Line));
    }
    tokens.push((last, Token::End));
    Ok(tokens)
}

/// Returns the first word of a text that does not begin with a space, and its length.
fn token(at: Position, text: &str) -> Result<(Token<'_>, usize), TextError> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return number(at, text);
    }
    let name = length(text, |c| c.is_ascii_alphanumeric() || c == '_');
    if name > 0 {
        return Ok((Token::Name(&text[..name]), name));
    }
    if let Some(sign) = SIGNS.into_iter().find(|sign| text.starts_with(sign)) {
        return Ok((Token::Sign(sign), sign.len()));
    }
    let bad = text.chars().next().unwrap_or_default();
    Err(TextError::new(
        at,
        format!("`{}` has no meaning", bad.escape_debug()),
        "use names, numbers, and the signs of the language; a comment begins with `#`",
    ))
}

/// Returns the length of the longest beginning whose characters are all accepted.
fn length(text: &str, accepts: fn(char) -> bool) -> usize {
    text.find(|c| !accepts(c)).unwrap_or(text.len())
}

/// Reads a number with its unit: `12`, `1_000`, `1.5us`, `4MiB`.
fn number(at: Position, text: &str) -> Result<(Token<'_>, usize), TextError> {
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    let whole = length(text, is_digit);
    // Two dots are a range.
    let fraction = match text[whole..].strip_prefix('.') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_digit()) => 1 + length(rest, is_digit),
        _ => 0,
    };
    let digits = whole + fraction;
    let end = digits + length(&text[digits..], |c| c.is_ascii_alphanumeric() || c == '_');
    let (word, name) = (&text[..end], &text[digits..end]);
    let error = |cause: String, remedy: &str| Err(TextError::new(at, cause, remedy));
    let Some((_, unit, scale)) = UNITS.into_iter().find(|(known, ..)| *known == name) else {
        let remedy = "use ns, us, ms or s for a time, and KiB, MiB or GiB for a size";
        return error(format!("`{name}` is not a unit"), remedy);
    };
    let numerator = text[..digits].replace(['_', '.'], "").parse::<u64>();
    let places = text[..digits].replace('_', "").split_once('.').map_or(0, |(_, part)| part.len());
    let denominator = 10_u64.checked_pow(places as u32);
    let (Ok(numerator), Some(denominator)) = (numerator, denominator) else {
        return error("the number is too large".to_owned(), "use a number below 2^64");
    };
    // Neither product can overflow.
    let scaled = u128::from(numerator) * u128::from(scale);
    let page_bytes = if unit == Unit::Pages { PAGE_BYTES } else { 1 };
    let smallest = u128::from(denominator) * u128::from(page_bytes);
    if !scaled.is_multiple_of(smallest) {
        return if unit == Unit::Pages {
            error(format!("`{word}` is not a whole number of pages"), "use a multiple of 4KiB")
        } else {
            error(format!("`{word}` is not a whole number"), "use a smaller unit, down to ns")
        };
    }
    match u64::try_from(scaled / smallest) {
        Ok(value) => Ok((Token::Number(value, unit), end)),
        Err(_) => error("the number is too large".to_owned(), "use a number below 2^64"),
    }
}

#[cfg(test)]
mod tests {
    use super::Token::{End, Line, Name, Number, Sign};
    use super::Unit::{Count, Pages, Time};
    use super::*;

    fn words(text: &str) -> Vec<Token<'_>> {
        tokens(text).unwrap().into_iter().map(|(_, token)| token).collect()
    }

    #[test]
    fn units_become_nanoseconds_and_pages() {
        let compute = [Name("compute"), Number(1500, Time), Line, End];
        assert_eq!(words("compute 1.5us # a comment"), compute);
        assert_eq!(
            words("0..4MiB"),
            [Number(0, Count), Sign(".."), Number(1024, Pages), Line, End]
        );
        assert_eq!(
            words("2_000 2s 0.5GiB")[..3],
            [Number(2000, Count), Number(2_000_000_000, Time), Number(1 << 17, Pages)]
        );
        assert_eq!(words(""), [End]);
    }

    #[test]
    fn bad_words_are_refused_at_their_position() {
        for (text, column) in [
            ("  map @", 7),
            ("sleep 1.0001ns", 7),
            ("map a 6KiB", 7),
            ("sleep 3min", 7),
            ("sleep 99999999999999999999", 7),
            ("sleep 99999999999999s", 7),
            ("é", 1),
        ] {
            let error = tokens(text).unwrap_err();
            assert_eq!(error.at, Position { line: 1, column }, "{text}: {error}");
        }
    }
}
