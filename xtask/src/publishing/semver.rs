//! Does a change break the users of the last release? The versions of the published crates must say
//! so.

use std::path::Path;

use super::{PUBLISHED, broken, metadata, package_of};
use crate::command::{Command, Failure};
use crate::setup;

/// Compares the published crates with the last release, or with `baseline`.
pub(crate) fn check(baseline: Option<&str>) -> Result<(), Failure> {
    let baseline = match baseline {
        Some(revision) => revision.to_owned(),
        None => last_release()?,
    };
    let commit = format!("{baseline}^{{commit}}");
    git("rev-parse --verify --quiet").arg(commit).output().map_err(|_| {
        Failure::new(
            format!("`{baseline}` is not a revision of this repository"),
            "git log --oneline, and cargo xtask semver --baseline-rev with one of its revisions",
        )
    })?;
    let metadata = metadata()?;
    let mut broken_by_change = Vec::new();
    for name in PUBLISHED {
        let manifest = package_of(&metadata, name)?["manifest_path"].as_str();
        let manifest = manifest.and_then(|path| Path::new(path).strip_prefix(crate::root()).ok());
        let manifest = manifest.ok_or_else(|| broken(&format!("the manifest of {name}")))?;
        if !existed(&baseline, manifest) {
            println!("{name}: new since {baseline}");
        } else if !compare(name, &baseline)? {
            broken_by_change.push(*name);
        }
    }
    if broken_by_change.is_empty() {
        println!("the versions allow all changes since {baseline}");
        return Ok(());
    }
    Err(Failure::new(
        format!("changes since {baseline} break users of {}", broken_by_change.join(", ")),
        "undo them, or raise `version` in Cargo.toml: before 1.0 its second number",
    ))
}

/// The tag of the last release.
fn last_release() -> Result<String, Failure> {
    let described = git("describe --tags --abbrev=0 --match").arg("v[0-9]*").output();
    described.map(|tag| tag.trim().to_owned()).map_err(|_| {
        Failure::new(
            "there is no release to compare with: no tag `v…` is reachable",
            "cargo xtask semver --baseline-rev REV",
        )
    })
}

/// Returns `true` if a file existed in a revision.
fn existed(revision: &str, file: &Path) -> bool {
    git("cat-file -e").arg(format!("{revision}:{}", file.display())).output().is_ok()
}

/// Returns `true` if the version of a crate allows its changes since `baseline`.
fn compare(name: &str, baseline: &str) -> Result<bool, Failure> {
    let mut command = Command::new(setup::semver_checker()?)
        .args("semver-checks --package")
        .arg(name)
        .arg("--baseline-rev")
        .arg(baseline);
    if name == "shootdown-capi" {
        // Its panic handler would collide with that of `std`.
        command = command.args("--default-features");
    }
    Ok(command.status()?.success())
}

fn git(words: &str) -> Command {
    Command::new("git").args(words)
}
