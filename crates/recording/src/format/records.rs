//! The table of the kinds of records: their numbers and names, and the names and encodings of
//! their fields. A macro generates the description in a file's header, the encoder and the decoder
//! from the table.
//!
//! A record is a byte with its kind and a mark; the CPU, if the mark is set because the CPU differs
//! from the last record's; the time since the last record; and the fields.

use shootdown_program::varint::{Cursor, put};

use super::base::Base;
use super::fields::{Address, Code as _, Cpus, Encoding, One, Signed, Size, Text, Unsigned};
use super::rules::Invalid;
use super::schema::{Field, Kind, Treatment};
use crate::record::{Call, Event, FlushReason, Frame, Layer, Left, Owner, Record, Waker};

/// The mark in a record's first byte: the CPU differs from the last record's.
const OTHER_CPU: u8 = 0x80;

/// Values that calls return are encoded as addresses from this value on, and below `ERRORS_FROM`.
const ADDRESSES_FROM: i64 = 4096;
/// The lowest error number.
const ERRORS_FROM: i64 = -4095;

/// An upper bound of the bytes of a record without names and targets. `mremap` needs 58.
const FIXED_BYTES_MAX: usize = 64;
/// Largest number of bytes of a CPU's number.
const CPU_BYTES_MAX: usize = 2;

/// Generates the description, the encoder and the decoder. An entry has the kind's number and
/// name, the names and encodings of its fields in order, and the event that has these fields, as a
/// pattern and as an expression. An event is encoded as the first kind that it matches.
macro_rules! kinds {
    ($($number:literal $name:literal [$($field:ident: $code:ident $(<$choice:ident>)?),*]
        ($($event:tt)*) $(if $guard:expr)?;)*) => {
        /// Returns the kinds that are written, in the order of their numbers.
        pub(super) fn kinds() -> Vec<Kind> {
            vec![$(Kind {
                number: $number,
                name: $name.into(),
                fields: vec![$(Field {
                    name: stringify!($field).into(),
                    encoding: kinds!(@encoding $code $(<$choice>)?),
                }),*],
            }),*]
        }

        #[inline]
        fn kind_of(event: &Event) -> u8 {
            #[expect(unused_variables, reason = "the fields of the pattern")]
            match event {
                $($($event)* $(if $guard)? => $number,)*
            }
        }

        #[inline]
        fn put_event(out: &mut Vec<u8>, base: &mut Base, event: &Event) {
            match event {
                $($($event)* $(if $guard)? => {
                    $(<$code $(<$choice>)?>::put(out, base, $field);)*
                })*
            }
        }

        #[inline]
        fn take_event(
            from: &mut Cursor<'_>,
            base: &mut Base,
            kind: u8,
        ) -> Result<Event, Invalid> {
            Ok(match kind {
                $($number => {
                    $(let $field = <$code $(<$choice>)?>::take(from, base)?;)*
                    $($event)*
                })*
                _ => return Err(Invalid::UnknownKind(kind)),
            })
        }
    };
    (@encoding One<$choice:ident>) => { One::<$choice>::encoding() };
    (@encoding $code:ident) => { Encoding::$code };
}

kinds! {
    0 "task" [task: Unsigned, owner: One<Owner>, space: Unsigned, name: Text]
        (Event::Task { task, owner, space, name });
    1 "running" [task: Unsigned] (Event::Running { task });
    2 "switch" [next: Unsigned, left: One<Left>] (Event::Switch { next, left });
    3 "wake" [task: Unsigned, by: One<Waker>] (Event::Wake { task, by });
    4 "spawn" [task: Unsigned, space: Unsigned, name: Text] (Event::Spawn { task, space, name });
    5 "exec" [space: Unsigned, name: Text] (Event::Exec { space, name });
    6 "exit" [] (Event::Exit);
    7 "map" [address: Address, length: Size, protection: Unsigned, flags: Unsigned]
        (Event::Call(Call::Map { address, length, protection, flags }));
    8 "unmap" [address: Address, length: Size] (Event::Call(Call::Unmap { address, length }));
    9 "protect" [address: Address, length: Size, protection: Unsigned]
        (Event::Call(Call::Protect { address, length, protection }));
    10 "advise" [address: Address, length: Size, advice: Unsigned]
        (Event::Call(Call::Advise { address, length, advice }));
    11 "remap" [
        address: Address, old_length: Size, new_length: Size, flags: Unsigned, new_address: Address
    ] (Event::Call(Call::Remap { address, old_length, new_length, flags, new_address }));
    12 "break" [address: Address] (Event::Call(Call::Break { address }));
    13 "return" [value: Signed]
        (Event::Return { value }) if (ERRORS_FROM..ADDRESSES_FROM).contains(value);
    14 "return_address" [value: Address] (Event::Return { value });
    15 "fault" [address: Address, code: Unsigned] (Event::Fault { address, code });
    16 "flush" [reason: One<FlushReason>, pages: Unsigned]
        (Event::Flush { reason, pages: Some(pages) });
    17 "flush_all" [reason: One<FlushReason>] (Event::Flush { reason, pages: None });
    18 "interrupts" [targets: Cpus] (Event::Interrupts { targets });
    19 "lost" [count: Unsigned] (Event::Lost { count });
    20 "requests" [targets: Cpus] (Event::Requests { targets });
    21 "frame" [
        frame: Unsigned, caller: Unsigned, layer: One<Layer>, function: Text, file: Text,
        line: Unsigned
    ] (Event::Frame { frame, caller, function: Frame { layer, function, file, line } });
    22 "stack" [frame: Unsigned, requests: Unsigned] (Event::Stack { frame, requests });
    23 "name" [frame: Unsigned, function: Text, file: Text]
        (Event::Name { frame, function, file });
    24 "counted" [requests: Unsigned] (Event::Counted { requests });
    25 "sync" [address: Address, length: Size, flags: Unsigned]
        (Event::Call(Call::Sync { address, length, flags }));
}

