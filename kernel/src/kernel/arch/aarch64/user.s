// Entry to and return from user mode, the code that runs there, and the switch from one thread's
// stack to another's.

.section .text.user, "ax"

// The stack frame of a thread in user mode: x19 to x30, and the address of its `User`.
.set FRAME, 112
.set FRAME_USER, 96
// Offsets in `User`.
.set PC, 40
.set MACHINE, 48

// The registers that a call preserves, at the lower end of the stack.
.macro callee_saved instruction
    \instruction x19, x20, [sp, #0]
    \instruction x21, x22, [sp, #16]
    \instruction x23, x24, [sp, #32]
    \instruction x25, x26, [sp, #48]
    \instruction x27, x28, [sp, #64]
    \instruction x29, x30, [sp, #80]
.endm

// enter_user(user: x0) -> the kind of return: x0
.global enter_user
enter_user:
    sub     sp, sp, #FRAME
    callee_saved stp
    str     x0, [sp, #FRAME_USER]
    mov     x7, x0
    ldp     x8, x9, [x7, #PC]
    msr     elr_el1, x8
    msr     spsr_el1, x9
    ldr     x5, [x7, #MACHINE + 8]
    ldp     x0, x1, [x7]
    ldp     x2, x3, [x7, #16]
    ldr     x4, [x7, #32]
    eret

// The vectors come here, with the kind of return in x6.
.global leave_user
leave_user:
    ldr     x7, [sp, #FRAME_USER]
    stp     x0, x1, [x7]
    stp     x2, x3, [x7, #16]
    str     x4, [x7, #32]
    mrs     x8, elr_el1
    mrs     x9, spsr_el1
    stp     x8, x9, [x7, #PC]
    str     x5, [x7, #MACHINE + 8]
    msr     daifclr, #4                 // unmask SErrors; the other exceptions stay masked
    mov     x0, x6
    callee_saved ldp
    add     sp, sp, #FRAME
    ret

// switch_stack(from: x0, to: x1). The caller has saved the registers that a call may change. The
// others are saved on the stack, and the stack pointer in `from`.
.global switch_stack
switch_stack:
    sub     sp, sp, #96
    callee_saved stp
    mov     x2, sp
    str     x2, [x0]
    mov     sp, x1
    callee_saved ldp
    add     sp, sp, #96
    ret

// The first code of a new thread: x19 is its entry, x20 its argument.
.global thread_start
thread_start:
    mov     x0, x20
    mov     x30, xzr
    br      x19

// The position-independent code of user threads: x0 is the task, x1 the address, x2 the count, x3
// the stride, x4 the value. x5 is a scratch register, which is also saved.
.balign 16
.global user_code_start
user_code_start:
    cmp     x0, #1
    b.lo    read
    b.eq    write
    cmp     x0, #3
    b.lo    read_while

spin:
    cbz     x2, done
    sub     x2, x2, #1
    b       spin

read:
    cbz     x2, done
    ldr     x4, [x1]
    add     x1, x1, x3
    sub     x2, x2, #1
    b       read

write:
    cbz     x2, done
    str     x4, [x1]
    add     x1, x1, x3
    sub     x2, x2, #1
    b       write

// This loop waits for another CPU. The hint lets an emulator run that CPU.
read_while:
    cbz     x2, done
    ldr     x5, [x1]
    sub     x2, x2, #1
    yield
    cmp     x5, x4
    b.eq    read_while
    mov     x4, x5
    b       done

done:
    svc     #0
    b       done
.global user_code_end
user_code_end:
