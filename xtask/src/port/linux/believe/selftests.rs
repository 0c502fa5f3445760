//! Linux's own selftests, from the same source, compiled as static programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde::Deserialize;

use super::suite;
use crate::command::{Command, Failure, unwritable};
use crate::parallel;
use crate::port::linux::configuration::Configuration;
use crate::port::linux::guest::Member;
use crate::port::linux::kernel;
use crate::setup;

/// A folder of selftests. `selftests.toml` describes the fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Folder {
    name: String,
    sources: Vec<String>,
    programs: Vec<String>,
    #[serde(default)]
    more: BTreeMap<String, String>,
}

/// The contents of `selftests.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Folders {
    folder: Vec<Folder>,
}

static FOLDERS: LazyLock<Vec<Folder>> = LazyLock::new(|| {
    let folders: Folders =
        toml::from_str(include_str!("selftests.toml")).expect("a test reads the file");
    folders.folder
});

impl Folder {
    fn place(&self, tree: &Path) -> PathBuf {
        tree.join("tools/testing/selftests").join(&self.name)
    }
}

/// As the Makefiles of the selftests have them. One test forgets a header.
const FLAGS: &str = "-static -O2 -no-pie -pthread -w -mxsave -U_FORTIFY_SOURCE -D_GNU_SOURCE= \
                     -DKSFT_SKIP=4 -I. -I.. -I../../../..";
const HEADERS: &str =
    "-isystem ../../../../usr/include -isystem ../../../include/uapi -isystem ../../../include";

/// As the script of the selftests sets them, for less memory.
const STORES: [&str; 3] = [
    "/proc/sys/vm/nr_hugepages 32",
    "/proc/sys/kernel/shmmax 268435456",
    "/proc/sys/vm/overcommit_memory 1",
];

/// For each program. Those that take longer are ended on both kernels.
const SECONDS: u32 = 60;

pub(super) fn run(linux: Configuration) -> Result<(), Failure> {
    let kernels = kernel::build_both(linux)?;
    let tree = kernel::tree(linux)?;
    let members = members(&tree)?;
    suite::run("selftests", &kernels, programs(&tree).len(), |names| list(&tree, names), &members)
}

/// The programs that this version has, with their folders and arguments.
fn programs(tree: &Path) -> Vec<(&'static Folder, &'static str)> {
    let of = |folder: &'static Folder| folder.programs.iter().map(move |it| (folder, it.as_str()));
    let all = FOLDERS.iter().flat_map(of);
    all.filter(|(folder, words)| folder.place(tree).join(name(words) + ".c").exists()).collect()
}

fn name(words: &str) -> String {
    words.split(' ').next().unwrap_or_default().to_owned()
}

/// The list of these runs, or of all.
fn list(tree: &Path, names: &[&str]) -> String {
    let stores = STORES.iter().map(|store| format!("store {store}\n"));
    let lines = programs(tree).into_iter().map(|(_, program)| format!("{SECONDS} /bin/{program}"));
    let chosen = lines.filter(|line| names.is_empty() || names.contains(&line.as_str()));
    stores.chain(chosen.map(|line| line + "\n")).collect()
}

/// Compiles the programs below the cache.
fn members(tree: &Path) -> Result<Vec<Member>, Failure> {
    const PACKAGES: &str = "libcap-dev libnuma-dev";
    if !["/usr/include/sys/capability.h", "/usr/include/numa.h"]
        .iter()
        .all(|it| Path::new(it).exists())
    {
        setup::install_from_distribution(PACKAGES)?;
    }
    Command::new("make").args("-s headers").within(tree).output_or_show()?;
    let built = tree.with_file_name("selftests");
    fs::create_dir_all(&built).map_err(unwritable(&built))?;
    let mut programs: Vec<_> =
        programs(tree).into_iter().map(|(folder, words)| (folder, name(words))).collect();
    programs.dedup_by(|one, other| one.1 == other.1);
    let compiled = parallel::map(&programs, |(folder, name)| {
        let program = built.join(name);
        if !program.exists() {
            compile(tree, folder, name, &program)?;
        }
        Ok(Member::new(format!("bin/{name}"), program))
    });
    compiled.into_iter().collect()
}

fn compile(tree: &Path, folder: &Folder, name: &str, to: &PathBuf) -> Result<(), Failure> {
    let place = folder.place(tree);
    // A script of the selftests writes this file: the host has no liburing to link.
    let local = place.join("local_config.h");
    fs::write(&local, "").map_err(unwritable(&local))?;
    let sources = folder.sources.iter().chain(folder.more.get(name)).map(String::as_str);
    let sources: Vec<_> = sources.filter(|source| place.join(source).exists()).collect();
    Command::new("gcc")
        .args(FLAGS)
        .args(HEADERS)
        .arg(format!("{name}.c"))
        .args(&sources.join(" "))
        .args("-lcap -lnuma -lm -o")
        .arg(to)
        .within(&place)
        .output_or_show()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_sources_are_of_programs() {
        assert_eq!(FOLDERS.iter().map(|folder| folder.programs.len()).sum::<usize>(), 91);
        for Folder { name: folder, programs, more, .. } in &*FOLDERS {
            let is_known = |program: &String| programs.iter().any(|words| name(words) == *program);
            assert!(more.keys().all(is_known), "{folder}");
        }
    }
}
