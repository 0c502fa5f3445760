//! The files whose functions have no names, and the packages with their debug data.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use shootdown_explain::Site;

/// Number of files that are named.
const FILES_MAX: usize = 5;

/// Returns the executables and libraries of calls without names, by the cost of their sites.
pub(super) fn files(sites: &[Site]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let frames = sites.iter().flat_map(|site| &site.frames);
    let unnamed = frames.filter(|frame| {
        let name = frame.file.rsplit('/').next().unwrap_or_default();
        let beginning = frame.function.strip_prefix('[').and_then(|it| it.strip_prefix(name));
        frame.file.starts_with('/') && beginning.is_some_and(|offset| offset.starts_with("+0x"))
    });
    let first = unnamed.map(|frame| frame.file.clone()).filter(|file| known.insert(file.clone()));
    first.take(FILES_MAX).collect()
}

/// Returns the line that shows where names can be found.
pub(super) fn hint(files: &[String]) -> String {
    if files.is_empty() {
        return String::new();
    }
    let packages: BTreeSet<_> = files.iter().filter_map(|file| package(file)).collect();
    let packages: Vec<_> = packages.into_iter().collect();
    let install = match &*packages {
        [] => "install their debug data".to_owned(),
        packages => format!("install {}", packages.join(" ")),
    };
    format!(
        "Functions of {} have no names.\ntry:   {install}, or name its directory with --debug-dir, \
         and record again\n",
        files.join(", ")
    )
}

/// Returns the package with the debug data of a file, on Debian.
fn package(file: &str) -> Option<String> {
    let owner = Command::new("dpkg-query").args(["-S", file]).stderr(Stdio::null()).output();
    of_debian(&String::from_utf8(owner.ok()?.stdout).ok()?)
}

/// Returns the package from the text of `dpkg-query -S`.
fn of_debian(text: &str) -> Option<String> {
    let owner = text.lines().find(|line| !line.starts_with("diversion"))?;
    let (package, _) = owner.split_once([':', ','])?;
    // The only common one with a name of its own.
    Some(if package == "libc6" { "libc6-dbg".to_owned() } else { format!("{package}-dbgsym") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_has_the_name_of_its_owner() {
        let package = |text| of_debian(text);
        let line = "libjemalloc2:amd64: /usr/lib/x86_64-linux-gnu/libjemalloc.so.2\n";
        assert_eq!(package(line).as_deref(), Some("libjemalloc2-dbgsym"));
        assert_eq!(package("ripgrep: /usr/bin/rg\n").as_deref(), Some("ripgrep-dbgsym"));
        let diverted = "diversion by libc6 from: /lib/a\ndiversion by libc6 to: /lib/b\n";
        let libc = format!("{diverted}libc6:amd64, libc6:i386: /lib/a\n");
        assert_eq!(package(&libc).as_deref(), Some("libc6-dbg"));
        assert_eq!(package(""), None);
        assert_eq!(hint(&[]), "");
        let text = hint(&["/no/such".to_owned()]);
        assert!(text.contains("/no/such") && text.contains("install their debug data"), "{text}");
    }
}
