//! Tests of the page of results.

use super::*;
use crate::machines::Embedded;
use crate::studies::tests as example;

#[test]
fn names_of_workloads_are_escaped() {
    let part = part(&example::results());
    assert!(part.contains("&lt;switch&gt; &amp; idle"));
    assert!(!part.contains("<switch>"));
}

#[test]
fn every_row_has_plot() {
    let part = part(&example::results());
    assert_eq!(
        part.matches("<svg ").count(),
        4 + 1,
        "one bar plot for each row, and one plot of curves"
    );
    let bars = |row: &Row| plot(row).matches("<text ").count() / 2;
    assert_eq!(example::rows().iter().map(bars).collect::<Vec<_>>(), [5, 5, 5, 3]);
    for colour in ["#8A8F98", "#3B7DB3", "#2F9B62"] {
        assert!(part.contains(colour), "{colour}");
    }
    assert!(part.contains("<b class=\"bad\">2</b>"));
}

#[test]
fn table_of_designs_is_as_reviewed() {
    insta::assert_snapshot!(designs(&example::results().rows[2]));
}

#[test]
fn fitted_numbers_have_their_measurements() {
    let results = example::results();
    assert!(part(&results).contains("x86-lazy-tlb before: 21.6 us"));
    assert!(provenance(&results).contains("kernel.context_switch_ns = 600"));
    let plain = Embedded::EMERALD_RAPIDS_KVM.machine().expect("an embedded machine");
    assert!(provenance_of(&plain).contains("No number was fitted"));
}

#[test]
fn page_without_recordings_does_not_mention_them() {
    let page = page_of(&example::results(), &Others::default());
    assert!(page.contains("id=\"published\"") && page.contains("id=\"words\""));
    assert!(!page.contains("replay leaves out") && !page.contains("recording-"));
    assert!(page.contains("<li><a href=\"#origin\">Origin of the numbers</a>\n"));
    let terms = page.find("<dt>violations").expect("a glossary");
    assert!(terms < page.find("id=\"published\"").expect("results"), "terms come before their use");
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
}
