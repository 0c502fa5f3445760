//! The rules for one file: its size, its lines, its functions, and the orderings of the engine and
//! of the memory manager.

use std::path::Path;

const COLUMNS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const ORDERINGS: &[&str] = &["Acquire", "Release", "AcqRel", "SeqCst"];

/// The sources that an old compiler must accept: see `publishing`, which compiles those for one
/// processor.
const EMBEDDED: [&str; 4] =
    ["crates/shootdown/src", "crates/hw/src", "crates/capi/src", "crates/adapters/x86_64/src"];

/// Adds the file's violations of the house style to `findings`.
pub(super) fn check_file(file: &Path, text: &str, findings: &mut Vec<String>) {
    let place = |line: usize| format!("{}:{line}", file.display());
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.push(format!(
            "{}: {lines} lines are more than {FILE_LINES_MAX}; split the file by idea",
            place(1)
        ));
    }
    let is_introduced = text.starts_with("//!") || text.starts_with("#!");
    if !is_introduced && !file.ends_with("tests.rs") {
        findings.push(format!("{}: begin with a `//!` comment", place(1)));
    }
    let has_rules = has_rules(file);
    // Most words of the memory manager are counters and hints. Those of its protocols are `sync`'s.
    if has_rules && (file.starts_with(ENGINE) || text.contains("use crate::sync::")) {
        check_relaxed(file, text, findings);
    }
    let mut function: Option<(usize, usize)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        if line.chars().count() > COLUMNS_MAX {
            findings.push(format!("{}: longer than {COLUMNS_MAX} columns", place(number)));
        }
        // The marks are split so that this file contains none.
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("dbg", "!(")] {
            if line.contains(mark) {
                findings.push(format!("{}: remove `{mark}` before you commit", place(number)));
            }
        }
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|letter: char| !letter.is_alphanumeric());
        let is_bare = words.any(|word| ORDERINGS.contains(&word)) || code.contains(".fence()");
        if has_rules && is_bare {
            findings.push(format!(
                "{}: use a rule of rules.rs for this ordering or fence",
                place(number)
            ));
        }
        if code.contains("&& let ") && EMBEDDED.iter().any(|folder| file.starts_with(folder)) {
            findings.push(format!("{}: Rust 1.85 has no `let` after `&&`", place(number)));
        }
        let indent = line.len() - line.trim_start().len();
        if is_function(line.trim_start()) {
            function = Some((number, indent));
        } else if let Some((start, of)) = function
            && line.trim_end() == format!("{:of$}}}", "")
        {
            if number - start > FUNCTION_LINES_MAX {
                findings.push(format!("{}: a function has {} lines", place(start), number - start));
            }
            function = None;
        }
    }
}

