/*
 * The way from M-mode to the kernel, on a machine without firmware (QEMU's option `-bios none`).
 *
 * All harts begin here. M-mode keeps one task: it forwards the interrupt of the CLINT to S-mode.
 */
.set CPUS, 4
.set CLINT, 0x2000000

.section .text.machine, "ax"
    csrr    a0, mhartid
    li      t0, CPUS
1:  bgeu    a0, t0, 1b
    li      t0, -1
    csrw    pmpaddr0, t0
    li      t0, 0x0f            /* all of memory: read, write, execute */
    csrw    pmpcfg0, t0
    li      t0, 0xffff
    csrw    medeleg, t0
    li      t0, 1 << 1          /* the software interrupt of S-mode */
    csrw    mideleg, t0
    la      t0, forward
    csrw    mtvec, t0
    la      t0, saved
    slli    t1, a0, 4
    add     t0, t0, t1
    csrw    mscratch, t0
    li      t0, 1 << 3          /* the software interrupt of M-mode */
    csrw    mie, t0
    li      t0, 3 << 11
    csrc    mstatus, t0
    li      t0, 1 << 11         /* return to S-mode */
    csrs    mstatus, t0
    la      t0, supervisor
    csrw    mepc, t0
    mret

supervisor:
    beqz    a0, start
    la      t0, cpu_of_hart
    slli    t1, a0, 2
    add     t0, t0, t1
1:  lw      a1, (t0)
    beqz    a1, 1b
    fence   r, rw
    j       start_other

/* MSIP of this hart := 0, and then SSIP := 1: an interrupt that is sent in between comes again. */
.balign 4
forward:
    csrrw   t0, mscratch, t0
    sd      t1, (t0)
    sd      t2, 8(t0)
    csrr    t1, mhartid
    slli    t1, t1, 2
    li      t2, CLINT
    add     t1, t1, t2
    sw      zero, (t1)
    csrsi   mip, 1 << 1
    ld      t1, (t0)
    ld      t2, 8(t0)
    csrrw   t0, mscratch, t0
    mret

/* int64_t start_hart(uint64_t hart, uint64_t cpu) */
.section .text
.global start_hart
start_hart:
    la      t0, cpu_of_hart
    slli    a0, a0, 2
    add     t0, t0, a0
    fence   rw, w
    sw      a1, (t0)
    li      a0, 0
    ret

/* Not in .bss, which the first hart clears. */
.section .data
.balign 16
saved:
    .fill   2 * CPUS, 8, 0
cpu_of_hart:
    .fill   CPUS, 4, 0
