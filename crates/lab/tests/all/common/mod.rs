//! What all tests of the command need.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The command, without its arguments.
pub(crate) fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_shootdown"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The names of what is in a directory.
pub(crate) fn files(directory: impl AsRef<Path>) -> Vec<String> {
    let files = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<_> =
        files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    files.sort_unstable();
    files
}

/// It failed with one line of cause and one of remedy on standard error, which have these words;
/// and has nothing on the other.
pub(crate) fn assert_error(output: &Output, words: &[&str]) {
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty(), "{error}");
    let lines: Vec<_> = error.lines().filter(|line| !line.starts_with("note: ")).collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines[0].starts_with("error: ") && lines[1].starts_with("try:   "), "{error}");
    for word in words {
        assert!(error.contains(word), "it should say `{word}`: {error}");
    }
}
