//! Builds the book from `docs/`, and checks every link in it.
//!
//! Chapters link to source files by their paths in the repository, so that the links work where
//! the repository is read, and to the API by its address on docs.rs. In the book that is built
//! here, both are pages of the book itself: nothing in it needs a network.

mod markdown;
mod page;
mod site;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mdbook_driver::MDBook;

use site::Site;

const USAGE: &str = "usage: book REPOSITORY OUTPUT [API]

Builds REPOSITORY/docs into OUTPUT. API is the output of `cargo doc`.";

/// Files outside of the book that link to it and to sources.
const OUTSIDE: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "traces/README.md"];

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let result = match &arguments[..] {
        [repository, output] => build(repository, output, None),
        [repository, output, api] => build(repository, output, Some(api)),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the book. Returns a line about it.
///
/// # Errors
///
/// If a file cannot be read or written, or a link leads nowhere.
fn build(repository: &Path, output: &Path, api: Option<&Path>) -> Result<String, String> {
    let mut book =
        MDBook::load(repository.join("docs")).map_err(|error| format!("docs: {error:#}"))?;
    book.config.build.build_dir = absolute(output)?;
    book.build().map_err(|error| format!("docs: {error:#}"))?;

    let mut site = Site::open(repository, output, api)?;
    site.move_links_inside()?;
    let mut broken = site.broken_links()?;
    for file in OUTSIDE {
        broken.extend(markdown::broken_links(repository, output, file)?);
    }
    if broken.is_empty() {
        let (pages, links) = site.size();
        return Ok(format!(
            "{}: {pages} pages, {links} links",
            output.join("index.html").display()
        ));
    }
    Err(format!("{}\n\n{} broken links", broken.join("\n"), broken.len()))
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}
