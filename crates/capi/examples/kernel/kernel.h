/* The parts of the kernel. */
#ifndef KERNEL_H
#define KERNEL_H

#include "shootdown.h"

enum { CPUS = 4, PAGES = 16, PAGE_BYTES = 4096 };

/* Flags of the processor, and the address of the device that sends interrupts: 0 for the firmware. */
#ifndef PROCESSOR
#define PROCESSOR 0
#endif
#ifndef INTERRUPT
#define INTERRUPT 0
#endif

/* The marks of a page that is mapped, and of one that is freed. */
enum { MAPPED = 1, FREED = 2 };

/* User pages are mapped from here on. */
#define USER 0x1000000000ull

/* memory.c: address spaces, each with a root, two tables below it, and its pages' entries. */
struct address_space {
    struct shootdown_space engine; /* the engine's part */
    uint64_t root[512] __attribute__((aligned(4096)));
    uint64_t middle[512] __attribute__((aligned(4096)));
    _Atomic uint64_t entries[512] __attribute__((aligned(4096)));
};

extern uint64_t kernel_root[512];
void map_kernel(uint64_t root[512], uint64_t bits);
uint64_t entry_of(const void *page);
void load_kernel_root(void);
void create_tables(struct address_space *space);
void map_page(struct address_space *space, unsigned page, const void *frame);
void unmap_page(struct address_space *space, unsigned page);

/* firmware.c, or trampoline.c without firmware: the kernel's part of each root, the start of a CPU,
 * and user mode, which reads all pages. */
struct reader {
    uint64_t reads, stale_reads;
} __attribute__((aligned(64)));

void map_kernel_root(void);
void map_kernel_in(struct address_space *space);
int64_t start_hart(uint64_t hart, uint64_t cpu);
void read_pages(struct reader *reader, struct address_space *space);

/* glue.c: the engine. */
extern uint64_t harts[CPUS];
void start_engine(void);
void join_engine(void);
void run_space(struct address_space *space);
void idle(void);
void flush_interrupt(void);
void unmap_pages(struct address_space *space);
void end_space(struct address_space *space);
extern struct address_space *reclaimed;

/* boot.S */
bool load_user(uint64_t address, uint64_t *value);
extern const char start_other[], load_user_failed[];

/* main.c */
void print(const char *text);
_Noreturn void stop(bool has_passed);

#endif
