//! Foundations: the rules of memory ordering, shared words, and plain numbers.

pub mod rules;
pub(crate) mod memory;
pub(crate) mod ids;
pub(crate) mod cache_padded;
pub(crate) mod costs;
