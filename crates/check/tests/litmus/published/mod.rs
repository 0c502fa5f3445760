//! The tests: names and verdicts as published, programs written anew.
//!
//! Where a published program has a variable's last value asked for, here a CPU sees it; where it
//! counts on a handler to say that there was a fault, here the fault is asked for.

mod invalid_to_valid;
mod later;
mod shootdown;
mod translations;
mod valid_to_invalid;

pub(crate) use invalid_to_valid::{INVALID_TO_VALID_ELSEWHERE, INVALID_TO_VALID_HERE, MULTI_COPY};
pub(crate) use later::LATER;
pub(crate) use shootdown::{BREAK_BEFORE_MAKE, SHOOTDOWN, SHOOTDOWN_BY_INTERRUPT, STALE_ELSEWHERE};
pub(crate) use translations::{FAULT_TO_FAULT, TRANSLATION_TO_TRANSLATION};
pub(crate) use valid_to_invalid::{ASIDS, VALID_TO_INVALID};
