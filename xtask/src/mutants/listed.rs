//! The mutants that the engine itself lists: for each rule, a machine that breaks it.

use crate::command::{Failure, cargo};

/// Runs the test that breaks each rule, and prints how many programs notice. Returns what is wrong
/// with that, if anything.
pub(super) fn each_broken_rule_is_noticed() -> Result<Option<String>, Failure> {
    println!("\n── rules broken, one after the other: about ten minutes ──");
    let (mut killed, mut argued, mut survived) = (0, 0, 0);
    let status = cargo("test -p shootdown --features soft --test rules each_rule_broken")
        .args("-- --nocapture")
        .lines(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["killed", ..] => killed += 1,
                // No program is for it: `rules.rs` says why no tool at hand sees anything.
                ["survived", _] => argued += 1,
                ["survived", ..] => survived += 1,
                _ => return,
            }
            println!("{line}");
        })?;
    let all = killed + argued + survived;
    println!("rules: {all}, killed {killed}, argued {argued}, not argued {survived}");
    if killed == 0 || !status.success() || survived != 0 {
        return Ok(Some("a broken rule goes unnoticed, or the test fails".to_owned()));
    }
    Ok(None)
}
