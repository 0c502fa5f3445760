//! Sweeps: grids of cells, each of which is one deterministic simulation or search.
//!
//! A [`Sweep`] is read from a [specification](Sweep::read). It numbers its cells, so that a process
//! can [run](Sweep::run) any of them without the others. The result of a cell is one line of JSON,
//! the same on any host. [`Rows`] keeps such lines in a file that survives a killed process, and
//! computes their digest. Cells share nothing: threads, shards and the workers of a cluster may run
//! them in any order.

// In reading order.
mod grid;
mod cell;
mod spec;
mod rows;
mod summary;
mod merge;
pub(crate) mod csv;
mod local;
mod describe;

use crate::error::{Failure, UserError};

pub use describe::{design_names, machine, machine_names, recording, workloads};
pub use merge::merge;
pub use rows::{Rows, Start};
pub use spec::Sweep;

pub(crate) use local::{End, Local};
pub(crate) use merge::Merged;
pub(crate) use rows::Shard;
pub(crate) use summary::Summary;

/// An error of a sweep as a whole: two lines, with the cause and a remedy.
///
/// The error of a single cell is not such an error, but a row.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SweepError(pub(crate) Failure);

impl<E: UserError + 'static> From<E> for SweepError {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}
