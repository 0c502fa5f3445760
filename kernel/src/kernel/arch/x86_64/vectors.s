# Entries of interrupts and exceptions, and the way to user mode and back.

.section .text, "ax"

# One stub for each vector, 16 bytes apart. A stub pushes 0 if the CPU pushes no error code, so that
# all frames have one layout: see `Frame`.
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

# Executes an instruction with each of the registers.
.macro EACH instruction, registers:vararg
.irp register, \registers
  \instruction %\register
.endr
.endm

.macro PUSH_REGISTERS
  EACH pushq, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
  cld
.endm

# Exceptions that may come at any instruction, even between a `swapgs` and its `iretq`, so the base
# of GS is unknown. They have a stack of their own.
emergency:
  PUSH_REGISTERS
  movq %rsp, %rdi
  call {unexpected}
  ud2

trap:
  # The lower bits of CS are 0 in the kernel.
  testb $3, 24(%rsp)
  jnz trap_from_user
  PUSH_REGISTERS
  movq %rsp, %rdi
  # A frame has 22 words, and the CPU has aligned the stack to 16 bytes.
  call {trap_in_kernel}
  EACH popq, r15, r14, r13, r12, r11, r10, r9, r8, rdi, rsi, rbp, rbx, rdx, rcx, rax
  addq $16, %rsp
  iretq

# The frame begins where `enter_user` has left the stack, below the registers that it has saved.
trap_from_user:
  swapgs
  PUSH_REGISTERS
  movq %rsp, %rdi
  movq {frame_bytes}(%rsp), %rsi
  call {trap_from_user}
  addq ${frame_bytes} + 8, %rsp
  EACH popq, r15, r14, r13, r12, rbx, rbp
  ret

# extern "C" fn enter_user(user: *mut User, interrupt_stack: *mut u64), with interrupts masked.
# Returns from `trap_from_user`.
.global enter_user
enter_user:
  EACH pushq, rbp, rbx, r12, r13, r14, r15
  pushq %rdi
  # Seven words and a return address are a multiple of 16, so the CPU does not align the stack.
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
  # Clear the other registers: user mode must not read the kernel's values.
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
  EACH pushq, rbp, rbx, r12, r13, r14, r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  EACH popq, r15, r14, r13, r12, rbx, rbp
  ret

# The first code of a new thread: R12 is its entry, R13 its argument.
.global thread_start
thread_start:
  movq %r13, %rdi
  xorl %ebp, %ebp
  callq *%r12
  ud2
