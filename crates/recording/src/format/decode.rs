//! A record from bytes that nobody vouches for.

use super::base::{Base, take_size};
use super::encode::OTHER_CPU;
use super::rules::Invalid;
use super::schema::{Choice, Encoding, Field, Treatment, kind};
use super::{CPUS_MAX, NAME_BYTES_MAX};
use crate::record::{Call, Event, FaultCode, Record, SpaceId, TaskId};
use shootdown_program::varint::{Cursor, unzigzag};

/// What there was.
#[derive(Debug)]
pub(super) enum Decoded {
    /// A record, which may break rules.
    Record(Record),
    /// One of a kind that is not known here.
    Skipped { time_ns: u64, cpu: u32 },
}

/// Reads a record, of a kind that the file describes.
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
            Ok(Decoded::Record(Record { time_ns, cpu, event: event(from, base, kind)? }))
        }
        Treatment::Skip(fields) => {
            skip(from, base, fields)?;
            Ok(Decoded::Skipped { time_ns, cpu })
        }
        Treatment::Refuse => Err(Invalid::UnknownKind(kind)),
    }
}

#[inline]
fn event(from: &mut Cursor<'_>, base: &mut Base, kind: u8) -> Result<Event, Invalid> {
    Ok(match kind {
        kind::TASK => Event::Task {
            task: task(from)?,
            owner: choice(from)?,
            space: space(from)?,
            name: name(from)?,
        },
        kind::RUNNING => Event::Running { task: task(from)? },
        kind::SWITCH => Event::Switch { next: task(from)?, left: choice(from)? },
        kind::WAKE => Event::Wake { task: task(from)?, by: choice(from)? },
        kind::SPAWN => Event::Spawn { task: task(from)?, space: space(from)?, name: name(from)? },
        kind::EXEC => Event::Exec { space: space(from)?, name: name(from)? },
        kind::EXIT => Event::Exit,
        kind::RETURN => Event::Return { value: unzigzag(from.varint()?) },
        kind::RETURN_ADDRESS => Event::Return { value: base.take_address(from)? as i64 },
        kind::FAULT => {
            Event::Fault { address: base.take_address(from)?, code: FaultCode(from.narrow()?) }
        }
        kind::FLUSH => Event::Flush { reason: choice(from)?, pages: Some(from.varint()?) },
        kind::FLUSH_ALL => Event::Flush { reason: choice(from)?, pages: None },
        kind::INTERRUPTS => Event::Interrupts { targets: cpus(from)? },
        kind::LOST => Event::Lost { count: from.varint()? },
        _ => Event::Call(call(from, base, kind)?),
    })
}

#[inline]
fn call(from: &mut Cursor<'_>, base: &mut Base, kind: u8) -> Result<Call, Invalid> {
    let address = base.take_address(from)?;
    Ok(match kind {
        kind::MAP => Call::Map {
            address,
            length: take_size(from)?,
            protection: from.narrow()?,
            flags: from.narrow()?,
        },
        kind::UNMAP => Call::Unmap { address, length: take_size(from)? },
        kind::PROTECT => {
            Call::Protect { address, length: take_size(from)?, protection: from.narrow()? }
        }
        kind::ADVISE => Call::Advise { address, length: take_size(from)?, advice: from.narrow()? },
        kind::REMAP => Call::Remap {
            address,
            old_length: take_size(from)?,
            new_length: take_size(from)?,
            flags: from.narrow()?,
            new_address: base.take_address(from)?,
        },
        kind::BREAK => Call::Break { address },
        _ => return Err(Invalid::UnknownKind(kind)),
    })
}

fn task(from: &mut Cursor<'_>) -> Result<TaskId, Invalid> {
    Ok(TaskId(from.narrow()?))
}

fn space(from: &mut Cursor<'_>) -> Result<SpaceId, Invalid> {
    Ok(SpaceId(from.narrow()?))
}

fn choice<C: Choice>(from: &mut Cursor<'_>) -> Result<C, Invalid> {
    C::of_number(from.varint()?)
}

fn name(from: &mut Cursor<'_>) -> Result<String, Invalid> {
    let text = str::from_utf8(text(from)?).map_err(|_| Invalid::Text)?;
    Ok(text.to_owned())
}

fn text<'a>(from: &mut Cursor<'a>) -> Result<&'a [u8], Invalid> {
    match usize::try_from(from.varint()?) {
        Ok(length @ 0..=NAME_BYTES_MAX) => Ok(from.take(length)?),
        _ => Err(Invalid::LongName),
    }
}

fn cpus(from: &mut Cursor<'_>) -> Result<Vec<u32>, Invalid> {
    let count = from.narrow()?;
    if count > CPUS_MAX {
        return Err(Invalid::Number);
    }
    let mut next = 0_u32;
    (0..count)
        .map(|_| {
            let cpu = next.checked_add(from.narrow()?).ok_or(Invalid::Number)?;
            next = cpu.checked_add(1).ok_or(Invalid::Number)?;
            Ok(cpu)
        })
        .collect()
}

/// Steps over fields. Addresses count, as others are relative to them.
fn skip(from: &mut Cursor<'_>, base: &mut Base, fields: &[Field]) -> Result<(), Invalid> {
    for field in fields {
        match field.encoding {
            Encoding::Unsigned | Encoding::Signed | Encoding::Choice(_) => _ = from.varint()?,
            Encoding::Address => _ = base.take_address(from)?,
            Encoding::Size => _ = take_size(from)?,
            Encoding::Text => _ = text(from)?,
            Encoding::Cpus => _ = cpus(from)?,
        }
    }
    Ok(())
}
