//! The largest numbers that a run may have: a gate for continuous integration.

use std::str::FromStr;

use super::error::ExplainError;
use super::findings::Total;
use crate::render::significant;

/// Limits of a program's shootdowns. A number that is `None` has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Budget {
    requests: Option<u64>,
    interrupts: Option<u64>,
    /// Percent of the program's CPU time.
    cpu: Option<f64>,
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut budget = Self::default();
        for limit in text.split(',') {
            let bad = || format!("`{limit}` is not requests<=N, interrupts<=N or cpu<=P%");
            let (name, number) = limit.split_once("<=").ok_or_else(bad)?;
            let count = || number.trim().parse().map(Some).map_err(|_| bad());
            match name.trim() {
                "requests" => budget.requests = count()?,
                "interrupts" => budget.interrupts = count()?,
                "cpu" => {
                    let number = number.trim().strip_suffix('%').ok_or_else(bad)?;
                    let percent = number.trim().parse().map_err(|_| bad())?;
                    budget.cpu = (0.0..=100.0).contains(&percent).then_some(percent);
                    budget.cpu.ok_or_else(bad)?;
                }
                _ => return Err(bad()),
            }
        }
        Ok(budget)
    }
}

impl Budget {
    /// Returns the limits that a program exceeds as an error.
    pub(super) fn check(&self, total: &Total) -> Result<(), ExplainError> {
        let mut exceeded = Vec::new();
        let counts = [
            ("requests", self.requests, total.sum.requests),
            ("interrupts", self.interrupts, total.sum.interrupts),
        ];
        for (name, limit, number) in counts {
            if let Some(limit) = limit.filter(|limit| number > *limit) {
                exceeded.push(format!("{number} {name}, and the budget has {limit}"));
            }
        }
        let percent = 100.0 * total.cpu_share;
        if let Some(limit) = self.cpu.filter(|limit| percent > *limit) {
            let percent = significant(percent);
            exceeded.push(format!("{percent} % of CPU time, and the budget has {limit} %"));
        }
        if exceeded.is_empty() {
            return Ok(());
        }
        Err(ExplainError::Exceeded(exceeded.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shootdown_explain::Sum;

    #[test]
    fn only_known_limits_are_parsed() {
        let budget = Budget { requests: Some(1000), cpu: Some(0.1), interrupts: None };
        assert_eq!("requests<=1000,cpu<=0.1%".parse(), Ok(budget));
        for bad in
            ["", "requests", "requests<=-1", "requests<=x", "cpu<=0.1", "cpu<=nan%", "time<=1"]
        {
            assert!(bad.parse::<Budget>().is_err(), "{bad}");
        }
    }

    #[test]
    fn number_above_the_limit_exceeds_it() {
        let sum = Sum { requests: 10, interrupts: 4, ..Sum::default() };
        let total = Total { sum, cpu_share: 0.002, ..Total::default() };
        let check = |text: &str| text.parse::<Budget>().expect("limits").check(&total);
        assert!(check("requests<=10,interrupts<=4,cpu<=0.2%").is_ok());
        let both = check("requests<=9,cpu<=0.1%").expect_err("two limits").to_string();
        assert!(both.contains("10 requests, and the budget has 9; 0.200 %"), "{both}");
    }
}
