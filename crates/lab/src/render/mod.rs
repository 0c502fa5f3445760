//! Rendering of results: tables, numbers, plots and pages. It does not depend on any experiment.

pub(crate) mod curves;
pub(crate) mod page;
pub(crate) mod plot;
pub(crate) mod table;
pub(crate) mod timeline;

use std::fmt::Display;

use clap::ValueEnum;
use serde::{Serialize, Serializer};

/// The format of printed results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for reading
    Text,
    /// One object with all rows
    Json,
    /// One line per row
    Csv,
}

/// The format of results that are not rows of one table. `shootdown sweep --csv` has their figures
/// as rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Readable {
    /// Tables for reading
    Text,
    /// One object with all rows
    Json,
}

impl Readable {
    /// Returns a result in this format, of which `text` returns the tables.
    pub(crate) fn of<T: Serialize>(self, result: &T, text: impl FnOnce(&T) -> String) -> String {
        match self {
            Self::Text => text(result),
            Self::Json => json(result),
        }
    }
}

/// A result that can be printed in every format. Its serialisation is the JSON output.
pub(crate) trait Printed: Serialize {
    /// Returns the result as tables for reading.
    fn text(&self) -> String;

    /// Returns the result with one line per row.
    fn csv(&self) -> String;

    fn in_format(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Csv => self.csv(),
            Format::Json => json(self),
        }
    }
}

/// Returns the value as a JSON object with escapes for all characters that a terminal would
/// interpret. JSON requires escapes for the ASCII control characters only.
pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> String {
    // The serialisation of structures of numbers and strings cannot fail.
    let json = serde_json::to_string_pretty(value).unwrap_or_default();
    let mut escaped = String::new();
    for character in json.chars() {
        if character < '\x7f' || character.escape_debug().len() == 1 {
            escaped.push(character);
        } else {
            let units = &mut [0; 2];
            for unit in character.encode_utf16(units) {
                escaped += &format!("\\u{unit:04x}");
            }
        }
    }
    escaped + "\n"
}

/// Returns the name by which users select a value of an option.
pub(crate) fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Serialises a value with its `Display`.
pub(crate) fn displayed<S: Serializer>(
    value: &impl Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

/// Returns the number with three significant digits, as published figures have, or `-` if the
/// number is not finite.
pub(crate) fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals = (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

/// Returns a gain as a factor, or `None` if the gain is 0 or not finite.
pub(crate) fn times(gain: Option<f64>) -> Option<String> {
    let gain = gain.filter(|gain| gain.is_finite() && *gain > 0.0)?;
    Some(format!("×{}", significant(gain)))
}

/// Returns a unit as it is printed.
pub(crate) fn unit(unit: &str) -> &str {
    if unit == "us" { "µs" } else { unit }
}

/// Returns a duration in a unit with at most three digits before the decimal point.
pub(crate) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// Returns a count with narrow no-break spaces between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn significant_keeps_three_digits() {
        let written = [0.0, 0.13941, 1.9, 13.4, 99.96, 118.0, 159_620.0].map(significant);
        assert_eq!(written, ["0", "0.139", "1.90", "13.4", "100.0", "118", "159620"]);
        assert_eq!(significant(f64::NAN), "-");
    }

    #[test]
    fn zero_or_infinite_gain_has_no_factor() {
        assert_eq!(times(Some(118.0)).as_deref(), Some("×118"));
        for gain in [None, Some(0.0), Some(f64::INFINITY), Some(f64::NAN)] {
            assert_eq!(times(gain), None);
        }
    }

    #[test]
    fn grouped_separates_thousands() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(grouped(999), "999");
    }
}
