//! The load: the instructions for the kernel, in a file without a name, so that no file is left
//! behind.
//!
//! A load is a line `shootdown-load N` with the number of all bytes, lines of `name=value`, an
//! empty line, and a payload. `kernel/src/kernel/load.rs` reads it.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;

/// An open file with a load.
pub(crate) struct Load(File);

impl Load {
    pub(crate) fn new(values: &[(&str, String)], payload: &[u8]) -> io::Result<Self> {
        let mut file = tempfile::tempfile()?;
        file.write_all(&bytes(values, payload))?;
        Ok(Self(file))
    }

    /// Returns a path under which other processes can open the load while this process lives.
    pub(crate) fn path(&self) -> String {
        path_of(&self.0)
    }
}

/// Returns a path under which other processes can open the file while this process lives.
pub(crate) fn path_of(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

fn bytes(values: &[(&str, String)], payload: &[u8]) -> Vec<u8> {
    let lines: String = values.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    let first = |length: usize| format!("shootdown-load {length}\n");
    let rest = lines.len() + 1 + payload.len();
    // The digits of the number are counted as well.
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
    fn first_line_counts_all_bytes() {
        for size in [0, 60, 70, 71, 72, 73, 74, 75, 960, 975, 9990] {
            let load = bytes(&[("cpus", "4".to_owned())], &vec![7; size]);
            let text = load.strip_prefix(b"shootdown-load ").unwrap();
            let end = text.iter().position(|byte| *byte == b'\n').unwrap();
            let count: usize = std::str::from_utf8(&text[..end]).unwrap().parse().unwrap();
            assert_eq!(count, load.len(), "{size}");
            assert!(text[end..].starts_with(b"\ncpus=4\n\n"));
        }
    }

    #[test]
    fn other_process_can_read_load() {
        let load = Load::new(&[], b"payload").unwrap();
        let read = std::process::Command::new("cat").arg(load.path()).output().unwrap().stdout;
        assert_eq!(read, bytes(&[], b"payload"));
    }
}
