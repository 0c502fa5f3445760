//! The run as one HTML page that needs nothing else.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use shootdown::CpuStats;

use crate::Row;

/// Writes the page to a neighbour first, so that a full disk leaves no half page behind.
pub(crate) fn write(path: &Path, run: &str, rows: &[Row], stats: &CpuStats) -> io::Result<()> {
    let unfinished = path.with_extension("html.unfinished");
    let result =
        fs::write(&unfinished, page(run, rows, stats)).and_then(|()| fs::rename(&unfinished, path));
    if result.is_err() {
        // What failed is reported; this only tidies up after it.
        let _ = fs::remove_file(&unfinished);
    }
    result
}

fn page(run: &str, rows: &[Row], stats: &CpuStats) -> String {
    let mut table = String::new();
    for Row { name, intact, broken } in rows {
        let indented = if name.starts_with(' ') { " class=in" } else { "" };
        let bad = |count: &u64| {
            let is_bad = *count > 0 && (name.contains("dead") || name.contains("freed"));
            if is_bad { " class=bad" } else { "" }
        };
        let _ = writeln!(
            table,
            "<tr><td{indented}>{}<td{}>{}<td{}>{}",
            name.trim(),
            bad(intact),
            grouped(*intact),
            bad(broken),
            grouped(*broken)
        );
    }
    let bar = bar(stats);
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>shootdown: stress</title>\
         <style>{STYLE}</style>\n<h1>Shootdown under stress</h1>\n<p>{run}, on the software \
         machine: its TLB never forgets, so every missed invalidation shows. The right column is \
         the same run for one second with flushes that ring no active CPU: the test can fail.\n\
         <table><tr><th><th>engine<th>without the ring\n{table}</table>\n\
         <h2>Whom flushes looked at</h2>\n<p>Of the other CPUs that had ever run the space, a \
         naive shootdown interrupts each.\n{bar}</html>\n"
    )
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:46rem;margin:3rem auto;\
    padding:0 1rem;color:#222}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}\
    table{border-collapse:collapse;width:100%}td,th{padding:.25rem .5rem;text-align:right;\
    border-bottom:1px solid #ddd}td:first-child{text-align:left}td.in{padding-left:2rem;\
    color:#555}.bad{color:#b00020;font-weight:600}svg{width:100%}";

/// One bar: interrupted, and the three reasons not to be.
fn bar(stats: &CpuStats) -> String {
    let parts = [
        ("interrupted", stats.interrupts_sent, "#b00020"),
        ("an interrupt was on its way", stats.rings_coalesced, "#e09f3e"),
        ("lazy", stats.skipped_lazy, "#4f9d69"),
        ("elsewhere", stats.skipped_elsewhere, "#2f6690"),
    ];
    let total: u64 = parts.iter().map(|(_, count, _)| count).sum::<u64>().max(1);
    let (mut svg, mut x) = (String::new(), 0.0);
    for (line, (name, count, colour)) in parts.iter().enumerate() {
        let width = 700.0 * *count as f64 / total as f64;
        let share = 100.0 * *count as f64 / total as f64;
        let y = 62 + 22 * line;
        let _ = writeln!(
            svg,
            "<rect x={x:.1} y=0 width={width:.1} height=36 fill='{colour}'><title>{name}</title>\
             </rect><rect x=0 y={} width=12 height=12 fill='{colour}'/>\
             <text x=20 y={y} font-size=14>{name}: {} ({share:.1} %)</text>",
            y - 11,
            grouped(*count)
        );
        x += width;
    }
    format!("<svg viewBox='0 0 700 140' role=img aria-label='whom flushes looked at'>{svg}</svg>\n")
}

/// 1234567 as 1 234 567, with thin spaces.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}
