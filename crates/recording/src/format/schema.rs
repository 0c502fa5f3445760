//! The kinds of records, as a file's header describes them: with this, a reader can step over
//! kinds that it does not know, and a program that knows none can list them all.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::rules::Invalid;
use crate::record::{FlushReason, Left, Owner, Waker};

/// The kinds' numbers.
pub(super) mod kind {
    pub(crate) const TASK: u8 = 0;
    pub(crate) const RUNNING: u8 = 1;
    pub(crate) const SWITCH: u8 = 2;
    pub(crate) const WAKE: u8 = 3;
    pub(crate) const SPAWN: u8 = 4;
    pub(crate) const EXEC: u8 = 5;
    pub(crate) const EXIT: u8 = 6;
    pub(crate) const MAP: u8 = 7;
    pub(crate) const UNMAP: u8 = 8;
    pub(crate) const PROTECT: u8 = 9;
    pub(crate) const ADVISE: u8 = 10;
    pub(crate) const REMAP: u8 = 11;
    pub(crate) const BREAK: u8 = 12;
    /// Zero, or an error.
    pub(crate) const RETURN: u8 = 13;
    pub(crate) const RETURN_ADDRESS: u8 = 14;
    pub(crate) const FAULT: u8 = 15;
    pub(crate) const FLUSH: u8 = 16;
    pub(crate) const FLUSH_ALL: u8 = 17;
    pub(crate) const INTERRUPTS: u8 = 18;
    pub(crate) const LOST: u8 = 19;
}

/// One more than the greatest number of a kind: seven bits.
const KINDS: usize = 128;

/// A kind of records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kind {
    pub(super) number: u8,
    name: Cow<'static, str>,
    pub(super) fields: Vec<Field>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Field {
    name: Cow<'static, str>,
    pub(super) encoding: Encoding,
}

/// How a field is written. A new one needs a new major version.
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

/// One of a few, written as its place in the list.
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

/// What a reader does with a kind of a file.
#[derive(Clone, Debug)]
pub(super) enum Treatment {
    /// The file does not describe it.
    Refuse,
    /// It is known here.
    Decode,
    /// It is not: step over its fields.
    Skip(Vec<Field>),
}

/// What to do with each number, by what a file's header says.
pub(super) fn treatments(of_file: Vec<Kind>) -> Result<Vec<Treatment>, Invalid> {
    let known = kinds();
    let mut treatments = vec![Treatment::Refuse; KINDS];
    for kind in of_file {
        let refused = Err(Invalid::Schema(kind.number));
        match treatments.get_mut(usize::from(kind.number)) {
            Some(treatment @ Treatment::Refuse) => {
                *treatment = match known.get(usize::from(kind.number)) {
                    Some(known) if *known == kind => Treatment::Decode,
                    Some(_) => return refused,
                    None => Treatment::Skip(kind.fields),
                };
            }
            _ => return refused,
        }
    }
    Ok(treatments)
}

/// The kinds that are written here, in the order of their numbers.
pub(super) fn kinds() -> Vec<Kind> {
    use Encoding::{Address, Cpus, Signed, Size, Text, Unsigned};
    let describe = |number, name, fields: &[(&'static str, Encoding)]| Kind {
        number,
        name: Cow::Borrowed(name),
        fields: fields
            .iter()
            .map(|(name, encoding)| Field { name: (*name).into(), encoding: encoding.clone() })
            .collect(),
    };
    let (address, length) = (("address", Address), ("length", Size));
    let (task, space, name) = (("task", Unsigned), ("space", Unsigned), ("name", Text));
    let (protection, flags) = (("protection", Unsigned), ("flags", Unsigned));
    let (owner, left, by) =
        (("owner", one_of::<Owner>()), ("left", one_of::<Left>()), ("by", one_of::<Waker>()));
    let reason = ("reason", one_of::<FlushReason>());
    vec![
        describe(kind::TASK, "task", &[task.clone(), owner, space.clone(), name.clone()]),
        describe(kind::RUNNING, "running", &[("task", Unsigned)]),
        describe(kind::SWITCH, "switch", &[("next", Unsigned), left]),
        describe(kind::WAKE, "wake", &[task.clone(), by]),
        describe(kind::SPAWN, "spawn", &[task, space.clone(), name.clone()]),
        describe(kind::EXEC, "exec", &[space, name]),
        describe(kind::EXIT, "exit", &[]),
        describe(
            kind::MAP,
            "map",
            &[address.clone(), length.clone(), protection.clone(), flags.clone()],
        ),
        describe(kind::UNMAP, "unmap", &[address.clone(), length.clone()]),
        describe(kind::PROTECT, "protect", &[address.clone(), length.clone(), protection]),
        describe(kind::ADVISE, "advise", &[address.clone(), length, ("advice", Unsigned)]),
        describe(
            kind::REMAP,
            "remap",
            &[
                address.clone(),
                ("old_length", Size),
                ("new_length", Size),
                flags,
                ("new_address", Address),
            ],
        ),
        describe(kind::BREAK, "break", &[("address", Address)]),
        describe(kind::RETURN, "return", &[("value", Signed)]),
        describe(kind::RETURN_ADDRESS, "return_address", &[("value", Address)]),
        describe(kind::FAULT, "fault", &[address, ("code", Unsigned)]),
        describe(kind::FLUSH, "flush", &[reason.clone(), ("pages", Unsigned)]),
        describe(kind::FLUSH_ALL, "flush_all", &[reason]),
        describe(kind::INTERRUPTS, "interrupts", &[("targets", Cpus)]),
        describe(kind::LOST, "lost", &[("count", Unsigned)]),
    ]
}

fn one_of<C: Choice>() -> Encoding {
    Encoding::Choice(C::ALL.iter().map(|(name, _)| (*name).into()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_numbered_from_zero_on_and_have_different_names() {
        let kinds = kinds();
        assert!(kinds.iter().map(|kind| usize::from(kind.number)).eq(0..kinds.len()));
        let mut names: Vec<_> = kinds.iter().map(|kind| &*kind.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), kinds.len());
    }

    #[test]
    fn choices_are_numbered_and_others_are_refused() {
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
        check::<Left>();
        check::<Waker>();
        check::<FlushReason>();
    }

    #[test]
    fn a_known_kind_that_is_described_otherwise_is_refused_and_so_is_one_described_twice() {
        let refused = |change: fn(&mut Vec<Kind>)| {
            let mut kinds = kinds();
            change(&mut kinds);
            treatments(kinds).err()
        };
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|kinds| kinds.reverse()), None);
        assert_eq!(refused(|kinds| drop(kinds.remove(4))), None);
        assert_eq!(refused(|kinds| kinds.push(kinds[3].clone())), Some(Invalid::Schema(3)));
        assert_eq!(refused(|kinds| kinds[2].fields.reverse()), Some(Invalid::Schema(2)));
        assert_eq!(refused(|kinds| kinds[5].number = 128), Some(Invalid::Schema(128)));
    }
}
