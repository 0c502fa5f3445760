//! The mutants that the engine itself lists: for each rule, a machine that breaks it.

use crate::command::{Failure, cargo};

/// The rules without which no tool at hand sees anything go wrong. Why: `rules.rs` says.
const ARGUED: &[&str] = &["StampClaim", "ChoiceAcquire", "NumberRelease", "GivenAwayAcquire"];

/// Runs the test that breaks each rule, and prints how many programs notice. Returns what is wrong
/// with that, if anything.
pub(super) fn each_broken_rule_is_noticed() -> Result<Option<String>, Failure> {
    println!("\n── rules broken, one after the other: about ten minutes ──");
    let (mut killed, mut survived) = (0, Vec::new());
    let status = cargo("test -p shootdown --features soft --test rules each_rule_broken")
        .args("-- --nocapture")
        .lines(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["killed", ..] => killed += 1,
                ["survived", rule, ..] => survived.push(rule.to_owned()),
                _ => return,
            }
            println!("{line}");
        })?;
    let unargued = survived.iter().filter(|rule| !ARGUED.contains(&rule.as_str())).count();
    let all = killed + survived.len();
    println!(
        "rules: {all}, killed {killed}, argued {}, not argued {unargued}",
        all - killed - unargued
    );
    if killed == 0 || !status.success() || unargued != 0 {
        return Ok(Some("a broken rule goes unnoticed, or the test fails".to_owned()));
    }
    Ok(None)
}
