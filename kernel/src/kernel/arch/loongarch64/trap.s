# Exception entries, and the way to user mode and back.

    .equ PRMD, 0x1
    .equ ERA, 0x6
    .equ PGD, 0x1b
    .equ TLBRSAVE, 0x8b
    # Registers of each CPU. SAVE0 is scratch. While a thread is in user mode, SAVE1 holds the
    # address of its User, and SAVE2 the kernel's stack pointer.
    .equ SAVE0, 0x30
    .equ SAVE1, 0x31
    .equ SAVE2, 0x32

# Loads or stores registers, from the lower end of the stack on.
.macro each instruction, registers:vararg
    .set offset, 0
    .irp register, \registers
    \instruction \register, $sp, offset
    .set offset, offset + 8
    .endr
.endm

# The registers that a call of Rust may change.
.macro caller_saved instruction
    each \instruction, $ra, $a0, $a1, $a2, $a3, $a4, $a5, $a6, $a7, $t0, $t1, $t2, $t3, $t4, $t5, $t6, $t7, $t8
.endm

# The registers that a call preserves.
    .equ KEPT, 96
.macro kept instruction
    each \instruction, $ra, $fp, $s0, $s1, $s2, $s3, $s4, $s5, $s6, $s7, $s8
.endm

    .section .text.trap, "ax"

# TLB refills come here in direct address mode, at the physical address in TLBRENTRY. If a table is
# missing, an invalid page is filled in: see the page-table format.
    .balign 4096
    .globl refill_entry
refill_entry:
    csrwr   $t0, TLBRSAVE
    csrrd   $t0, PGD
    lddir   $t0, $t0, 3
    lddir   $t0, $t0, 2
    lddir   $t0, $t0, 1
    ldpte   $t0, 0
    ldpte   $t0, 1
    tlbfill
    csrrd   $t0, TLBRSAVE
    ertn

# All other exceptions and interrupts come here. Interrupts are masked from here on.
    .balign 4096
    .globl trap_entry
trap_entry:
    csrwr   $t0, SAVE0
    csrrd   $t0, PRMD
    andi    $t0, $t0, 3
    bnez    $t0, from_user

# From the kernel: saves on the stack the registers that a call of Rust may change, ERA and PRMD.
    .equ FRAME, 160
    # If the stack pointer is invalid, a store to the stack would raise exceptions for ever.
    srli.d  $t0, $sp, 60
    addi.d  $t0, $t0, -9
    bnez    $t0, lost_stack
    addi.d  $sp, $sp, -FRAME
    csrrd   $t0, SAVE0
    caller_saved st.d
    # A CPU that was about to sleep continues after `idle`: this is the interrupt that it waits for.
    csrrd   $a0, ERA
    la.pcrel $t0, sleep_begin
    la.pcrel $t1, sleep_end
    sub.d   $t2, $a0, $t0
    sub.d   $t0, $t1, $t0
    bgeu    $t2, $t0, 1f
    move    $a0, $t1
1:
    csrrd   $t0, PRMD
    st.d    $a0, $sp, 144
    st.d    $t0, $sp, 152
    bl      trap_in_kernel              # (address of the interrupted instruction)
    ld.d    $t0, $sp, 144
    csrwr   $t0, ERA
    ld.d    $t0, $sp, 152
    csrwr   $t0, PRMD
    caller_saved ld.d
    addi.d  $sp, $sp, FRAME
    ertn

lost_stack:
    la.pcrel $sp, last_stack_end
    csrrd   $a0, ERA
    bl      trap_without_stack          # (address of the interrupted instruction)

    .section .bss
    .balign 16
    .space 0x4000
last_stack_end:
    .section .text.trap

# sleep(): enables interrupts and waits for one; returns with interrupts masked. An interrupt
# between the two instructions would leave IDLE waiting for another one, so the handler skips IDLE
# (above).
    .globl sleep
sleep:
    li.w    $t0, 4                      # CRMD.IE
sleep_begin:
    csrxchg $t0, $t0, 0
    idle    0
sleep_end:
    li.w    $t0, 4
    csrxchg $zero, $t0, 0
    ret

# enter_user(user): enters user mode with the registers of a User. Returns when the thread comes
# back.
    .globl enter_user
enter_user:
    addi.d  $sp, $sp, -KEPT
    kept    st.d
    move    $t0, $sp
    csrwr   $t0, SAVE2
    move    $t0, $a0
    csrwr   $t0, SAVE1
    ld.d    $t0, $a0, 40                # User::pc
    csrwr   $t0, ERA
    li.w    $t0, 7                      # PLV3 and IE
    csrwr   $t0, PRMD
    ld.d    $t0, $a0, 48                # User::machine
    ld.d    $a1, $a0, 8
    ld.d    $a2, $a0, 16
    ld.d    $a3, $a0, 24
    ld.d    $a4, $a0, 32
    ld.d    $a0, $a0, 0
    ertn

from_user:
    csrrd   $t0, SAVE1
    st.d    $a0, $t0, 0
    st.d    $a1, $t0, 8
    st.d    $a2, $t0, 16
    st.d    $a3, $t0, 24
    st.d    $a4, $t0, 32
    csrrd   $a0, ERA
    st.d    $a0, $t0, 40
    csrrd   $a0, SAVE0
    st.d    $a0, $t0, 48
    csrrd   $sp, SAVE2
    kept    ld.d
    addi.d  $sp, $sp, KEPT
    ret

# switch_stack(from, to): saves the calling thread and resumes another.
    .globl switch_stack
switch_stack:
    addi.d  $sp, $sp, -KEPT
    kept    st.d
    st.d    $sp, $a0, 0
    move    $sp, $a1
    kept    ld.d
    addi.d  $sp, $sp, KEPT
    ret

# The first code of a new thread: its entry is in s0, the argument in s1.
    .globl thread_start
thread_start:
    move    $a0, $s1
    jirl    $ra, $s0, 0
    break   0

# The position-independent code of user threads: the Task is in a0; address, count, stride and value
# are in a1 to a4. t0 is a scratch register.
    .globl user_code_start
user_code_start:
    li.w    $t0, 1
    beq     $a0, $t0, 11f
    li.w    $t0, 2
    beq     $a0, $t0, 12f
    li.w    $t0, 3
    beq     $a0, $t0, 13f
    # Read.
10: beqz    $a2, 9f
    ld.d    $t0, $a1, 0
    move    $a4, $t0
    add.d   $a1, $a1, $a3
    addi.d  $a2, $a2, -1
    b       10b
    # Write.
11: beqz    $a2, 9f
    st.d    $a4, $a1, 0
    add.d   $a1, $a1, $a3
    addi.d  $a2, $a2, -1
    b       11b
    # ReadWhile.
12: beqz    $a2, 9f
    ld.d    $t0, $a1, 0
    addi.d  $a2, $a2, -1
    beq     $t0, $a4, 12b
    move    $a4, $t0
    b       9f
    # Spin.
13: beqz    $a2, 9f
    addi.d  $a2, $a2, -1
    b       13b
9:  syscall 0
    b       user_code_start
    .globl user_code_end
user_code_end:
