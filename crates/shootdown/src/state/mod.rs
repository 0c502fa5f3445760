//! The contract with the machine, and the state that lasts between two calls: of a space, of a
//! CPU, of their tags, and of the engine. Only modules of this chapter depend on each other.

pub(crate) mod broadcaster;
pub(crate) mod machine;
pub(crate) mod vcpu;
pub(crate) mod space;
pub(crate) mod space_ids;
pub(crate) mod cpu_state;
pub(crate) mod stall;
pub(crate) mod tag;
pub(crate) mod engine;
pub(crate) mod pinned_cpu;
pub(crate) mod engine_cell;
pub(crate) mod walk;
pub(crate) mod devices;
