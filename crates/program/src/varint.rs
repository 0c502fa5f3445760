//! Numbers of 64 bits in as few bytes as they need: LEB128, with seven bits in each byte, the
//! lowest bits first.

use alloc::vec::Vec;

use thiserror::Error;

/// The reason why bytes cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The bytes end in the middle of a value.
    #[error("the bytes end too early")]
    End,
    /// A number is too large for its type.
    #[error("a number is too large")]
    Number,
    /// No variant has this code.
    #[error("an unknown code")]
    Unknown,
}

const MORE: u8 = 0x80;

/// Appends a number as 1 to 10 bytes.
#[inline]
pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= u64::from(MORE) {
        out.push(value as u8 | MORE);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Maps signed numbers near 0 to small unsigned ones: 0, -1, 1, -2, 2 … become 0, 1, 2, 3, 4 …
#[must_use]
#[inline]
pub fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Inverts [`zigzag`].
#[must_use]
#[inline]
pub fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// A position in bytes that may be damaged.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Creates a cursor after the first `at` bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// Returns the number of bytes before the cursor.
    #[must_use]
    pub const fn at(&self) -> usize {
        self.at
    }

    /// Returns `true` if no byte follows.
    #[must_use]
    pub const fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns all bytes that follow.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Reads a byte.
    ///
    /// # Errors
    ///
    /// Fails if no byte follows.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed::End)?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads `count` bytes.
    ///
    /// # Errors
    ///
    /// Fails if fewer bytes follow.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let bytes = self.rest().get(..count).ok_or(Malformed::End)?;
        self.at += count;
        Ok(bytes)
    }

    /// Reads a number.
    ///
    /// # Errors
    ///
    /// Fails if the bytes end too early, or the number has more than 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        if first < MORE { Ok(first.into()) } else { self.varint_after(first) }
    }

    /// Reads a number of at most 32 bits.
    ///
    /// # Errors
    ///
    /// Fails as [`varint`](Self::varint) does, or if the number has more than 32 bits.
    #[inline]
    pub fn narrow(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed::Number)
    }

    fn varint_after(&mut self, first: u8) -> Result<u64, Malformed> {
        let mut value = u64::from(first & !MORE);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & !MORE);
            if bits << shift >> shift != bits {
                return Err(Malformed::Number);
            }
            value |= bits << shift;
            if byte < MORE {
                return Ok(value);
            }
        }
        Err(Malformed::Number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round(value: u64) -> Result<u64, Malformed> {
        let mut out = Vec::new();
        put(&mut out, value);
        let mut cursor = Cursor::new(&out, 0);
        let read = cursor.varint();
        assert_eq!(cursor.at(), out.len());
        read
    }

    proptest! {
        #[test]
        fn number_survives_encoding(value: u64, shift in 0..64_u32) {
            prop_assert_eq!(round(value >> shift), Ok(value >> shift));
            let signed = value as i64 >> shift;
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }

    #[test]
    fn numbers_near_zero_are_short() {
        assert_eq!([0, -1, 1, -64, 63].map(zigzag), [0, 1, 2, 127, 126]);
        assert_eq!([i64::MIN, i64::MAX].map(|v| unzigzag(zigzag(v))), [i64::MIN, i64::MAX]);
    }

    #[test]
    fn overlong_and_truncated_numbers_are_refused() {
        let read = |bytes: &[u8]| Cursor::new(bytes, 0).varint();
        let mut bytes = [0xff; 10];
        bytes[9] = 1;
        assert_eq!(read(&bytes), Ok(u64::MAX));
        bytes[9] = 2;
        assert_eq!(read(&bytes), Err(Malformed::Number));
        assert_eq!(read(&[0xff; 10]), Err(Malformed::Number));
        assert_eq!(read(&[0xff; 9]), Err(Malformed::End));
        assert_eq!(read(&[]), Err(Malformed::End));
        let wide = [0x80, 0x80, 0x80, 0x80, 0x10];
        assert_eq!(Cursor::new(&wide, 0).narrow(), Err(Malformed::Number));
    }
}
