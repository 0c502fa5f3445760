// Switches from one thread's stack to another's.

.section .text.switch, "ax"

// switch_stack(from: x0, to: x1). The caller has saved the registers that a call may change. The
// others are saved on the stack, and the stack pointer in `from`.
.global switch_stack
switch_stack:
    sub     sp, sp, #96
    stp     x19, x20, [sp]
    stp     x21, x22, [sp, #16]
    stp     x23, x24, [sp, #32]
    stp     x25, x26, [sp, #48]
    stp     x27, x28, [sp, #64]
    stp     x29, x30, [sp, #80]
    mov     x2, sp
    str     x2, [x0]
    mov     sp, x1
    ldp     x19, x20, [sp]
    ldp     x21, x22, [sp, #16]
    ldp     x23, x24, [sp, #32]
    ldp     x25, x26, [sp, #48]
    ldp     x27, x28, [sp, #64]
    ldp     x29, x30, [sp, #80]
    add     sp, sp, #96
    ret

// The first code of a new thread: x19 is its entry, x20 its argument.
.global thread_start
thread_start:
    mov     x0, x20
    mov     x30, xzr
    br      x19
