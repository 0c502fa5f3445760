# Traps from the kernel and from user mode, entry to user mode, and the code that runs there.
#
# sscratch is 0 while the CPU is in the kernel. In user mode, it has the kernel's stack pointer. tp
# has the number of the CPU in the kernel, and only there.

.option norelax
# The A extension, which the assembler does not take from the target in every build.
.option arch, +a

# The stack frame of a thread in user mode: ra, s0 to s11, tp, and the address of its `User`.
.set FRAME, 128
.set FRAME_TP, 104
.set FRAME_USER, 112
# Offsets in `User`.
.set PC, 40
.set SCRATCH, 48
.set SPP, 56

# The stack frame of an interrupt in the kernel: the registers that a call may change, and sepc and
# sstatus.
.set SAVED, 144

# Loads or stores registers, from the lower end of the stack on.
.macro each instruction, registers:vararg
    .set offset, 0
    .irp register, \registers
    \instruction \register, offset(sp)
    .set offset, offset + 8
    .endr
.endm

# The registers that a call keeps: ra and s0 to s11, at the lower end of the stack.
.macro callee_saved instruction
    each \instruction, ra, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11
.endm

# The registers that a call may change.
.macro caller_saved instruction
    each \instruction, ra, t0, t1, t2, t3, t4, t5, t6, a0, a1, a2, a3, a4, a5, a6, a7
.endm

.section .text.traps, "ax"

.balign 4
.global trap_entry
trap_entry:
    csrrw   sp, sscratch, sp
    bnez    sp, leave_user
    # From the kernel: sp is 0, and sscratch has the stack pointer. The stack may be the cause, so
    # nothing is stored on it before the cause is known, and t0 is in sscratch in the meantime.
    csrrw   sp, sscratch, t0
    csrr    t0, scause
    bgez    t0, unexpected
    csrrw   t0, sscratch, zero
    addi    sp, sp, -SAVED
    caller_saved sd
    csrr    t0, sepc
    csrr    t1, sstatus
    sd      t0, 128(sp)
    sd      t1, 136(sp)
    call    take_interrupts
    ld      t0, 128(sp)
    ld      t1, 136(sp)
    csrw    sepc, t0
    csrw    sstatus, t1
    caller_saved ld
    addi    sp, sp, SAVED
    sret

# An unexpected exception ends the run. The first CPU that comes here reports it on another stack.
# Other CPUs wait for the end. If the first CPU comes here again during its report, it ends the run
# without another report.
unexpected:
    csrw    sscratch, zero
    mv      a0, sp
    addi    t1, tp, 1
    la      t2, ending_cpu
1:  lr.w.aq t3, (t2)
    bnez    t3, 2f
    sc.w    t4, t1, (t2)
    bnez    t4, 1b
    la      sp, last_stack_end
    call    report_unexpected
2:  bne     t3, t1, 3f
    la      sp, last_stack_end
    call    end_immediately
3:  wfi
    j       3b

# enter_user(user: a0), which returns at the next trap
.global enter_user
enter_user:
    addi    sp, sp, -FRAME
    callee_saved sd
    sd      tp, FRAME_TP(sp)
    sd      a0, FRAME_USER(sp)
    li      t0, 1 << 8                  # SPP: to user mode, unless the thread has SPP
    csrc    sstatus, t0
    ld      t1, SPP(a0)
    ori     t0, t1, 1 << 5              # SPIE: with interrupts enabled
    csrs    sstatus, t0
    ld      t0, PC(a0)
    csrw    sepc, t0
    csrw    sscratch, sp
    mv      t0, a0
    ld      a0, 0(t0)
    ld      a1, 8(t0)
    ld      a2, 16(t0)
    ld      a3, 24(t0)
    ld      a4, 32(t0)
    ld      a5, SCRATCH(t0)
    sret

# A trap in user mode. User code uses only a0 to a5.
leave_user:
    ld      t0, FRAME_USER(sp)
    sd      a0, 0(t0)
    sd      a1, 8(t0)
    sd      a2, 16(t0)
    sd      a3, 24(t0)
    sd      a4, 32(t0)
    sd      a5, SCRATCH(t0)
    csrr    t1, sepc
    sd      t1, PC(t0)
    csrw    sscratch, zero
    callee_saved ld
    ld      tp, FRAME_TP(sp)
    addi    sp, sp, FRAME
    ret

# switch_stack(from: a0, to: a1). The caller has saved the registers that a call may change. The
# others are saved on the stack, and the stack pointer in `from`.
.global switch_stack
switch_stack:
    addi    sp, sp, -112
    callee_saved sd
    sd      sp, (a0)
    mv      sp, a1
    callee_saved ld
    addi    sp, sp, 112
    ret

# The first code of a new thread: s0 is its entry, s1 its argument.
.global thread_start
thread_start:
    mv      a0, s1
    mv      ra, zero
    jr      s0

# The position-independent code of user threads: a0 is the task, a1 the address, a2 the count, a3
# the stride, a4 the value. a5 is a scratch register, which is also saved.
.balign 16
.global user_code_start
user_code_start:
    beqz    a0, read
    addi    a5, a0, -1
    beqz    a5, write
    addi    a5, a0, -2
    beqz    a5, read_while

spin:
    beqz    a2, done
    addi    a2, a2, -1
    j       spin

read:
    beqz    a2, done
    ld      a4, (a1)
    add     a1, a1, a3
    addi    a2, a2, -1
    j       read

write:
    beqz    a2, done
    sd      a4, (a1)
    add     a1, a1, a3
    addi    a2, a2, -1
    j       write

# This loop waits for another CPU. The hint (`pause`) lets an emulator run that CPU.
read_while:
    beqz    a2, done
    ld      a5, (a1)
    addi    a2, a2, -1
    .insn   i 0x0f, 0, x0, x0, 0x010
    beq     a5, a4, read_while
    mv      a4, a5
    j       done

done:
    ecall
    j       done
.global user_code_end
user_code_end:

.section .bss.last, "aw", @nobits
.balign 16
ending_cpu:
    .skip   16
    .skip   16384
last_stack_end:
