//! HTML pages. Each is one file without references to other files. Scripts are only in flame
//! graphs, which are documents of their own.

use super::grouped;
use crate::error::shown;

/// Returns a page with this title and body, which are both markup.
pub(crate) fn page(title: &str, body: &str) -> String {
    // The rules are lines of their file, and one line of the page.
    let style = STYLE.replace('\n', "");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{style}</style>\n<h1>{title}</h1>\n{body}</html>\n"
    )
}

/// Returns a count of events that must not occur, highlighted unless it is 0.
pub(crate) fn alarming(count: u64) -> String {
    let text = grouped(count);
    if count > 0 { format!("<b class=\"bad\">{text}</b>") } else { text }
}

/// Returns the text with the characters of markup escaped.
pub(crate) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Returns text from outside the program with markup and control characters escaped.
pub(crate) fn visible(text: &str) -> String {
    escaped(&shown(text))
}

/// Returns the text with its first letter in upper case.
pub(crate) fn capitalised(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_text_has_no_markup_or_control_characters() {
        assert_eq!(escaped("<a b='&'>\""), "&lt;a b=&#39;&amp;&#39;&gt;&quot;");
        let hostile = "<script>\u{1b}[2J\n\u{202e}\u{0}\u{85}\u{200b}\\é";
        let shown = "&lt;script&gt;\\u{1b}[2J\\n\\u{202e}\\0\\u{85}\\u{200b}\\é";
        assert_eq!(visible(hostile), shown);
    }

    #[test]
    fn only_positive_count_is_highlighted() {
        assert_eq!(alarming(0), "0");
        assert_eq!(alarming(2), "<b class=\"bad\">2</b>");
    }
}
