//! The house style, as far as a machine can see it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure};

/// The guide for who embeds the engine, whose excerpts are of this kernel.
const GUIDE: &str = "docs/embedding.md";
const COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// Checks every Rust file that git knows or would take.
pub(crate) fn check() -> Result<(), Failure> {
    let list = "ls-files --cached --others --exclude-standard -- *.rs";
    let files = Command::new("git").args(list).output()?;
    let mut findings = Vec::new();
    let mut count = 0;
    for file in files.lines().map(PathBuf::from) {
        // Deleted, and not yet committed as such.
        let Ok(text) = fs::read_to_string(crate::root().join(&file)) else { continue };
        count += 1;
        check_file(&file, &text, &mut findings);
    }
    check_excerpts(&mut findings);
    if findings.is_empty() {
        println!("{count} files are tidy");
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(Failure::new(
        format!("{} findings", findings.len()),
        "mend them; the rules: xtask/src/tidy.rs",
    ))
}

/// What the guide shows is in the file that it named last.
fn check_excerpts(findings: &mut Vec<String>) {
    let text = fs::read_to_string(crate::root().join(GUIDE)).unwrap_or_default();
    let mut before = String::new();
    let mut parts = text.split("```");
    while let (Some(prose), block) = (parts.next(), parts.next()) {
        before.push_str(prose);
        let Some(excerpt) = block.and_then(|block| block.strip_prefix("rust\n")) else { continue };
        let named = before.split('`').rev().find(|word| word.ends_with(".rs")).unwrap_or_default();
        let source = fs::read_to_string(crate::root().join(named)).unwrap_or_default();
        if !source.contains(excerpt) {
            let first = excerpt.lines().next().unwrap_or_default().trim();
            findings.push(format!("{GUIDE}: `{first}` … is not what `{named}` says"));
        }
    }
}

fn check_file(file: &Path, text: &str, findings: &mut Vec<String>) {
    let place = |line: usize| format!("{}:{line}", file.display());
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.push(format!("{}: {lines} lines; one idea each", place(1)));
    }
    if !text.starts_with("//!") && !text.starts_with("#!") {
        findings.push(format!("{}: says not what it is for", place(1)));
    }
    let has_rules = has_rules(file);
    let mut function: Option<(usize, usize)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if line.chars().count() > COLUMNS_MAX {
            findings.push(format!("{}: longer than {COLUMNS_MAX} columns", place(number)));
        }
        // Split, so that this file does not find itself.
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("dbg", "!(")] {
            if line.contains(mark) {
                findings.push(format!("{}: `{mark}` is for a note, not for main", place(number)));
            }
        }
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|letter: char| !letter.is_alphanumeric());
        let is_bare = words.any(|word| ORDERINGS.contains(&word)) || code.contains(".fence()");
        if has_rules && is_bare {
            findings.push(format!("{}: orders, and names no rule of rules.rs", place(number)));
        }
        let indent = line.len() - line.trim_start().len();
        if is_function(line.trim_start()) {
            function = Some((number, indent));
        } else if let Some((start, of)) = function
            && line.trim_end() == format!("{:of$}}}", "")
        {
            if number - start > FUNCTION_LINES_MAX {
                findings.push(format!(
                    "{}: {} lines in one function",
                    place(start),
                    number - start
                ));
            }
            function = None;
        }
    }
}

/// Whether this is a part of the engine whose fences, and whose orderings beyond relaxed, are all
/// rules with names: so that there is a test that breaks each.
fn has_rules(file: &Path) -> bool {
    let is_exempt = |file: &Path| {
        // The list itself, what a kernel implements, and the machine for tests.
        file == Path::new("rules.rs") || file == Path::new("machine.rs") || file.starts_with("soft")
    };
    file.strip_prefix("crates/shootdown/src").is_ok_and(|file| !is_exempt(file))
}

/// Whether a line begins a function. rustfmt has seen to the rest.
fn is_function(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let signature = words.find(|word| {
        !matches!(*word, "pub" | "const" | "unsafe" | "async" | "extern")
            && !word.starts_with("pub(")
    });
    signature == Some("fn") && line.ends_with(['{', '('])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_orders_without_a_rule_is_found_in_the_engine() {
        let findings = |file: &str, line: &str| {
            let mut findings = Vec::new();
            check_file(Path::new(file), &format!("//! A file.\n{line}\n"), &mut findings);
            findings.len()
        };
        let engine = "crates/shootdown/src/tag/global.rs";
        for bare in
            ["let tag = self.tag.load(Ordering::Acquire);", "use x::{Release};", "m.fence();"]
        {
            assert_eq!(findings(engine, bare), 1, "{bare}");
            assert_eq!(findings("crates/shootdown/src/machine.rs", bare), 0);
            assert_eq!(findings("crates/sim/src/lib.rs", bare), 0);
        }
        for fine in [
            "order(machine, Rule::NumberAcquire)",
            "fence(machine, Rule::FlushFence);",
            "self.tag.load(Relaxed) // Acquire is not needed",
        ] {
            assert_eq!(findings(engine, fine), 0, "{fine}");
        }
    }
}
