//! Edits of another project's source: each names a file and an anchor, and contains only inserted
//! text.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;

use serde::Deserialize;

use crate::command::Failure;

/// The file with the edits of one variant.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edits {
    edit: Vec<Edit>,
}

/// One edit. Exactly one of `after`, `before` and `delete` is an anchor.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edit {
    name: String,
    file: String,
    /// The only version of the project that the edit is for.
    version: Option<String>,
    /// The line from which on the other anchors are searched.
    within: Option<String>,
    after: Option<String>,
    before: Option<String>,
    delete: Option<String>,
    /// The last line that is deleted, if it is not the first.
    through: Option<String>,
    /// The line before which the deletion ends.
    until: Option<String>,
    #[serde(default)]
    insert: String,
}

impl Edits {
    /// Reads the edits from the text of a file with this name.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, Failure> {
        toml::from_str(text).map_err(|error| {
            let error = error.to_string();
            let cause = format!("{name}: {}", error.trim_end().replace('\n', " "));
            Failure::new(cause, format!("correct {name}; its first lines describe the format"))
        })
    }

    /// Returns the edits of one version of the project.
    pub(super) fn of_version(mut self, version: &str) -> Self {
        self.edit.retain(|edit| edit.version.as_deref().is_none_or(|only| only == version));
        self
    }

    /// Leaves out the edits of some files, and adds other edits.
    pub(super) fn replaced(mut self, is_left_out: impl Fn(&str) -> bool, mut others: Self) -> Self {
        self.edit.retain(|edit| !is_left_out(&edit.file));
        self.edit.append(&mut others.edit);
        self
    }

    /// Returns the edited files by their paths. `read` returns the file at a path, and
    /// `{repository}` in a text is replaced.
    ///
    /// # Errors
    ///
    /// Names every edit that does not fit.
    pub(super) fn applied(
        &self,
        read: impl Fn(&str) -> io::Result<String>,
        repository: &str,
    ) -> Result<BTreeMap<&str, String>, Failure> {
        let mut files: BTreeMap<&str, String> = BTreeMap::new();
        let mut misfits = String::new();
        for edit in &self.edit {
            if !files.contains_key(edit.file.as_str()) {
                let Ok(text) = read(&edit.file) else {
                    let _ = write!(misfits, "\n  {}: `{}`: no such file", edit.file, edit.name);
                    continue;
                };
                files.insert(&edit.file, text);
            }
            let Some(text) = files.get_mut(edit.file.as_str()) else { continue };
            match edit.applied_to(text, repository) {
                Ok(edited) => *text = edited,
                Err(why) => {
                    let _ = write!(misfits, "\n  {}: `{}`: {why}", edit.file, edit.name);
                }
            }
        }
        if misfits.is_empty() {
            return Ok(files);
        }
        Err(Failure::new(
            format!("these edits do not fit this version:{misfits}"),
            "change their anchors in the port's edits.toml, or build the version in port.toml",
        ))
    }
}

impl Edit {
    /// Returns the text after this edit, or the reason why the edit does not fit.
    fn applied_to(&self, text: &str, repository: &str) -> Result<String, String> {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let from = match &self.within {
            Some(anchor) => Some(only_line(&lines, anchor)?),
            None => None,
        };
        let find = |anchor: &str| match from {
            Some(from) => next_line(&lines, from, anchor),
            None => only_line(&lines, anchor),
        };
        let kept = match (&self.after, &self.before, &self.delete) {
            (Some(anchor), None, None) => {
                let line = find(anchor)? + 1;
                line..line
            }
            (None, Some(anchor), None) => {
                let line = find(anchor)?;
                line..line
            }
            (None, None, Some(anchor)) => {
                let first = find(anchor)?;
                let end = match (&self.through, &self.until) {
                    (Some(last), None) => next_line(&lines, first, last)? + 1,
                    (None, Some(next)) => next_line(&lines, first, next)?,
                    (None, None) => first + 1,
                    _ => return Err("it has both `through` and `until`".to_owned()),
                };
                first..end
            }
            _ => return Err("it needs one of `after`, `before` and `delete`".to_owned()),
        };
        let inserted = self.insert.replace("{repository}", repository);
        Ok([&lines[..kept.start].concat(), &inserted, &lines[kept.end..].concat()]
            .map(String::as_str)
            .concat())
    }
}

