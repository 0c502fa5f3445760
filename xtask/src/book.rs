//! The book: `docs/` as pages, with the API and the sources that they link to.

use crate::command::{Failure, cargo};
use crate::{output, root};

/// The options of a tool that is built apart from the workspace's tests.
const TOOL: &str = "--quiet --profile tools --package book";

/// Builds the API's documentation, and the book.
pub(crate) fn build() -> Result<(), Failure> {
    cargo("doc --quiet --no-deps --workspace --features shootdown/soft").run()?;
    with_api()
}

/// Builds the book into `target/book`, and checks each link. The API is documented already.
pub(crate) fn with_api() -> Result<(), Failure> {
    cargo("test").args(TOOL).run()?;
    cargo("run")
        .args(TOOL)
        .arg("--")
        .arg(root())
        .arg(output().join("book"))
        .arg(output().join("doc"))
        .run()
}
