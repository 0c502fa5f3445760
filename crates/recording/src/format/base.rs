//! The values that numbers of a block are relative to, and the encodings of addresses and sizes.
//!
//! Most faults are a few pages after the last fault of the same CPU, and most arguments of calls
//! are whole pages. Addresses and sizes are therefore encoded in pages, with a mark if a number of
//! bytes follows.

use super::rules::Invalid;
use shootdown_program::varint::{Cursor, put, unzigzag, zigzag};

const PAGE_SHIFT: u32 = 12;
const BYTES_MASK: u64 = (1 << PAGE_SHIFT) - 1;
/// Number of pages of 64-bit addresses.
const PAGES: u64 = 1 << (64 - PAGE_SHIFT);

/// The time and the CPU of the last record, and each CPU's last address. They are zero at the
/// start of a block, so that a reader can decode a block without the blocks before it.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) time_ns: u64,
    pub(super) cpu: u32,
    addresses: Vec<u64>,
}

impl Base {
    /// `cpus` is bounded by [`CPUS_MAX`](super::CPUS_MAX).
    pub(super) fn new(cpus: u32) -> Self {
        Self { time_ns: 0, cpu: 0, addresses: vec![0; cpus as usize] }
    }

    pub(super) fn reset(&mut self) {
        (self.time_ns, self.cpu) = (0, 0);
        self.addresses.fill(0);
    }

    /// Sets the CPU to a number that a file contains. Fails if the recording has no such CPU.
    pub(super) fn move_to(&mut self, cpu: u32) -> Result<(), Invalid> {
        if cpu as usize >= self.addresses.len() {
            return Err(Invalid::UnknownCpu(cpu));
        }
        self.cpu = cpu;
        Ok(())
    }

    /// Appends an address. 0 stands for no address in many calls: its encoding is absolute, and
    /// the next address is not relative to it.
    #[inline]
    pub(super) fn put_address(&mut self, out: &mut Vec<u8>, address: u64) {
        if address == 0 {
            return put(out, 0);
        }
        let last = &mut self.addresses[self.cpu as usize];
        let difference = address.wrapping_sub(*last);
        *last = address;
        let bytes = difference & BYTES_MASK;
        put(out, (zigzag(difference as i64 >> PAGE_SHIFT) << 1 | u64::from(bytes != 0)) + 1);
        if bytes != 0 {
            put(out, bytes);
        }
    }

    /// Decodes an address.
    #[inline]
    pub(super) fn take_address(&mut self, from: &mut Cursor<'_>) -> Result<u64, Invalid> {
        let Some(code) = from.varint()?.checked_sub(1) else { return Ok(0) };
        let pages = code >> 1;
        if pages >= PAGES {
            return Err(Invalid::Number);
        }
        let difference = unzigzag(pages) << PAGE_SHIFT | take_bytes(from, code)? as i64;
        let last = &mut self.addresses[self.cpu as usize];
        *last = last.wrapping_add_signed(difference);
        Ok(*last)
    }
}

/// Appends a size in bytes.
#[inline]
pub(super) fn put_size(out: &mut Vec<u8>, size: u64) {
    let bytes = size & BYTES_MASK;
    put(out, size >> PAGE_SHIFT << 1 | u64::from(bytes != 0));
    if bytes != 0 {
        put(out, bytes);
    }
}

/// Decodes a size in bytes.
#[inline]
pub(super) fn take_size(from: &mut Cursor<'_>) -> Result<u64, Invalid> {
    let code = from.varint()?;
    if code >> 1 >= PAGES {
        return Err(Invalid::Number);
    }
    Ok(code >> 1 << PAGE_SHIFT | take_bytes(from, code)?)
}

/// Decodes the bytes beyond whole pages, if the mark in `code` is set.
#[inline]
fn take_bytes(from: &mut Cursor<'_>, code: u64) -> Result<u64, Invalid> {
    if code & 1 == 0 {
        return Ok(0);
    }
    let bytes = from.varint()?;
    if bytes > BYTES_MASK { Err(Invalid::Number) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_and_sizes_survive_encoding(
            values: Vec<u64>, shift in 0..64_u32, whole_pages: bool,
        ) {
            let mask = if whole_pages { !BYTES_MASK } else { u64::MAX };
            let values: Vec<u64> = values.into_iter().map(|v| v >> shift & mask).collect();
            let mut out = Vec::new();
            let mut base = Base::new(1);
            for &value in &values {
                base.put_address(&mut out, value);
                put_size(&mut out, value);
            }
            base.reset();
            let mut from = Cursor::new(&out, 0);
            for value in values {
                prop_assert_eq!(base.take_address(&mut from), Ok(value));
                prop_assert_eq!(take_size(&mut from), Ok(value));
            }
            prop_assert_eq!(from.at(), out.len());
        }
    }

    #[test]
    fn next_page_and_null_take_a_byte_each() {
        let mut out = Vec::new();
        let mut base = Base::new(1);
        base.put_address(&mut out, 0x7f00_1234_5678);
        let first = out.len();
        for address in [0x7f00_1234_6678, 0, 0x7f00_1234_7678] {
            base.put_address(&mut out, address);
        }
        assert_eq!(out.len(), first + 3);
    }

    #[test]
    fn excess_pages_and_bytes_are_refused() {
        for (code, bytes) in [(PAGES << 1, 0), (u64::MAX, 1), (1, BYTES_MASK + 1)] {
            let mut out = Vec::new();
            put(&mut out, code);
            put(&mut out, bytes);
            assert_eq!(take_size(&mut Cursor::new(&out, 0)), Err(Invalid::Number));
            let mut out = Vec::new();
            put(&mut out, code.saturating_add(1));
            put(&mut out, bytes);
            let address = Base::new(1).take_address(&mut Cursor::new(&out, 0));
            assert_eq!(address, Err(Invalid::Number));
        }
    }
}
