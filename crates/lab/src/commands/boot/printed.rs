//! How what came of a boot is printed.

use serde::Serialize;

use crate::cli::Format;

/// What can be printed in every format.
pub(crate) trait Printed: Serialize {
    /// For people.
    fn text(&self) -> String;

    /// A line for each number.
    fn csv(&self) -> String;

    /// In one of them; JSON is all that there is.
    fn in_format(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Csv => self.csv(),
            Format::Json => {
                // Structures of numbers and strings always serialise.
                let json = serde_json::to_string_pretty(self).unwrap_or_default();
                format!("{json}\n")
            }
        }
    }
}
