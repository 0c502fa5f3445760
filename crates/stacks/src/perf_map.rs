//! The maps of JIT compilers: `/tmp/perf-PID.map` has a line for each function, with its first
//! address, its size and its name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use shootdown_recording::record::{Frame, Layer};

/// The place of functions whose source is not known.
const JIT: &str = "[jit]";
/// The mark of Python's functions, which have the name of their file after them.
const PYTHON: &str = "py::";

/// The functions of a process that a JIT compiler made.
#[derive(Debug)]
pub(crate) struct PerfMap {
    paths: Vec<PathBuf>,
    /// The size and the name of each function, by its first address.
    functions: BTreeMap<u64, (u64, Box<str>)>,
    /// Number of bytes that were read: compilers append to the file.
    read_bytes: u64,
}

impl PerfMap {
    /// Returns the map of a process, which is not read yet.
    pub(crate) fn of(process: u32) -> Self {
        let mut paths = vec![PathBuf::from(format!("/tmp/perf-{process}.map"))];
        // A process in a container has another number and another root directory there.
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let number = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        if let Some(number) = number.and_then(|numbers| numbers.split_whitespace().last()) {
            paths.push(format!("/proc/{process}/root/tmp/perf-{number}.map").into());
        }
        Self::at(paths)
    }

    fn at(paths: Vec<PathBuf>) -> Self {
        Self { paths, functions: BTreeMap::new(), read_bytes: 0 }
    }

    /// Returns the function that contains `address`, from the map as it is now.
    pub(crate) fn frame(&mut self, address: u64) -> Option<Frame> {
        if self.function(address).is_none() {
            self.read_on();
        }
        self.function(address).map(frame)
    }

    fn function(&self, address: u64) -> Option<&str> {
        let (start, (size, name)) = self.functions.range(..=address).next_back()?;
        (address - start < *size).then_some(name)
    }

    /// Reads the lines that were added to the file. A file that became shorter is another one.
    fn read_on(&mut self) {
        let Some(mut file) = self.paths.iter().find_map(|path| File::open(path).ok()) else {
            return;
        };
        if file.metadata().is_ok_and(|file| file.len() < self.read_bytes) {
            (self.read_bytes, self.functions) = (0, BTreeMap::new());
        }
        let mut bytes = Vec::new();
        if file.seek(SeekFrom::Start(self.read_bytes)).is_err()
            || file.read_to_end(&mut bytes).is_err()
        {
            return;
        }
        // The last line may be incomplete.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.read_bytes += whole as u64;
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            if let Some((start, size, name)) = parse(line) {
                // The last line for an address counts: compilers reuse memory.
                self.functions.insert(start, (size, name));
            }
        }
    }
}

fn parse(line: &str) -> Option<(u64, u64, Box<str>)> {
    let mut words = line.splitn(3, ' ');
    let mut hex = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
    let (start, size) = (hex()?, hex()?);
    Some((start, size, words.next()?.into()))
}

/// Returns the call of a function with this name in a map.
fn frame(name: &str) -> Frame {
    let python = name.strip_prefix(PYTHON).and_then(|name| name.split_once(':'));
    let (function, file) = python.unwrap_or((name, JIT));
    Frame { layer: Layer::User, function: function.to_owned(), file: file.to_owned(), line: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn map_is_read_on_when_it_grows() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let mut map = PerfMap::at(vec!["/nowhere".into(), file.path().to_owned()]);
        let functions = |map: &mut PerfMap, at: &[u64]| -> Vec<_> {
            at.iter().map(|at| map.frame(*at).map(|frame| frame.function)).collect()
        };
        let name = |name: &str| Some(name.to_owned());
        assert_eq!(functions(&mut map, &[0x7f07]), [None]);
        write!(file, "7f00 10 old\n0x8000 20 two words\n7f00 8 new\nbroken\n9000 1").expect("room");
        let found = functions(&mut map, &[0x7f07, 0x7f08, 0x801f, 0x8020, 0x9000]);
        assert_eq!(found, [name("new"), None, name("two words"), None, None]);
        writeln!(file, " late").expect("room");
        assert_eq!(functions(&mut map, &[0x9000, 0x7f07]), [name("late"), name("new")]);
        file.as_file().set_len(0).expect("a file");
        assert_eq!(functions(&mut map, &[0xa000, 0x9000]), [None, None], "another file");
    }

    #[test]
    fn functions_of_python_have_a_file() {
        let shown = |name| (frame(name).function, frame(name).file);
        assert_eq!(shown("py::work:/src/a:b.py"), ("work".to_owned(), "/src/a:b.py".to_owned()));
        assert_eq!(shown("void A.b(int)"), ("void A.b(int)".to_owned(), "[jit]".to_owned()));
    }
}
