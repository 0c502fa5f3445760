//! What the kernel is to do, in a file that has no name: nothing is left behind, however this ends.
//!
//! A line `shootdown-load N` with the number of all bytes, lines of `name=value`, an empty line,
//! and what those are about: as `kernel/src/kernel/load.rs` reads it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

pub(crate) struct Load(File);

impl Load {
    pub(crate) fn new(values: &[(&str, String)], payload: &[u8]) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&bytes(values, payload))?;
        Ok(Self(file))
    }

    /// Where another process finds it, while this one lives.
    pub(crate) fn path(&self) -> String {
        path_of(&self.0)
    }
}

/// Where another process finds an open file, while this one lives.
pub(crate) fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn bytes(values: &[(&str, String)], payload: &[u8]) -> Vec<u8> {
    let lines: String = values.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let first = |length: usize| format!("shootdown-load {length}\n");
    let rest = lines.len() + 1 + payload.len();
    // The number is part of what it counts.
    let mut length = rest;
    while first(length).len() + rest != length {
        length = first(length).len() + rest;
    }
    [first(length).as_bytes(), lines.as_bytes(), b"\n", payload].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_counts_all_bytes() {
        for size in [0, 60, 70, 71, 72, 73, 74, 75, 960, 975, 9990] {
            let load = bytes(&[("cpus", "4".to_owned())], &vec![7; size]);
            let text = load.strip_prefix(b"shootdown-load ").unwrap();
            let end = text.iter().position(|byte| *byte == b'\n').unwrap();
            let said: usize = std::str::from_utf8(&text[..end]).unwrap().parse().unwrap();
            assert_eq!(said, load.len(), "{size}");
            assert!(text[end..].starts_with(b"\ncpus=4\n\n"));
        }
    }

    #[test]
    fn another_process_finds_it() {
        let load = Load::new(&[], b"payload").unwrap();
        let read = std::process::Command::new("cat").arg(load.path()).output().unwrap().stdout;
        assert_eq!(read, bytes(&[], b"payload"));
    }
}
