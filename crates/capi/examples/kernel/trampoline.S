/*
 * User mode on roots that do not map the kernel. Two pages are mapped in all roots, where they are
 * loaded: the code that changes the root, and what it saves.
 */
.set KERNEL_SATP, 0
.set PC, 8
.set A0, 16                     /* a0 to a7 */
.set KEPT, 80                   /* ra, sp, tp, s0 to s11 */

.macro move_arguments instruction
    \instruction a0, A0(t0)
    \instruction a1, A0 + 8(t0)
    \instruction a2, A0 + 16(t0)
    \instruction a3, A0 + 24(t0)
    \instruction a4, A0 + 32(t0)
    \instruction a5, A0 + 40(t0)
    \instruction a6, A0 + 48(t0)
    \instruction a7, A0 + 56(t0)
.endm

.macro move_kept instruction
    \instruction ra, KEPT(t0)
    \instruction sp, KEPT + 8(t0)
    \instruction tp, KEPT + 16(t0)
    \instruction s0, KEPT + 24(t0)
    \instruction s1, KEPT + 32(t0)
    \instruction s2, KEPT + 40(t0)
    \instruction s3, KEPT + 48(t0)
    \instruction s4, KEPT + 56(t0)
    \instruction s5, KEPT + 64(t0)
    \instruction s6, KEPT + 72(t0)
    \instruction s7, KEPT + 80(t0)
    \instruction s8, KEPT + 88(t0)
    \instruction s9, KEPT + 96(t0)
    \instruction s10, KEPT + 104(t0)
    \instruction s11, KEPT + 112(t0)
.endm

/* Loads a root. If the ASID of user mode is 0, the entries of two roots have one tag. */
.macro load_root root, user_root
    csrw    satp, \root
    slli    t1, \user_root, 4
    srli    t1, t1, 48
    bnez    t1, 1f
    sfence.vma
1:
.endm

.section .trampoline, "ax"
.balign 4096
.global trampoline
trampoline:

/* uint64_t enter_user(struct user *user, uint64_t satp): runs user mode until it traps. Returns the
 * cause. Interrupts are masked. */
.global enter_user
enter_user:
    mv      t0, a0
    move_kept sd
    csrr    t1, satp
    sd      t1, KERNEL_SATP(t0)
    la      t1, user_trap
    csrw    stvec, t1
    csrw    sscratch, t0
    ld      t1, PC(t0)
    csrw    sepc, t1
    li      t1, 1 << 8          /* SPP: to user mode */
    csrc    sstatus, t1
    li      t1, 1 << 5          /* SPIE: with interrupts enabled */
    csrs    sstatus, t1
    load_root a1, a1
    move_arguments ld
    sret

/* The program of user mode has no registers but a0 to a7. */
.balign 4
user_trap:
    csrr    t0, sscratch
    move_arguments sd
    csrr    t1, sepc
    sd      t1, PC(t0)
    ld      a1, KERNEL_SATP(t0)
    csrr    a2, satp
    load_root a1, a2
    move_kept ld
    la      t1, trap_entry
    csrw    stvec, t1
    csrr    a0, scause
    ret

.balign 4096
.global users
users:
    .fill   4096, 1, 0

/*
 * The program of user mode: a0 laps over the pages from a2 to before a1. Counts in a3 the reads, and
 * in a4 those that do not find the mark a5. The kernel skips a load that is refused.
 */
.section .text.user, "ax"
.balign 4096
.global user_program, user_load
user_program:
.option push
.option norvc
1:  mv      a6, a2
2:  mv      a7, a5
user_load:
    ld      a7, (a6)
    addi    a3, a3, 1
    beq     a7, a5, 3f
    addi    a4, a4, 1
3:  addi    a6, a6, 2047
    addi    a6, a6, 2047
    addi    a6, a6, 2
    bltu    a6, a1, 2b
    addi    a0, a0, -1
    bnez    a0, 1b
    ecall
.option pop
.balign 4096
