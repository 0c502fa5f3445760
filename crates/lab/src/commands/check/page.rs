//! The known bugs on a page, with a drawing of each counter-example.

use std::fmt::Write as _;

use shootdown_check::Detail;

use super::zoo::Row;
use crate::render::page::escaped;

/// Returns the chapter of all known bugs.
pub(crate) fn part(rows: &[Row]) -> String {
    let found = rows.iter().filter(|row| row.is_as_expected()).count();
    let mut html = format!(
        "<h2 id=\"zoo\">Known bugs</h2>\n<p>The checker \
         (<code>shootdown check --design zoo</code>) found {found} of {} known bugs, nearly all of \
         which other kernels had, on a simulated machine that does whatever the architecture \
         allows. It also searched all schedules of each fixed variant. Open an entry for the \
         schedule that shows the bug.</p>\n",
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
            let class = if row.is_as_expected() { "" } else { " class=\"bad\"" };
            let _ = writeln!(html, "<p{class}>Fixed variant: {}.</p>", row.fixed_result());
        }
        None => html += "<p><b class=\"bad\">The checker did not find this bug.</b></p>\n",
    }
    html + "</details>\n"
}
