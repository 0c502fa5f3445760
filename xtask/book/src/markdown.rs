//! Links in the Markdown files that are not part of the book: README and its like.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::page;

/// A line for each link of a Markdown file that leads to no file, or to no heading of a chapter.
///
/// # Errors
///
/// If the file cannot be read.
pub(crate) fn broken_links(
    repository: &Path,
    book: &Path,
    file: &str,
) -> Result<Vec<String>, String> {
    let path = repository.join(file);
    let text = fs::read_to_string(&path).map_err(|error| format!("{file}: {error}"))?;
    let folder = path.parent().unwrap_or(repository);
    let is_broken = |link: &&str| {
        let (target, anchor) = link.split_once('#').unwrap_or((link, ""));
        if target.is_empty() || link.contains("://") {
            return false;
        }
        !folder.join(target).exists()
            || !anchor.is_empty() && !anchors(book, target).contains(anchor)
    };
    Ok(links(&text).filter(is_broken).map(|link| format!("{file}: {link}")).collect())
}

/// The anchors of a chapter's page. A link to a line of a source file has none that could be wrong.
fn anchors(book: &Path, target: &str) -> HashSet<String> {
    let name = Path::new(target).with_extension("html");
    let page = book.join(name.file_name().unwrap_or_default());
    let html = fs::read_to_string(page).unwrap_or_default();
    page::anchors(&html).into_iter().map(str::to_owned).collect()
}

/// The targets of inline links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_links_are_found() {
        let text = "See [a](b.md#c) and [d](e/f.rs); `x[0](y)` is not one, but harmless.";
        assert_eq!(Vec::from_iter(links(text)), ["b.md#c", "e/f.rs", "y"]);
    }
}
