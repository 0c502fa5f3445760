//! The page of limits: a row for each constant that bounds something, with its value, and a test
//! that exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::source::without_tests;

const PAGE: &str = "docs/limits.md";
/// The start of a section, before the crate's folder.
const SECTION: &str = "## Constants of `";
/// The start of the line with a section's numbers that bound nothing.
const OTHERS: &str = "Numbers that bound nothing shared: ";

/// Checks that each number of a crate that has a section is in that section, and that the values
/// and tests of the rows exist.
pub(super) fn check(sources: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let page = fs::read_to_string(crate::root().join(PAGE)).unwrap_or_default();
    let lines = sources.iter().flat_map(|(_, text)| text.lines());
    let tests: BTreeSet<&str> = lines.filter_map(function).collect();
    let finding = |message: String| format!("{PAGE}: {message}");
    for section in page.split(SECTION).skip(1) {
        let folder = section.split('`').next().unwrap_or_default();
        let constants = constants(Path::new(folder), sources);
        let mut named = BTreeSet::new();
        for line in section.lines().take_while(|line| !line.starts_with("## ")) {
            if let Some(others) = line.strip_prefix(OTHERS) {
                named.extend(quoted(others));
            }
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            let [name, value, .., test] = cells[..] else { continue };
            let (Some(name), Some(value)) = (quoted(name).next(), quoted(value).next()) else {
                continue;
            };
            named.insert(name);
            if constants.get(name).map(String::as_str) != Some(value) {
                let found = constants.get(name);
                findings.push(finding(format!("`{name}` is {found:?} in {folder}, not {value}")));
            }
            if quoted(test).next().is_none() {
                findings.push(finding(format!("`{name}` has no test")));
            }
            let missing = quoted(test).filter(|test| !tests.contains(test));
            findings.extend(missing.map(|test| finding(format!("there is no test `{test}`"))));
        }
        let missing = constants
            .iter()
            .filter(|(name, value)| is_bound(name, value) && !named.contains(name.as_str()));
        findings.extend(missing.map(|(name, _)| finding(format!("`{name}` has no row"))));
    }
}

/// The name of the function that a line of Rust or C begins.
fn function(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let named = line.strip_prefix("fn ").or_else(|| line.strip_prefix("static void "))?;
    named.split(['(', '<']).next()
}

/// The words of a text that are between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
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
