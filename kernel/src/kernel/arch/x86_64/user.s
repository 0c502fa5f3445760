# The position-independent code of user threads. RDI is the task, RSI the next address, RDX the
# number of repetitions, RCX the distance between addresses, R8 the value; R9 is the word that was
# just read. A fault leaves all of these registers unchanged, so that the access can be repeated.

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
  # This loop waits for another CPU, which an emulator may run on the same host thread.
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

spin:
  decq %rdx
  jnz spin

done:
  int $0x80
  ud2
user_code_end:
