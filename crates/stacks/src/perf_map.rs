//! The maps of JIT compilers: `/tmp/perf-PID.map` has a line for each function, with its first
//! address, its size and its name.

use std::fs;
use std::path::Path;

/// The functions of a process that a JIT compiler made.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// Sorted by the first address.
    functions: Vec<(u64, u64, Box<str>)>,
}

impl PerfMap {
    /// Reads the map of a process from `directory`. Without a map there are no functions.
    pub(crate) fn read(directory: &Path, process: u32) -> Self {
        let path = directory.join(format!("perf-{process}.map"));
        Self::parse(&String::from_utf8_lossy(&fs::read(path).unwrap_or_default()))
    }

    fn parse(text: &str) -> Self {
        let mut functions: Vec<_> = text.lines().filter_map(parse).collect();
        // The last line for an address counts: compilers reuse memory.
        functions.reverse();
        functions.sort_by_key(|(start, ..)| *start);
        functions.dedup_by_key(|(start, ..)| *start);
        Self { functions }
    }

    /// Returns the function that contains `address`.
    pub(crate) fn function(&self, address: u64) -> Option<&str> {
        let after = self.functions.partition_point(|(start, ..)| *start <= address);
        let (start, size, name) = self.functions.get(after.checked_sub(1)?)?;
        (address - start < *size).then_some(name)
    }
}

fn parse(line: &str) -> Option<(u64, u64, Box<str>)> {
    let mut words = line.splitn(3, ' ');
    let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (start, size) = (hex()?, hex()?);
    Some((start, size, words.next()?.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_function_at_an_address_counts() {
        let text = "7f00 10 old\n0x8000 20 two words\n7f00 8 new\nbroken\n";
        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("perf-7.map"), text).expect("a file");
        let map = PerfMap::read(directory.path(), 7);
        assert_eq!(
            [0x7f07, 0x7f08, 0x801f, 0x8020].map(|at| map.function(at)),
            [Some("new"), None, Some("two words"), None]
        );
        assert_eq!(PerfMap::read(directory.path(), 8).function(0x7f07), None);
    }
}
