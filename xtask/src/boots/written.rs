//! What a run has found, written down where people read it: compared in CI, and elsewhere brought
//! up to date.

use std::fs;

use crate::command::Failure;

/// A file has this between two marks of this name. Else, unless in CI, it has from now on.
pub(crate) fn part_of(file: &str, name: &str, found: &str) -> Result<(), Failure> {
    let text = read(file)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        let (old, after) = rest.split_once(&end)?;
        Some((before, old, after))
    });
    let Some((before, old, after)) = parts else {
        return Err(Failure::new(
            format!("{file} has no place for {name}"),
            format!("a line {} and a line {end}", begin.trim_end()),
        ));
    };
    up_to_date(file, old, found, || format!("{before}{begin}{found}{end}{after}"))
}

/// A file is this. Else, unless in CI, it is from now on.
pub(crate) fn whole(file: &str, found: &str) -> Result<(), Failure> {
    let old = if crate::root().join(file).exists() { read(file)? } else { String::new() };
    up_to_date(file, &old, found, || found.to_owned())
}

fn up_to_date(
    file: &str,
    old: &str,
    found: &str,
    new: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if old == found {
        println!("{file} says what was found");
        return Ok(());
    }
    for line in difference(old, found) {
        println!("{line}");
    }
    if std::env::var_os("CI").is_some() {
        return Err(Failure::new(
            format!("{file} does not say what was found"),
            "cargo xtask boots, outside of CI, writes it down",
        ));
    }
    println!("{file} says from now on what was found");
    fs::write(crate::root().join(file), new()).map_err(|error| failed(file, &error))
}

fn read(file: &str) -> Result<String, Failure> {
    fs::read_to_string(crate::root().join(file)).map_err(|error| failed(file, &error))
}

fn failed(file: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("{file}: {error}"), format!("git checkout {file}"))
}

/// Lines of one that the other does not have, in the order of the file: `-` and `+`.
fn difference(old: &str, new: &str) -> Vec<String> {
    let only_in = |one: &str, other: &str, sign: &str| -> Vec<String> {
        let lines = one.lines().filter(|line| !other.lines().any(|known| known == *line));
        lines.map(|line| format!("{sign} {line}")).collect()
    };
    [only_in(old, new, "-"), only_in(new, old, "+")].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_what_the_other_has_not() {
        assert_eq!(difference("a\nb\n", "a\nc\nd\n"), ["- b", "+ c", "+ d"]);
        assert_eq!(difference("a\n", "a\n"), [""; 0]);
    }
}
