//! The code that processes run in user mode.

use ostd::arch::cpu::context::UserContext;
use ostd::mm::Vaddr;
use ostd::user::{ReturnReason, UserMode, UserModeHooks};

core::arch::global_asm!(
    ".pushsection .rodata.user, \"a\"",
    "user_code:",
    // Reads the word at rdi again and again. Returns whenever it is esi.
    "2: mov eax, [rdi]",
    "cmp eax, esi",
    "je 3f",
    "pause",
    "jmp 2b",
    "3: syscall",
    "jmp 2b",
    ".balign 64",
    // In each of r8 pages from rdi on: counts in r9 if the first word is not esi, and sets it to
    // edx.
    "4: cmp [rdi], esi",
    "je 5f",
    "inc r9",
    "5: mov [rdi], edx",
    "add rdi, 4096",
    "dec r8",
    "jnz 4b",
    "syscall",
    "user_code_end:",
    ".popsection",
);

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
    context.set_rip(CODE);
    context.set_rdi(address);
    context.set_rsi(awaited as usize);
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
    context.set_rip(TOUCH);
    context.set_rdi(address);
    context.set_rsi(old as usize);
    context.set_rdx(new as usize);
    context.set_r8(pages);
    context.set_r9(0);
    loop {
        match user.execute(&NoHooks) {
            ReturnReason::UserSyscall => return user.context().r9() as u64,
            ReturnReason::UserException => {
                user.context_mut().take_exception();
                on_fault(user.context().rdi());
            }
            ReturnReason::KernelEvent => {}
        }
    }
}
