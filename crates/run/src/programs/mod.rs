//! Benchmarks, as generators of operations.

mod crowd;
mod linked;
mod loops;
mod page_heap;
mod pressure;
mod seed000;
mod seed001;
mod seed002;
mod seed003;
mod seed004;
mod time_shared;
mod will_it_scale;

pub use crowd::{Beside, Crowd};
pub use loops::{Kind, Loop, Tasks};
pub use pressure::{CopyOnWrite, PageMigration};
pub use seed000::{MadviseMigrate, PthreadMmap, Touched};
pub use seed001::{ContextSwitches, ExitStorm};
pub use seed002::{LatMmap, LatPagefault, LatProc, LatProt, Ls, PagesRead, ProcessKind};
pub use seed003::{MprotectThreaded, SortCompute, TcmallocLargeHeap};
pub use seed004::MappedReaders;
pub use time_shared::TimeShared;
pub use will_it_scale::{Case, WillItScale};
