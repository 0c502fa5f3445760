//! How much is written at once: a few thousand records, with a frame that says how many, and a
//! checksum.

/// As many bytes of records as a block has.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 10;
/// The length of a frame.
pub(super) const FRAME_BYTES: usize = 20;
/// Where in it the checksum is.
const CHECKSUM_AT: usize = 16;

/// What a block begins with. Its numbers have their lowest byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) contents: Contents,
    /// Which block it is, from 0 on: one that is missing is missed.
    pub(super) number: u32,
    /// How many records.
    pub(super) records: u32,
    /// How many bytes follow the frame.
    pub(super) length: u32,
}

/// What follows a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contents {
    /// Records.
    Records,
    /// Totals, and the end.
    Totals,
}

impl Contents {
    const ALL: [Self; 2] = [Self::Records, Self::Totals];

    fn tag(self) -> [u8; 4] {
        match self {
            Self::Records => *b"RECS",
            Self::Totals => *b"ENDS",
        }
    }
}

impl Frame {
    /// The frame of a block with this payload.
    pub(super) fn bytes(&self, payload: &[u8]) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        let numbers = [self.number, self.records, self.length].map(u32::to_le_bytes);
        for (place, part) in
            bytes.chunks_exact_mut(4).zip([self.contents.tag()].iter().chain(&numbers))
        {
            place.copy_from_slice(part);
        }
        let checksum = checksum(&bytes[..CHECKSUM_AT], payload);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// A frame, if it is one.
    pub(super) fn of_bytes(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let word = |at| u32::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        let contents =
            Contents::ALL.into_iter().find(|contents| bytes.starts_with(&contents.tag()))?;
        let frame = Self { contents, number: word(4), records: word(8), length: word(12) };
        (frame.length as usize <= PAYLOAD_BYTES_MAX).then_some(frame)
    }
}

/// Of what a file has in two pieces.
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
    fn a_frame_is_read_as_it_was_written_if_its_length_is_one() {
        for contents in Contents::ALL {
            let frame = Frame { contents, number: 1, records: 2, length: PAYLOAD_BYTES_MAX as u32 };
            assert_eq!(Frame::of_bytes(&frame.bytes(b"payload")), Some(frame));
            let longer = Frame { length: frame.length + 1, ..frame };
            assert_eq!(Frame::of_bytes(&longer.bytes(b"payload")), None);
        }
        assert_eq!(Frame::of_bytes(&[0; FRAME_BYTES]), None);
    }
}
