# From reset to Rust. CPUs start in direct address mode, in which addresses are physical.

    .equ CPUID, 0x20
    .equ CRMD, 0x0
    .equ DMW0, 0x180
    .equ DMW1, 0x181
    .equ DMW2, 0x182
    .equ DMW3, 0x183
    .equ MAILBOX1, 0x1028

# Continues in the cached window. The jump comes before the windows are enabled: direct address mode
# ignores the upper bits of an address, so the jump leads to the same instruction, and once the
# windows are enabled, only addresses in windows are valid.
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
    # PG. Accesses are cached where DA comes back, which is in the refill handler (DATF, DATM). DA
    # and IE are 0.
    li.w    $t0, 0xb0
    csrwr   $t0, CRMD
.endm

    .section .text.boot, "ax"

# The first CPU calls first_cpu(), which does not return.
    .globl _start
_start:
    # From QEMU 9.0 on, only one CPU comes here. In older versions, the others are parked.
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

# Other CPUs come here by their mailbox, and call other_cpu(number) on the stack in mailbox 1.
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
