//! The part of a source file that is not test code.

/// Returns the lines of a file without the items under `#[cfg(test)]` or `#[cfg(all(test, …))]`.
///
/// The file must be formatted by rustfmt, so that the indentation shows the end of an item.
pub(super) fn without_tests(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let code = line.trim_start();
        if code.starts_with("#[cfg(test)") || code.starts_with("#[cfg(all(test") {
            skip_item(&mut lines, line.len() - code.len());
        } else {
            kept.push(line);
        }
    }
    kept
}

/// Skips the item whose attributes are indented by `indent`.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>, indent: usize) {
    let mut is_first = true;
    for line in lines {
        let code = line.trim();
        if is_first && (code.starts_with("#[") || code.starts_with("//")) {
            continue;
        }
        let is_at_indent = line.len() - line.trim_start().len() == indent;
        let is_end = if is_first {
            code.ends_with([';', ',', '}'])
        } else {
            is_at_indent && (code.starts_with('}') || code.ends_with(';'))
        };
        if is_end {
            return;
        }
        is_first = false;
    }
}

/// Returns the number of lines that are neither blank nor comments, in a file with this extension.
pub(super) fn code_lines(lines: &[&str], extension: &str) -> usize {
    let comments: &[&str] = match extension {
        "rs" => &["//"],
        "py" => &["#"],
        "s" | "S" => &["//", "# "],
        _ => &["//", "/*", "* ", "*/"],
    };
    let is_code = |line: &&&str| {
        let line = line.trim();
        !line.is_empty() && !comments.iter().any(|comment| line.starts_with(comment))
    };
    lines.iter().filter(is_code).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_items_are_not_counted() {
        let text = "//! A file.\n\nfn one() {\n    two();\n}\n\n#[cfg(test)]\nmod tests {\n    \
                    fn three() {\n    }\n}\n";
        for (before, count) in [
            ("", 3),
            ("#[cfg(test)]\nuse x::{a, b};\n", 3),
            ("#[cfg(test)]\n// Why.\n#[path = \"y\"]\nmod y;\nuse z;\n", 4),
            ("#[cfg(all(test, a))]\nfn f(\n    a: u8,\n) {\n    g();\n}\n", 3),
            ("struct S {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n", 6),
            ("#[cfg(test)]\nstruct Empty {}\nfn f() {}\n", 4),
        ] {
            let lines = format!("{before}{text}");
            assert_eq!(code_lines(&without_tests(&lines), "rs"), count, "{before}");
        }
    }
}
