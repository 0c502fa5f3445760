//! How many instructions the hot paths take, each with a budget 2 % above what was measured.
//!
//! The counts are callgrind's, of optimised x86-64 code with one codegen unit; they are the same on
//! every host, and differ a little between compilers: the budgets are for rustc 1.95. What a count
//! does *not* say is what a cache miss or a locked instruction costs: for that, see the comments
//! beside them.

#![expect(unsafe_code, reason = "switching is unsafe")]
#![allow(missing_docs, reason = "of the modules that the benchmark macros make")]

use std::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use shootdown::{Batch, Extent, Here, Space, StaleWrites};
use shootdown_bench::{Plain, System};

/// The token is made before counting begins, and the system is never dropped.
type Ready = (Here<'static, Plain>, &'static System);

fn ready(system: System) -> Ready {
    let system: &System = Box::leak(Box::new(system));
    (system.here(), system)
}

fn active() -> Ready {
    ready(System::new())
}

fn lazy() -> Ready {
    let (here, system) = active();
    here.enter_lazy();
    (here, system)
}

/// The CPU has had space 6, but spaces 0 to 5 have taken all tags since.
fn tags_taken() -> Ready {
    let system = System::new();
    for space in [6, 0, 1, 2, 3, 4, 5] {
        system.switch(space);
    }
    ready(system)
}

/// The other CPU has rung for a flush of one page.
fn rung() -> Ready {
    let system = System::new();
    system.on_other_cpu(|system| {
        // Waiting for it would take for ever: nobody answers here.
        std::mem::forget(system.here().flush(system.space(0), Extent::page(0x1000)));
    });
    ready(system)
}

/// Reclaim is at it: one page of space 0 was taken.
type Reclaiming = (Ready, Taken);
type Taken = Batch<&'static Space<Plain>, ()>;

fn reclaiming() -> Reclaiming {
    let (ready, mut batch) = (active(), Taken::new());
    take(&ready, &mut batch, 0x1000);
    (ready, batch)
}

fn known_to_batch() -> (Ready, &'static mut Taken) {
    let (ready, batch) = reclaiming();
    (ready, Box::leak(Box::new(batch)))
}

#[inline]
fn take((here, system): &Ready, batch: &mut Taken, address: u64) {
    let space = batch.space(system.machine(), &system.space(0)).expect("a batch has room for one");
    space.unmapped(here, Extent::page(address), StaleWrites::Impossible).wait();
}

#[inline]
fn switch(here: &Here<'static, Plain>, space: &'static Space<Plain>) {
    // SAFETY: the CPU is online, and the space lives for ever.
    unsafe { here.switch(space) };
}

macro_rules! count {
    (
        $name:ident, $setup:expr, $space:expr, $budget:expr,
        |$ready:ident, $here:ident, $space_of:ident| $act:expr
    ) => {
        count!($name, $setup, $budget, |$ready: Ready| {
            let ($here, $space_of) = (black_box($ready.0), $ready.1.space($space));
            $act;
        });
    };
    ($name:ident, $setup:expr, $budget:expr, |$ready:ident: $type:ty| $act:expr) => {
        #[library_benchmark(
                            config = LibraryBenchmarkConfig::default()
                                .tool(Callgrind::default().hard_limits([(EventKind::Ir, $budget)]))
                        )]
        #[bench::after($setup)]
        fn $name($ready: $type) {
            $act;
        }
    };
}

// What there is to do, whoever does it, is about 10 of each count: the call, the return, the
// look-up of the space in the benchmark's own vector.
count!(nothing, active(), 0, 20, |ready, here, space| black_box((&here, space)));
count!(enter_lazy, active(), 0, 22, |ready, here, _space| here.enter_lazy());
count!(leave_lazy, lazy(), 0, 34, |ready, here, space| switch(&here, space));
count!(switch_current_tag, active(), 1, 91, |ready, here, space| switch(&here, space));
count!(switch_new_tag, tags_taken(), 6, 170, |ready, here, space| switch(&here, space));
count!(flush_alone, active(), 0, 103, |ready, here, space| here
    .flush(space, Extent::page(0x1000))
    .wait());
count!(answer, rung(), 0, 140, |ready, here, _space| here.answer());
// A page more in a batch that knows the space; and the flush of a batch of one space that nobody
// else uses.
count!(take_one_more, known_to_batch(), 153, |reclaiming: (Ready, &'static mut Taken)| {
    let (ready, batch) = black_box(reclaiming);
    take(&ready, batch, 0x2000);
});
count!(flush_batch_alone, reclaiming(), 633, |reclaiming: Reclaiming| {
    let (ready, batch) = reclaiming;
    batch.send(&ready.0).wait();
});

library_benchmark_group!(
    name = hot_paths;
    benchmarks = nothing, enter_lazy, leave_lazy, switch_current_tag, switch_new_tag, flush_alone,
        answer, take_one_more, flush_batch_alone
);
main!(library_benchmark_groups = hot_paths);
