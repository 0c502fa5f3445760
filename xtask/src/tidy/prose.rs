//! Counts habits of bad prose in comments and Markdown: a smoke detector, not a judge of style.
//!
//! A finding is a habit that is more frequent than its target. `cargo xtask tidy --list HABIT`
//! lists its places.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex_lite::Regex;
use serde::Deserialize;

use crate::command::Failure;

/// A habit that the house style avoids. `habits.toml` describes the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Habit {
    name: String,
    pattern: String,
    target: f64,
    #[serde(default)]
    exempts_questions: bool,
}

/// The contents of `habits.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Habits {
    habit: Vec<Habit>,
    /// Counted in percent of the doc comments.
    opener: Habit,
}

static HABITS: LazyLock<Habits> = LazyLock::new(|| {
    toml::from_str(include_str!("habits.toml")).expect("each run of the command reads the file")
});

impl Habit {
    fn regex(&self) -> Regex {
        Regex::new(&self.pattern).expect("the pattern is valid")
    }

    fn count(&self, regex: &Regex, text: &str) -> usize {
        let is_question = |end: usize| {
            let rest = text[end..].split('.').next();
            self.exempts_questions && rest.is_some_and(|rest| rest.contains('?'))
        };
        regex.find_iter(text).filter(|found| !is_question(found.end())).count()
    }
}

/// The origins of this project, which its public text calls studies, by name.
const SEED: &str = concat!("seed", " 00");

/// Prints the rate of each habit in these files, and adds those above their targets to `findings`.
pub(super) fn check(files: &[(PathBuf, String)], findings: &mut Vec<String>) {
    let blocks: Vec<Block> = files.iter().flat_map(|(file, text)| blocks_of(file, text)).collect();
    let words: usize = blocks.iter().map(|block| word_count(&block.text)).sum();
    let docs = blocks.iter().filter(|block| block.is_doc).count();
    let seeds = files.iter().filter(|(file, _)| is_public(file));
    let seeds: usize = seeds.map(|(_, text)| text.matches(SEED).count()).sum();
    println!("{words} words of comments and Markdown, {docs} doc comments");
    let count = |habit: &Habit, is_counted: fn(&Block) -> bool| {
        let (regex, counted) = (habit.regex(), blocks.iter().filter(|block| is_counted(block)));
        counted.map(|block| habit.count(&regex, &block.text)).sum::<usize>() as f64
    };
    let per_words = 10_000.0 / words.max(1) as f64;
    let rates = HABITS.habit.iter().map(|habit| (habit, count(habit, |_| true) * per_words));
    let opener = count(&HABITS.opener, |block| block.is_doc) * 100.0 / docs.max(1) as f64;
    for (Habit { name, target, .. }, rate) in rates.chain([(&HABITS.opener, opener)]) {
        println!("{name:<30} {rate:>6.1}   target {target}");
        if rate > *target {
            findings.push(format!("prose: `{name}` is above its target: tidy --list '{name}'"));
        }
    }
    println!("{:<30} {seeds:>6}   target 0", "numbers of seeds in public");
    if seeds > 0 {
        findings.push(format!("prose: `{SEED}` in public text: use the name of the study"));
    }
}

/// Prints the places of the habits whose names contain `name`.
pub(super) fn list(files: &[(PathBuf, String)], name: &str) -> Result<(), Failure> {
    let all = || HABITS.habit.iter().chain([&HABITS.opener]);
    let wanted: Vec<_> = all().filter(|habit| habit.name.contains(name)).collect();
    if wanted.is_empty() {
        let names: Vec<_> = all().map(|habit| habit.name.as_str()).collect();
        let cause = format!("`{}` is not a habit", name.escape_debug());
        return Err(Failure::new(cause, format!("one of: {}", names.join("; "))));
    }
    for habit in wanted {
        let regex = habit.regex();
        for (file, text) in files {
            for Block { line, text, is_doc } in blocks_of(file, text) {
                let is_counted = habit.name != HABITS.opener.name || is_doc;
                if is_counted && habit.count(&regex, &text) > 0 {
                    let start: String = text.chars().take(140).collect();
                    println!("{}:{line}: {start}", file.display());
                }
            }
        }
    }
    Ok(())
}

/// Returns `true` for files with text for users: the README, the book and the lab.
fn is_public(file: &Path) -> bool {
    file == Path::new("README.md") || file.starts_with("docs") || file.starts_with("crates/lab")
}

/// A comment or a Markdown paragraph on one line. Its code is replaced by `X`.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// Line of its beginning, from 1.
    line: usize,
    text: String,
    /// `true` for the doc comment of an item.
    is_doc: bool,
}

/// Returns the comments of a Rust file or the paragraphs of a Markdown file, without code blocks,
/// headings and tables.
fn blocks_of(file: &Path, text: &str) -> Vec<Block> {
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    let (mut blocks, mut is_open, mut is_fenced) = (Vec::<Block>::new(), false, false);
    for (line, text) in (1..).zip(text.lines()) {
        let comment = if is_rust { comment(text) } else { Some((text, false)) };
        let was_open = std::mem::take(&mut is_open);
        let Some((text, is_doc)) = comment else {
            is_fenced = false;
            continue;
        };
        let text = text.trim();
        if text.starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !text.is_empty() && !text.starts_with(['#', '|']) {
            let text = without_code(text);
            match blocks.last_mut().filter(|_| was_open) {
                Some(block) => block.text += &format!(" {text}"),
                None => blocks.push(Block { line, text, is_doc }),
            }
            is_open = true;
        }
    }
    blocks
}

/// Replaces each piece of code between backticks by `X`.
fn without_code(text: &str) -> String {
    let mut parts: Vec<&str> = text.split('`').collect();
    // A single backtick at the end opens no code.
    let unpaired = if parts.len().is_multiple_of(2) { parts.pop() } else { None };
    let outside: Vec<_> = parts.into_iter().step_by(2).collect();
    outside.join("X") + &unpaired.map_or_else(String::new, |rest| format!("`{rest}"))
}

/// Returns the number of words of ASCII letters, apostrophes and hyphens.
fn word_count(text: &str) -> usize {
    let is_part = |letter: char| letter.is_ascii_alphabetic() || matches!(letter, '\'' | '-');
    let words = text.split(|letter| !is_part(letter));
    words.filter(|word| word.contains(|letter: char| letter.is_ascii_alphabetic())).count()
}

/// Returns the text of a line that is a comment, and `true` if it is the doc comment of an item.
fn comment(line: &str) -> Option<(&str, bool)> {
    let text = line.trim_start().strip_prefix("//")?;
    Some((text.strip_prefix(['/', '!']).unwrap_or(text), text.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_its_habit() {
        for (name, text, count) in [
            ("free who", "Who rings waits for who answers.", 2),
            ("free who", "The CPU who rings. Who rings?", 0),
            ("opens What", "What was flushed is gone. Whose it was.", 2),
            ("opens What", "A bell. What rings it? Know what.", 0),
            ("so many", "There are so many that it takes so long.", 2),
            ("say/tell", "It says so, and was told. An essay.", 2),
            (", too", "It waits, too. It waits, tooth and nail.", 1),
            ("meanwhile", "Meanwhile, at once; lest it waits.", 2),
            ("need not", "It need not wait. The need is notable.", 1),
            ("is to be", "It is to be had. To be called first. A way to be called.", 2),
            ("rustdoc", "Which CPU it is. Which space it is.", 1),
            ("rustdoc", "The CPU which waits.", 0),
        ] {
            let habit =
                HABITS.habit.iter().chain([&HABITS.opener]).find(|habit| habit.name.contains(name));
            let habit = habit.expect("it is in the table");
            assert_eq!(habit.count(&habit.regex(), text), count, "{text}");
        }
    }

    #[test]
    fn blocks_are_comments_without_code() {
        let text = "//! A file\n//! of `so many` lines.\n\n/// One.\n///\n/// ```\n/// two();\n\
                    /// ```\nfn f() {\n    // Three.\n    three(); // four\n}\n";
        let block = |line, text: &str, is_doc| Block { line, text: text.to_owned(), is_doc };
        let expected = [
            block(1, "A file of X lines.", false),
            block(4, "One.", true),
            block(10, "Three.", false),
        ];
        assert_eq!(blocks_of(Path::new("a.rs"), text), expected);
        let text = "# Heading\n\nOne\ntwo.\n\n| a | b |\n```\ncode\n```\nThree.\n";
        let expected = [block(3, "One two.", false), block(10, "Three.", false)];
        assert_eq!(blocks_of(Path::new("a.md"), text), expected);
    }

    #[test]
    fn words_are_counted_outside_code() {
        let text = without_code("Its `so many` CPUs' bell-word is `1`, `x.");
        assert_eq!(text, "Its X CPUs' bell-word is X, `x.");
        assert_eq!(word_count(&text), 7);
        assert_eq!(word_count("16 - 'twas 4k"), 2);
    }

    #[test]
    fn unknown_habit_is_rejected() {
        let failure = list(&[], "swearing").unwrap_err().to_string();
        assert!(failure.contains("say/tell; , too"), "{failure}");
    }
}
