//! Programs with a known cause of shootdowns: `shootdown explain` must name it, and predict what a
//! change of the program saves.

use std::ops::RangeInclusive;

use serde_json::Value;

use super::cell::Place;
use super::corpus::{CORPUS, Culprit, Toolchain, shell};
use super::place;
use crate::command::{Command, Failure, cargo};

/// The requests that the change removes, as a part of those that were predicted.
const ACCURACY: RangeInclusive<f64> = 0.80..=1.25;

/// Explains each program; runs it again with the change; and compares what the change removes with
/// the prediction.
pub(crate) fn soak() -> Result<(), Failure> {
    cargo("build --quiet --release -p shootdown-lab").run()?;
    let place = place(crate::output().join("release/shootdown"))?;
    println!(
        "{:<16} {:<15} {:>9} {:>9} {:>9} {:>9}",
        "program", "", "requests", "predicted", "removed", "ratio"
    );
    for culprit in &CORPUS.culprit {
        let Culprit { name, language, .. } = culprit;
        let is_ready =
            |it: &&Toolchain| it.language == *language && shell(&it.make, &place.work).is_ok();
        let Some(toolchain) = CORPUS.toolchain.iter().find(is_ready) else {
            println!("{name:<16} {language:<15} skipped: it has no compiler here");
            continue;
        };
        let options = if culprit.settings { "--try" } else { "" };
        let before = explain(&place, toolchain, (options, name))?;
        let predicted = culprit.found_in(&before, toolchain)?;
        let (before, predicted, removed) = if culprit.settings {
            let tried = &before["tried"][0];
            let number = |field: &str| tried[field].as_u64().unwrap_or_default();
            (requests(&before), number("predicted"), number("removed"))
        } else {
            let after = explain(&place, toolchain, ("", &format!("{name} changed")))?;
            let (before, after) = (requests(&before), requests(&after));
            (before, predicted, before.saturating_sub(after))
        };
        let ratio = removed as f64 / predicted as f64;
        println!(
            "{name:<16} {language:<15} {before:>9} {predicted:>9} {removed:>9} {ratio:>9.2}{}",
            if toolchain.has_names { "" } else { "  (this version of the language has no names)" },
        );
        if !ACCURACY.contains(&ratio) {
            return Err(Failure::new(
                format!("the change of `{name}` removes {ratio:.2} of what was predicted"),
                format!("shootdown explain -- {} {name}", toolchain.run),
            ));
        }
    }
    Ok(())
}

fn explain(
    place: &Place,
    toolchain: &Toolchain,
    (options, arguments): (&str, &str),
) -> Result<Value, Failure> {
    let command = Command::new(&place.lab).args("explain --format json").args(options).args("--");
    let command = command.args(&toolchain.run);
    let printed = command.args(arguments).within(&place.work).output()?;
    serde_json::from_str(&printed).map_err(|error| {
        Failure::new(format!("`shootdown explain` printed no JSON: {error}"), "run it by hand")
    })
}

/// The requests of a program.
fn requests(explained: &Value) -> u64 {
    explained["total"]["requests"].as_u64().unwrap_or_default()
}

impl Culprit {
    /// Checks the most expensive caller. Returns the requests that its first advice saves.
    fn found_in(&self, explained: &Value, toolchain: &Toolchain) -> Result<u64, Failure> {
        let site = &explained["callers"][0];
        let advice = &site["advice"][0];
        let is_text =
            |value: &Value, wanted: &str| value.as_str().is_some_and(|text| text.contains(wanted));
        let wanted = self.site.as_ref().filter(|_| toolchain.has_names);
        let is_site = wanted.is_none_or(|function| is_text(&site["caller"], function));
        let is_cause = self.causes.iter().any(|cause| is_text(&site["cause"], cause));
        // The requests of the program are compared.
        let saves = advice["saves_in_all"].as_u64().or_else(|| advice["saves"].as_u64());
        let saves = saves.filter(|saves| *saves > 0);
        match saves {
            Some(saves) if is_site && is_cause && is_text(&advice["change"], &self.advice) => {
                Ok(saves)
            }
            _ => Err(Failure::new(
                format!(
                    "the first caller of `{}` is {} of {}, with the advice {}",
                    self.name, site["cause"], site["caller"], advice["change"]
                ),
                format!("it should be {:?} of {:?}", self.causes, self.site),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_cause_and_advice_are_compared() {
        let found = |toolchain: &str, cause: &str, caller: &str, saves: u64| {
            let explained = serde_json::json!({"callers": [{
                "cause": cause, "caller": caller,
                "advice": [{"change": "keep the memory and reuse it", "saves": saves}],
            }]});
            let toolchain = CORPUS.toolchain.iter().rfind(|it| it.language == toolchain);
            CORPUS.culprit[0].found_in(&explained, toolchain.unwrap()).ok()
        };
        let (cause, caller) = ("madvise(MADV_DONTNEED)", "release_pages (culprits.c:44)");
        assert_eq!(found("C", cause, caller, 3), Some(3));
        assert_eq!(found("C", "munmap", caller, 3), None);
        assert_eq!(found("C", cause, "main (culprits.c:9)", 3), None);
        assert_eq!(found("C", cause, caller, 0), None);
        // Its last toolchain has no names.
        assert_eq!(found("Python", cause, "[python3.11+0x7]", 3), Some(3));
    }
}
