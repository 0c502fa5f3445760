//! Call stacks with their cost, in the format that flame graph tools read: the calls from the
//! outermost to the innermost, separated by semicolons, the cause, and the CPU time in nanoseconds.

use shootdown_explain::{Analysis, Explanation};

use crate::error::shown;

/// Returns a line for each call site.
pub(super) fn stacks(analysis: &Analysis, explanation: &Explanation) -> String {
    let mut text = String::new();
    for site in &explanation.sites {
        let calls = site.frames.iter().rev().map(|frame| cleaned(&frame.function));
        for call in calls {
            text += &call;
            text.push(';');
        }
        let cause = cleaned(analysis.causes.name(site.cause));
        text += &format!("[{cause}] {}\n", site.sum.cpu_ns);
    }
    text
}

/// Returns a name without what separates names or controls a terminal.
fn cleaned(name: &str) -> String {
    shown(name).replace(';', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_separators() {
        assert_eq!(cleaned("f(a; b)\n"), "f(a_ b)\\n");
    }
}
