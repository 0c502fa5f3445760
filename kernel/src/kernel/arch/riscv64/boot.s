# From the firmware to Rust.
#
# OpenSBI enters each CPU in S-mode at its physical address, without translation and with interrupts
# masked. The boot tables map the first 512 GiB twice: at their physical addresses, and where the
# kernel runs. So the instruction after the write of satp is mapped.

.option norelax

# Sv48, in satp.
.set MODE, 9 << 60

.section .text.boot, "ax"

# The first CPU: the number of its hart, and the address of the device tree.
.global start
start:
    li      s2, 0
    j       begin

# Other CPUs: the number of the hart, and the end of the stack.
.global start_other
start_other:
    li      s2, 1

begin:
    csrw    sie, zero
    csrw    sip, zero
    mv      s0, a0
    mv      s1, a1
    la      t0, boot_tables
    srli    t0, t0, 12
    li      t1, MODE
    or      t0, t0, t1
    sfence.vma
    csrw    satp, t0
    sfence.vma
    la      t0, high_address
    ld      t0, (t0)
    jr      t0
.balign 8
high_address:
    .quad   running_high

running_high:
    la      t0, trap_entry
    csrw    stvec, t0
    csrw    sscratch, zero              # the CPU is in the kernel
    li      t0, 3 << 13 | 1 << 18       # no floating point (FS), no access to user pages (SUM)
    csrc    sstatus, t0
    mv      a0, s0
    mv      a1, s1
    bnez    s2, 2f

    la      t0, bss_start
    la      t1, bss_end
1:  sd      zero, (t0)
    addi    t0, t0, 8
    bltu    t0, t1, 1b
    la      sp, boot_stack_end
    mv      fp, zero
    tail    begin_on_first_cpu

2:  mv      sp, a1
    mv      fp, zero
    tail    begin_on_other_cpu

.section .data.tables, "aw"
# An entry that maps 512 GiB from address 0: D, A, G, X, W, R and V.
.set ALL, 0xef
.balign 4096
boot_tables:
    .quad   ALL
    .fill   255, 8, 0
    .quad   ALL
    .fill   255, 8, 0
# The kernel's own root, once `tables` has filled it.
.balign 4096
.global kernel_tables
kernel_tables:
    .fill   512, 8, 0
