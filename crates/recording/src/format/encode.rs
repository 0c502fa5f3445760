//! A record as bytes: its kind and whether the CPU is another, the CPU if it is, the time since
//! the record before, and the fields as the schema has them.

use super::base::{Base, put_size};
use super::schema::{Choice, kind};
use crate::record::{Call, Event, Record};
use shootdown_program::varint::{put, zigzag};

/// In a record's first byte, beside its kind: the CPU is another than the last record's.
pub(super) const OTHER_CPU: u8 = 0x80;

/// Returned values below are no addresses, nor are errors.
const ADDRESSES_FROM: i64 = 4096;
const ERRORS_FROM: i64 = -4095;

/// As long as a record gets without names and targets: that of `mremap` has 58 bytes at most.
const FIXED_BYTES_MAX: usize = 64;
/// As long as a CPU's number gets.
const CPU_BYTES_MAX: usize = 2;

/// As long as a record of this gets, or longer.
#[inline]
pub(super) fn bytes_max(event: &Event) -> usize {
    let more = match event {
        Event::Task { name, .. } | Event::Spawn { name, .. } | Event::Exec { name, .. } => {
            name.len()
        }
        Event::Interrupts { targets } => CPU_BYTES_MAX * targets.len(),
        _ => 0,
    };
    FIXED_BYTES_MAX + more
}

/// Appends a record that the rules allow.
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

#[inline]
fn kind_of(event: &Event) -> u8 {
    match event {
        Event::Task { .. } => kind::TASK,
        Event::Running { .. } => kind::RUNNING,
        Event::Switch { .. } => kind::SWITCH,
        Event::Wake { .. } => kind::WAKE,
        Event::Spawn { .. } => kind::SPAWN,
        Event::Exec { .. } => kind::EXEC,
        Event::Exit => kind::EXIT,
        Event::Call(Call::Map { .. }) => kind::MAP,
        Event::Call(Call::Unmap { .. }) => kind::UNMAP,
        Event::Call(Call::Protect { .. }) => kind::PROTECT,
        Event::Call(Call::Advise { .. }) => kind::ADVISE,
        Event::Call(Call::Remap { .. }) => kind::REMAP,
        Event::Call(Call::Break { .. }) => kind::BREAK,
        Event::Return { value: ERRORS_FROM..ADDRESSES_FROM } => kind::RETURN,
        Event::Return { .. } => kind::RETURN_ADDRESS,
        Event::Fault { .. } => kind::FAULT,
        Event::Flush { pages: Some(_), .. } => kind::FLUSH,
        Event::Flush { pages: None, .. } => kind::FLUSH_ALL,
        Event::Interrupts { .. } => kind::INTERRUPTS,
        Event::Lost { .. } => kind::LOST,
    }
}

#[inline]
fn put_event(out: &mut Vec<u8>, base: &mut Base, event: &Event) {
    match event {
        Event::Task { task, owner, space, name } => {
            put(out, task.0.into());
            put(out, owner.number());
            put(out, space.0.into());
            put_text(out, name);
        }
        Event::Running { task } => put(out, task.0.into()),
        Event::Switch { next, left } => {
            put(out, next.0.into());
            put(out, left.number());
        }
        Event::Wake { task, by } => {
            put(out, task.0.into());
            put(out, by.number());
        }
        Event::Spawn { task, space, name } => {
            put(out, task.0.into());
            put(out, space.0.into());
            put_text(out, name);
        }
        Event::Exec { space, name } => {
            put(out, space.0.into());
            put_text(out, name);
        }
        Event::Exit => {}
        Event::Call(call) => put_call(out, base, call),
        Event::Return { value: value @ ERRORS_FROM..ADDRESSES_FROM } => put(out, zigzag(*value)),
        Event::Return { value } => base.put_address(out, *value as u64),
        Event::Fault { address, code } => {
            base.put_address(out, *address);
            put(out, code.0.into());
        }
        Event::Flush { reason, pages } => {
            put(out, reason.number());
            if let Some(pages) = pages {
                put(out, *pages);
            }
        }
        Event::Interrupts { targets } => put_cpus(out, targets),
        Event::Lost { count } => put(out, *count),
    }
}

#[inline]
fn put_call(out: &mut Vec<u8>, base: &mut Base, call: &Call) {
    match *call {
        Call::Map { address, length, protection, flags } => {
            base.put_address(out, address);
            put_size(out, length);
            put(out, protection.into());
            put(out, flags.into());
        }
        Call::Unmap { address, length } => {
            base.put_address(out, address);
            put_size(out, length);
        }
        Call::Protect { address, length, protection: word }
        | Call::Advise { address, length, advice: word } => {
            base.put_address(out, address);
            put_size(out, length);
            put(out, word.into());
        }
        Call::Remap { address, old_length, new_length, flags, new_address } => {
            base.put_address(out, address);
            put_size(out, old_length);
            put_size(out, new_length);
            put(out, flags.into());
            base.put_address(out, new_address);
        }
        Call::Break { address } => base.put_address(out, address),
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// How many there are, the first, and how many are left out before each that follows.
fn put_cpus(out: &mut Vec<u8>, cpus: &[u32]) {
    put(out, cpus.len() as u64);
    let mut next = 0;
    for &cpu in cpus {
        put(out, (cpu - next).into());
        next = cpu + 1;
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
    fn no_record_is_longer_than_is_made_room_for() {
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
    fn a_fault_on_the_next_page_takes_four_bytes_and_another_for_its_cpu() {
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
