//! Benchmarks, as generators of operations.

mod arena;
mod crowd;
mod linked;
mod loops;
mod page_heap;
mod parts;
mod pressure;
mod x86_lazy_tlb;
mod powerpc_shoot_lazies;
mod arc_asid_range;
mod arm64_skip_broadcast;
mod x86_batched_unmap;

pub use arc_asid_range::{LatMmap, LatPagefault, LatProc, LatProt, Ls, PagesRead, ProcessKind};
pub use arena::ArenaPerThread;
pub use arm64_skip_broadcast::{MprotectThreaded, SortCompute, TcmallocLargeHeap, Writes};
pub use crowd::{Crowd, MadviseAndCompute};
pub use loops::{Kind, Loop, Tasks};
pub use powerpc_shoot_lazies::{ContextSwitches, ExitStorm};
pub use pressure::{PageMigration, RereadFile};
pub use x86_batched_unmap::MappedReaders;
pub use x86_lazy_tlb::{MadviseMigrate, PthreadMmap, Touched};
