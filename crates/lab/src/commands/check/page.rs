//! The zoo on a page, with a drawing of each counter-example.

use std::fmt::Write as _;

use shootdown_check::Detail;

use super::zoo::Row;
use crate::render::grouped;
use crate::render::page::escaped;

/// All bugs.
pub(crate) fn part(rows: &[Row]) -> String {
    let right = rows.iter().filter(|row| row.is_right()).count();
    let mut html = format!(
        "<h2 id=\"zoo\">Bugs that others shipped</h2>\n<p>{right} of {} bugs of other kernels, \
         each found by the checker (<code>shootdown check --design zoo</code>) on a machine that \
         does whatever the architecture allows, and its mended twin gone through in every \
         schedule. Each opens.</p>\n",
        rows.len()
    );
    for row in rows {
        html += &bug(row);
    }
    html
}

fn bug(row: &Row) -> String {
    let mut html = format!(
        "<details><summary><b>{}</b>: {}</summary>\n<p>{}</p>\n",
        row.bug.name,
        escaped(row.bug.source),
        escaped(row.bug.story)
    );
    match &row.found {
        Some(found) => {
            let _ = writeln!(html, "<div class=\"wide\">{}</div>", found.drawing(Detail::Accesses));
            let states = grouped(row.twin.states as u64);
            let _ = writeln!(html, "<p>When mended: {states} states, and {}.</p>", twin(row));
        }
        None => html += "<p><b class=\"bad\">It was not found.</b></p>\n",
    }
    html + "</details>\n"
}

fn twin(row: &Row) -> &'static str {
    match (&row.twin.found, row.twin.is_complete) {
        (Some(_), _) => "<b class=\"bad\">wrong</b>",
        (None, false) => "<b class=\"bad\">more to be seen</b>",
        (None, true) => "nothing wrong",
    }
}
