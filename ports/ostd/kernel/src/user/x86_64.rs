//! The user code on x86-64.

use ostd::arch::cpu::context::UserContext;
use ostd::mm::Vaddr;

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

pub fn start_reader(context: &mut UserContext, address: Vaddr, awaited: u32) {
    context.set_rdi(address);
    context.set_rsi(awaited as usize);
}

pub fn start_touch(context: &mut UserContext, address: Vaddr, pages: usize, [old, new]: [u32; 2]) {
    context.set_rdi(address);
    context.set_rsi(old as usize);
    context.set_rdx(new as usize);
    context.set_r8(pages);
    context.set_r9(0);
}

/// The address that the code accesses.
pub fn address(context: &UserContext) -> Vaddr {
    context.rdi()
}

/// The number of pages whose first word was not the old one.
pub fn mismatches(context: &UserContext) -> usize {
    context.r9()
}
