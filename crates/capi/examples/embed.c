/* The smallest embedding in C, for each processor that the library has. It is compiled and linked by
 * `cargo xtask test c` for the host and RISC-V. The functions that are only declared here are your
 * kernel's. */
#include "shootdown.h"

enum { CPUS = 64 };

uint32_t cpu_number(void); /* of this CPU, from 0 on */
uint64_t controller_number(uint32_t cpu); /* the local APIC's, MPIDR_EL1, the hart's */
uint64_t kernel_root(void); /* maps the kernel alone; empty on AArch64 and LoongArch64 */
void put_on_dead_list(struct shootdown_space *space); /* its page tables are freed later */
_Noreturn void stop(const char *message, size_t length);
uint64_t *entry_of(uint64_t address);
void free_frame(uint64_t entry);

#if defined(__x86_64__)
#define INTERRUPT 0xf0 /* a vector */
#elif defined(__aarch64__)
#define INTERRUPT 1 /* an SGI */
#elif defined(__riscv)
#define INTERRUPT 0 /* the firmware's; or the address of a CLINT */
#else
#define INTERRUPT 0 /* a bit of the IPI register */
#endif

static struct shootdown_cpu cpus[CPUS];

struct shootdown_cpu *shootdown_os_cpu(uint32_t cpu) { return &cpus[cpu]; }
uint32_t shootdown_os_this_cpu(void) { return cpu_number(); }
void shootdown_os_reclaim(struct shootdown_space *space) { put_on_dead_list(space); }
void shootdown_os_wait_hint(uint32_t cpu) { (void)cpu; }
void shootdown_os_panic(const char *message, size_t length) { stop(message, length); }

void shootdown_os_ring(const uint32_t *numbers, size_t count) {
    uint64_t targets[64];
    for (size_t i = 0; i < count; i++)
        targets[i] = controller_number(numbers[i]);
    shootdown_send_ipi(INTERRUPT, targets, count);
}

/* Once, on the first CPU. */
void start_engine(uint32_t cpu_count) {
    const struct shootdown_config config = {
        .layout = SHOOTDOWN_LAYOUT, .cpu_limit = cpu_count, .kernel_root = kernel_root()};
    for (uint32_t cpu = 0; cpu < cpu_count; cpu++)
        shootdown_cpu_init(&cpus[cpu]);
    shootdown_init(&config);
}

/* The following are called with interrupts masked. */

/* On each CPU, when it can take the interrupt. */
void start_cpu(void) { shootdown_online(); }

void flush_interrupt(void) {
    shootdown_acknowledge_ipi(INTERRUPT);
    shootdown_handle_flush_ipi();
}

/* The scheduler, before it runs a thread of a space, or of the kernel. */
void run_thread(struct shootdown_space *space) {
    if (space != NULL)
        shootdown_switch(space);
    else
        shootdown_enter_lazy();
}

void unmap_page(struct shootdown_space *space, uint64_t address) {
    struct shootdown_pending pending;
    uint64_t entry = __atomic_exchange_n(entry_of(address), 0, __ATOMIC_RELAXED);
    shootdown_flush(space, shootdown_page(address), &pending);
    shootdown_wait(&pending);
    free_frame(entry);
}

/* When the last thread of the space has ended. */
void end_space(struct shootdown_space *space) { shootdown_retire(space); }
