/* The processor and its firmware: what every kernel for RISC-V has. */
#ifndef RISCV_H
#define RISCV_H

#include <stdint.h>

enum {
    SSTATUS_SIE = 1 << 1,  /* interrupts are enabled */
    SSTATUS_SUM = 1 << 18, /* the kernel may access user pages */
    SIE_SSIE = 1 << 1,     /* the software interrupt is enabled */
};

/* Bits of an entry of a page table. */
enum {
    VALID = 1 << 0,
    READ = 1 << 1,
    WRITE = 1 << 2,
    EXECUTE = 1 << 3,
    USER_PAGE = 1 << 4,
    GLOBAL = 1 << 5,
    ACCESSED = 1 << 6,
    DIRTY = 1 << 7,
};

#define SV39 (8ull << 60)
#define RAM 0x80000000ull

#define SOFTWARE_INTERRUPT (1ull << 63 | 1)
#define LOAD_PAGE_FAULT 13ull
#define CALL_OF_USER_MODE 8ull

#define csr_write(name, value) \
    __asm__ volatile("csrw " #name ", %0" : : "r"((uint64_t)(value)) : "memory")
#define csr_set(name, bits) \
    __asm__ volatile("csrs " #name ", %0" : : "r"((uint64_t)(bits)) : "memory")
#define csr_clear(name, bits) \
    __asm__ volatile("csrc " #name ", %0" : : "r"((uint64_t)(bits)) : "memory")

static inline void mask_interrupts(void) { csr_clear(sstatus, SSTATUS_SIE); }
static inline void unmask_interrupts(void) { csr_set(sstatus, SSTATUS_SIE); }

/* Drops one page from the TLB of this CPU. */
static inline void drop_page(uint64_t address) {
    __asm__ volatile("sfence.vma %0" : : "r"(address) : "memory");
}

static inline uint64_t fault_address(void) {
    uint64_t address;
    __asm__ volatile("csrr %0, stval" : "=r"(address));
    return address;
}

static inline uint32_t this_cpu(void) {
    uint64_t number;
    __asm__ volatile("mv %0, tp" : "=r"(number));
    return (uint32_t)number;
}

/* Extensions of the firmware. */
#define SBI_HARTS 0x48534d

/* The register of the serial port that sends a character. */
#define SERIAL 0x10000000

/* The device by which QEMU's machine `virt` ends, with status 0 or 1. */
#define TEST_DEVICE 0x100000
#define TEST_PASSED 0x5555
#define TEST_FAILED (1 << 16 | 0x3333)

/* Calls the firmware. Returns the error, 0 if there is none. */
static inline int64_t sbi(uint64_t extension, uint64_t x, uint64_t y, uint64_t z) {
    register uint64_t a0 __asm__("a0") = x;
    register uint64_t a1 __asm__("a1") = y;
    register uint64_t a2 __asm__("a2") = z;
    register uint64_t a6 __asm__("a6") = 0;
    register uint64_t a7 __asm__("a7") = extension;
    __asm__ volatile("ecall" : "+r"(a0), "+r"(a1) : "r"(a2), "r"(a6), "r"(a7) : "memory");
    return (int64_t)a0;
}

#endif
