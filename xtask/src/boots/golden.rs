//! Golden files: results of runs in files that people read. CI compares them, and other runs update
//! them.

use std::fs;

use crate::command::{Failure, read_tracked, unwritable};

/// Compares the part of a file between two marks of this name with `found`, or updates it outside
/// of CI.
pub(crate) fn check_part(file: &str, name: &str, found: &str) -> Result<(), Failure> {
    let text = read_tracked(file)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(&end)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = parts else {
        return Err(Failure::new(
            format!("{file} has no marks for {name}"),
            format!("add a line {} and a line {end}", begin.trim_end()),
        ));
    };
    compare(file, old, found, || format!("{before}{begin}{found}{end}{after}"))
}

/// Checks that a file has each of these lines. Does not update it: they are a part of its lines.
pub(crate) fn has_lines(file: &str, found: &str) -> Result<(), Failure> {
    let missing = missing(&read_tracked(file)?, found);
    for line in &missing {
        println!("+ {line}");
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("{file} lacks {} of the lines found", missing.len()),
        "cargo xtask boots, and commit what it updates",
    ))
}

/// Returns the lines of `found` that a text lacks.
pub(crate) fn missing<'f>(text: &str, found: &'f str) -> Vec<&'f str> {
    found.lines().filter(|line| !text.lines().any(|known| known == *line)).collect()
}

/// Compares a whole file with `found`, or updates it outside of CI.
pub(crate) fn check_file(file: &str, found: &str) -> Result<(), Failure> {
    let old = if crate::root().join(file).exists() { read_tracked(file)? } else { String::new() };
    compare(file, &old, found, || found.to_owned())
}

fn compare(
    file: &str,
    old: &str,
    found: &str,
    new: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if old == found {
        println!("{file} is up to date");
        return Ok(());
    }
    for line in difference(old, found) {
        println!("{line}");
    }
    if std::env::var_os("CI").is_some() {
        return Err(Failure::new(
            format!("{file} is out of date"),
            format!("run this command outside of CI, and commit {file}"),
        ));
    }
    println!("{file} is updated");
    fs::write(crate::root().join(file), new()).map_err(unwritable(file))
}

/// Returns the lines that only one of the texts has, in the order of the texts, marked with `-` and
/// `+`.
fn difference(old: &str, new: &str) -> Vec<String> {
    let only_in = |one: &str, other: &str, sign: &str| -> Vec<String> {
        missing(other, one).into_iter().map(|line| format!("{sign} {line}")).collect()
    };
    [only_in(old, new, "-"), only_in(new, old, "+")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_has_lines_of_one_text() {
        assert_eq!(difference("a\nb\n", "a\nc\nd\n"), ["- b", "+ c", "+ d"]);
        assert_eq!(difference("a\n", "a\n"), [""; 0]);
        assert_eq!(missing("a\nb\n", "b\nc\n"), ["c"]);
    }
}
