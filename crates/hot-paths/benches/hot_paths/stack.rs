//! Stack depth: a flush runs on a stack that is filled with a pattern, and the deepest byte that it
//! has changed gives the depth.
//!
//! The depth includes the path's own frame, with the gathered extents and the `Pending`, and the
//! red zone. It does not include space that the deepest function reserves and never writes.

use std::arch::asm;

use shootdown_hot_paths::{Path, Plain};

use crate::count::prepare;
use crate::table::Row;

const PATTERN: u8 = 0xa5;
const BYTES: usize = 256 * 1024;

/// Bytes of stack of a flush, at all widths.
pub(crate) fn row() -> Row {
    let Path { name, limits, .. } = Path::<Plain, 1>::FLUSH_AND_WAIT;
    Row { name, unit: "bytes of stack", cost: [of::<1>(), of::<8>(), of::<64>()], limits }
}

fn of<const W: usize>() -> u64 {
    let path = Path::<Plain, W>::FLUSH_AND_WAIT;
    let own = depth(|_| {}, prepare(&path, 2));
    depth(path.run, prepare(&path, 2)) - own
}

/// A function and its argument.
struct Call<'a, T> {
    run: fn(&mut T),
    argument: &'a mut T,
}

extern "C" fn enter<T>(call: &mut Call<'_, T>) {
    (call.run)(call.argument);
}

/// The largest number of bytes of stack that a call changes.
fn depth<T>(run: fn(&mut T), argument: &mut T) -> u64 {
    let pattern = u128::from_ne_bytes([PATTERN; 16]);
    let mut stack = vec![pattern; BYTES / 16];
    let top = stack.as_mut_ptr_range().end;
    let mut call = Call { run, argument };
    // SAFETY: the call returns, and runs on a stack of its own that is large enough and aligned.
    // `r12` holds this stack's pointer, and the call preserves it.
    unsafe {
        asm!(
            "xchg rsp, r12", "call {enter}", "mov rsp, r12",
            enter = sym enter::<T>, inout("r12") top => _, in("rdi") &raw mut call,
            clobber_abi("C")
        );
    }
    let bytes = stack.iter().flat_map(|word| word.to_ne_bytes());
    let untouched = bytes.take_while(|&byte| byte == PATTERN).count();
    (BYTES - untouched) as u64
}
