/* User mode on roots that do not map the kernel: the exit path loads what the engine has decided. */
#include "kernel.h"
#include "riscv.h"

enum { LAPS = 200, LOAD_BYTES = 4 };

/* The state of a stay in user mode, as trampoline.S has it. */
struct user {
    uint64_t kernel_satp, pc;
    uint64_t laps, end, start, reads, stale_reads, mark, current, value;
    uint64_t kept[15];
} __attribute__((aligned(256)));

extern struct user users[CPUS];
extern const char trampoline[], user_program[], user_load[];
uint64_t enter_user(struct user *user, uint64_t satp);

/* The program is mapped after all pages that it can read. */
#define PROGRAM (USER + 511 * PAGE_BYTES)

/* The tables that map the trampoline in each root of a space. */
static uint64_t middle[512] __attribute__((aligned(4096)));
static uint64_t entries[512] __attribute__((aligned(4096)));

/* No entry is global, because roots map different pages at the kernel's addresses. */
void map_kernel_root(void) { map_kernel(kernel_root, 0); }

static void map_in_trampoline(const void *page, uint64_t bits) {
    entries[(uint64_t)page >> 12 & 511] = entry_of(page) | bits | ACCESSED | READ | VALID;
    middle[(uint64_t)page >> 21 & 511] = entry_of(entries) | VALID;
}

void map_kernel_in(struct address_space *space) {
    map_in_trampoline(trampoline, EXECUTE);
    map_in_trampoline(users, DIRTY | WRITE);
    space->root[RAM >> 30] = entry_of(middle) | VALID;
    space->entries[511] = entry_of(user_program) | USER_PAGE | ACCESSED | EXECUTE | READ | VALID;
}

/* One stay in user mode. Returns the cause of its end. Interrupts are masked. */
static uint64_t stay_in_user_mode(struct user *user, struct address_space *space) {
    run_space(space);
    struct shootdown_loaded_root loaded = shootdown_loaded();
    return enter_user(user, SV39 | (uint64_t)loaded.tag << 44 | loaded.root >> 12);
}

void read_pages(struct reader *reader, struct address_space *space) {
    struct user *user = &users[this_cpu()];
    *user = (struct user){.pc = PROGRAM, .laps = LAPS, .start = USER, .mark = MAPPED};
    user->end = USER + PAGES * PAGE_BYTES;
    mask_interrupts();
    for (uint64_t cause; (cause = stay_in_user_mode(user, space)) != CALL_OF_USER_MODE;) {
        if (cause == SOFTWARE_INTERRUPT) {
            flush_interrupt();
        } else if (cause == LOAD_PAGE_FAULT && user->pc == PROGRAM + (user_load - user_program)) {
            shootdown_forget_refused(fault_address());
            user->pc += LOAD_BYTES;
            user->reads--;
        } else {
            print("unexpected trap of user mode\n");
            stop(false);
        }
    }
    unmask_interrupts();
    reader->stale_reads += user->stale_reads;
    __atomic_store_n(&reader->reads, reader->reads + user->reads, __ATOMIC_RELEASE);
}
