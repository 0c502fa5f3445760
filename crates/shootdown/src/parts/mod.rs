//! Data structures that need shared words alone: the pages that a flush covers, the sets of CPUs
//! that it reads, the log, presence, the doorbell, and the choice of a method.

pub(crate) mod extent;
pub(crate) mod extent_set;
pub(crate) mod hook;
pub(crate) mod cpu_set;
pub(crate) mod flush_log;
pub(crate) mod presence;
pub(crate) mod hazard;
pub(crate) mod bell;
pub(crate) mod phase;
pub(crate) mod cpumask;
pub(crate) mod secondary;
pub(crate) mod stats;
pub(crate) mod trace_event;
pub(crate) mod method;
