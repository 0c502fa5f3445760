//! Checks the part of the house style that a program can check.

mod ceilings;
mod crates;
mod limits;
mod modules;
mod prose;
mod source;
mod style;

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Command, Failure};

/// The pages for embedders. Each excerpt is a copy of lines of the file that the page names.
const GUIDES: [&str; 3] =
    ["docs/embedding.md", "docs/embedding-more.md", "docs/smallest-embedding.md"];

/// The folder of the smallest embedding, and the largest number of lines of code that an embedder
/// writes on one architecture.
const SMALLEST: &str = "docs/smallest-embedding/src";
const SMALLEST_LINES_MAX: usize = 60;

/// Checks every Rust and Markdown file that git tracks or would add.
pub(crate) fn check() -> Result<(), Failure> {
    let (sources, mut findings) = (files("*.rs")?, Vec::new());
    for (file, text) in &sources {
        style::check_file(file, text, &mut findings);
        check_module_file(file, &sources, &mut findings);
    }
    GUIDES.iter().for_each(|guide| check_excerpts(guide, &mut findings));
    check_smallest_embedding(&sources, &mut findings);
    let lines = ceilings::count(&files(ceilings::COUNTED)?);
    crates::check(&lines, &sources, &mut findings);
    ceilings::check(&lines, &mut findings)?;
    limits::check(&files("*.rs *.c")?, &mut findings);
    prose::check(&files("*.rs *.md")?, &mut findings);
    if findings.is_empty() {
        println!("{} files are tidy", sources.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    Err(Failure::new(
        format!("{} findings", findings.len()),
        "fix them; the rules are in xtask/src/tidy",
    ))
}

/// Makes today's lines of code the ceilings.
pub(crate) fn write_ceilings() -> Result<(), Failure> {
    ceilings::write(&ceilings::count(&files(ceilings::COUNTED)?))
}

/// Lists the places of a habit of bad prose.
pub(crate) fn list(habit: &str) -> Result<(), Failure> {
    prose::list(&files("*.rs *.md")?, habit)
}

/// Returns the files that git tracks or would add, with their text.
fn files(patterns: &str) -> Result<Vec<(PathBuf, String)>, Failure> {
    let list = format!("ls-files --cached --others --exclude-standard -- {patterns}");
    let listed = Command::new("git").args(&list).output()?;
    // A file that is deleted but not yet committed as deleted has no text.
    let read = |file: PathBuf| Some((fs::read_to_string(crate::root().join(&file)).ok()?, file));
    let files = listed.lines().map(PathBuf::from).filter_map(read);
    Ok(files.map(|(text, file)| (file, text)).collect())
}

/// Checks that a module with child modules is in `name/mod.rs`, not in `name.rs` next to `name/`.
fn check_module_file(file: &Path, files: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let folder = file.with_extension("");
    let has_folder = files.iter().any(|(other, _)| other.starts_with(&folder));
    if has_folder {
        findings.push(format!(
            "{}:1: move it to {}/mod.rs, where its child modules are",
            file.display(),
            folder.display(),
        ));
    }
}

/// Checks that each excerpt in a guide occurs in the file that the guide named last before it.
fn check_excerpts(guide: &str, findings: &mut Vec<String>) {
    let text = fs::read_to_string(crate::root().join(guide)).unwrap_or_default();
    let mut before = String::new();
    let mut parts = text.split("```");
    while let (Some(prose), block) = (parts.next(), parts.next()) {
        before.push_str(prose);
        let Some(excerpt) = block.and_then(|block| block.strip_prefix("rust\n")) else { continue };
        let named = before.split('`').rev().find(|word| word.ends_with(".rs")).unwrap_or_default();
        let source = fs::read_to_string(crate::root().join(named)).unwrap_or_default();
        if !source.contains(excerpt) {
            let first = excerpt.lines().next().unwrap_or_default().trim();
            findings.push(format!("{guide}: `{first}` … is not in `{named}`"));
        }
    }
}

/// Checks the number of lines of the smallest embedding on each architecture: its own file and the
/// common one, without comments and empty lines.
fn check_smallest_embedding(files: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let lines = |text: &str| source::code_lines(&text.lines().collect::<Vec<_>>(), "rs");
    let common = Path::new(SMALLEST).join("lib.rs");
    let parts = || files.iter().filter(|(file, _)| file.starts_with(SMALLEST));
    let shared: usize =
        parts().filter(|(file, _)| *file == common).map(|(_, text)| lines(text)).sum();
    for (file, text) in parts().filter(|(file, _)| *file != common) {
        let count = shared + lines(text);
        if count > SMALLEST_LINES_MAX {
            let file = file.display();
            findings.push(format!(
                "{file}:1: with lib.rs {count} lines of code, more than {SMALLEST_LINES_MAX}"
            ));
        }
    }
}
