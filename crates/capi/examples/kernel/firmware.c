/* A machine with firmware (SBI): it starts harts, and each root maps the kernel. */
#include "kernel.h"
#include "riscv.h"

void map_kernel_root(void) { map_kernel(kernel_root, GLOBAL); }

void map_kernel_in(struct address_space *space) { map_kernel(space->root, GLOBAL); }

int64_t start_hart(uint64_t hart, uint64_t cpu) {
    return sbi(SBI_HARTS, hart, (uint64_t)start_other, cpu);
}

/* The kernel reads, as far as it is permitted. */
void read_pages(struct reader *reader, struct address_space *space) {
    (void)space;
    for (unsigned page = 0; page < PAGES; page++) {
        uint64_t value;
        if (load_user(USER + page * PAGE_BYTES, &value)) {
            reader->stale_reads += value != MAPPED;
            __atomic_store_n(&reader->reads, reader->reads + 1, __ATOMIC_RELEASE);
        }
    }
}
