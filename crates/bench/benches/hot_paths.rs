//! How many instructions the hot paths take, each with a budget 2 % above what was measured.
//!
//! The counts are callgrind's, of optimised x86-64 code with one codegen unit; they are the same on
//! every host, and differ a little between compilers: the budgets are for rustc 1.95. What a count
//! does *not* say is what a cache miss or a locked instruction costs: for that, see the comments
//! beside them.

#![expect(unsafe_code, reason = "the hardware is none")]
#![allow(missing_docs, reason = "of the modules that the benchmark macros make")]

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use shootdown_bench as paths;
use shootdown_bench::{Path, Plain, Roots, System};

type State<T> = <T as Path<Plain>>::State;

/// Made before counting begins.
fn ready<T: Path<Plain>>() -> State<T> {
    // SAFETY: there is no interrupt, and nothing is loaded.
    T::ready(&unsafe { System::new(Plain, &Roots::NONE) })
}

macro_rules! count {
    ($name:ident, $path:ident) => {
        #[library_benchmark(
                    config = LibraryBenchmarkConfig::default().tool(
                        Callgrind::default()
                            .hard_limits([(EventKind::Ir, <paths::$path as Path<Plain>>::BUDGET)])
                    )
                )]
        #[bench::after(ready::<paths::$path>())]
        fn $name(state: State<paths::$path>) {
            <paths::$path as Path<Plain>>::run(state);
        }
    };
}

count!(nothing, Nothing);
count!(enter_lazy, EnterLazy);
count!(leave_lazy, LeaveLazy);
count!(switch_current_tag, SwitchCurrentTag);
count!(switch_new_tag, SwitchNewTag);
count!(flush_alone, FlushAlone);
count!(answer, Answer);
count!(take_one_more, TakeOneMore);
count!(flush_batch_alone, FlushBatchAlone);

library_benchmark_group!(
    name = hot_paths;
    benchmarks = nothing, enter_lazy, leave_lazy, switch_current_tag, switch_new_tag, flush_alone,
        answer, take_one_more, flush_batch_alone
);
main!(library_benchmark_groups = hot_paths);
