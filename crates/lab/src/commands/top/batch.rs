//! The tables of `shootdown top --batch`: text for a file or a ticket, once in each interval.

use super::state::State;
use super::sums::per_second;
use crate::error::shown;
use crate::render::significant;
use crate::render::table::Table;

/// Number of rows of each table.
const ROWS_MAX: usize = 10;

/// Returns the tables of the last interval.
pub(super) fn tables(state: &State) -> String {
    let (sums, time) = state.shown();
    let rate = |count| significant(per_second(count, time));
    // The CPU time of a second, in percent.
    let percent = |cpu_ns| significant(per_second(cpu_ns, time) / 1e7);
    let total = sums.total();
    let mut processes = Table::default().right(["PID"]).left(["process"]).right([
        "requests/s",
        "interrupts/s",
        "in vain/s",
        "CPU %",
    ]);
    for (process, sum) in sums.processes(state.order).into_iter().take(ROWS_MAX) {
        processes.row([
            process.pid.to_string(),
            shown(&process.name),
            rate(sum.requests),
            rate(sum.interrupts),
            rate(sum.in_vain),
            percent(sum.cpu_ns),
        ]);
    }
    let mut sites = Table::default().left(["caller", "cause"]).right(["requests/s", "CPU %"]);
    for (site, entry) in sums.sites(None, state.order).into_iter().take(ROWS_MAX) {
        sites.row([
            entry.caller.as_deref().map_or("unknown".to_owned(), shown),
            shown(&site.cause),
            rate(entry.sum.requests),
            percent(entry.sum.cpu_ns),
        ]);
    }
    format!(
        "{}: {:.1} s, {} requests/s, {} in vain/s, {} % of a CPU, {} events lost\n\n{processes}\n\
         {sites}\n",
        shown(&state.selection),
        state.elapsed.as_secs_f64(),
        rate(total.requests),
        rate(total.in_vain),
        percent(total.cpu_ns),
        sums.lost,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::sums::{Key, Process, Site, Sums};
    use shootdown_explain::Sum;
    use std::time::Duration;

    #[test]
    fn tables_have_rates_of_the_interval() {
        let mut sums = Sums::default();
        let process = Process { pid: 7, name: "server\u{1b}".into() };
        let site = Site { cause: "munmap".into(), frames: Vec::new() };
        let sum = Sum { requests: 300, interrupts: 200, cpu_ns: 50_000_000, ..Sum::default() };
        sums.add(Key { process, site }, sum, || (Some("free_buffer".into()), None));
        let mut state = State { selection: "all processes".into(), ..State::default() };
        state.update(sums, Duration::from_secs(2));
        let text = tables(&state);
        assert!(text.starts_with("all processes: 2.0 s, 150 requests/s, 0"), "{text}");
        assert!(text.contains("server\\u{1b}") && text.contains("free_buffer"), "{text}");
        assert!(text.contains("2.50 % of a CPU"), "{text}");
    }
}
