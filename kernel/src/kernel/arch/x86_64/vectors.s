# Where interrupts and exceptions come in, and how a thread goes out to user mode.

.section .text, "ax"

# One stub for each vector, 16 bytes apart. Those for which the CPU pushes no error code push 0, so
# that all frames are alike: see `Frame`.
.global vectors
  .balign 16
vectors:
.set vector, 0
.rept 256
  .balign 16
  .if (vector != 8) && (vector < 10 || vector > 14) && (vector != 17) && (vector != 21) && (vector != 29) && (vector != 30)
  pushq $0
  .endif
  # pushq $vector
  .byte 0x68
  .long vector
  .if (vector == {non_maskable}) || (vector == {double_fault}) || (vector == {machine_check})
  jmp emergency
  .else
  jmp trap
  .endif
  .set vector, vector + 1
.endr

.macro PUSH_REGISTERS
  pushq %rax
  pushq %rcx
  pushq %rdx
  pushq %rbx
  pushq %rbp
  pushq %rsi
  pushq %rdi
  pushq %r8
  pushq %r9
  pushq %r10
  pushq %r11
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  cld
.endm

# What may come anywhere, on a stack of its own: even between a `swapgs` and its `iretq`, so it cannot
# be told whose GS it is.
emergency:
  PUSH_REGISTERS
  movq %rsp, %rdi
  call {unexpected}
  ud2

trap:
  # From user mode, by the lower bits of CS?
  testb $3, 24(%rsp)
  jnz trap_from_user
  PUSH_REGISTERS
  movq %rsp, %rdi
  # Frames are of 22 words, from an address that the CPU has rounded down to 16.
  call {trap_in_kernel}
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %r11
  popq %r10
  popq %r9
  popq %r8
  popq %rdi
  popq %rsi
  popq %rbp
  popq %rbx
  popq %rdx
  popq %rcx
  popq %rax
  addq $16, %rsp
  iretq

# The frame begins where `enter_user` has left the stack: what that has saved is above it.
trap_from_user:
  swapgs
  PUSH_REGISTERS
  movq %rsp, %rdi
  movq {frame_bytes}(%rsp), %rsi
  call {trap_from_user}
  addq ${frame_bytes} + 8, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret

# extern "C" fn enter_user(user: *mut User, interrupt_stack: *mut u64), with interrupts masked.
# Returns after `trap_from_user`.
.global enter_user
enter_user:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  pushq %rdi
  # Seven words and a return address: a multiple of 16, so the CPU does not round it down.
  movq %rsp, (%rsi)
  pushq ${user_data}
  pushq $0
  pushq {user_flags}(%rdi)
  pushq ${user_code_segment}
  pushq {user_pc}(%rdi)
  movq %rdi, %rax
  movq {user_task}(%rax), %rdi
  movq {user_address}(%rax), %rsi
  movq {user_count}(%rax), %rdx
  movq {user_stride}(%rax), %rcx
  movq {user_value}(%rax), %r8
  movq {user_scratch}(%rax), %r9
  # Nothing of the kernel's is user mode's to read.
  xorl %eax, %eax
  xorl %ebx, %ebx
  xorl %ebp, %ebp
  xorl %r10d, %r10d
  xorl %r11d, %r11d
  xorl %r12d, %r12d
  xorl %r13d, %r13d
  xorl %r14d, %r14d
  xorl %r15d, %r15d
  swapgs
  iretq

# extern "C" fn switch_stack(from: *mut usize, to: usize)
.global switch_stack
switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret

# Where a new thread's stack returns to: R12 is its entry, R13 its argument.
.global thread_start
thread_start:
  movq %r13, %rdi
  xorl %ebp, %ebp
  callq *%r12
  ud2
