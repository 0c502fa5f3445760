# Where CPUs come from the machine to Rust, in direct address mode: what they see is physical.

    .equ CPUID, 0x20
    .equ CRMD, 0x0
    .equ DMW0, 0x180
    .equ DMW1, 0x181
    .equ DMW2, 0x182
    .equ DMW3, 0x183
    .equ MAILBOX1, 0x1028

# Goes on in the cached window. The jump comes before the windows are switched on: in direct address
# mode the upper bits of an address are ignored, so it leads to the same place, and afterwards there
# is no other place to be.
.macro enter_windows
    li.d    $t0, 0x9000000000000011     # PLV0, coherent cached
    csrwr   $t0, DMW0
    li.d    $t0, 0x8000000000000001     # PLV0, strongly ordered, for devices
    csrwr   $t0, DMW1
    csrwr   $zero, DMW2
    csrwr   $zero, DMW3
    la.pcrel $t0, 1f
    lu52i.d $t0, $t0, -0x700            # bits 63 to 52: 0x900
    jr      $t0
1:
    # PG; cached where DA comes back, which is in the refill handler (DATF, DATM). Neither DA nor
    # IE.
    li.w    $t0, 0xb0
    csrwr   $t0, CRMD
.endm

    .section .text.boot, "ax"

# The first CPU: to first_cpu(), which does not return.
    .globl _start
_start:
    # QEMU has but one CPU come here from 9.0 on. Others must not do as the first one does.
    csrrd   $t0, CPUID
    andi    $t0, $t0, 0x1ff
    bnez    $t0, park
    enter_windows
    la.pcrel $sp, boot_stack_end
    move    $fp, $zero
    bl      first_cpu
park:
    idle    0
    b       park

# The others, as the mailbox told them to: to other_cpu(number), on the stack that mailbox 1 has.
    .globl other_start
other_start:
    enter_windows
    li.w    $t0, MAILBOX1
    iocsrrd.d $sp, $t0
    csrrd   $a0, CPUID
    andi    $a0, $a0, 0x1ff
    move    $fp, $zero
    bl      other_cpu
    b       park

    .section .bss
    .balign 16
boot_stack:
    .space 0x10000
boot_stack_end:
