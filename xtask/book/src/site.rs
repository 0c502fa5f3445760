//! The folder of the finished book: links that lead out of it are moved inside, and checked.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::page;

/// The address of the API. Links to it are links to the folder [`API`] in the book.
const DOCS_RS: &str = "https://docs.rs/";
/// The folder of the API in the book.
const API: &str = "api";
/// The folder of the pages that show source files.
const SOURCE: &str = "source";

/// The finished book, and the places that it links to.
pub(crate) struct Site<'a> {
    repository: &'a Path,
    output: &'a Path,
    /// The pages that mdBook made, by their paths in the book.
    pages: BTreeMap<String, String>,
    has_api: bool,
    link_count: usize,
}

impl<'a> Site<'a> {
    /// Reads the pages in `output`, and copies the API to them.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or copied.
    pub(crate) fn open(
        repository: &'a Path,
        output: &'a Path,
        api: Option<&Path>,
    ) -> Result<Self, String> {
        let mut pages = BTreeMap::new();
        for name in names(output)? {
            // The page for wrong addresses is for web servers: its links begin at the root.
            if name.ends_with(".html") && name != "404.html" {
                pages.insert(name.clone(), read(&output.join(&name))?);
            }
        }
        if let Some(api) = api {
            copy(api, &output.join(API))?;
        }
        Ok(Self { repository, output, pages, has_api: api.is_some(), link_count: 0 })
    }

    /// Number of pages, and of links on them.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.pages.len(), self.link_count)
    }

    /// Rewrites links to source files and to the API, and makes the pages of the source files.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or written.
    pub(crate) fn move_links_inside(&mut self) -> Result<(), String> {
        let mut sources = BTreeSet::new();
        for (name, html) in &mut self.pages {
            for range in page::links(html).into_iter().rev() {
                if let Some(moved) = moved(&html[range.clone()], self.has_api, &mut sources) {
                    html.replace_range(range, &moved);
                }
            }
            write(&self.output.join(name), html)?;
        }
        for path in sources {
            // A path that cannot be read has no page, and its links are reported as broken.
            if let Ok(text) = fs::read_to_string(self.repository.join(&path)) {
                let page = self.output.join(SOURCE).join(format!("{path}.html"));
                write(&page, &page::of_source(&path, &text))?;
            }
        }
        Ok(())
    }

    /// Every link that leads to no file, or to no anchor of its file: a line each.
    ///
    /// # Errors
    ///
    /// If a page that is linked to cannot be read.
    pub(crate) fn broken_links(&mut self) -> Result<Vec<String>, String> {
        let mut anchors: HashMap<PathBuf, HashSet<String>> = HashMap::new();
        let mut broken = Vec::new();
        for (name, html) in &self.pages {
            for range in page::links(html) {
                let link = &html[range];
                let Some((file, anchor)) = target(name, link) else { continue };
                self.link_count += 1;
                let path = self.output.join(&file);
                if !path.is_file() {
                    broken.push(format!("{name}: {link}: there is no {file}"));
                    continue;
                }
                if anchor.is_empty() || !file.ends_with(".html") {
                    continue;
                }
                if !anchors.contains_key(&path) {
                    let html = read(&path)?;
                    let found = page::anchors(&html).into_iter().map(str::to_owned).collect();
                    anchors.insert(path.clone(), found);
                }
                if !anchors[&path].contains(anchor) {
                    broken.push(format!("{name}: {link}: {file} has no #{anchor}"));
                }
            }
        }
        Ok(broken)
    }
}

/// Turns a link that leads out of the book into one inside. Returns `None` for all others. Adds
/// source files to `sources`.
fn moved(link: &str, has_api: bool, sources: &mut BTreeSet<String>) -> Option<String> {
    if let Some(item) = link.strip_prefix(DOCS_RS) {
        // `CRATE/latest/PATH`.
        let (_, path) = item.split_once("/latest/")?;
        return has_api.then(|| format!("{API}/{path}"));
    }
    let path = link.strip_prefix("../")?;
    let (path, anchor) = path.split_once('#').unwrap_or((path, ""));
    // mdBook takes every link to Markdown for a link to a chapter.
    let path =
        path.strip_suffix(".html").map_or_else(|| path.to_owned(), |path| format!("{path}.md"));
    sources.insert(path.clone());
    // Only line numbers are anchors there.
    let anchor = if anchor.starts_with('L') { format!("#{anchor}") } else { String::new() };
    Some(format!("{SOURCE}/{path}.html{anchor}"))
}

/// The file that a link leads to, by its path in the book, and the anchor; `None` if the link leads
/// out of the book.
fn target<'a>(page: &str, link: &'a str) -> Option<(String, &'a str)> {
    let is_elsewhere = ["http:", "https:", "mailto:", "data:", "javascript:"];
    if is_elsewhere.iter().any(|scheme| link.starts_with(scheme)) {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = path.split('?').next().unwrap_or(path);
    if path.is_empty() {
        return Some((page.to_owned(), anchor));
    }
    let mut parts: Vec<String> = Vec::new();
    let folder = Path::new(page).parent().unwrap_or(Path::new(""));
    for component in folder.join(path).components() {
        match component {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    Some((parts.join("/"), anchor))
}

/// The names of the files in a folder.
fn names(folder: &Path) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, and makes its folder.
fn write(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    fs::write(path, text).map_err(failed)
}

/// Copies a folder and all that is in it.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to)?;
        } else {
            fs::copy(&from, &to).map_err(failed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_the_book_are_moved_inside() {
        let mut sources = BTreeSet::new();
        let mut moved = |link| moved(link, true, &mut sources);
        assert_eq!(moved("../kernel/a.rs#L3").as_deref(), Some("source/kernel/a.rs.html#L3"));
        assert_eq!(moved("../README.html#state").as_deref(), Some("source/README.md.html"));
        let api = "https://docs.rs/shootdown/latest/shootdown/struct.Space.html";
        assert_eq!(moved(api).as_deref(), Some("api/shootdown/struct.Space.html"));
        assert_eq!((moved("tags.html"), moved("https://lwn.net/")), (None, None));
        assert!(sources.iter().eq(["README.md", "kernel/a.rs"]));
    }

    #[test]
    fn targets_are_resolved_from_their_page() {
        let of = |page, link| target(page, link).map(|(file, anchor)| format!("{file} {anchor}"));
        assert_eq!(of("a.html", "b.html#c").as_deref(), Some("b.html c"));
        assert_eq!(of("a/b.html", "../c.css?v=1").as_deref(), Some("c.css "));
        assert_eq!(of("a.html", "#c").as_deref(), Some("a.html c"));
        assert_eq!(of("a.html", "https://lwn.net/"), None);
    }
}
