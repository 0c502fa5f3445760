//! The `shootdown` command as files to install: for each processor, an archive and a Debian package
//! with a static executable, completions, man pages and the licences of what is linked in.

use std::collections::{BTreeMap, BTreeSet};
use std::env::consts::ARCH;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{broken, package_of};
use crate::command::{Command, Failure, cargo, unwritable};

/// The package of the command.
const COMMAND: &str = "shootdown-lab";

/// The processors, with Debian's names for them.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Writes the files for each processor into `target/dist`, with their checksums.
pub(crate) fn pack() -> Result<(), Failure> {
    let dist = crate::output().join("dist");
    let _ = fs::remove_dir_all(&dist);
    // Dates in the files are that of the commit, so that they depend on nothing else.
    let date = Command::new("git").args("log -1 --format=%ct").output()?.trim().to_owned();
    // The pages are those of one executable, which runs on this host.
    let pages = dist.join("pages");
    let example = build(&format!("run --quiet --example pages --package {COMMAND}"), ARCH)?;
    example.args("--").arg(&pages).run()?;
    cargo("build --quiet --release --locked --package shootdown-sanitizer").run()?;
    for (processor, debian) in PROCESSORS {
        let name = pack_for(processor, debian, &dist, &pages, &date)?;
        println!("{}", dist.join(name).display());
    }
    let _ = fs::remove_dir_all(&pages);
    let sums = Command::new("sh").arg("-c").arg("sha256sum -- *.tar.gz *.deb").within(&dist);
    let sums = sums.output()?;
    print!("{sums}");
    write(&dist.join("SHA256SUMS"), sums)
}

/// Packs the command for one processor, and returns the name of the archive.
fn pack_for(
    processor: &str,
    debian: &str,
    dist: &Path,
    pages: &Path,
    date: &str,
) -> Result<String, Failure> {
    let triple = triple(processor);
    Command::new("rustup").args("target add").arg(&triple).output_or_show()?;
    build(&format!("build --package {COMMAND}"), processor)?.run()?;
    let metadata = cargo("metadata --format-version 1 --locked --filter-platform").arg(&triple);
    let metadata: Value = serde_json::from_str(&metadata.output()?)
        .map_err(|_| broken("the output of cargo metadata"))?;
    let package = package_of(&metadata, COMMAND)?;
    let [version, homepage] =
        ["version", "repository"].map(|key| package[key].as_str().unwrap_or_default());

    let root = dist.join(debian);
    let (built, usr) = (crate::output(), root.join("usr"));
    copy(&built.join(&triple).join("release/shootdown"), &usr.join("bin/shootdown"))?;
    // QEMU loads the plugin, and is not static. It is built for this host alone.
    if processor == ARCH {
        const PLUGIN: &str = "libshootdown_sanitizer.so";
        copy(&built.join("release").join(PLUGIN), &usr.join("lib/shootdown").join(PLUGIN))?;
    }
    Command::new("cp").args("-r").arg(pages).arg(usr.join("share")).run()?;
    write(&usr.join("share/doc/shootdown/copyright"), licences(&metadata)?)?;
    write(&root.join("DEBIAN/control"), control(version, debian, homepage))?;
    let deb = Command::new("dpkg-deb").args("--build --root-owner-group -Zxz");
    deb.env("SOURCE_DATE_EPOCH", date).arg(&root).arg(dist).output_or_show()?;
    let name = format!("shootdown-{version}-{processor}-linux");
    let tar = Command::new("tar").args("--create --gzip --sort=name --owner=0 --group=0");
    tar.args("--numeric-owner --mtime")
        .arg(format!("@{date}"))
        .arg("--file")
        .arg(dist.join(format!("{name}.tar.gz")))
        .arg(format!("--transform=s,^\\.,{name},"))
        .arg("--directory")
        .arg(&usr)
        .arg(".")
        .run()?;
    fs::remove_dir_all(&root).map_err(unwritable(&root))?;
    Ok(format!("{name}.tar.gz"))
}

fn triple(processor: &str) -> String {
    format!("{processor}-unknown-linux-musl")
}

/// Returns cargo's command for a static executable, without the paths of this host. The linker is
/// the one that rustup installs.
fn build(words: &str, processor: &str) -> Result<Command, Failure> {
    let sysroot = Command::new("rustc").args("--print sysroot").output()?;
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME"));
    let mut flags = "-Clinker=rust-lld -Clinker-flavor=ld.lld -Cstrip=symbols".to_owned();
    for path in [crate::root().display().to_string(), home.unwrap_or_default(), sysroot] {
        // Writing to a string cannot fail.
        let _ = write!(flags, " --remap-path-prefix={}=/build", path.trim());
    }
    let mut words = words.splitn(2, ' ');
    let (verb, rest) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    Ok(cargo(&format!("{verb} --release --locked --target"))
        .arg(triple(processor))
        .args(rest)
        .env("RUSTFLAGS", flags))
}

