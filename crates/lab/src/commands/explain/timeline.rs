//! Flushes as trace events, the JSON that Perfetto and browsers show as a timeline: a track for
//! each CPU.

use serde::Serialize;
use shootdown_explain::{Analysis, Explanation};

use super::findings::shown_frame;
use crate::render::json;

#[derive(Serialize)]
struct Timeline {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// A complete event. Times are in microseconds.
#[derive(Serialize)]
struct Event {
    name: String,
    cat: &'static str,
    ph: &'static str,
    ts: f64,
    dur: f64,
    pid: u32,
    tid: u32,
    args: Arguments,
}

#[derive(Serialize)]
struct Arguments {
    requests: u32,
    interrupts: u32,
    in_vain: u32,
    task: u32,
    call: String,
}

/// Returns an event for each flush.
pub(super) fn events(analysis: &Analysis, explanation: &Explanation) -> String {
    let events = explanation.flushes(analysis).map(|(flush, site)| {
        let call = explanation.sites[site].frames.first().map(shown_frame).unwrap_or_default();
        Event {
            name: analysis.causes.name(flush.cause).to_owned(),
            cat: "shootdown",
            ph: "X",
            ts: flush.at_ns as f64 / 1e3,
            dur: flush.sender_ns as f64 / 1e3,
            pid: 0,
            tid: flush.cpu,
            args: Arguments {
                requests: flush.requests,
                interrupts: flush.interrupts,
                in_vain: flush.in_vain,
                task: flush.task.0,
                call,
            },
        }
    });
    json(&Timeline { events: events.collect() })
}
