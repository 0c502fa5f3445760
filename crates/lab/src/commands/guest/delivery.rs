//! The files that the guest sends.

use std::collections::HashMap;
use std::ops::Range;

/// The files, by the names that the guest's script gives them.
#[derive(Clone, Debug, Default)]
pub(super) struct Delivery {
    bytes: Vec<u8>,
    files: HashMap<String, Range<usize>>,
}

impl Delivery {
    /// Parses everything that the guest sent. Returns `None` if the delivery is not complete.
    pub(super) fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut files = HashMap::new();
        let mut at = 0;
        loop {
            let line = bytes[at..].iter().position(|byte| *byte == b'\n')?;
            let head = std::str::from_utf8(&bytes[at..at + line]).ok()?;
            let (name, size) = head.split_once(' ')?;
            let begin = at + line + 1;
            if name == "end" {
                return Some(Self { bytes, files });
            }
            at = begin.checked_add(size.parse().ok()?).filter(|end| *end <= bytes.len())?;
            files.insert(name.to_owned(), begin..at);
        }
    }

    /// Returns the contents of a file, if the guest had it.
    pub(super) fn file(&self, name: &str) -> Option<&[u8]> {
        self.files.get(name).map(|range| &self.bytes[range.clone()])
    }

    /// Returns the contents of a file as text, without spaces at its ends.
    pub(super) fn text(&self, name: &str) -> String {
        let bytes = self.file(name).unwrap_or_default();
        String::from_utf8_lossy(bytes).trim().to_owned()
    }

    /// Returns the exit status of the recorder, which is the program's.
    pub(super) fn status(&self) -> u8 {
        self.text("status").parse().unwrap_or(u8::MAX)
    }

    /// Returns the number of flush functions that CPUs of the guest ran for other CPUs during the
    /// recording, as `/proc/interrupts` counts them ("TLB shootdowns").
    pub(super) fn shootdowns(&self) -> u64 {
        let count = |name| -> u64 {
            let text = self.text(name);
            text.split_whitespace().filter_map(|word| word.parse::<u64>().ok()).sum()
        };
        count("after").saturating_sub(count("before"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_may_contain_any_bytes() {
        let sent = b"status 2\n7\nstdout 6\n\0\nend end 0\n".to_vec();
        let delivery = Delivery::parse(sent).expect("a delivery");
        assert_eq!((delivery.status(), delivery.file("stdout")), (7, Some(&b"\0\nend "[..])));
        assert_eq!(delivery.file("taken0"), None);
    }

    #[test]
    fn delivery_that_ends_early_is_refused() {
        let sent = b"status 2\n7\nrecording 4\nabcdend 0\n";
        assert!(Delivery::parse(sent.to_vec()).is_some());
        for end in 0..sent.len() {
            assert!(Delivery::parse(sent[..end].to_vec()).is_none(), "{end}");
        }
    }

    #[test]
    fn shootdowns_are_summed_over_cpus() {
        let sent =
            b"before 25\nTLB: 1 2 TLB shootdowns \nafter 27\nTLB: 30 40 TLB shootdowns \nend 0\n";
        let delivery = Delivery::parse(sent.to_vec()).expect("a delivery");
        assert_eq!(delivery.shootdowns(), 67);
    }
}
