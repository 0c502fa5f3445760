//! The debug data of stripped executables and libraries, found by their build ID.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The directory of distributions' packages with debug data.
const PACKAGES: &str = "/usr/lib/debug";
/// The variable with the servers of debug data.
const SERVERS: &str = "DEBUGINFOD_URLS";
/// The longest time of a download in seconds, unless the user has set one: names are found while
/// the program is recorded.
const DOWNLOAD: (&str, &str) = ("DEBUGINFOD_MAXTIME", "20");

/// Returns the file with the debug data of a module: from `directories`, from the packages of the
/// distribution, or from debuginfod's cache or servers.
pub(crate) fn find(build_id: &[u8], directories: &[PathBuf]) -> Option<PathBuf> {
    let number = build_id.iter().fold(String::new(), |mut number, byte| {
        // Writing to a string cannot fail.
        let _ = write!(number, "{byte:02x}");
        number
    });
    let (first, rest) = number.split_at_checked(2).filter(|(_, rest)| !rest.is_empty())?;
    let below = format!(".build-id/{first}/{rest}.debug");
    let directories = directories.iter().map(PathBuf::as_path).chain([Path::new(PACKAGES)]);
    let installed = directories.map(|directory| directory.join(&below)).find(|it| it.is_file());
    installed.or_else(|| cached(&number)).or_else(|| downloaded(&number))
}

/// Returns the file in the cache of debuginfod's clients.
fn cached(number: &str) -> Option<PathBuf> {
    let path = |variable| env::var_os(variable).filter(|it| !it.is_empty()).map(PathBuf::from);
    let cache = path("DEBUGINFOD_CACHE_PATH").or_else(|| {
        let user = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        Some(user?.join("debuginfod_client"))
    })?;
    // An empty file records that no server has the data.
    let file = cache.join(number).join("debuginfo");
    file.metadata().is_ok_and(|file| file.is_file() && file.len() > 0).then_some(file)
}

/// Asks the servers, if there are any, with debuginfod's own client.
fn downloaded(number: &str) -> Option<PathBuf> {
    env::var_os(SERVERS).filter(|servers| !servers.is_empty())?;
    let mut command = Command::new("debuginfod-find");
    command.args(["debuginfo", number]).stdin(Stdio::null()).stderr(Stdio::null());
    if env::var_os(DOWNLOAD.0).is_none() {
        command.env(DOWNLOAD.0, DOWNLOAD.1);
    }
    let output = command.output().ok().filter(|output| output.status.success())?;
    let path = output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout);
    Some(PathBuf::from(OsString::from_vec(path.to_vec()))).filter(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn given_directory_has_debug_data_by_build_id() {
        let directory = tempfile::tempdir().expect("a directory");
        let below = directory.path().join(".build-id/ab");
        fs::create_dir_all(&below).expect("a directory");
        fs::write(below.join("0cef.debug"), "ELF").expect("a file");
        let directories = [directory.path().to_owned()];
        assert_eq!(find(&[0xab, 0x0c, 0xef], &directories), Some(below.join("0cef.debug")));
        assert_eq!(find(&[0xab, 0x0c, 0xee], &directories), None);
        for short in [&[][..], &[0xab]] {
            assert_eq!(find(short, &directories), None);
        }
    }
}
