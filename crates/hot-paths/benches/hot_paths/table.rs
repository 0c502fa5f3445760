//! The printed table, and the verdict.

use std::fmt::Write as _;
use std::process::ExitCode;

use shootdown_hot_paths::{Limits, WIDTHS, budget};

/// The cost of a path at each width.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The unit of the cost; empty for instructions.
    pub(crate) unit: &'static str,
    pub(crate) cost: [u64; 3],
    pub(crate) limits: Limits,
}

impl Row {
    pub(crate) fn is_over_budget(&self) -> bool {
        self.cost.iter().zip(self.limits.measured).any(|(&cost, measured)| cost > budget(measured))
    }
}

/// Formats all rows: for each width the cost, the budget, the target, and the factor by which the
/// cost exceeds the target.
fn text(rows: &[Row]) -> String {
    let mut text = format!("{:<38}", "");
    for width in WIDTHS {
        let _ = write!(text, "   {:<29}", format!("up to {} CPUs", width * 64));
    }
    let _ = write!(text, "\n{:<38}", "path");
    for _ in WIDTHS {
        let _ = write!(text, "   {:>6} {:>6} {:>6}        ", "cost", "budget", "target");
    }
    text.push('\n');
    for Row { name, unit, cost, limits } in rows {
        let name = format!("{} {unit}", name.replace('_', " "));
        let _ = write!(text, "{name:<38}");
        for (index, &cost) in cost.iter().enumerate() {
            let budget = budget(limits.measured[index]);
            let over = if cost > budget { '!' } else { ' ' };
            let target = limits.target.map(|target| target[index]);
            let shown = target.map_or("-".to_owned(), |target| target.to_string());
            let factor = target.filter(|&target| cost > target);
            #[expect(clippy::cast_precision_loss, reason = "costs are small")]
            let factor = factor.map(|target| format!("x{:.2}", cost as f64 / target as f64));
            let _ = write!(
                text,
                "   {cost:>6}{over}{budget:>6} {shown:>6} {:<7}",
                factor.unwrap_or_default()
            );
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    for Row { name, cost, limits, .. } in rows {
        if *cost != limits.measured {
            let _ = writeln!(text, "{name}: {:?} on record, measured {cost:?}", limits.measured);
        }
    }
    text
}

/// Prints the rows. A cost above its budget is a failure.
pub(crate) fn report(rows: Result<Vec<Row>, String>) -> ExitCode {
    let rows = match rows {
        Ok(rows) => rows,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    print!("{}", text(&rows));
    let over: Vec<_> = rows.iter().filter(|row| row.is_over_budget()).collect();
    if cfg!(not(panic = "abort")) {
        println!("budgets not enforced: this code unwinds; try: cargo xtask bench paths");
    } else if !over.is_empty() {
        let names: Vec<_> = over.iter().map(|row| row.name).collect();
        eprintln!("error: above the budget: {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
