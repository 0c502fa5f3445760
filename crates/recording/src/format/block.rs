//! Blocks: up to 64 KiB of records, which are written together. A frame before them has their
//! number and a checksum.

/// Largest number of bytes of records in a block.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// Number of bytes of a frame.
pub(super) const FRAME_BYTES: usize = 20;
/// Offset of the checksum in a frame.
const CHECKSUM_AT: usize = 16;

/// The start of a block. Its numbers are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: BlockKind,
    /// Index of the block, from 0 on. A missing block leaves a gap.
    pub(super) number: u32,
    /// Number of records in the block.
    pub(super) records: u32,
    /// Number of bytes that follow the frame.
    pub(super) length: u32,
}

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockKind {
    /// Records.
    Records,
    /// The totals. The end of the file follows them.
    Totals,
}

impl BlockKind {
    const ALL: [Self; 2] = [Self::Records, Self::Totals];

    fn tag(self) -> [u8; 4] {
        match self {
            Self::Records => *b"RECS",
            Self::Totals => *b"ENDS",
        }
    }
}

impl Frame {
    /// Encodes the frame of a block that has this payload.
    pub(super) fn bytes(&self, payload: &[u8]) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let numbers = [self.number, self.records, self.length].map(u32::to_le_bytes);
        for (place, part) in bytes.chunks_exact_mut(4).zip([self.kind.tag()].iter().chain(&numbers))
        {
            place.copy_from_slice(part);
        }
        let checksum = checksum(&bytes[..CHECKSUM_AT], payload);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a frame; `None` if the bytes are not a frame.
    pub(super) fn of_bytes(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let word = |at| u32::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let kind = BlockKind::ALL.into_iter().find(|kind| bytes.starts_with(&kind.tag()))?;
        let frame = Self { kind, number: word(4), records: word(8), length: word(12) };
        (frame.length as usize <= PAYLOAD_BYTES_MAX).then_some(frame)
    }
}

/// Returns the checksum of two byte strings, one after the other.
pub(super) fn checksum(first: &[u8], second: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(first);
    hasher.update(second);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_survives_encoding_unless_too_long() {
        for kind in BlockKind::ALL {
            let frame = Frame { kind, number: 1, records: 2, length: PAYLOAD_BYTES_MAX as u32 };
            assert_eq!(Frame::of_bytes(&frame.bytes(b"payload")), Some(frame));
            let longer = Frame { length: frame.length + 1, ..frame };
            assert_eq!(Frame::of_bytes(&longer.bytes(b"payload")), None);
        }
        assert_eq!(Frame::of_bytes(&[0; FRAME_BYTES]), None);
    }
}
