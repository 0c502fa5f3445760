//! How the hardware tells one space's translations from another's.

pub(crate) mod slots;
