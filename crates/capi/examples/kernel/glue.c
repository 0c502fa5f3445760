/* All that this kernel writes for the engine. */
#include "kernel.h"
#include "riscv.h"

static struct shootdown_cpu cpus[CPUS];
uint64_t harts[CPUS];
struct address_space *reclaimed;

/* The functions that the engine calls. */

struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number]; }

uint32_t shootdown_os_this_cpu(void) { return this_cpu(); }

/* On RISC-V there is one interrupt between CPUs. INTERRUPT is the sender: 0 for the firmware. */

void shootdown_os_ring(const uint32_t *numbers, size_t count) {
    uint64_t targets[CPUS];
    for (size_t i = 0; i < count; i++)
        targets[i] = harts[numbers[i]];
    shootdown_send_ipi(INTERRUPT, targets, count);
}

/* The scheduler may be in the middle of a switch here: only note the space, and free it later. */
void shootdown_os_reclaim(struct shootdown_space *space) {
    reclaimed = (struct address_space *)space;
}

void shootdown_os_wait_hint(uint32_t cpu) { (void)cpu; }

/* Called only if the library was built with the feature `broadcast`. */
uint64_t shootdown_os_hart(uint32_t cpu) { return harts[cpu]; }

void shootdown_os_panic(const char *message, size_t length) {
    char text[2] = {0};
    for (size_t i = 0; i < length; i++) {
        text[0] = message[i];
        print(text);
    }
    stop(false);
}

/* The places at which this kernel calls the engine. Interrupts are masked, if not said otherwise. */

/* Once, on the first CPU, when its page tables are loaded. */
void start_engine(void) {
    for (int cpu = 0; cpu < CPUS; cpu++)
        shootdown_cpu_init(&cpus[cpu]);
    const struct shootdown_config config = {
        .layout = SHOOTDOWN_LAYOUT,
        .cpu_limit = CPUS,
        .kernel_root = (uint64_t)kernel_root,
        .processor = PROCESSOR,
    };
    shootdown_init(&config);
}

/* On each CPU, when it can take the interrupt. */
void join_engine(void) { shootdown_online(); }

/* The scheduler: this CPU is about to run a thread of `space`. */
void run_space(struct address_space *space) { shootdown_switch(&space->engine); }

/* The scheduler: there is nothing to run, and the CPU may sleep for long. */
void idle(void) {
    shootdown_enter_lazy();
    shootdown_leave_space();
}

/* The handler of the interrupt. */
void flush_interrupt(void) {
    shootdown_acknowledge_ipi(INTERRUPT);
    shootdown_handle_flush_ipi();
}

/* `munmap`: when it returns, the frames can be used for anything. Interrupts are enabled. */
void unmap_pages(struct address_space *space) {
    for (unsigned page = 0; page < PAGES; page++)
        unmap_page(space, page);
    struct shootdown_extent pages = shootdown_range(USER, USER + PAGES * PAGE_BYTES, 12);
    struct shootdown_pending pending;
    mask_interrupts();
    shootdown_flush(&space->engine, pages, &pending);
    unmask_interrupts();
    /* A kernel with locks drops them here: the wait does not need them. */
    shootdown_wait(&pending);
}

/* `exit`: no thread of the space is left, and each CPU that ran one has switched or is idle. */
void end_space(struct address_space *space) { shootdown_retire(&space->engine); }
