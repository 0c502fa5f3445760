/*
 * From the firmware to C, traps, and an access that may fault.
 *
 * OpenSBI (or machine.S) enters each CPU in S-mode at its physical address, without translation and with interrupts
 * masked. The kernel is mapped where it is loaded, so that enabling translation moves nothing. tp
 * has the number of the CPU.
 */

/* 4 KiB: the stack of a CPU also has its handlers. */
.set STACK_SHIFT, 12
.set CPUS, 4

.section .text.boot, "ax"

/* The first CPU: a0 is the number of its hart. */
.global start
start:
    mv      s0, a0
    la      t0, bss_start
    la      t1, bss_end
1:  sd      zero, (t0)
    addi    t0, t0, 8
    bltu    t0, t1, 1b
    mv      tp, zero
    la      s1, first_cpu
    j       begin

/* Other CPUs: a1 is the number of the CPU. */
.global start_other
start_other:
    mv      tp, a1
    la      s1, other_cpu
begin:
    addi    t0, tp, 1
    slli    t0, t0, STACK_SHIFT
    la      sp, stacks
    add     sp, sp, t0
    la      t0, trap_entry
    csrw    stvec, t0
    mv      a0, s0
    jr      s1

/* A trap. C is called with the cause, the program counter and the address of a fault, and returns
 * the program counter at which to go on. The registers that C keeps are not saved. */
.balign 4
.global trap_entry
trap_entry:
    addi    sp, sp, -128
    sd      ra, 0(sp)
    sd      t0, 8(sp)
    sd      t1, 16(sp)
    sd      t2, 24(sp)
    sd      t3, 32(sp)
    sd      t4, 40(sp)
    sd      t5, 48(sp)
    sd      t6, 56(sp)
    sd      a0, 64(sp)
    sd      a1, 72(sp)
    sd      a2, 80(sp)
    sd      a3, 88(sp)
    sd      a4, 96(sp)
    sd      a5, 104(sp)
    sd      a6, 112(sp)
    sd      a7, 120(sp)
    csrr    a0, scause
    csrr    a1, sepc
    csrr    a2, stval
    call    trap
    csrw    sepc, a0
    ld      ra, 0(sp)
    ld      t0, 8(sp)
    ld      t1, 16(sp)
    ld      t2, 24(sp)
    ld      t3, 32(sp)
    ld      t4, 40(sp)
    ld      t5, 48(sp)
    ld      t6, 56(sp)
    ld      a0, 64(sp)
    ld      a1, 72(sp)
    ld      a2, 80(sp)
    ld      a3, 88(sp)
    ld      a4, 96(sp)
    ld      a5, 104(sp)
    ld      a6, 112(sp)
    ld      a7, 120(sp)
    addi    sp, sp, 128
    sret

/* bool load_user(uint64_t address, uint64_t *value): false if the page is not mapped. */
.global load_user, load_user_failed
load_user:
    ld      t0, (a0)            /* may fault, and then continues below */
    sd      t0, (a1)
    li      a0, 1
    ret
load_user_failed:
    li      a0, 0
    ret

.section .bss.stacks, "aw", @nobits
.balign 16
stacks:
    .skip   CPUS << STACK_SHIFT
