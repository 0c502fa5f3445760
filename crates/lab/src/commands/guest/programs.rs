//! The programs of the guest: where the host has them, and the interpreters and shared libraries
//! that they need.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::{Files, file_error};
use super::children;
use super::error::GuestError;
use crate::commands::record::Signals;

const ELF: &[u8] = b"\x7fELF";

/// Number of scripts that may be each other's interpreters. Linux's own limit.
const INTERPRETERS_MAX: u32 = 5;

/// Adds a program of the host and its interpreter, if it is a script. Returns its path.
///
/// # Errors
///
/// If there is no such program.
pub(super) fn add(files: &mut Files, program: &OsStr) -> Result<PathBuf, GuestError> {
    add_at_depth(files, program, INTERPRETERS_MAX)
}

fn add_at_depth(files: &mut Files, program: &OsStr, depth: u32) -> Result<PathBuf, GuestError> {
    let path = find(program).ok_or_else(|| GuestError::NotFound(program.to_owned()))?;
    files.host(&path)?;
    let words = interpreter(&path)?;
    if let (Some((interpreter, arguments)), Some(depth)) =
        (words.split_first(), depth.checked_sub(1))
    {
        let found = add_at_depth(files, interpreter, depth)?;
        if found.file_name() == Some(OsStr::new("env")) {
            let named = arguments.iter().find(|word| !word.as_bytes().starts_with(b"-"));
            named.map(|named| add_at_depth(files, named, depth)).transpose()?;
        }
    }
    Ok(path)
}

/// Returns the absolute path of a program, as a shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    };
    if program.as_bytes().contains(&b'/') {
        return std::path::absolute(program).ok().filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(is_program)
}

/// Returns the words of the first line of a script, or nothing.
fn interpreter(path: &Path) -> Result<Vec<OsString>, GuestError> {
    let mut head = Vec::new();
    let file = File::open(path).map_err(file_error(path))?;
    file.take(256).read_to_end(&mut head).map_err(file_error(path))?;
    let Some(line) = head.strip_prefix(b"#!") else { return Ok(Vec::new()) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    Ok(words.map(|word| OsStr::from_bytes(word).to_owned()).collect())
}

/// Adds the shared libraries of all programs and libraries among the files.
///
/// # Errors
///
/// If `ldd` is missing, or a library is.
pub(super) fn add_libraries(files: &mut Files, signals: &mut Signals) -> Result<(), GuestError> {
    let elf: Vec<PathBuf> =
        files.sources().filter(|path| is_elf(path)).map(Path::to_owned).collect();
    for elf in elf.chunks(LDD_FILES_MAX) {
        let mut ldd = Command::new("ldd");
        ldd.args(elf).env("LC_ALL", "C");
        // The status is that of the last file, and is a failure for a static program.
        let output = children::finished(("ldd", "libc-bin"), &mut ldd, signals)?;
        let text = String::from_utf8_lossy(&output.stdout);
        for needed in needed(&text) {
            match needed {
                Needed::At(path) => files.host(Path::new(path))?,
                // A library may be optional for a plug-in in a directory of the user.
                Needed::Missing { by, .. } if is_plug_in(by) => {}
                Needed::Missing { by, library } => {
                    let program = by.map_or_else(|| elf[0].clone(), PathBuf::from);
                    return Err(GuestError::NoLibrary { program, library: library.to_owned() });
                }
            }
        }
    }
    Ok(())
}

/// Number of files for one run of `ldd`: arguments have a limit.
const LDD_FILES_MAX: usize = 500;

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *ELF)
}

fn is_plug_in(file: Option<&str>) -> bool {
    file.is_some_and(|file| file.contains(".so"))
}

/// A library that `ldd` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed<'a> {
    At(&'a str),
    Missing { by: Option<&'a str>, library: &'a str },
}

/// Parses the output of `ldd`. With several files, a line with the name of a file comes before its
/// libraries.
fn needed(text: &str) -> impl Iterator<Item = Needed<'_>> {
    let mut by = None;
    text.lines().filter_map(move |line| {
        if !line.starts_with(char::is_whitespace) {
            by = line.strip_suffix(':');
            return None;
        }
        let (name, place) = line.split_once("=>").unwrap_or((line, line));
        if place.trim() == "not found" {
            return Some(Needed::Missing { by, library: name.trim() });
        }
        let path = place.split_whitespace().next()?;
        path.starts_with('/').then_some(Needed::At(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_ldd_is_parsed() {
        let text = "/bin/a:\n\tlinux-vdso.so.1 (0x7)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x2)\nb:\n\tlibz.so.1 => not found\n\
                    static:\n\tnot a dynamic executable\n\tstatically linked\n";
        let missing = Needed::Missing { by: Some("b"), library: "libz.so.1" };
        let expected =
            [Needed::At("/lib/libc.so.6"), Needed::At("/lib64/ld-linux-x86-64.so.2"), missing];
        assert_eq!(needed(text).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn script_brings_its_interpreter() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("script");
        std::fs::write(&script, "#!/usr/bin/env -S sh -e\necho\n").expect("a file");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let mut files = Files::default();
        assert_eq!(add(&mut files, script.as_os_str()).expect("a program"), script);
        let sources: Vec<_> = files.sources().collect();
        assert!(sources.iter().any(|path| path.ends_with("env")), "{sources:?}");
        assert!(sources.len() >= 3, "{sources:?}");
        let missing = add(&mut files, OsStr::new("no-such-program"));
        assert!(matches!(missing, Err(GuestError::NotFound(_))));
    }
}
