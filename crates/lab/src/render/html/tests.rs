//! The page's tests.

use super::*;
use crate::experiment::example;

fn example_page() -> String {
    let machines = [machines::find("skylake-laptop-kvm").expect("an embedded machine")];
    page(&example::rows(), &Run { seed: 1, scale: Scale::Full, machines: &machines })
}

#[test]
fn text_from_elsewhere_is_escaped() {
    let page = example_page();
    assert!(page.contains("&lt;switch&gt; &amp; idle"));
    assert!(!page.contains("<switch>"));
    assert_eq!(escaped("\"'"), "&quot;&#39;");
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = example_page();
    // The only address is the name of SVG's own language.
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for needs in ["http://", "https://", "src=", "href=", "@import", "url("] {
        assert!(!page.contains(needs), "{needs}");
    }
}

#[test]
fn the_page_shows_every_row_and_what_was_fitted() {
    let page = example_page();
    assert_eq!(page.matches("<svg ").count(), 3);
    assert!(page.contains("seed 000 before: 21.6 us"));
    assert!(page.contains("kernel.context_switch_ns = 600"));
    assert!(page.contains("class=\"bad\">2"));
}

#[test]
fn a_report_is_whole_or_not_there() {
    let folder = std::env::temp_dir().join(format!("shootdown-lab-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder for this test");
    let path = folder.join("report.html");
    check(&path).expect("a folder that can be written to");
    write(&path, "first").expect("a first page");
    write(&path, &example_page()).expect("a page in place of the first");
    assert!(fs::read_to_string(&path).expect("the page").starts_with("<!doctype html>"));
    let missing = folder.join("missing").join("report.html");
    assert_eq!(check(&missing).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(write(&missing, "").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(write(&folder, "").unwrap_err().kind(), io::ErrorKind::IsADirectory);
    let files = fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(files, 1, "something unfinished was left behind");
    // To look at it in a browser.
    if let Some(keep) = std::env::var_os("SHOOTDOWN_KEEP_REPORT") {
        fs::copy(&path, keep).expect("a copy to look at");
    }
    fs::remove_dir_all(folder).expect("the folder removed");
}
