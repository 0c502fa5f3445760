//! A program's shootdowns as the first part of a page: the answer, the causes, the call sites with
//! advice, a flame graph, and the requests over time.
//!
//! A recording is a file of an unknown author, so all its texts are escaped.

use std::fmt::Write as _;
use std::path::Path;

use shootdown_explain::{Analysis, Explanation};

use super::findings::{AdviceRow, Findings, Overhead, SiteRow};
use super::predict::{self, Prediction};
use super::{Recording, analysed, flamegraph, text};
use crate::error::{Failure, shown};
use crate::render::page::{escaped, visible};
use crate::render::table::Table;
use crate::render::timeline::{COLUMNS, PARTS_MAX, Part, timeline};
use crate::render::{duration, grouped};

/// The largest number of call sites on a page.
const SITES_MAX: usize = 30;

/// The shootdowns of a recorded program.
#[derive(Debug)]
pub(crate) struct Program {
    findings: Findings,
    flame_graph: Option<String>,
    timeline: String,
}

impl Program {
    /// Explains a recording. Returns `None` if it has no flush request of the program, or was made
    /// before the format had them.
    ///
    /// # Errors
    ///
    /// If the recording cannot be read.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>, Failure> {
        let (analysis, explanation, _) = analysed(&Recording::at(path))?;
        if explanation.total.requests == 0 {
            return Ok(None);
        }
        let advice = predict::advice(Prediction::Replay, path, &analysis, &explanation);
        let has_stacks = analysis.stacks > 0;
        let flame_graph = flamegraph::graph(&analysis, &explanation).ok().filter(|_| has_stacks);
        let timeline = requests_over_time(&analysis, &explanation);
        let findings = Findings::new(&analysis, &explanation, advice, Overhead::default());
        Ok(Some(Self { findings, flame_graph, timeline }))
    }
}

/// Returns a chapter for each program.
pub(crate) fn part(programs: &[Program]) -> String {
    programs.iter().enumerate().map(|(number, program)| chapter(number, program)).collect()
}

fn chapter(number: usize, program: &Program) -> String {
    let Program { findings, flame_graph, timeline } = program;
    let command = visible(&findings.recording.command.join(" "));
    let mut part = format!(
        "<h2 id=\"program-{number}\">The shootdowns of {command}</h2>\n\
         <p class=\"verdict{}\">{}.</p>\n<p>{}</p>\n",
        if text::is_worth_it(findings) { " bad" } else { "" },
        escaped(text::answer(findings).trim_end()),
        escaped(&text::totals(findings, "The program")),
    );
    if findings.lost > 0 {
        let lost = grouped(findings.lost);
        let _ = writeln!(part, "<p class=\"verdict bad\">{lost} events were lost.</p>");
    }
    if flame_graph.is_none() {
        part += "<p>The recording has no call stacks, so call sites are not known. \
                 <code>shootdown record</code> samples them, unless <code>--stacks none</code> is \
                 given.</p>\n";
    }
    part += "<h3>Causes</h3>\n";
    part += &causes(findings);
    part += "<h3>Call sites</h3>\n";
    part += &sites(number, findings);
    if let Some(svg) = flame_graph {
        part += "<h3>Flame graph</h3>\n<p>A call is as wide as the CPU time of the shootdowns \
                 below it. A click enlarges a call.</p>\n";
        part += &frame(svg);
    }
    part += "<h3>Requests over time</h3>\n";
    part += timeline;
    part
}

fn causes(findings: &Findings) -> String {
    let mut table = Table::default().left(["cause"]).right([
        "requests",
        "interrupts",
        "in vain",
        "CPU time",
        "share",
    ]);
    // Few programs have such a cause, and narrow windows have no room for an empty column.
    let has_settings = findings.causes.iter().any(|row| row.setting.is_some());
    if has_settings {
        table = table.left(["controlled by"]);
    }
    for row in &findings.causes {
        let cells = [
            shown(&row.cause),
            grouped(row.sum.requests),
            grouped(row.sum.interrupts),
            grouped(row.sum.in_vain),
            duration(row.sum.cpu_ns),
            text::percent(row.share),
        ];
        let setting = has_settings.then(|| row.setting.clone().unwrap_or_default());
        table.row(cells.into_iter().chain(setting));
    }
    table.html()
        + "<p><small>A request asks one CPU to flush. It is <em>in vain</em> if that CPU was idle \
           or ran another program. <em>CPU time</em> is the wait of the senders, and the \
           interrupts of the targets.</small></p>\n"
}