/// Returns an upper bound of the bytes of a record with this event.
#[inline]
pub(super) fn bytes_max(event: &Event) -> usize {
    let more = match event {
        Event::Task { name, .. } | Event::Spawn { name, .. } | Event::Exec { name, .. } => {
            name.len()
        }
        Event::Frame { function, .. } => function.function.len() + function.file.len(),
        Event::Name { function, file, .. } => function.len() + file.len(),
        Event::Interrupts { targets } | Event::Requests { targets } => {
            CPU_BYTES_MAX * targets.len()
        }
        _ => 0,
    };
    FIXED_BYTES_MAX + more
}

/// Appends a record, which the rules have admitted.
pub(super) fn encode(out: &mut Vec<u8>, base: &mut Base, record: &Record) {
    let Record { time_ns, cpu, event } = record;
    let kind = kind_of(event);
    if *cpu == base.cpu {
        out.push(kind);
    } else {
        out.push(kind | OTHER_CPU);
        put(out, (*cpu).into());
        base.cpu = *cpu;
    }
    put(out, time_ns - base.time_ns);
    base.time_ns = *time_ns;
    put_event(out, base, event);
}

/// A record that was decoded.
#[derive(Debug)]
pub(super) enum Decoded {
    /// A record of a known kind. The rules have not admitted it yet.
    Record(Record),
    /// A record of a kind that the reader does not know.
    Skipped { time_ns: u64, cpu: u32 },
}

/// Decodes a record, from bytes that may be damaged.
pub(super) fn decode(
    from: &mut Cursor<'_>,
    base: &mut Base,
    treatments: &[Treatment],
) -> Result<Decoded, Invalid> {
    let head = from.byte()?;
    if head & OTHER_CPU != 0 {
        base.move_to(from.narrow()?)?;
    }
    let time_ns = base.time_ns.checked_add(from.varint()?).ok_or(Invalid::Number)?;
    base.time_ns = time_ns;
    let cpu = base.cpu;
    let kind = head & !OTHER_CPU;
    match &treatments[usize::from(kind)] {
        Treatment::Decode => {
            Ok(Decoded::Record(Record { time_ns, cpu, event: take_event(from, base, kind)? }))
        }
        Treatment::Skip(fields) => {
            fields.iter().try_for_each(|field| field.encoding.skip(from, base))?;
            Ok(Decoded::Skipped { time_ns, cpu })
        }
        Treatment::Refuse => Err(Invalid::UnknownKind(kind)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::CPUS_MAX;
    use crate::record::FaultCode;

    fn encoded_bytes(event: Event) -> (usize, usize) {
        let (mut out, mut base) = (Vec::new(), Base::new(CPUS_MAX));
        let bytes_max = bytes_max(&event);
        encode(&mut out, &mut base, &Record { time_ns: u64::MAX, cpu: CPUS_MAX - 1, event });
        (out.len(), bytes_max)
    }

    #[test]
    fn records_fit_their_upper_bound() {
        let call = Call::Remap {
            address: 1 << 63 | 0xfff,
            old_length: u64::MAX,
            new_length: u64::MAX,
            flags: u32::MAX,
            new_address: 0xffe,
        };
        let (bytes, bytes_max) = encoded_bytes(Event::Call(call));
        assert_eq!((bytes, bytes_max), (58, FIXED_BYTES_MAX));
        let (bytes, bytes_max) = encoded_bytes(Event::Interrupts { targets: vec![CPUS_MAX - 1] });
        assert!(bytes <= bytes_max);
        let targets = (0..CPUS_MAX).collect();
        let (bytes, bytes_max) = encoded_bytes(Event::Interrupts { targets });
        assert!(bytes <= bytes_max);
    }

    #[test]
    fn fault_on_next_page_takes_four_bytes() {
        let (mut out, mut base) = (Vec::new(), Base::new(2));
        let lengths =
            [(100, 0, 5), (200, 0, 6), (300, 0, 7), (400, 1, 7)].map(|(time_ns, cpu, page)| {
                let event =
                    Event::Fault { address: 0x7f00_0000_0000 + (page << 12), code: FaultCode(6) };
                let before = out.len();
                encode(&mut out, &mut base, &Record { time_ns, cpu, event });
                out.len() - before
            });
        assert_eq!(lengths[1..3], [4, 4]);
        assert_eq!(lengths[3], lengths[0] + 1);
    }
}
