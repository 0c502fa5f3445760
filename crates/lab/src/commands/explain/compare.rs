//! The difference of two recordings: of a program before and after a change.

use std::collections::HashMap;

use serde::Serialize;
use shootdown_explain::Sum;

use super::findings::{Findings, Total};
use super::text::percent;
use crate::error::shown;
use crate::render::table::Table;
use crate::render::{duration, grouped};

/// Two recordings.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    schema: u32,
    before: Total,
    after: Total,
    /// By the difference of CPU time.
    callers: Vec<Row>,
}

/// A cause and a caller in both recordings.
#[derive(Clone, Debug, Serialize)]
struct Row {
    cause: String,
    caller: Option<String>,
    before: Sum,
    after: Sum,
}

impl Comparison {
    pub(super) fn of(before: &Findings, after: &Findings) -> Self {
        let mut rows: HashMap<(&str, Option<&str>), [Sum; 2]> = HashMap::new();
        for (side, findings) in [before, after].into_iter().enumerate() {
            for row in &findings.callers {
                let key = (&*row.cause, row.caller.as_deref());
                rows.entry(key).or_default()[side] = row.sum;
            }
        }
        let row = |((cause, caller), [before, after]): ((&str, Option<&str>), [Sum; 2])| Row {
            cause: cause.to_owned(),
            caller: caller.map(str::to_owned),
            before,
            after,
        };
        let mut callers: Vec<_> = rows.into_iter().map(row).collect();
        callers.sort_by(|one, other| {
            let changed = |row: &Row| row.before.cpu_ns.abs_diff(row.after.cpu_ns);
            let names = |row: &Row| (row.cause.clone(), row.caller.clone());
            changed(other).cmp(&changed(one)).then_with(|| names(one).cmp(&names(other)))
        });
        Self { schema: after.schema, before: before.total, after: after.total, callers }
    }

    /// Returns the totals, and the callers that changed most.
    pub(super) fn text(&self, callers_max: usize) -> String {
        let Self { before, after, callers, .. } = self;
        let mut text = format!(
            "{} requests instead of {}, {} of CPU time instead of {}\n\
             The program used {} of CPU time instead of {}, and two threads of one space ran at \
             once for {} of the time instead of {}.\n\n",
            grouped(after.sum.requests),
            grouped(before.sum.requests),
            percent(after.cpu_share),
            percent(before.cpu_share),
            duration(after.program_ns),
            duration(before.program_ns),
            percent(after.parallel_share),
            percent(before.parallel_share),
        );
        let mut table = Table::default().left(["caller", "cause"]).right([
            "requests before",
            "after",
            "CPU time before",
            "after",
        ]);
        for Row { cause, caller, before, after } in callers.iter().take(callers_max) {
            table.row([
                caller.as_deref().map_or("unknown".to_owned(), shown),
                shown(cause),
                grouped(before.requests),
                grouped(after.requests),
                duration(before.cpu_ns),
                duration(after.cpu_ns),
            ]);
        }
        text += &table.to_string();
        let left = callers.len().saturating_sub(callers_max);
        if left > 0 {
            text += &format!("{left} more callers: --sites N\n");
        }
        text
    }
}