/// Checks that each relaxed access to a word of a protocol has a reason: `Relaxed: <reason>` in a
/// comment on the same line, or above it in the same paragraph. A reason in the doc comment of a
/// function is for the whole function. Unit tests are exempt. So is the module of counters, which
/// has one reason for all.
fn check_relaxed(file: &Path, text: &str, findings: &mut Vec<String>) {
    if file.ends_with("stats.rs") {
        return;
    }
    let (mut paragraph_reason, mut item_reason, mut function_reason) = (false, false, None);
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg("));
    for (number, line) in (1..).zip(lines) {
        let (code, comment) = line.split_once("//").unwrap_or((line, ""));
        let (indent, code) = (line.len() - line.trim_start().len(), code.trim_start());
        if line.trim().is_empty() {
            (paragraph_reason, item_reason) = (false, false);
        }
        if comment.split_once("Relaxed: ").is_some_and(|(_, reason)| !reason.is_empty()) {
            let is_doc = comment.starts_with('/');
            (paragraph_reason, item_reason) = (paragraph_reason || !is_doc, item_reason || is_doc);
        }
        if is_function(code) && std::mem::take(&mut item_reason) {
            function_reason = Some(indent);
        }
        let has_reason = paragraph_reason || function_reason.is_some();
        let mut words = code.split(|letter: char| !letter.is_alphanumeric());
        if words.any(|word| word == "Relaxed") && !code.starts_with("use ") && !has_reason {
            let place = format!("{}:{number}", file.display());
            findings.push(format!("{place}: add `// Relaxed: <reason>` to this relaxed access"));
        }
        if function_reason.is_some_and(|of| line.trim_end() == format!("{:of$}}}", "")) {
            function_reason = None;
        }
    }
}

/// The engine and the memory manager, and their modules that are exempt: the lists of rules, the
/// traits that a kernel implements, and the machine for tests.
const ENGINE: &str = "crates/shootdown/src";
const WITH_RULES: [(&str, &[&str]); 2] = [
    (ENGINE, &["base/rules", "base/memory.rs", "state/machine", "soft"]),
    ("crates/vm/src", &["rules", "platform.rs"]),
];

/// Returns `true` if every fence in a file, and every ordering stronger than relaxed, must be a
/// named rule. A test breaks each rule. Files of unit tests are exempt.
fn has_rules(file: &Path) -> bool {
    let is_exempt = |file: &Path, exempt: &[&str]| {
        file.ends_with("tests.rs") || exempt.iter().any(|of| file.starts_with(of))
    };
    WITH_RULES.iter().any(|(folder, exempt)| {
        file.strip_prefix(folder).is_ok_and(|file| !is_exempt(file, exempt))
    })
}

/// Returns `true` if a line begins a function. The file must be formatted by rustfmt.
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
    fn ordering_without_rule_is_found() {
        let findings = |file: &str, line: &str| {
            let mut findings = Vec::new();
            check_file(Path::new(file), &format!("//! A file.\n{line}\n"), &mut findings);
            findings.len()
        };
        let engine = "crates/shootdown/src/state/tag/global.rs";
        for bare in
            ["let tag = self.tag.load(Ordering::Acquire);", "use x::{Release};", "m.fence();"]
        {
            assert_eq!(findings(engine, bare), 1, "{bare}");
            assert_eq!(findings("crates/vm/src/deferred/ranges.rs", bare), 1, "{bare}");
            assert_eq!(findings("crates/vm/src/rules/tests/lock.rs", bare), 0);
            assert_eq!(findings("crates/shootdown/src/state/machine/mod.rs", bare), 0);
            assert_eq!(findings("crates/sim/src/lib.rs", bare), 0);
        }
        assert_eq!(findings(engine, "if a && let Some(b) = c {"), 1);
        assert_eq!(findings("crates/vm/src/lib.rs", "if a && let Some(b) = c {"), 0);
        for fine in [
            "order(machine, Rule::NumberAcquire)",
            "fence(machine, Rule::FlushFence);",
            "self.tag.load(Relaxed) // Relaxed: Acquire is not needed",
        ] {
            assert_eq!(findings(engine, fine), 0, "{fine}");
        }
    }

    #[test]
    fn relaxed_access_without_reason_is_found() {
        let findings = |file: &str, text: &str| {
            let mut findings = Vec::new();
            check_file(Path::new(file), &format!("//! A file.\n{text}\n"), &mut findings);
            findings.len()
        };
        let engine = "crates/shootdown/src/parts/bell/mod.rs";
        let access = "    self.rung.load(Relaxed);";
        for (unreasoned, count) in [
            (access.to_owned(), 1),
            (format!("{access}\n{access}"), 2),
            (format!("    // Relaxed: only a hint.\n\n{access}"), 1),
            (format!("    // It is relaxed.\n{access}"), 1),
            (format!("    // Relaxed: \n{access}"), 1),
            (format!("/// Relaxed: under the lock.\nfn f() {{\n}}\nfn g() {{\n{access}\n}}"), 1),
            (format!("/// Relaxed: of f.\nfn f() {{\n}}\n\nfn g() {{\n{access}\n}}"), 1),
        ] {
            assert_eq!(findings(engine, &unreasoned), count, "{unreasoned}");
            assert_eq!(findings("crates/shootdown/src/parts/stats.rs", &unreasoned), 0);
            assert_eq!(findings("crates/shootdown/src/state/machine/mod.rs", &unreasoned), 0);
            assert_eq!(findings("crates/vm/src/worth.rs", &unreasoned), 0);
            let of_protocol = format!("use crate::sync::AtomicU64;\n\n{unreasoned}");
            assert_eq!(
                findings("crates/vm/src/deferred/ranges.rs", &of_protocol),
                count,
                "{of_protocol}"
            );
        }
        for fine in [
            format!("{access} // Relaxed: only a hint."),
            format!("    // Relaxed: only a hint.\n    let x = 1;\n{access}\n{access}"),
            format!("/// Relaxed: under the lock.\nfn f() {{\n    let x = 1;\n\n{access}\n}}"),
            "use core::sync::atomic::Ordering::Relaxed;".to_owned(),
            format!("#[cfg(test)]\nmod tests {{\n{access}\n}}"),
        ] {
            assert_eq!(findings(engine, &fine), 0, "{fine}");
        }
    }
}
