// From reset, or from PSCI, to Rust.
//
// A CPU enters at its physical address with its MMU and data cache off, at EL1 or EL2, and continues
// with the MMU on. The boot tables map the first two GiB twice: at their physical addresses (TTBR0) and
// where the kernel runs (TTBR1). So the instruction after the one that turns the MMU on is mapped.
//
// Nothing is stored while the MMU is off: such a store bypasses the caches, and a later load of the
// word could hit an old cache line. (The first CPU's tables are part of the image.)

.set PHYSICAL_MEMORY, 0xffff000000000000

// TCR_EL1. T0SZ and T1SZ are 16: 48 bits. Walks are cached, write-back, and inner shareable.
.set TCR, (16 << 0) | (1 << 8) | (1 << 10) | (3 << 12) | (16 << 16) | (1 << 24) | (1 << 26) | (3 << 28)
// TG0 is 0 and TG1 is 2: both granules are 4 KiB.
.set TCR_GRANULES, 2 << 30
.set TCR_IPS_SHIFT, 32
.set TCR_AS, 1 << 36
.set TCR_HA, 1 << 39
.set TCR_HD, 1 << 40

// SCTLR_EL1: the bits that are RES1 without extensions (29, 28, 23, 22, 20, 11; 23 is SPAN: an
// exception does not set PAN); WFI and WFE do not trap (18, 16); stacks must be aligned (4, 3).
.set SCTLR, 0x30d00800 | (1 << 18) | (1 << 16) | (1 << 4) | (1 << 3)
// Turns on the instruction cache, the data cache, and the MMU.
.set SCTLR_ON, (1 << 12) | (1 << 2) | (1 << 0)

// HCR_EL2: E2H, RW, TGE.
.set HCR, (1 << 34) | (1 << 31) | (1 << 27)

// A valid, accessed block with an attribute of MAIR_EL1; inner shareable; not for user mode.
.set NORMAL_BLOCK, 0x1 | (1 << 10) | (3 << 8) | (0 << 2) | (1 << 54)
.set DEVICE_BLOCK, 0x1 | (1 << 10) | (1 << 2) | (1 << 54) | (1 << 53)
.set TABLE, 0x3

.section .text.boot, "ax"

.global start
start:
    mov     x20, #0                     // the first CPU has no stack yet
    b       begin

// Other CPUs: x0 is the end of the stack.
.global start_other
start_other:
    mov     x20, x0

begin:
    mrs     x0, currentel
    cmp     x0, #(1 << 2)
    b.eq    1f
    cmp     x0, #(2 << 2)
    b.ne    end_early                   // EL3: the kernel is not firmware
    // EL2, with EL1's names for its registers (E2H) and its own page tables for user mode (TGE).
    mrs     x0, id_aa64mmfr1_el1
    ubfx    x0, x0, #8, #4              // VH
    cbz     x0, end_early
    ldr     x0, =HCR
    msr     hcr_el2, x0
    isb
1:
    msr     daifset, #0xf
    msr     spsel, #1
    adrp    x0, early_vectors
    add     x0, x0, :lo12:early_vectors
    msr     vbar_el1, x0
    ldr     x22, =SCTLR
    msr     sctlr_el1, x22
    isb
    // Attribute 0 is normal memory, write-back. Attribute 1 is a device, in order, without early
    // acknowledgement of writes.
    mov     x0, #0x00ff
    msr     mair_el1, x0
    bl      set_tcr
    // Trap floating-point and vector instructions: no code here has any. If some has, the exception
    // (EC 0x07) reports it; otherwise it would use another thread's registers.
    msr     cpacr_el1, xzr
    adrp    x0, boot_tables
    msr     ttbr0_el1, x0
    cbz     x20, 2f
    adrp    x0, kernel_tables           // the first CPU has filled these tables
2:
    msr     ttbr1_el1, x0
    // Caches and TLB have unknown contents.
    tlbi    vmalle1
    ic      iallu
    dsb     nsh
    isb
    ldr     x0, =SCTLR | SCTLR_ON
    msr     sctlr_el1, x0
    isb
    ldr     x0, =running_high
    br      x0

running_high:
    adrp    x0, vectors
    add     x0, x0, :lo12:vectors
    msr     vbar_el1, x0
    isb
    msr     daifclr, #4                 // unmask SErrors: a device may report an error by one
    cbnz    x20, 3f

    adrp    x0, bss_start
    adrp    x1, bss_end
4:  stp     xzr, xzr, [x0], #16
    cmp     x0, x1
    b.lo    4b
    adrp    x0, boot_stack_end
    mov     sp, x0
    mov     x29, xzr
    mov     x30, xzr
    b       begin_on_first_cpu

3:  mov     sp, x20
    mov     x29, xzr
    mov     x30, xzr
    b       begin_on_other_cpu

// Sets TCR_EL1 as far as the processor supports it: 16 bits of ASID, hardware management of the
// access flag and of the dirty state, and the full physical address size.
set_tcr:
    ldr     x0, =TCR | TCR_GRANULES
    mrs     x1, id_aa64mmfr0_el1
    and     x2, x1, #0xf                // PARange
    mov     x3, #5                      // more than 48 bits would need other tables
    cmp     x2, x3
    csel    x2, x2, x3, lo
    orr     x0, x0, x2, lsl #TCR_IPS_SHIFT
    ubfx    x2, x1, #4, #4              // ASIDBits
    cmp     x2, #2
    b.ne    5f
    orr     x0, x0, #TCR_AS
5:  mrs     x1, id_aa64mmfr1_el1
    ubfx    x2, x1, #0, #4              // HAFDBS
    cmp     x2, #1
    b.lo    6f
    orr     x0, x0, #TCR_HA
    b.eq    6f
    orr     x0, x0, #TCR_HD
6:  msr     tcr_el1, x0
    ret

// Sets TTBR1 to x0. One set of tables maps by blocks and the other by pages, so there must be a
// moment without either (break before make). Therefore this code runs at its address in TTBR0.
// (Linux: `idmap_cpu_replace_ttbr1`.)
.global replace_kernel_tables
replace_kernel_tables:
    adr     x1, 7f
    ldr     x2, =PHYSICAL_MEMORY
    sub     x1, x1, x2
    br      x1
7:  adrp    x3, empty_table             // a physical address, because the code runs at one
    msr     ttbr1_el1, x3
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    msr     ttbr1_el1, x0
    isb
    ret

// An exception before Rust can report it ends the run with a failure, by semihosting (see end.rs).
.balign 0x800
early_vectors:
.rept 16
.balign 0x80
    b       end_early
.endr
end_early:
    mov     x0, #0x20
    adr     x1, 9f
    hlt     #0xf000
8:  wfi
    b       8b
.balign 8
9:  .quad   0x20026, 43

.section .data.tables, "aw"
.balign 4096
// Tables of the first CPU, and of every other CPU until its MMU is on. The first GiB has the
// devices, the second the kernel.
.global boot_tables
boot_tables:
    .quad   boot_middle - PHYSICAL_MEMORY + TABLE
    .fill   511, 8, 0
boot_middle:
    .quad   0x00000000 + DEVICE_BLOCK
    .quad   0x40000000 + NORMAL_BLOCK
    .fill   510, 8, 0
// The kernel's root for TTBR0, and the root of TTBR1 during its replacement.
.global empty_table
empty_table:
    .fill   512, 8, 0
// The kernel's own root, once `tables` has filled it.
.global kernel_tables
kernel_tables:
    .fill   512, 8, 0
