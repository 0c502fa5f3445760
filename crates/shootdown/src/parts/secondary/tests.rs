use super::*;
use crate::soft::{Config, Host, Soft};
use core::mem;
use std::format;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn changes_in_progress_are_counted_to_the_limit() {
    let engine = Soft::<Host>::engine(Config::default());
    let (machine, changes) = (engine.machine(), PrimaryChanges::default());
    assert!(changes.begin_fault(machine).is_some());
    // As after so many starts, which take Miri minutes.
    changes.word.store(IN_PROGRESS - 1, Relaxed);
    mem::forget(changes.start(machine));
    assert_eq!(changes.begin_fault(machine), None);
    let one_more = catch_unwind(AssertUnwindSafe(|| mem::forget(changes.start(machine))));
    assert!(one_more.is_err());
}

#[test]
fn fault_is_refused_while_any_change_is_in_progress() {
    let engine = Soft::<Host>::engine(Config::default());
    let (machine, changes) = (engine.machine(), PrimaryChanges::default());
    let before = changes.begin_fault(machine).unwrap();
    assert!(changes.may_install(machine, before));
    let (first, second) = (changes.start(machine), changes.start(machine));
    assert!(!changes.may_install(machine, before));
    drop(first);
    assert_eq!(changes.begin_fault(machine), None);
    assert_eq!(format!("{second:?}"), "PrimaryChange(PrimaryChanges { ended: 1, in_progress: 1 })");
    drop(second);
    assert!(!changes.may_install(machine, before));
    let after = changes.begin_fault(machine).unwrap();
    assert!(changes.may_install(machine, after));
}
