//! HTML pages. Each is one file without references to other files. Scripts are only in flame
//! graphs, which are documents of their own.

use super::grouped;
use crate::error::shown;

/// Returns a page with this title and body, which are both markup.
pub(crate) fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n{body}</html>\n"
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

const STYLE: &str = "\
:root{color-scheme:light dark;--line:color-mix(in srgb,currentColor 18%,transparent)}\
body{font:15px/1.5 system-ui,sans-serif;max-width:66rem;margin:2.5rem auto;padding:0 1rem}\
h1{font-size:1.6rem;line-height:1.2}\
h2{font-size:1.25rem;margin-top:3rem;padding-top:1rem;border-top:1px solid var(--line)}\
h3{font-size:1.05rem;margin-top:2rem}\
h1,h2,dd,code,li{overflow-wrap:anywhere}\
table{border-collapse:collapse;width:100%;margin:1rem 0;font-variant-numeric:tabular-nums}\
.wide{overflow-x:auto;background:\
linear-gradient(to right,Canvas 40%,transparent) left/2.5rem 100% local no-repeat,\
linear-gradient(to left,Canvas 40%,transparent) right/2.5rem 100% local no-repeat,\
linear-gradient(to right,var(--line),transparent) left/.8rem 100% scroll no-repeat,\
linear-gradient(to left,var(--line),transparent) right/.8rem 100% scroll no-repeat}\
th,td{padding:.3rem .5rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}\
th{font-weight:600}th:first-child,td:first-child{text-align:left;padding-left:0}\
td:first-child{max-width:20rem;overflow:hidden;text-overflow:ellipsis}\
nav ul{columns:2 16rem;padding-left:1.2rem}\
.groups td,.groups th{border:0;padding-bottom:0}\
.groups th{text-align:center;padding-left:1.2rem}\
.groups span{display:block;border-bottom:1px solid var(--line)}\
.part th{padding-top:.9rem}.part~tr:not(.part) td:first-child{padding-left:1rem}\
small{opacity:.75}.bad{color:#d0323c;font-weight:700}\
.verdict{border-left:4px solid #2f9b62;padding:.2rem 0 .2rem .9rem;margin:.7rem 0}\
.verdict.bad{border-color:#d0323c;font-weight:400}.verdict.even{border-color:var(--line)}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem}\
dt{font-weight:600}dd{margin:0;max-height:9rem;overflow:auto}\
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24rem),1fr));gap:0 2rem}\
figure{margin:.8rem 0}figcaption{margin-bottom:.3rem}figcaption span{white-space:nowrap}\
figcaption i{display:inline-block;width:.75em;height:.75em;background:currentColor}\
wbr{white-space:normal}svg{display:block;max-width:100%;height:auto}.wide svg{max-width:none}\
.timeline svg{width:min(100%,50rem)}\
summary{cursor:pointer}\
.flame{width:100%;border:1px solid var(--line);background:#fff;color-scheme:light}\
fieldset{border:1px solid var(--line);margin:0 0 1rem;padding:.3rem .8rem}\
fieldset label{display:inline-block;margin-right:1.2rem}\
.site{margin:.6rem 0;padding-left:.9rem;border-left:4px solid var(--line);overflow-wrap:anywhere}\
.stack{font-size:.9em;margin:.4rem 0}.stack li{margin:0}.advice{margin:.6rem 0}\
code{font-size:.9em}li{margin:.4rem 0}\
@media(max-width:36rem){table{font-size:.75em}th,td{padding:.25rem .2rem}\
th,td:first-child{white-space:normal}.part th{white-space:nowrap}\
td:first-child{max-width:9rem}\
.groups th{padding-left:.6rem}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5rem}}";

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
