/* Page tables in the format Sv39. The kernel is mapped where it is loaded. */
#include "kernel.h"
#include "riscv.h"

uint64_t kernel_root[512] __attribute__((aligned(4096)));

uint64_t entry_of(const void *page) { return (uint64_t)page >> 12 << 10; }

/* An entry of a root maps 1 GiB: one for devices, and one for the RAM of this machine and more. */
void map_kernel(uint64_t root[512], uint64_t bits) {
    const uint64_t data = bits | DIRTY | ACCESSED | WRITE | READ | VALID;
    root[0] = data;
    root[RAM >> 30] = entry_of((void *)RAM) | EXECUTE | data;
}

void load_kernel_root(void) {
    csr_write(satp, SV39 | (uint64_t)kernel_root >> 12);
    __asm__ volatile("sfence.vma" : : : "memory");
}

void create_tables(struct address_space *space) {
    map_kernel_in(space);
    space->root[USER >> 30] = entry_of(space->middle) | VALID;
    space->middle[0] = entry_of(space->entries) | VALID;
}

/* Other CPUs read the contents of the frame only after they have found this entry. */
void map_page(struct address_space *space, unsigned page, const void *frame) {
    uint64_t entry = entry_of(frame) | DIRTY | ACCESSED | USER_PAGE | READ | VALID;
    __atomic_store_n(&space->entries[page], entry, __ATOMIC_RELEASE);
}

void unmap_page(struct address_space *space, unsigned page) {
    __atomic_store_n(&space->entries[page], 0, __ATOMIC_RELEASE);
}