/// Returns the only line with the anchor.
fn only_line(lines: &[&str], anchor: &str) -> Result<usize, String> {
    let mut found = lines.iter().enumerate().filter(|(_, line)| line.contains(anchor));
    match (found.next(), found.count()) {
        (Some((line, _)), 0) => Ok(line),
        (None, _) => Err(format!("no line has `{anchor}`")),
        (Some(_), others) => Err(format!("{} lines have `{anchor}`", others + 1)),
    }
}

/// Returns the first line with the anchor from a line on.
fn next_line(lines: &[&str], from: usize, anchor: &str) -> Result<usize, String> {
    let found = lines[from..].iter().position(|line| line.contains(anchor));
    found.map(|line| from + line).ok_or_else(|| format!("no line after its place has `{anchor}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "fn a() {\n    one();\n}\nfn b() {\n    one();\n    two();\n}\n";

    fn some(anchor: &str) -> Option<String> {
        Some(anchor.to_owned())
    }

    #[test]
    fn insertion_is_beside_its_anchor() {
        let insert = "    here();\n".to_owned();
        let after = Edit { after: some("fn b"), insert: insert.clone(), ..Edit::default() };
        let before = Edit { before: some("two()"), insert, ..Edit::default() };
        let expected = TEXT.replace("fn b() {\n", "fn b() {\n    here();\n");
        assert_eq!(after.applied_to(TEXT, ""), Ok(expected));
        let expected = TEXT.replace("    two", "    here();\n    two");
        assert_eq!(before.applied_to(TEXT, ""), Ok(expected));
    }

    #[test]
    fn deletion_is_from_anchor_through_anchor() {
        let edit = Edit {
            within: some("fn b"),
            delete: some("one()"),
            through: some("two()"),
            insert: "    {repository}\n".to_owned(),
            ..Edit::default()
        };
        let expected = TEXT.replace("    one();\n    two();\n", "    /here\n");
        assert_eq!(edit.applied_to(TEXT, "/here"), Ok(expected));
    }

    #[test]
    fn deletion_ends_before_another_anchor() {
        let edit = Edit { delete: some("fn a"), until: some("fn b"), ..Edit::default() };
        let expected = &TEXT[TEXT.find("fn b").expect("it is there")..];
        assert_eq!(edit.applied_to(TEXT, ""), Ok(expected.to_owned()));
        let both = Edit { through: some("fn b"), ..edit };
        assert!(both.applied_to(TEXT, "").is_err());
    }

    #[test]
    fn ambiguous_or_missing_anchor_is_refused() {
        let edit = |anchor| Edit { after: some(anchor), ..Edit::default() };
        assert_eq!(edit("one()").applied_to(TEXT, ""), Err("2 lines have `one()`".to_owned()));
        assert_eq!(edit("three").applied_to(TEXT, ""), Err("no line has `three`".to_owned()));
        assert!(Edit::default().applied_to(TEXT, "").is_err());
    }

    #[test]
    fn misfits_are_all_named() {
        let read = |path: &str| match path {
            "a.rs" => Ok(TEXT.to_owned()),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        };
        let edits = "[[edit]]\nname = 'fits'\nfile = 'a.rs'\nafter = 'two()'\ninsert = 'x'\n\
                     [[edit]]\nname = 'gone'\nfile = 'a.rs'\nafter = 'three()'\n\
                     [[edit]]\nname = 'lost'\nfile = 'b.rs'\nafter = 'x'\n";
        let failure = Edits::parse("edits.toml", edits)
            .and_then(|edits| edits.applied(read, "").map(drop))
            .expect_err("two edits do not fit");
        assert!(failure.cause().contains("a.rs: `gone`: no line has `three()`"), "{failure}");
        assert!(failure.cause().contains("b.rs: `lost`: no such file"), "{failure}");
    }

    #[test]
    fn edits_of_other_versions_are_left_out() {
        let edits = "[[edit]]\nname = 'old'\nversion = '1'\nfile = 'a'\nafter = 'x'\n\
                     [[edit]]\nname = 'new'\nversion = '2'\nfile = 'a'\nafter = 'x'\n\
                     [[edit]]\nname = 'both'\nfile = 'a'\nafter = 'x'\n";
        let of = |version| Edits::parse("edits.toml", edits).expect("edits").of_version(version);
        let names: Vec<_> = of("2").edit.iter().map(|edit| edit.name.clone()).collect();
        assert_eq!(names, ["new", "both"]);
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(
            Edits::parse("edits.toml", "[[edit]]\nname = 'x'\nfile = 'y'\nadd = 'z'\n").is_err()
        );
    }
}
