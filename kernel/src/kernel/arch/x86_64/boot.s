# The first CPU comes here from the boot loader, and the other CPUs by start-up interrupts.
#
# Both continue in 64-bit mode in the upper half, on page tables that map the first 4 GiB at three
# places: at their physical addresses (for the instructions between enabling paging and the jump),
# where the kernel maps physical memory, and where the kernel runs (the first GiB). These tables
# have pages of 2 MiB, and the kernel replaces them immediately.

# The note by which QEMU starts an ELF file (PVH): "XEN_ELFNOTE_PHYS32_ENTRY", 18.
.section .note.pvh, "a", @note
  .balign 4
  .long 4, 4, 18
  .asciz "Xen"
  .long start

# The header by which GRUB starts an ELF file: multiboot2, section 3.1.
.section .boot.header, "a"
  .balign 8
header:
  .long 0xe85250d6, 0, header_end - header, -(0xe85250d6 + (header_end - header))
  # The physical address of the entry (section 3.1.7), because the ELF file has a virtual one.
  .balign 8
  .short 3, 0
  .long 12, start
  .balign 8
  .short 0, 0
  .long 8
header_end:

.section .boot.tables, "aw", @nobits
  .balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pdpt_upper: .skip 4096
boot_pd: .skip 4 * 4096

# Sets EFER: NXE, LME; CR4: PAE; CR0: PG, WP, NE, MP, PE. No bit of CR0 is kept, because after an
# INIT it disables the caches (bits 30 and 29).
.macro ENTER_LONG_MODE
  movl $0x20, %eax
  movl %eax, %cr4
  movl $boot_pml4, %eax
  movl %eax, %cr3
  movl $0xc0000080, %ecx
  rdmsr
  orl $0x900, %eax
  wrmsr
  movl $0x80010023, %eax
  movl %eax, %cr0
.endm

.section .boot.text, "ax"
.code32
# The CPU is in 32-bit protected mode without paging (PVH boot ABI; multiboot2, section 3.3). EBX
# has the address of the boot loader's tables.
.global start
start:
  cli
  cld
  movl %eax, %edi
  movl %ebx, %esi

  # Four tables of 512 pages of 2 MiB: present, writable, large.
  movl $0x83, %eax
  movl $boot_pd, %edx
  movl $2048, %ecx
1:
  movl %eax, (%edx)
  addl $0x200000, %eax
  addl $8, %edx
  loop 1b

  movl $boot_pd + 3, %eax
  movl $boot_pdpt, %edx
  movl $4, %ecx
2:
  movl %eax, (%edx)
  addl $4096, %eax
  addl $8, %edx
  loop 2b

  movl $boot_pd + 3, boot_pdpt_upper + 510 * 8
  movl $boot_pdpt + 3, boot_pml4
  movl $boot_pdpt + 3, boot_pml4 + 256 * 8
  movl $boot_pdpt_upper + 3, boot_pml4 + 511 * 8

  ENTER_LONG_MODE
  lgdt boot_gdt_pointer
  ljmp $8, $1f
.code64
1:
  xorl %eax, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %ss
  movl %eax, %fs
  movl %eax, %gs
  # Clears the upper halves of the arguments, which are undefined after 32-bit mode.
  movl %edi, %edi
  movl %esi, %esi
  movabsq $first_cpu_upper, %rax
  jmp *%rax

  .balign 8
# Code of 64 bits.
boot_gdt: .quad 0, 0x00af9b000000ffff
boot_gdt_pointer:
  .short boot_gdt_pointer - boot_gdt - 1
  .long boot_gdt

.section .text, "ax"
first_cpu_upper:
  leaq first_stack_end(%rip), %rsp
  xorl %ebp, %ebp
  call {first_cpu}
  ud2

.section .bss, "aw", @nobits
  .balign 4096
  .skip 128 * 1024
first_stack_end:

# A start-up interrupt executes this code in 16-bit real mode at the address to which `smp` copies
# it, with CS such that the first byte is at 0. The code is linked at another address, so its
# addresses are computed by hand.
.section .rodata, "a"
.global trampoline
.global trampoline_end
.set TRAMPOLINE, {trampoline_address}
  .balign 16
trampoline:
.code16
  cli
  cld
  xorw %ax, %ax
  movw %ax, %ds
  lgdtl TRAMPOLINE + trampoline_gdt_pointer - trampoline
  movl $1, %eax
  movl %eax, %cr0
  ljmpl $0x10, $(TRAMPOLINE + 1f - trampoline)
.code32
1:
  movl $0x18, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %ss
  ENTER_LONG_MODE
  ljmp $8, $(TRAMPOLINE + 1f - trampoline)
.code64
1:
  xorl %eax, %eax
  movl %eax, %ds
  movl %eax, %es
  movl %eax, %ss
  movl %eax, %fs
  movl %eax, %gs
  movabsq $other_cpu_upper, %rax
  jmp *%rax
  .balign 8
# Code of 64 bits; code and data of 32.
trampoline_gdt: .quad 0, 0x00af9b000000ffff, 0x00cf9b000000ffff, 0x00cf93000000ffff
trampoline_gdt_pointer:
  .short trampoline_gdt_pointer - trampoline_gdt - 1
  .long TRAMPOLINE + trampoline_gdt - trampoline
trampoline_end:

.section .text, "ax"
other_cpu_upper:
  # A mailbox holds a root, the end of a stack, and a number.
  movq {mailbox}(%rip), %rax
  movq %rax, %cr3
  movq {mailbox} + 8(%rip), %rsp
  movq {mailbox} + 16(%rip), %rdi
  xorl %ebp, %ebp
  call {other_cpu}
  ud2
