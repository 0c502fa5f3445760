//! The documentation of a published crate, built as docs.rs builds it: with the features and
//! arguments of `package.metadata.docs.rs`, for each of its targets, by nightly.

use serde_json::Value;

use crate::command::{Command, Failure, cargo};
use crate::setup;

/// Builds the documentation of a package for each of its targets.
pub(super) fn build(name: &str, package: &Value) -> Result<(), Failure> {
    let settings = &package["metadata"]["docs"]["rs"];
    let targets = words(&settings["targets"]);
    if targets.is_empty() {
        return Err(Failure::new(
            format!("{name} has no targets in package.metadata.docs.rs"),
            "add them to its Cargo.toml, as in those of the other published crates",
        ));
    }
    for target in targets {
        match toolchain(&target) {
            Some((toolchain, target)) => build_for(name, settings, toolchain, target)?,
            None => println!("{name}: not documented for {target}, whose `core` is not here"),
        }
    }
    println!("{name} can be documented");
    Ok(())
}

/// Returns the words with which `cargo doc` is called for a target of docs.rs. On this host,
/// nightly builds it, as on docs.rs. For other processors, nightly has no `core`, and the stable
/// toolchain has one without an operating system, which makes no difference to our crates.
fn toolchain(target: &str) -> Option<(&'static str, &'static str)> {
    let arch = |target: &str| target.split('-').next().unwrap_or_default().to_owned();
    if arch(target) == std::env::consts::ARCH {
        let has_nightly = Command::new("rustc").args("+nightly --version").output().is_ok();
        return Some((if has_nightly { "+nightly doc" } else { "doc" }, ""));
    }
    let mut bare = setup::BARE_TARGETS.iter();
    bare.find(|bare| arch(bare) == arch(target)).map(|target| ("doc", *target))
}

fn build_for(name: &str, settings: &Value, doc: &str, target: &str) -> Result<(), Failure> {
    let mut flags = words(&settings["rustdoc-args"]).join(" ");
    // The page of another processor has no items to which some modules of this one link.
    flags.push_str(if target.is_empty() {
        " -D warnings"
    } else {
        " -A rustdoc::broken-intra-doc-links"
    });
    let mut command = cargo(doc)
        .args("--quiet --no-deps --package")
        .arg(name)
        .arg("--target-dir")
        .arg(crate::output().join("docs-rs"))
        .env("RUSTDOCFLAGS", flags)
        // `--cfg docsrs` enables a feature of nightly, where the toolchain is stable.
        .env("RUSTC_BOOTSTRAP", "1");
    if !target.is_empty() {
        command = command.arg("--target").arg(target);
    }
    if settings["all-features"] == true {
        command = command.arg("--all-features");
    }
    let features = words(&settings["features"]);
    if !features.is_empty() {
        command = command.arg("--features").arg(features.join(","));
    }
    command.run()
}

/// The strings of a list.
fn words(list: &Value) -> Vec<String> {
    let words = list.as_array().into_iter().flatten();
    words.filter_map(|word| Some(word.as_str()?.to_owned())).collect()
}
