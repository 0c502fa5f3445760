//! The table of limits: a row for each constant that bounds something, with its value, and a test
//! that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::source::without_tests;

const TABLE: &str = "docs/data/limits.csv";
/// The start of the effect of a number that needs no test.
const BOUNDS_NOTHING: &str = "bounds nothing";

/// Checks that each number of a crate in the table has a row, and that the values and tests of the
/// rows exist.
pub(super) fn check(sources: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let table = fs::read_to_string(crate::root().join(TABLE)).unwrap_or_default();
    let lines = sources.iter().flat_map(|(_, text)| text.lines());
    let tests: BTreeSet<&str> = lines.filter_map(function).collect();
    let finding = |message: String| format!("{TABLE}: {message}");
    let mut crates = BTreeMap::<String, BTreeMap<String, String>>::new();
    for row in table.lines().skip(1).map(cells) {
        let [folder, name, value, effect, named] = &row[..] else {
            findings.push(finding(format!("a row has {} cells", row.len())));
            continue;
        };
        let constants =
            crates.entry(folder.clone()).or_insert_with(|| constants(Path::new(folder), sources));
        let found = constants.remove(name);
        if found.as_ref() != Some(value) {
            findings.push(finding(format!("`{name}` is {found:?} in {folder}, not {value}")));
        }
        if named.is_empty() && !effect.starts_with(BOUNDS_NOTHING) {
            findings.push(finding(format!("`{name}` has no test")));
        }
        let missing = named.split_whitespace().filter(|test| !tests.contains(test));
        findings.extend(missing.map(|test| finding(format!("there is no test `{test}`"))));
    }
    let missing = crates.values().flatten().filter(|(name, value)| is_bound(name, value));
    findings.extend(missing.map(|(name, _)| finding(format!("`{name}` has no row"))));
}

/// The cells of a line of CSV. Those with commas are in quotes, and none contains a quote.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut is_quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => cells.push(String::new()),
            _ => cells.last_mut().expect("there is one").push(letter),
        }
    }
    cells
}

/// The name of the function that a line of Rust or C begins.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let named = line.strip_prefix("fn ").or_else(|| line.strip_prefix("static void "))?;
    named.split(['(', '<']).next()
}

/// The unsigned constants of a folder, without its tests: `module::NAME` and the text of the value.
fn constants(folder: &Path, sources: &[(PathBuf, String)]) -> BTreeMap<String, String> {
    let mut constants = BTreeMap::new();
    for (file, text) in sources {
        let Ok(file) = file.strip_prefix(folder.join("src")) else { continue };
        let module = file.with_extension("").display().to_string().replace('/', "::");
        let module = module.strip_suffix("::mod").unwrap_or(&module);
        if module.split("::").any(|part| part == "tests") {
            continue;
        }
        for (name, value) in without_tests(text).into_iter().filter_map(constant) {
            constants.insert(format!("{module}::{name}"), value.to_owned());
        }
    }
    constants
}

/// The name and value of a constant, or of a parameter with a default.
fn constant(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.split_once("const ")?.1.split_once(": ")?;
    let (integer, value) = rest.split_once(" = ")?;
    let end: &[char] = if value.contains(';') { &[';'] } else { &[',', '>'] };
    let is_unsigned = ["usize", "u8", "u16", "u32", "u64"].contains(&integer);
    is_unsigned.then(|| (name, value.split(end).next().unwrap_or_default()))
}

/// Returns `true` if a constant may bound something: it is called so, or it is a decimal number
/// that is neither a flag nor the place of a bit.
fn is_bound(name: &str, value: &str) -> bool {
    let is_decimal = value.chars().all(|part| part.is_ascii_digit() || " _*+/".contains(part));
    let is_small = matches!(value, "0" | "1" | "2");
    let is_place = ["SHIFT", "BITS", "SHIFT_4K", "SHIFT_2M"].iter().any(|end| name.ends_with(end));
    name.contains("MAX") || is_decimal && !is_small && !is_place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_cell_contains_commas() {
        assert_eq!(cells("a,\"b, c\",,d"), ["a", "b, c", "", "d"]);
    }

    #[test]
    fn bounds_are_told_from_flags() {
        for (line, name, value, bound) in [
            ("const SLOTS: usize = 64;", "SLOTS", "64", true),
            ("    pub const MAX_PAGES: usize = 1 << 12;", "MAX_PAGES", "1 << 12", true),
            ("pub struct Q<T, const ENTRIES: usize = 8> {", "ENTRIES", "8", true),
            ("const PAGES: usize = 8 + 19 * 510;", "PAGES", "8 + 19 * 510", true),
            ("const RUNG: u64 = 1;", "RUNG", "1", false),
            ("const PIN: u64 = 1 << 16;", "PIN", "1 << 16", false),
            ("const ASID_SHIFT: u32 = 44;", "ASID_SHIFT", "44", false),
        ] {
            assert_eq!(constant(line), Some((name, value)));
            assert_eq!(is_bound(name, value), bound, "{line}");
        }
        assert_eq!(constant("const fn new() -> Self {"), None);
        assert_eq!(constant("impl<T, const ENTRIES: usize> Q<T, ENTRIES> {"), None);
        assert_eq!(function("    fn a_test() {"), Some("a_test"));
    }
}
