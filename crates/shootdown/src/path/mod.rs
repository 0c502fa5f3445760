//! The main path: a CPU switches, another flushes, the first answers or catches up later.

pub(crate) mod quarantine;
pub(crate) mod pending;
pub(crate) mod trace;
pub(crate) mod devices;
pub(crate) mod broadcast;
pub(crate) mod catch_up;
pub(crate) mod switch;
pub(crate) mod loaded;
pub(crate) mod notify;
pub(crate) mod user_mode;
pub(crate) mod flush;
pub(crate) mod flush_wait;
pub(crate) mod flush_ipi;