/// The description of a Debian package.
fn control(version: &str, debian: &str, homepage: &str) -> String {
    format!(
        "Package: shootdown\nVersion: {version}\nArchitecture: {debian}\nSection: devel\n\
         Priority: optional\nMaintainer: The Shootdown authors\n\
         Suggests: qemu-system\nHomepage: {homepage}\n\
         Description: records, explains and checks TLB shootdowns\n \
         Names the call sites that cause TLB shootdowns, replays recordings under other designs,\n \
         and finds missing TLB flushes of kernels under QEMU.\n"
    )
}

/// The licences of the packages that are linked into the command, and their texts.
fn licences(metadata: &Value) -> Result<String, Failure> {
    let packages: BTreeMap<&str, &Value> = array(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let first = package_of(metadata, COMMAND)?["id"].as_str().unwrap_or_default();
    let (mut linked, mut next) = (BTreeSet::new(), vec![first]);
    while let Some(id) = next.pop() {
        let is_macro =
            array(&packages[id]["targets"]).any(|target| target["kind"][0] == "proc-macro");
        if is_macro || !linked.insert(id) {
            continue;
        }
        let normal = array(&nodes[id]["deps"]).filter(|dependency| {
            array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null())
        });
        next.extend(normal.filter_map(|dependency| dependency["pkg"].as_str()));
    }
    let mut list =
        "The command `shootdown` contains these packages, Rust's standard library (MIT or \
                    Apache-2.0) and\nmusl (MIT, Copyright 2005-2020 Rich Felker, et al.).\n\n"
            .to_owned();
    // Most packages have the same texts.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in linked.iter().map(|id| packages[id]) {
        let part = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", part("name"), part("version"));
        // Writing to a string cannot fail.
        let _ = writeln!(list, "{name}: {}", part("license"));
        for text in texts_of(Path::new(part("manifest_path"))) {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        let _ = write!(list, "\n{}\n{}:\n\n{}\n", "-".repeat(80), names.join(", "), text.trim());
    }
    Ok(list)
}

/// The texts of licences beside a package's manifest. Ours are in the root of the repository.
fn texts_of(manifest: &Path) -> Vec<String> {
    let is_ours = manifest.starts_with(crate::root());
    let folder = if is_ours { Some(crate::root()) } else { manifest.parent() };
    let files = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = files.map(|file| file.path()).collect();
    paths.sort();
    let is_licence = |path: &&PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        ["LICEN", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|of| name.starts_with(of))
    };
    paths.iter().filter(is_licence).filter_map(|path| fs::read_to_string(path).ok()).collect()
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(unwritable(folder))?;
    fs::copy(from, to).map(|_| ()).map_err(unwritable(to))
}

fn write(to: &Path, text: String) -> Result<(), Failure> {
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder).map_err(unwritable(folder))?;
    fs::write(to, text).map_err(unwritable(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_of_what_is_linked() {
        type Dependency = (&'static str, Option<&'static str>);
        let node = |id: &str, dependencies: &[Dependency]| {
            let dependency = |(package, kind): &Dependency| {
                let kinds = serde_json::json!([{"kind": kind}]);
                serde_json::json!({"pkg": package, "dep_kinds": kinds})
            };
            let dependencies: Vec<Value> = dependencies.iter().map(dependency).collect();
            serde_json::json!({"id": id, "deps": dependencies})
        };
        let package = |id: &str, kind: &str| {
            serde_json::json!({
                "id": id, "name": id, "version": "1.0.0", "license": format!("L-{id}"),
                "manifest_path": "/nowhere/Cargo.toml", "targets": [{"kind": [kind]}],
            })
        };
        let mut first = package(COMMAND, "lib");
        first["manifest_path"] = crate::root().join("crates/lab/Cargo.toml").to_str().into();
        let packages =
            ["used", "deep", "build", "test", "other"].map(|id| package(id, "lib")).to_vec();
        let packages = [&packages[..], &[first, package("macro", "proc-macro")]].concat();
        let metadata = serde_json::json!({
            "packages": packages,
            "resolve": {"nodes": [
                node(COMMAND, &[("used", None), ("macro", None), ("test", Some("dev"))]),
                node("used", &[("deep", None), ("build", Some("build"))]),
                node("deep", &[("used", None)]),
                node("macro", &[("other", None)]),
            ]},
        });
        let list = licences(&metadata).expect("a list");
        for (id, is_linked) in
            [("used", true), ("deep", true), ("build", false), ("test", false), ("other", false)]
        {
            assert_eq!(list.contains(&format!("L-{id}")), is_linked, "{id}");
        }
        assert!(list.contains("Apache License"), "the texts of the root are missing");
    }
}
