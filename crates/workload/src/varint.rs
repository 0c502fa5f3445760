//! Numbers of 64 bits in as few bytes as they need: LEB128, seven bits a byte, the lowest first.

use alloc::vec::Vec;
use core::fmt;

/// Why bytes are no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end in the middle of something.
    End,
    /// A number is larger than it may be.
    Number,
    /// There is nothing that has this number.
    Unknown,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::End => "it ends too early",
            Self::Number => "a number is too large",
            Self::Unknown => "nothing that is known here",
        })
    }
}

impl core::error::Error for Malformed {}

const MORE: u8 = 0x80;

/// Appends a number, 1 to 10 bytes.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= u64::from(MORE) {
        out.push(value as u8 | MORE);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Numbers near 0 as small ones: 0, -1, 1, -2, 2 …
#[cfg(feature = "simulated")]
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The other way.
#[cfg(feature = "simulated")]
#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// A place in bytes that nobody vouches for.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// How many bytes are before it.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Whether nothing is behind it.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Everything behind it.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.bytes.get(self.at).ok_or(Malformed::End)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.get(..count).ok_or(Malformed::End)?;
        self.at += count;
        Ok(taken)
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        let first = self.byte()?;
        if first < MORE { Ok(first.into()) } else { self.varint_after(first) }
    }

    /// A number that must fit a smaller type.
    #[cfg(feature = "simulated")]
    #[inline]
    pub(crate) fn narrow(&mut self) -> Result<u32, Malformed> {
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
        fn a_number_is_read_as_it_was_written(value: u64, shift in 0..64_u32) {
            prop_assert_eq!(round(value >> shift), Ok(value >> shift));
            let signed = value as i64 >> shift;
            prop_assert_eq!(unzigzag(zigzag(signed)), signed);
        }
    }

    #[test]
    fn numbers_near_zero_are_short_whatever_their_sign() {
        assert_eq!([0, -1, 1, -64, 63].map(zigzag), [0, 1, 2, 127, 126]);
        assert_eq!([i64::MIN, i64::MAX].map(|v| unzigzag(zigzag(v))), [i64::MIN, i64::MAX]);
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused_and_so_is_half_a_number() {
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
