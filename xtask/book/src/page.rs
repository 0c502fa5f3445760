//! One page of HTML: its links, and its anchors.

use std::collections::HashSet;
use std::ops::Range;

/// The attributes that hold a link.
const LINKS: &[&str] = &["href=\"", "src=\""];

/// The ranges of a page's links.
pub(crate) fn links(html: &str) -> Vec<Range<usize>> {
    let mut found: Vec<_> = LINKS.iter().flat_map(|name| values(html, name)).collect();
    found.sort_by_key(|range| range.start);
    found
}

/// The names that a link to this page can have after `#`.
pub(crate) fn anchors(html: &str) -> HashSet<&str> {
    values(html, " id=\"").map(|range| &html[range]).collect()
}

/// The ranges of the values of an attribute. `name` ends with the opening quote.
fn values(html: &str, name: &str) -> impl Iterator<Item = Range<usize>> {
    html.match_indices(name).filter_map(move |(at, _)| {
        let start = at + name.len();
        html[start..].find('"').map(|length| start..start + length)
    })
}

/// A page that shows a source file, each line with its number as an anchor.
pub(crate) fn of_source(path: &str, text: &str) -> String {
    let mut lines = String::new();
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        lines +=
            &format!("<a id=\"L{number}\" href=\"#L{number}\">{number:>5}</a>  {}\n", escape(line));
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{path}</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>\
         body{{margin:1rem;color-scheme:light dark}}pre{{overflow-x:auto}}a{{color:gray}}</style>\
         </head>\n<body><h1>{path}</h1>\n<pre>{lines}</pre></body></html>\n"
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_anchors_are_found() {
        let html = "<h1 id=\"top\"><a href=\"a.html#x\">A</a><img src=\"b.svg\"></h1>";
        let found: Vec<&str> = links(html).into_iter().map(|range| &html[range]).collect();
        assert_eq!(found, ["a.html#x", "b.svg"]);
        assert_eq!(anchors(html), HashSet::from(["top"]));
    }

    #[test]
    fn source_page_has_an_anchor_for_each_line() {
        let html = of_source("a.rs", "fn a<T>() {}\n\n");
        assert_eq!(anchors(&html), HashSet::from(["L1", "L2"]));
        assert!(html.contains("fn a&lt;T&gt;() {}"));
    }
}
