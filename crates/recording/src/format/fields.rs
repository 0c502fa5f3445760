//! The encodings of a record's fields.

use core::marker::PhantomData;
use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use shootdown_program::varint::{Cursor, put, unzigzag, zigzag};

use super::base::{Base, put_size, take_size};
use super::rules::Invalid;
use super::{CPUS_MAX, NAME_BYTES_MAX};
use crate::record::{FaultCode, FlushReason, FrameId, Layer, Left, Owner, SpaceId, TaskId, Waker};

/// An encoding, as the header of a file describes it. A new encoding needs a new major version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Encoding {
    Unsigned,
    Signed,
    Address,
    Size,
    Text,
    Cpus,
    Choice(Vec<Cow<'static, str>>),
}

impl Encoding {
    /// Decodes a field and discards it. An address changes the base of later addresses.
    pub(super) fn skip(&self, from: &mut Cursor<'_>, base: &mut Base) -> Result<(), Invalid> {
        match self {
            Self::Unsigned | Self::Signed | Self::Choice(_) => from.varint().map(drop)?,
            Self::Address => base.take_address(from).map(drop)?,
            Self::Size => take_size(from).map(drop)?,
            Self::Text => text(from).map(drop)?,
            Self::Cpus => cpus(from).map(drop)?,
        }
        Ok(())
    }
}

/// The encoding of values of type `T`.
pub(super) trait Code<T> {
    fn put(out: &mut Vec<u8>, base: &mut Base, value: &T);
    fn take(from: &mut Cursor<'_>, base: &mut Base) -> Result<T, Invalid>;
}

/// Numbers without a sign.
pub(super) struct Unsigned;
/// Numbers that may be negative.
pub(super) struct Signed;
/// Addresses, relative to the last address of the same CPU.
pub(super) struct Address;
/// Numbers of bytes.
pub(super) struct Size;
/// Names of tasks.
pub(super) struct Text;
/// Sets of CPUs, in ascending order.
pub(super) struct Cpus;
/// Types that implement [`Choice`].
pub(super) struct One<C>(PhantomData<C>);

impl<C: Choice> One<C> {
    pub(super) fn encoding() -> Encoding {
        Encoding::Choice(C::ALL.iter().map(|(name, _)| (*name).into()).collect())
    }
}

impl<C: Choice> Code<C> for One<C> {
    #[inline]
    fn put(out: &mut Vec<u8>, _: &mut Base, value: &C) {
        put(out, value.number());
    }
    #[inline]
    fn take(from: &mut Cursor<'_>, _: &mut Base) -> Result<C, Invalid> {
        C::of_number(from.varint()?)
    }
}

/// Implements encodings. For each: the expression that encodes, and the expression that decodes.
macro_rules! code {
    ($($code:ident: $type:ty = |$out:ident, $base:pat_param, $value:ident| $put:expr,
        |$from:ident, $other:pat_param| $take:expr;)*) => {$(
        impl Code<$type> for $code {
            #[inline]
            fn put($out: &mut Vec<u8>, $base: &mut Base, $value: &$type) {
                $put;
            }
            #[inline]
            fn take($from: &mut Cursor<'_>, $other: &mut Base) -> Result<$type, Invalid> {
                $take
            }
        }
    )*};
}

code! {
    Unsigned: u64 = |out, _, value| put(out, *value), |from, _| Ok(from.varint()?);
    Unsigned: u32 = |out, _, value| put(out, (*value).into()), |from, _| Ok(from.narrow()?);
    Unsigned: TaskId =
        |out, _, value| put(out, value.0.into()), |from, _| Ok(TaskId(from.narrow()?));
    Unsigned: SpaceId =
        |out, _, value| put(out, value.0.into()), |from, _| Ok(SpaceId(from.narrow()?));
    Unsigned: FrameId =
        |out, _, value| put(out, value.0.into()), |from, _| Ok(FrameId(from.narrow()?));
    Unsigned: FaultCode =
        |out, _, value| put(out, value.0.into()), |from, _| Ok(FaultCode(from.narrow()?));
    Signed: i64 = |out, _, value| put(out, zigzag(*value)), |from, _| Ok(unzigzag(from.varint()?));
    Address: u64 =
        |out, base, value| base.put_address(out, *value), |from, base| base.take_address(from);
    Address: i64 = |out, base, value| base.put_address(out, *value as u64),
        |from, base| Ok(base.take_address(from)? as i64);
    Size: u64 = |out, _, value| put_size(out, *value), |from, _| take_size(from);
    Text: String = |out, _, value| {
            put(out, value.len() as u64);
            out.extend_from_slice(value.as_bytes());
        },
        |from, _| Ok(str::from_utf8(text(from)?).map_err(|_| Invalid::Text)?.to_owned());
    Cpus: Vec<u32> = |out, _, value| put_cpus(out, value), |from, _| cpus(from);
}

/// Decodes a name, which may not be UTF-8.
fn text<'a>(from: &mut Cursor<'a>) -> Result<&'a [u8], Invalid> {
    match usize::try_from(from.varint()?) {
        Ok(length @ 0..=NAME_BYTES_MAX) => Ok(from.take(length)?),
        _ => Err(Invalid::LongName),
    }
}

/// Encodes the number of CPUs, the first CPU, and the number of CPUs between each two.
fn put_cpus(out: &mut Vec<u8>, cpus: &[u32]) {
    put(out, cpus.len() as u64);
    let mut next = 0;
    for &cpu in cpus {
        put(out, (cpu - next).into());
        next = cpu + 1;
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

/// A type with a few values, each encoded as its index in [`ALL`](Self::ALL).
pub(super) trait Choice: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    #[inline]
    fn number(self) -> u64 {
        Self::ALL.iter().take_while(|(_, choice)| *choice != self).count() as u64
    }

    #[inline]
    fn of_number(number: u64) -> Result<Self, Invalid> {
        let place = usize::try_from(number).ok();
        let (_, choice) =
            place.and_then(|place| Self::ALL.get(place)).ok_or(Invalid::Choice(number))?;
        Ok(*choice)
    }
}

impl Choice for Owner {
    const ALL: &'static [(&'static str, Self)] =
        &[("recorded", Self::Recorded), ("other", Self::Other)];
}

impl Choice for Layer {
    const ALL: &'static [(&'static str, Self)] = &[("kernel", Self::Kernel), ("user", Self::User)];
}

impl Choice for Left {
    const ALL: &'static [(&'static str, Self)] =
        &[("runnable", Self::Runnable), ("blocked", Self::Blocked), ("dead", Self::Dead)];
}

impl Choice for Waker {
    const ALL: &'static [(&'static str, Self)] =
        &[("running", Self::Running), ("interrupt", Self::Interrupt)];
}

impl Choice for FlushReason {
    const ALL: &'static [(&'static str, Self)] = &[
        ("task_switch", Self::TaskSwitch),
        ("remote", Self::Remote),
        ("local", Self::Local),
        ("local_space", Self::LocalSpace),
        ("request", Self::Request),
        ("wrong_cpu", Self::WrongCpu),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_numbered_and_others_refused() {
        fn check<C: Choice + core::fmt::Debug>() {
            for (number, (_, choice)) in (0..).zip(C::ALL) {
                assert_eq!(choice.number(), number);
                assert_eq!(C::of_number(number), Ok(*choice));
            }
            for number in [C::ALL.len() as u64, u64::MAX] {
                assert_eq!(C::of_number(number), Err(Invalid::Choice(number)));
            }
        }
        check::<Owner>();
        check::<Layer>();
        check::<Left>();
        check::<Waker>();
        check::<FlushReason>();
    }
}
