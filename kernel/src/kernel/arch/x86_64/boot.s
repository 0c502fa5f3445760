# From the boot loader to Rust, for the first CPU; and from start-up interrupts, for the others.
#
# Both ways end in 64-bit mode, in the upper half, under page tables that map the first 4 GiB thrice:
# where they are (for the instructions between paging and the jump), where the kernel sees physical
# memory, and the first of them where the kernel runs. They are of 2 MiB pages, and are left at once.

# How QEMU starts an ELF file by itself: the note "XEN_ELFNOTE_PHYS32_ENTRY", 18.
.section .note.pvh, "a", @note
  .balign 4
  .long 4, 4, 18
  .asciz "Xen"
  .long start

# How GRUB starts one: multiboot2, section 3.1.
.section .boot.header, "a"
  .balign 8
header:
  .long 0xe85250d6, 0, header_end - header, -(0xe85250d6 + (header_end - header))
  # The entry's physical address (section 3.1.7), for ELF has a virtual one.
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

# EFER: NXE, LME. CR4: PAE. CR0: PG, WP, NE, MP, PE. Kept: nothing of CR0, for caches are off in it
# after an INIT (bits 30 and 29).
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
# 32-bit protected mode without paging (the PVH boot ABI, and multiboot2, section 3.3). EBX is where
# what is told is.
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
  # As arguments, without what 32-bit mode leaves undefined above.
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

# What a start-up interrupt executes, where `smp` copies it to: in 16-bit real mode, with CS such
# that its first byte is at 0. It is linked elsewhere, so addresses are told apart by hand.
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
  # A mailbox is a root, the end of a stack, and a number.
  movq {mailbox}(%rip), %rax
  movq %rax, %cr3
  movq {mailbox} + 8(%rip), %rsp
  movq {mailbox} + 16(%rip), %rdi
  xorl %ebp, %ebp
  call {other_cpu}
  ud2
