//! How many instructions the hot paths take, each with a budget 2 % above what was measured.
//!
//! The counts are callgrind's, of optimised x86-64 code with one codegen unit; they are the same on
//! every host, and differ a little between compilers: the budgets are for rustc 1.95. What a count
//! does *not* say is what a cache miss or a locked instruction costs: for that, see the comments
//! beside them.
//!
//! They are of code as a kernel has it, so that they are those of `shootdown boot --paths`, to 5 %:
//!
//! - It does not unwind (`RUSTFLAGS=-Cpanic=abort`, by which `cargo xtask bench` builds it). Where
//!   code does, what may have to be dropped on the way must have an address of its own until it is
//!   returned, and is moved once more: 6 instructions of a flush's 86. Without that flag nothing is
//!   held against the budgets.
//! - It copies memory as `core` does where there is no C library: see [`memcpy`].

#![expect(unsafe_code, reason = "the hardware is none; and memory is copied by hand")]
#![allow(missing_docs, reason = "of the modules that the benchmark macros make")]

#[cfg(target_arch = "x86_64")]
use std::arch::asm;

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

/// What a path may take, if this is what the budget is for.
const fn budget<T: Path<Plain>>() -> u64 {
    if cfg!(panic = "abort") { T::BUDGET } else { u64::MAX }
}

/// Instead of the C library's, which goes by the widest registers that the host has: bytes up to a
/// word's address, words, and bytes again, each of which counts as an instruction. A batch is
/// 1.5 KiB, and moved twice.
///
/// # Safety
///
/// As of the C library's.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    let before = (to.addr().wrapping_neg() % 8).min(bytes);
    let (words, rest) = ((bytes - before) / 8, (bytes - before) % 8);
    // SAFETY: our caller promises that there is as much to read, and to write.
    unsafe {
        asm!(
            "rep movsb", "mov rcx, {words}", "rep movsq", "mov rcx, {rest}", "rep movsb",
            words = in(reg) words, rest = in(reg) rest, inout("rcx") before => _,
            inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags)
        );
    }
    to
}

macro_rules! count {
    ($name:ident, $path:ident) => {
        #[library_benchmark(
                            config = LibraryBenchmarkConfig::default().tool(
                                Callgrind::default()
                                    .hard_limits([(EventKind::Ir, budget::<paths::$path>())])
                            )
                        )]
        #[bench::after(ready::<paths::$path>())]
        fn $name(state: State<paths::$path>) {
            <paths::$path as Path<Plain>>::run(state);
        }
    };
}

count!(enter_lazy, EnterLazy);
count!(leave_lazy, LeaveLazy);
count!(switch_current_tag, SwitchCurrentTag);
count!(switch_new_tag, SwitchNewTag);
count!(flush_alone, FlushAlone);
count!(answer, Answer);
count!(take_one_more, TakeOneMore);
count!(move_batch, MoveBatch);
count!(flush_batch_alone, FlushBatchAlone);

library_benchmark_group!(
    name = hot_paths;
    benchmarks = enter_lazy, leave_lazy, switch_current_tag, switch_new_tag, flush_alone,
        answer, take_one_more, move_batch, flush_batch_alone
);
main!(library_benchmark_groups = hot_paths);
