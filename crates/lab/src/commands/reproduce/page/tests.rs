//! Tests of the page.

use super::*;
use crate::machines::Embedded;
use crate::studies::tests as example;

#[test]
fn text_from_elsewhere_is_escaped() {
    let part = part(&example::results());
    assert!(part.contains("&lt;switch&gt; &amp; idle"));
    assert!(!part.contains("<switch>"));
}

#[test]
fn every_row_is_shown_with_a_plot() {
    let part = part(&example::results());
    assert_eq!(part.matches("<svg ").count(), 4 + 1, "one of bars each, and one of curves");
    let bars = |row: &Row| plot(row).matches("<text ").count() / 2;
    assert_eq!(example::rows().iter().map(bars).collect::<Vec<_>>(), [5, 5, 5, 3]);
    for colour in ["#8A8F98", "#3B7DB3", "#2F9B62"] {
        assert!(part.contains(colour), "{colour}");
    }
    assert!(part.contains("<b class=\"bad\">2</b>"));
}

#[test]
fn the_table_of_designs_is_as_reviewed() {
    insta::assert_snapshot!(designs(&example::results().rows[2]));
}

#[test]
fn what_was_fitted_is_said_with_what_it_was_fitted_to() {
    let results = example::results();
    assert!(part(&results).contains("seed 000 before: 21.6 us"));
    assert!(provenance(&results).contains("kernel.context_switch_ns = 600"));
    let plain = Embedded::EMERALD_RAPIDS_KVM.machine().expect("an embedded machine");
    assert!(provenance_of(&plain).contains("None was fitted"));
}

#[test]
fn page_without_recordings_does_not_mention_them() {
    let page = page_of(&example::results(), &Others::default());
    assert!(page.contains("id=\"published\"") && page.contains("id=\"words\""));
    assert!(!page.contains("replay leaves out") && !page.contains("recording-"));
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
}
