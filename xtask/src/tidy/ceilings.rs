//! The lines of code of each part of the repository, and their ceilings.
//!
//! Lines of code are lines of Rust, C, assembly and Python outside of tests that are neither blank
//! nor comments. Tests are files in folders named `tests`, files with that name, and items under
//! `#[cfg(test)]`. Python's strings of documentation count.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::source::{code_lines, without_tests};
use crate::command::{Failure, read_tracked, unwritable};

/// The file with the ceilings.
const FILE: &str = "xtask/src/tidy/ceilings.toml";

/// The files whose lines are counted.
pub(super) const COUNTED: &str = "*.rs *.c *.h *.s *.S *.py";

/// The numbers of lines that the parts may have.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ceilings {
    /// The sum that the ceilings may have.
    total: usize,
    parts: BTreeMap<String, usize>,
}

/// Returns the lines of code of each part.
pub(super) fn count(files: &[(PathBuf, String)]) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for (file, text) in files.iter().filter(|(file, _)| !is_test(file)) {
        let extension = file.extension().and_then(|extension| extension.to_str());
        let extension = extension.unwrap_or_default();
        let kept = if extension == "rs" { without_tests(text) } else { text.lines().collect() };
        *lines.entry(part_of(file)).or_default() += code_lines(&kept, extension);
    }
    lines
}

/// Returns the part of a file: `crates/adapters/NAME`, `crates/NAME`, or the first part of its
/// path.
fn part_of(file: &Path) -> String {
    let depths = [("crates/adapters", 3), ("crates", 2)];
    let parts =
        depths.iter().find(|(folder, _)| file.starts_with(folder)).map_or(1, |found| found.1);
    file.iter().take(parts).collect::<PathBuf>().display().to_string()
}

fn is_test(file: &Path) -> bool {
    let is_named = |name: &str| file.file_stem().is_some_and(|stem| stem == name);
    file.iter().any(|part| part == "tests") || is_named("tests")
}

/// Adds the parts above their ceilings to `findings`.
pub(super) fn check(
    lines: &BTreeMap<String, usize>,
    findings: &mut Vec<String>,
) -> Result<(), Failure> {
    let ceilings: Ceilings = toml::from_str(&read_tracked(FILE)?).map_err(|error| {
        Failure::new(format!("{FILE}: {}", error.message()), format!("correct {FILE}"))
    })?;
    ceilings.check(lines, findings);
    Ok(())
}

/// Makes today's numbers the ceilings, and their sum the total.
pub(super) fn write(lines: &BTreeMap<String, usize>) -> Result<(), Failure> {
    let mut text = format!(
        "# Lines of code outside of tests that each part may have, and the sum of all ceilings.\n\
         # `cargo xtask tidy` checks both. A ceiling may be raised only in a commit that lowers\n\
         # another by as much. `cargo xtask tidy --write-ceilings` writes today's numbers.\n\
         total = {}\n\n[parts]\n",
        lines.values().sum::<usize>()
    );
    for (part, count) in lines {
        // A string never refuses text.
        let _ = writeln!(text, "\"{part}\" = {count}");
    }
    fs::write(crate::root().join(FILE), text).map_err(unwritable(FILE))
}

impl Ceilings {
    fn check(&self, lines: &BTreeMap<String, usize>, findings: &mut Vec<String>) {
        for (part, count) in lines {
            let ceiling = self.parts.get(part).copied().unwrap_or(0);
            if *count > ceiling {
                findings.push(format!(
                    "{part}: {count} lines of code are more than its ceiling of {ceiling}: remove \
                     some, or raise it in {FILE} and lower another by as much"
                ));
            }
        }
        let sum: usize = self.parts.values().sum();
        if sum > self.total {
            findings.push(format!(
                "{FILE}: the sum of the ceilings is {sum}, more than {}: lower one by as much as \
                 another was raised",
                self.total
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_above_a_ceiling_is_found() {
        let parts = |a, b| BTreeMap::from([("a".to_owned(), a), ("b".to_owned(), b)]);
        let findings = |lines: BTreeMap<String, usize>, ceilings, total| {
            let mut findings = Vec::new();
            Ceilings { total, parts: ceilings }.check(&lines, &mut findings);
            findings.len()
        };
        assert_eq!(findings(parts(3, 5), parts(3, 5), 8), 0);
        assert_eq!(findings(parts(4, 5), parts(3, 5), 8), 1);
        assert_eq!(findings(parts(4, 6), parts(3, 5), 8), 2);
        // A ceiling that is raised, with another lowered and without.
        assert_eq!(findings(parts(4, 4), parts(4, 4), 8), 0);
        assert_eq!(findings(parts(4, 5), parts(4, 5), 8), 1);
        assert_eq!(findings(parts(4, 4), BTreeMap::from([("a".to_owned(), 4)]), 8), 1);
    }

    #[test]
    fn lines_are_counted_by_part_and_language() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "//! A.\n\nfn a() {}\n#[cfg(test)]\nmod tests {\n    b();\n}\n",
            ),
            ("crates/a/src/b.c", "/* One\n * two */\nint b;\n*c = 1;\n"),
            ("crates/a/tests/c.rs", "fn c() {}\n"),
            ("crates/adapters/d/src/tests.rs", "fn d() {}\n"),
            ("crates/adapters/d/src/lib.rs", "fn d() {}\n"),
            ("proof/e.py", "# E\ne = 1\n"),
            ("proof/f.s", "// F\n# f\n    ret\n"),
        ];
        let files = files.map(|(file, text)| (PathBuf::from(file), text.to_owned()));
        let expected = [("crates/a", 3), ("crates/adapters/d", 1), ("proof", 2)];
        assert!(
            count(&files).into_iter().eq(expected.map(|(part, count)| (part.to_owned(), count)))
        );
    }
}
