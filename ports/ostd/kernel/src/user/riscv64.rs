//! The user code on RISC-V.

use ostd::arch::cpu::context::UserContext;
use ostd::mm::Vaddr;

core::arch::global_asm!(
    ".pushsection .rodata.user, \"a\"",
    "user_code:",
    // Reads the word at a0 again and again. Returns whenever it is a1.
    "2: lw t0, 0(a0)",
    "beq t0, a1, 3f",
    // `pause`, for which the assembler need not know the extension.
    ".insn i 0x0f, 0, x0, x0, 0x010",
    "j 2b",
    "3: ecall",
    "j 2b",
    ".balign 64",
    // In each of a3 pages from a0 on: counts in a4 if the first word is not a1, and sets it to a2.
    "lui t1, 1",
    "4: lw t0, 0(a0)",
    "beq t0, a1, 5f",
    "addi a4, a4, 1",
    "5: sw a2, 0(a0)",
    "add a0, a0, t1",
    "addi a3, a3, -1",
    "bnez a3, 4b",
    "ecall",
    "user_code_end:",
    ".popsection",
);

/// Extends the sign of a word, as `lw` does.
fn loaded(word: u32) -> usize {
    word.cast_signed() as usize
}

pub fn start_reader(context: &mut UserContext, address: Vaddr, awaited: u32) {
    context.set_a0(address);
    context.set_a1(loaded(awaited));
}

pub fn start_touch(context: &mut UserContext, address: Vaddr, pages: usize, [old, new]: [u32; 2]) {
    context.set_a0(address);
    context.set_a1(loaded(old));
    context.set_a2(loaded(new));
    context.set_a3(pages);
    context.set_a4(0);
}

/// The address that the code accesses.
pub fn address(context: &UserContext) -> Vaddr {
    context.a0()
}

/// The number of pages whose first word was not the old one.
pub fn mismatches(context: &UserContext) -> usize {
    context.a4()
}
