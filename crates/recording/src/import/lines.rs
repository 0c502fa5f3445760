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
    /// `true` if the text ends within the line after that.
    pub(super) is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(text: R) -> Self {
        Self { text, bytes: Vec::new(), number: 0, is_cut: false }
    }

    /// Returns the next line, without its line feed. Bytes that are not UTF-8 are replaced. A line
    /// without a line feed is left out: the text was cut.
    pub(super) fn next_line(&mut self) -> Result<Option<String>, ImportError> {
        self.bytes.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let mut limited = self.text.by_ref().take(limit);
        limited.read_until(b'\n', &mut self.bytes).map_err(ImportError::Read)?;
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let line = self.number + 1;
        if self.bytes.pop() == Some(b'\n') {
            self.number = line;
            return Ok(Some(String::from_utf8_lossy(&self.bytes).into_owned()));
        }
        if self.bytes.len() == LINE_BYTES_MAX {
            return Err(ImportError::LongLine { line });
        }
        self.is_cut = true;
        Ok(None)
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
    fn cut_line_is_left_out() {
        let mut lines = Lines::new(&b"whole\n\xffcu"[..]);
        assert_eq!(lines.next_line().unwrap().as_deref(), Some("whole"));
        assert!(!lines.is_cut);
        assert_eq!(lines.next_line().unwrap(), None);
        assert_eq!((lines.is_cut, lines.number), (true, 1));
    }
}