/// Returns the call sites, and a choice of the causes whose sites are shown. The page has no
/// script for it: a style sheet hides the others.
fn sites(number: usize, findings: &Findings) -> String {
    let (mut choice, mut style) = (String::new(), String::new());
    for (cause, row) in findings.causes.iter().enumerate() {
        let (id, name) = (format!("cause-{number}-{cause}"), visible(&row.cause));
        let _ = writeln!(choice, "{}", option(number, &id, &name, ""));
        let _ = write!(
            style,
            "#sites-{number}:has(#{id}:checked) .site:not(.cause-{cause}){{display:none}}"
        );
    }
    let all = option(number, &format!("cause-{number}-all"), "all", " checked");
    let mut part = format!(
        "<style>{style}</style>\n<div id=\"sites-{number}\" class=\"sites\">\n\
         <fieldset><legend>cause</legend>\n{all}\n{choice}</fieldset>\n"
    );
    for (index, site) in findings.callers.iter().take(SITES_MAX).enumerate() {
        let cause = findings.causes.iter().position(|row| row.cause == site.cause);
        let open = if index == 0 { " open" } else { "" };
        let class = cause.unwrap_or_default();
        let _ = write!(part, "<details class=\"site cause-{class}\"{open}>\n{}", one(site));
        part += "</details>\n";
    }
    if let Some(more) = findings.callers.len().checked_sub(SITES_MAX).filter(|more| *more > 0) {
        let _ = writeln!(part, "<p>{more} more callers cost less.</p>");
    }
    part + "</div>\n"
}

fn option(number: usize, id: &str, name: &str, checked: &str) -> String {
    format!(
        "<label><input type=\"radio\" name=\"cause-{number}\" id=\"{id}\"{checked}> {name}</label>"
    )
}

/// Returns a call site with its stack and its advice.
fn one(site: &SiteRow) -> String {
    let place = site.caller.as_deref().map_or("an unknown place".to_owned(), visible);
    let mut part = format!(
        "<summary><b>{place}</b> by {}: {} of CPU time ({})</summary>\n\
         <p>{} requests, {} interrupts, {} in vain.</p>\n",
        visible(&site.cause),
        duration(site.sum.cpu_ns),
        text::percent(site.share),
        grouped(site.sum.requests),
        grouped(site.sum.interrupts),
        grouped(site.sum.in_vain),
    );
    for AdviceRow { change, saves, by, doubt, price, source, .. } in &site.advice {
        let doubt = doubt.map(|doubt| format!(", since {doubt}")).unwrap_or_default();
        let _ = writeln!(
            part,
            "<p class=\"advice\"><b>Advice:</b> {}. It removes {} requests (by {by}{doubt}). \
             <small>Price: {}. Evidence: {}.</small></p>",
            escaped(change),
            grouped(*saves),
            escaped(price),
            escaped(source),
        );
    }
    if site.frames.is_empty() {
        return part + "<p>No call stack was sampled.</p>\n";
    }
    let calls: String =
        site.frames.iter().map(|call| format!("<li><code>{}</code>\n", visible(call))).collect();
    part + &format!("<ol class=\"stack\">\n{calls}</ol>\n")
}

/// Returns a flame graph as a document within the page: its style and its script, which enlarges
/// calls and searches, do not reach the page.
fn frame(svg: &str) -> String {
    // A document without an address cannot change it, which the script does to keep its state.
    let document = format!(
        "<!doctype html><style>body{{margin:0}}svg{{display:block;width:100%}}</style>\
         <script>history.replaceState=()=>{{}}</script>{svg}"
    );
    format!(
        "<iframe class=\"flame\" title=\"flame graph\" height=\"{}\" srcdoc=\"{}\"></iframe>\n",
        flamegraph::height(svg),
        escaped(&document)
    )
}

fn requests_over_time(analysis: &Analysis, explanation: &Explanation) -> String {
    let mut parts: Vec<_> = explanation
        .causes
        .iter()
        .take(PARTS_MAX)
        .map(|(cause, _)| Part {
            label: analysis.causes.name(*cause).to_owned(),
            counts: [0; COLUMNS],
        })
        .collect();
    if explanation.causes.len() > PARTS_MAX {
        parts[PARTS_MAX - 1].label = "others".to_owned();
    }
    for (flush, _) in explanation.flushes(analysis) {
        let position = explanation.causes.iter().position(|(cause, _)| *cause == flush.cause);
        let part = position.unwrap_or_default().min(parts.len() - 1);
        let of_all = flush.at_ns as f64 / analysis.time_ns.max(1) as f64;
        let column = ((of_all * COLUMNS as f64) as usize).min(COLUMNS - 1);
        parts[part].counts[column] += u64::from(flush.requests);
    }
    for part in &mut parts {
        part.label = shown(&part.label);
    }
    timeline("requests over time, by cause", analysis.time_ns, &parts)
}
