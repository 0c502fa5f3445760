// Exception vectors for the kernel and for user mode.
//
// The kernel runs on SP_EL1, both on a thread's stack and on a CPU's first. SP_EL0 is unused.

.section .text.vectors, "ax"

.macro vector_to_unexpected number
.balign 0x80
    mov     x0, #\number
    b       unexpected
.endm

.macro vector_from_user kind
.balign 0x80
    // User code uses only x0 to x5.
    mov     x6, #\kind
    b       leave_user
.endm

.balign 0x800
.global vectors
vectors:
    // From EL1 on SP_EL0: synchronous, IRQ, FIQ, SError.
    vector_to_unexpected 0
    vector_to_unexpected 1
    vector_to_unexpected 2
    vector_to_unexpected 3
    // From EL1 on SP_EL1.
    vector_to_unexpected 4
.balign 0x80
    b       interrupt_in_kernel
    vector_to_unexpected 6
    vector_to_unexpected 7
    // From EL0.
    vector_from_user 0
    vector_from_user 1
    vector_to_unexpected 10
    vector_to_unexpected 11
    // From EL0 in AArch32.
    vector_to_unexpected 12
    vector_to_unexpected 13
    vector_to_unexpected 14
    vector_to_unexpected 15

// The registers that a call may change.
.macro caller_saved instruction
    \instruction x0, x1, [sp, #0]
    \instruction x2, x3, [sp, #16]
    \instruction x4, x5, [sp, #32]
    \instruction x6, x7, [sp, #48]
    \instruction x8, x9, [sp, #64]
    \instruction x10, x11, [sp, #80]
    \instruction x12, x13, [sp, #96]
    \instruction x14, x15, [sp, #112]
    \instruction x16, x17, [sp, #128]
    \instruction x18, x30, [sp, #144]
.endm

// Calls Rust on the interrupted stack, and saves the registers that a call may change.
interrupt_in_kernel:
    sub     sp, sp, #192
    caller_saved stp
    mrs     x0, elr_el1
    mrs     x1, spsr_el1
    stp     x0, x1, [sp, #160]
    bl      take_interrupt
    ldp     x0, x1, [sp, #160]
    msr     elr_el1, x0
    msr     spsr_el1, x1
    caller_saved ldp
    add     sp, sp, #192
    eret

// An unexpected exception ends the run. The stack may be the cause, so the first CPU that comes
// here reports the exception on another stack. Other CPUs wait for the end. If the first CPU comes
// here again during its report, it ends the run without another report.
unexpected:
    mov     x1, sp
    mrs     x2, tpidr_el1
    add     x2, x2, #1
    adrp    x3, ending_cpu
    add     x3, x3, :lo12:ending_cpu
1:  ldaxr   x4, [x3]
    cbnz    x4, 2f
    stxr    w5, x2, [x3]
    cbnz    w5, 1b
    adrp    x4, last_stack_end
    add     sp, x4, :lo12:last_stack_end
    b       report_unexpected
2:  clrex
    cmp     x4, x2
    b.ne    3f
    adrp    x4, last_stack_end
    add     sp, x4, :lo12:last_stack_end
    b       end_immediately
3:  wfe
    b       3b

.section .bss.last, "aw", %nobits
.balign 16
ending_cpu:
    .skip   16
    .skip   16384
last_stack_end:
