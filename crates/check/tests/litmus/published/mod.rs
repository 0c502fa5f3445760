//! The tests: names and verdicts as published, programs rewritten.
//!
//! Where a published program asks for the last value of a variable, here a CPU observes that value.
//! Where it relies on a handler to report a fault, here the fault is the condition.

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
