//! Reads lines of text that is not trusted.

use std::io::{BufRead, Read as _};

use super::ImportError;

/// The longest line that is read. The tools' lines have some hundred bytes.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;

/// Reads one line after the other, and counts them.
#[derive(Debug)]
pub(super) struct Lines<R> {
    text: R,
    bytes: Vec<u8>,
    /// The number of the line that was read last; the first is 1.
    pub(super) number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(text: R) -> Self {
        Self { text, bytes: Vec::new(), number: 0 }
    }

    /// Returns the next line, without its line feed. Bytes that are not UTF-8 are replaced.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, ImportError> {
        self.bytes.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let mut limited = self.text.by_ref().take(limit);
        limited.read_until(b'\n', &mut self.bytes).map_err(ImportError::Read)?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if self.bytes.pop() == Some(b'\n') {
            return Ok(Some(String::from_utf8_lossy(&self.bytes).into_owned()));
        }
        let line = self.number;
        if self.bytes.len() == LINE_BYTES_MAX {
            return Err(ImportError::LongLine { line });
        }
        Err(ImportError::Cut { line })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_line_is_read_and_longer_refused() {
        let mut text = vec![b'x'; LINE_BYTES_MAX];
        text.push(b'\n');
        let mut lines = Lines::new(text.as_slice());
        assert_eq!(lines.next_line().unwrap().map(|line| line.len()), Some(LINE_BYTES_MAX));
        assert_eq!(lines.next_line().unwrap(), None);
        text.insert(0, b'x');
        let refused = Lines::new(text.as_slice()).next_line();
        assert!(matches!(refused, Err(ImportError::LongLine { line: 1 })), "{refused:?}");
    }

    #[test]
    fn text_cut_within_a_line_is_refused() {
        let mut lines = Lines::new(&b"whole\n\xffcu"[..]);
        assert_eq!(lines.next_line().unwrap().as_deref(), Some("whole"));
        let refused = lines.next_line();
        assert!(matches!(refused, Err(ImportError::Cut { line: 2 })), "{refused:?}");
    }
}
