//! The encodings of operations, in one table. A macro generates the encoder and the decoder.
//!
//! A code never changes its meaning. New variants get new codes.

use alloc::vec::Vec;
use core::ops::Range;

use crate::operation::{
    Access, AreaId, Entry, FileId, Filling, Folios, LockId, Mapping, Moves, Operation, Permission,
    ProgramId, RawAddress, Start,
};
use crate::varint::{Cursor, Malformed, put};

/// A value that can be encoded and decoded.
pub(super) trait Field: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed>;
}

/// Implements the encoding of enums. For each variant: a byte with its code, and its fields in
/// order.
macro_rules! codes {
    ($($kind:ident { $($code:literal = $variant:ident { $($field:tt: $it:ident),* })* })*) => {$(
        impl Field for $kind {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field: $it),* } => {
                        out.push($code);
                        $($it.put(out);)*
                    })*
                }
            }

            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                Ok(match from.byte()? {
                    $($code => Self::$variant { $($field: Field::take(from)?),* },)*
                    _ => return Err(Malformed::Unknown),
                })
            }
        }
    )*};
}

codes! {
    Operation {
        0 = Map { area: a, pages: n, permission: p, mapping: m }
        1 = Unmap { area: a, pages: r }
        2 = Protect { area: a, pages: r, permission: p }
        3 = Discard { area: a, pages: r }
        4 = MovePages { area: a, pages: r, node: n }
        5 = Touch { area: a, pages: r, access: t }
        6 = Segfault { area: a, page: n }
        7 = RawAddress { 0: b }
        8 = Fork { 0: p }
        9 = Spawn { 0: p }
        10 = Join { 0: p }
        11 = Exec {}
        12 = Migrate { 0: c }
        13 = Yield {}
        14 = Block {}
        15 = Sleep { 0: t }
        16 = Wake { 0: p }
        17 = Lock { 0: l }
        18 = Unlock { 0: l }
        19 = SystemCall {}
        20 = Compute { 0: t }
        21 = Begin {}
        22 = End { iterations: n }
        23 = PageOut { area: a, pages: r }
        24 = DiscardEach { area: a, pages: r, step: n }
        25 = Offer { area: a, pages: r }
        26 = Collapse { area: a, pages: r }
        27 = Sync { area: a, pages: r }
        28 = Remap { area: a, from: n, to: t, moves: m }
        29 = Hint { area: a, pages: r }
        30 = Truncate { file: f, pages: n }
        31 = UseLargePages { area: a, pages: r }
    }
    RawAddress {
        0 = Map { pages: r, permission: p, mapping: m, filling: f }
        1 = Unmap { 0: r }
        2 = Protect { pages: r, permission: p }
        3 = Discard { 0: r }
        4 = Offer { 0: r }
        5 = Collapse { 0: r }
        6 = MovePages { pages: r, node: n }
        7 = Move { from: f, to: t }
        8 = Fault { page: n, access: t, entry: e }
        9 = Populate { pages: r, access: t }
        10 = Cool { 0: r }
        11 = PageOut { 0: r }
        12 = UseFolios { pages: r, folios: f }
        13 = Sync { 0: r }
    }
    Permission { 0 = None {} 1 = Read {} 2 = ReadWrite {} }
    Mapping { 0 = Anonymous {} 1 = PrivateFile { 0: f } 2 = SharedFile { 0: f } }
    Access { 0 = Read {} 1 = Write {} }
    Moves { 0 = IfNecessary {} 1 = Always {} }
    Filling { 0 = OnDemand {} 1 = AtOnce {} }
    Folios { 0 = Small {} 1 = Large {} 2 = LargeTracked {} }
    Entry { 0 = Absent {} 1 = Refusing {} }
}

/// Implements the encoding of numbers.
macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Field for $number {
            fn put(&self, out: &mut Vec<u8>) {
                put(out, *self as u64);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                from.varint()?.try_into().map_err(|_| Malformed::Number)
            }
        }
    )*};
}

numbers!(u32, u64, usize);

/// Implements the encoding of types that wrap a number.
macro_rules! wrappers {
    ($($id:ident),*) => {$(
        impl Field for $id {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
                Field::take(from).map(Self)
            }
        }
    )*};
}

wrappers!(AreaId, FileId, ProgramId, LockId);

/// The first number, and the length.
impl Field for Range<u64> {
    fn put(&self, out: &mut Vec<u8>) {
        self.start.put(out);
        // The difference wraps around, so that a range that ends before its start is preserved.
        self.end.wrapping_sub(self.start).put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let (start, length) = (u64::take(from)?, u64::take(from)?);
        Ok(start..start.wrapping_add(length))
    }
}

impl Field for Start {
    fn put(&self, out: &mut Vec<u8>) {
        self.program.put(out);
        self.cpu.map_or(0, |cpu| cpu + 1).put(out);
    }
    fn take(from: &mut Cursor<'_>) -> Result<Self, Malformed> {
        let (program, cpu) = (ProgramId::take(from)?, usize::take(from)?);
        Ok(Self { program, cpu: cpu.checked_sub(1) })
    }
}
