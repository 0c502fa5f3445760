//! What must hold before a crate is published: licences and sources of dependencies, packages that
//! build by themselves, and documentation that docs.rs can build.

pub(crate) mod dist;
mod docs_rs;
pub(crate) mod semver;

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::command::{Command, Failure, cargo, read_tracked};

/// The crates that are published.
const PUBLISHED: &[&str] = &[
    "shootdown",
    "shootdown-hw",
    "shootdown-capi",
    "shootdown-x86_64",
    "shootdown-aarch64-paging",
    "shootdown-ax-page-table-multiarch",
];

/// Checks the dependencies against `deny.toml`, and that the published crates can be packaged and
/// documented.
pub(crate) fn check() -> Result<(), Failure> {
    let metadata = metadata()?;
    let policy: toml::Table = read_tracked("deny.toml")?.parse().map_err(|error| {
        Failure::new(format!("deny.toml: {error}"), "correct it; cargo-deny documents the format")
    })?;
    let findings = denied(&metadata, &policy)?;
    if !findings.is_empty() {
        findings.iter().for_each(|finding| println!("{finding}"));
        return Err(Failure::new(
            format!("{} dependencies are denied", findings.len()),
            "take another crate, or change deny.toml and say why there",
        ));
    }
    println!("licences and sources of all dependencies are allowed");
    package()?;
    compile_with_oldest(&metadata)?;
    PUBLISHED.iter().try_for_each(|name| docs_rs::build(name, package_of(&metadata, name)?))
}

/// Returns the packages of the workspace and their dependencies.
fn metadata() -> Result<Value, Failure> {
    let metadata = cargo("metadata --format-version 1 --locked").output()?;
    serde_json::from_str(&metadata).map_err(|_| broken("the output of cargo metadata"))
}

/// Returns a package of the workspace.
fn package_of<'m>(metadata: &'m Value, name: &str) -> Result<&'m Value, Failure> {
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let mut found = packages.filter(|package| package["name"] == name);
    found.next().ok_or_else(|| broken(&format!("the package {name}")))
}

fn broken(what: &str) -> Failure {
    Failure::new(format!("{what} cannot be read"), "update xtask")
}

/// A line for each package that `deny.toml` does not allow.
fn denied(metadata: &Value, policy: &toml::Table) -> Result<Vec<String>, Failure> {
    let list = |section: &str, key: &str| -> Vec<String> {
        let values = policy.get(section).and_then(|table| table.get(key)?.as_array());
        values.into_iter().flatten().filter_map(|value| Some(value.as_str()?.to_owned())).collect()
    };
    let licences: Vec<Licensee> = list("licenses", "allow")
        .iter()
        .map(|name| Licensee::parse(name).map_err(|_| broken(&format!("the licence {name}"))))
        .collect::<Result<_, _>>()?;
    let registries = list("sources", "allow-registry");
    let packages = metadata["packages"].as_array().ok_or_else(|| broken("cargo metadata"))?;
    let mut findings = Vec::new();
    for package in packages {
        let name = format!("{} {}", package["name"], package["version"]).replace('"', "");
        let licence = package["license"].as_str().unwrap_or_default();
        let is_allowed = Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|licence| {
            licence.evaluate(|needed| licences.iter().any(|allowed| allowed.satisfies(needed)))
        });
        if !is_allowed {
            findings.push(format!("{name}: licence `{licence}`"));
        }
        // Crates of the workspace have no source.
        if let Some(source) = package["source"].as_str()
            && !registries.iter().any(|registry| source == format!("registry+{registry}"))
        {
            findings.push(format!("{name}: source {source}"));
        }
    }
    Ok(findings)
}

/// Removes what cargo has unpacked of our packages in earlier runs. Cargo unpacks a version once.
fn forget_unpacked() {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let unpacked = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    for registry in unpacked.into_iter().flatten().flatten() {
        // The name of a registry begins with its host; a local one, of a dry run, has none.
        if registry.file_name().as_encoded_bytes().starts_with(b"-") {
            // If it cannot be removed, the dry run reports what does not fit.
            let _ = fs::remove_dir_all(registry.path());
        }
    }
}

/// Packages the published crates, and builds each package as its users will.
fn package() -> Result<(), Failure> {
    // Packages of an earlier run have the same versions, so cargo would take them for these.
    forget_unpacked();
    let output = crate::output().join("publishing");
    let _ = fs::remove_dir_all(&output);
    // What is not committed yet is packaged as well.
    let mut command: Command = cargo("publish --quiet --dry-run --allow-dirty --target-dir");
    command = command.arg(&output);
    for name in PUBLISHED {
        command = command.args("--package").arg(name);
    }
    command.run()?;
    println!("can be published: {}", PUBLISHED.join(", "));
    Ok(())
}

/// The oldest compiler for crates that kernels embed.
const OLDEST: &str = "1.85";

/// Compiles the published crates that promise it with the oldest compiler, which is installed where
/// it is missing. On this host, it compiles the code of one processor; `tidy` finds conditions that
/// only newer compilers accept in the code of the others, and clippy functions.
fn compile_with_oldest(metadata: &Value) -> Result<(), Failure> {
    let installed = Command::new("rustup").args("toolchain list").output()?;
    if !installed.lines().any(|line| line.starts_with(OLDEST)) {
        Command::new("rustup").args("toolchain install --profile minimal").arg(OLDEST).run()?;
    }
    const FEATURES: &str = "shootdown/soft,shootdown-capi/processor,shootdown-capi/away,\
                            shootdown-capi/broadcast,shootdown-capi/trace";
    let mut command = cargo(&format!("+{OLDEST} check --quiet --features {FEATURES} --target-dir"))
        .arg(crate::output().join("oldest"));
    let mut names = Vec::new();
    for name in PUBLISHED {
        if package_of(metadata, name)?["rust_version"] == OLDEST {
            command = command.arg("--package").arg(name);
            names.push(*name);
        }
    }
    command.run()?;
    println!("Rust {OLDEST} compiles {}", names.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_and_sources_are_checked() {
        let policy = "[licenses]\nallow = [\"MIT\"]\n[sources]\nallow-registry = [\"https://r\"]\n";
        let policy: toml::Table = policy.parse().expect("it is TOML");
        let package = |name: &str, license: &str, source: Option<&str>| {
            serde_json::json!({
                "name": name, "version": "1.0.0", "license": license, "source": source,
            })
        };
        let registry = Some("registry+https://r");
        let metadata = serde_json::json!({"packages": [
            package("good", "GPL-2.0/MIT", registry),
            package("ours", "MIT", None),
            package("copyleft", "GPL-2.0", registry),
            package("elsewhere", "MIT", Some("git+https://g")),
        ]});
        let findings = denied(&metadata, &policy).expect("it is read");
        assert_eq!(
            findings,
            ["copyleft 1.0.0: licence `GPL-2.0`", "elsewhere 1.0.0: source git+https://g"]
        );
    }
}
