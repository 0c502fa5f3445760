# What user threads run; it may lie anywhere. RDI is the task, RSI the next address, RDX how often it
# is still to be done, RCX from one address to the next, R8 the value; R9 what has just been read.
# A fault leaves all of them as they were, so that what faulted can be gone on with.

.section .rodata, "a"
.global user_code_start
.global user_code_end
user_code_start:
  testq %rdx, %rdx
  jz done
  cmpq ${write}, %rdi
  je write
  cmpq ${read_while}, %rdi
  je read_while
  cmpq ${write_often}, %rdi
  je write_often
  cmpq ${spin}, %rdi
  je spin

read:
  movq (%rsi), %r8
  addq %rcx, %rsi
  decq %rdx
  jnz read
  jmp done

write:
  movq %r8, (%rsi)
  addq %rcx, %rsi
  decq %rdx
  jnz write
  jmp done

read_while:
  # It waits for another CPU, which an emulator may run on the same thread.
  pause
  movq (%rsi), %r9
  decq %rdx
  cmpq %r9, %r8
  jne 1f
  testq %rdx, %rdx
  jnz read_while
1:
  movq %r9, %r8
  jmp done

write_often:
  movq %r8, (%rsi)
  decq %rdx
  jnz write_often
  jmp done

spin:
  decq %rdx
  jnz spin

done:
  int $0x80
  ud2
user_code_end:
