//! The text of the metrics: OpenMetrics 1.0.

use std::fmt::Write as _;

use super::tally::{BOUNDS_NS, Tally};

/// Returns the metrics.
pub(super) fn text(tally: &Tally) -> String {
    let mut text = String::new();
    let helps = ["CPUs that were asked to flush their TLB.", "Interrupts that were sent for them."];
    for (index, help) in helps.into_iter().enumerate() {
        let name = ["shootdown_requests", "shootdown_interrupts"][index];
        head(&mut text, name, "counter", help);
        for (key, row) in &tally.rows {
            let number = [row.requests, row.interrupts][index];
            line(&mut text, &format!("{name}_total"), &labels(key), number);
        }
    }
    let waits = "shootdown_wait_seconds";
    head(&mut text, waits, "histogram", "Time from a request until its last CPU flushed.");
    text += "# UNIT shootdown_wait_seconds seconds\n";
    for (key, row) in &tally.rows {
        let (labels, mut count) = (labels(key), 0);
        let bounds = BOUNDS_NS.iter().map(|bound_ns| seconds(*bound_ns));
        for (bound, waits) in bounds.chain(["+Inf".to_owned()]).zip(row.waits) {
            count += waits;
            let labels = format!("{labels},le=\"{bound}\"");
            line(&mut text, "shootdown_wait_seconds_bucket", &labels, count);
        }
        line(&mut text, "shootdown_wait_seconds_count", &labels, count);
        line(&mut text, "shootdown_wait_seconds_sum", &labels, seconds(row.waited_ns));
    }
    head(&mut text, "shootdown_lost_events", "counter", "Events that the kernel lost.");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "shootdown_lost_events_total {}\n# EOF", tally.lost);
    text
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# TYPE {name} {kind}\n# HELP {name} {help}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

fn labels((cause, group): &(String, String)) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("cause=\"{}\",cgroup=\"{}\"", escaped(cause), escaped(group))
}

/// Returns a time in seconds, exactly.
fn seconds(time_ns: u64) -> String {
    let text = format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let shortened = text.trim_end_matches('0');
    if shortened.ends_with('.') { format!("{shortened}0") } else { shortened.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Row;
    use super::*;

    #[test]
    fn text_is_open_metrics() {
        let mut tally = Tally::default();
        tally.lost = 3;
        let mut row = Row { requests: 5, interrupts: 4, waited_ns: 2_500, ..Row::default() };
        (row.waits[0], row.waits[12]) = (2, 1);
        tally.rows.insert(("munmap".into(), "/a\"b\\\n".into()), row);
        let text = text(&tally);
        let labels = "cause=\"munmap\",cgroup=\"/a\\\"b\\\\\\n\"";
        for line in [
            "# TYPE shootdown_requests counter".to_owned(),
            format!("shootdown_requests_total{{{labels}}} 5"),
            format!("shootdown_interrupts_total{{{labels}}} 4"),
            format!("shootdown_wait_seconds_bucket{{{labels},le=\"0.000001\"}} 2"),
            format!("shootdown_wait_seconds_bucket{{{labels},le=\"0.1\"}} 2"),
            format!("shootdown_wait_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            format!("shootdown_wait_seconds_count{{{labels}}} 3"),
            format!("shootdown_wait_seconds_sum{{{labels}}} 0.0000025"),
            "shootdown_lost_events_total 3".to_owned(),
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"), "{text}");
        assert_eq!([seconds(0), seconds(1_500_000_000)], ["0.0", "1.5"]);
    }
}
