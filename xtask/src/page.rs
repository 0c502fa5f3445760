//! The pages of `shootdown report` in a browser.

use crate::command::{Command, Failure};
use crate::setup;
use crate::test::builds;

/// The version of Selenium, which drives the browser.
const SELENIUM: &str = "4.51.0";

/// Runs the tests of a page in headless Chromium.
pub(crate) fn check() -> Result<(), Failure> {
    setup::browser()?;
    let lab = builds::lab()?;
    let folder = crate::output().join(format!("selenium-{SELENIUM}"));
    let python = setup::python(&folder, &format!("selenium=={SELENIUM}"))?;
    Command::new(&python).arg("crates/lab/tests/page.py").arg(lab).run()
}
