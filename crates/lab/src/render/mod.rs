//! Results as text, JSON, CSV and a page with plots; and how numbers are written in all of them.

pub(crate) mod curves;
pub(crate) mod page;
pub(crate) mod plot;

use crate::studies::{Outcome, Row};

/// What the models of Linux leave out, where it is what matters.
pub(crate) const UNCOUNTED: &str = "Of the models of Linux only linux-counted counts the CPUs that \
are lazy on an address space, as Linux does on all but powerpc.";

/// A count that not every machine has, and how it is written.
pub(crate) struct OfSome {
    /// Where there are no groups of columns.
    pub(crate) name: &'static str,
    pub(crate) group: &'static str,
    pub(crate) name_in_group: &'static str,
    of: fn(&Outcome) -> u64,
    written: fn(u64) -> String,
}

impl OfSome {
    pub(crate) fn cell(&self, outcome: &Outcome) -> String {
        (self.written)((self.of)(outcome))
    }
}

const OF_SOME: [OfSome; 4] = [
    OfSome {
        name: "broadcasts",
        group: "Broadcasts",
        name_in_group: "sent",
        of: |outcome| outcome.broadcasts,
        written: grouped,
    },
    OfSome {
        name: "waited for them",
        group: "Broadcasts",
        name_in_group: "waited",
        of: |outcome| outcome.broadcast_wait_ns,
        written: duration,
    },
    OfSome {
        name: "tags taken",
        group: "Tags",
        name_in_group: "taken",
        of: |outcome| outcome.tags_taken,
        written: grouped,
    },
    OfSome {
        name: "rollovers",
        group: "Tags",
        name_in_group: "rollovers",
        of: |outcome| outcome.rollovers,
        written: grouped,
    },
];

/// Those of which some design of the row has any.
pub(crate) fn of_some(row: &Row) -> Vec<&'static OfSome> {
    let has_any = |count: &&OfSome| row.designs().any(|(_, outcome)| (count.of)(outcome) > 0);
    OF_SOME.iter().filter(has_any).collect()
}

/// Three significant digits, which is what the published figures have.
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

/// How many times better, where that can be said: not if it was nothing, or became nothing.
pub(crate) fn times(gain: Option<f64>) -> Option<String> {
    let gain = gain.filter(|gain| gain.is_finite() && *gain > 0.0)?;
    Some(format!("×{}", significant(gain)))
}

/// A unit as people write it.
pub(crate) fn unit(unit: &str) -> &str {
    if unit == "us" { "µs" } else { unit }
}

/// A duration in the unit that suits it.
pub(crate) fn duration(ns: u64) -> String {
    let (value, unit) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    format!("{} {unit}", significant(value))
}

/// 1234567 as 1 234 567, with thin spaces that do not break.
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
    fn numbers_have_three_significant_digits_whatever_their_size() {
        let written = [0.0, 0.13941, 1.9, 13.4, 99.96, 118.0, 159_620.0].map(significant);
        assert_eq!(written, ["0", "0.139", "1.90", "13.4", "100.0", "118", "159620"]);
        assert_eq!(significant(f64::NAN), "-");
    }

    #[test]
    fn nothing_is_no_times_better_than_something() {
        assert_eq!(times(Some(118.0)).as_deref(), Some("×118"));
        for gain in [None, Some(0.0), Some(f64::INFINITY), Some(f64::NAN)] {
            assert_eq!(times(gain), None);
        }
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!(grouped(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(grouped(999), "999");
    }
}
