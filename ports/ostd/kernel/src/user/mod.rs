//! The code that processes run in user mode.

#[cfg(target_arch = "riscv64")]
#[path = "riscv64.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64.rs"]
mod arch;

use ostd::arch::cpu::context::UserContext;
use ostd::mm::Vaddr;
use ostd::user::{ReturnReason, UserContextApi, UserMode, UserModeHooks};

unsafe extern "C" {
    static user_code: u8;
    static user_code_end: u8;
}

/// The address of the code in every process.
pub const CODE: Vaddr = 0x40_0000;
const TOUCH: Vaddr = CODE + 64;

/// Returns the code, which fits into one page.
pub fn code() -> &'static [u8] {
    let (start, end) = (&raw const user_code, &raw const user_code_end);
    // SAFETY: the code is between the two labels of the assembler.
    unsafe { core::slice::from_raw_parts(start, end.addr() - start.addr()) }
}

/// Returns a thread that reads the word at `address` until it is `awaited`.
pub fn reader(address: Vaddr, awaited: u32) -> UserMode {
    let mut user = thread();
    let context = user.context_mut();
    context.set_instruction_pointer(CODE);
    arch::start_reader(context, address, awaited);
    user
}

pub fn thread() -> UserMode {
    UserMode::new(UserContext::default())
}

struct NoHooks;
impl UserModeHooks for NoHooks {}

/// Writes `new` to the first word of `pages` pages, in user mode. Returns the number of pages whose
/// first word was not `old`.
///
/// `on_fault` resolves a fault at an address. Without it, a fault is an error.
pub fn touch(
    user: &mut UserMode,
    address: Vaddr,
    pages: usize,
    old: u32,
    new: u32,
    mut on_fault: impl FnMut(Vaddr),
) -> u64 {
    let context = user.context_mut();
    context.set_instruction_pointer(TOUCH);
    arch::start_touch(context, address, pages, [old, new]);
    loop {
        match user.execute(&NoHooks) {
            ReturnReason::UserSyscall => return arch::mismatches(user.context()) as u64,
            ReturnReason::UserException => {
                user.context_mut().take_exception();
                on_fault(arch::address(user.context()));
            }
            ReturnReason::KernelEvent => {}
        }
    }
}
