/*
 * The paths whose instructions `cargo xtask bench paths` counts: `cost PATH TURNS`. One thread plays
 * two CPUs, and the kernel's functions do as little as they can. With -DPERCPU_GS, the library reads
 * the variables of a CPU relative to GS, as in Linux.
 */
#define _DEFAULT_SOURCE
#include "shootdown.h"

#include <stdlib.h>
#include <string.h>

#ifdef PERCPU_GS
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT(number) #number
#define SIZE(number) TEXT(number)
static struct percpu {
    struct shootdown_cpu state;
    uint32_t number;
    uint64_t offset;
} percpu[2] = {{.number = 0}, {.number = 1, .offset = sizeof percpu[0]}};
/* Each CPU's variables are at the same distance from those of CPU 0, which have the names. */
uint64_t shootdown_os_percpu_base[SHOOTDOWN_CPUS_MAX] = {0, sizeof percpu[0]};
__asm__(".globl shootdown_os_percpu_state, shootdown_os_percpu_number, shootdown_os_percpu_offset\n"
        ".set shootdown_os_percpu_state, percpu\n"
        ".set shootdown_os_percpu_number, percpu + " SIZE(SHOOTDOWN_CPU_WORDS) " * 8\n"
        ".set shootdown_os_percpu_offset, percpu + " SIZE(SHOOTDOWN_CPU_WORDS) " * 8 + 8\n");
static struct shootdown_cpu *state_of(uint32_t number) { return &percpu[number].state; }
static void on(uint32_t number) {
    enum { SET_GS = 0x1001 };
    syscall(SYS_arch_prctl, SET_GS, shootdown_os_percpu_base[number]);
}
#else
static struct shootdown_cpu cpus[2];
static uint32_t this_cpu;
static struct shootdown_cpu *state_of(uint32_t number) { return &cpus[number]; }
static void on(uint32_t number) { this_cpu = number; }
struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number]; }
uint32_t shootdown_os_this_cpu(void) { return this_cpu; }
#endif
bool shootdown_os_is_away(uint32_t cpu) { return (void)cpu, false; }
static void on(uint32_t number);
static bool answers;
void shootdown_os_ring(const uint32_t *numbers, size_t count) {
    (void)numbers, (void)count;
    if (answers)
        on(1), shootdown_handle_flush_ipi(), on(0);
}
void shootdown_os_reclaim(struct shootdown_space *space) { (void)space; }
void shootdown_os_wait_hint(uint32_t cpu) { (void)cpu; }
void shootdown_os_panic(const char *message, size_t length) { (void)message, (void)length, abort(); }
uint64_t shootdown_os_trace_clock_ns(void) { return 0; }
void shootdown_os_trace_flush(const struct shootdown_flush_event *event) { (void)event; }
void shootdown_os_trace_wait(const struct shootdown_wait_event *event) { (void)event; }
bool shootdown_mmu_interrupts_masked(void) { return true; }
void shootdown_mmu_publish(void) {}
void shootdown_mmu_synchronize(void) {}
void shootdown_mmu_load(uint64_t root, uint16_t tag, bool keeps) { (void)root, (void)tag, (void)keeps; }
void shootdown_mmu_load_kernel(void) {}
void shootdown_mmu_invalidate(uint16_t tag, uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)tag, (void)address, (void)count, (void)shift, (void)f;
}
void shootdown_mmu_invalidate_tag(uint16_t tag) { (void)tag; }
void shootdown_mmu_invalidate_kernel(uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)address, (void)count, (void)shift, (void)f;
}
void shootdown_mmu_invalidate_all(void) {}
bool shootdown_mmu_broadcast(const uint32_t *cpus_of, size_t cpu_count, uint16_t tag,
                             uint64_t address, size_t count, uint8_t shift, bool f) {
    return (void)cpus_of, (void)cpu_count, (void)tag, (void)address, (void)count, (void)shift, f;
}
bool shootdown_mmu_broadcast_kernel(uint64_t address, size_t count, uint8_t shift, bool f) {
    return (void)address, (void)count, (void)shift, f;
}
uint64_t shootdown_mmu_complete_broadcasts(void) { return 0; }
uint64_t shootdown_mmu_clock_ns(void) { return 0; }

static struct shootdown_space a, b;
static struct shootdown_pending pending;

static void flush_alone(void) {
    shootdown_flush(&a, shootdown_page(0x5000), &pending);
    shootdown_wait(&pending);
}
static void flush_and_wait(void) { shootdown_flush_and_wait(&a, 0x5000, 0x6000, 12, false); }
static void flush_tables(void) { shootdown_flush_tables_and_wait(&a, 0x5000, 0x6000, 12); }
static void flush_one(void) {
    shootdown_flush(&a, shootdown_page(0x5000), &pending);
    on(1), shootdown_handle_flush_ipi(), on(0);
    shootdown_wait(&pending);
}
static void switch_twice(void) { shootdown_switch(&b), shootdown_switch(&a); }
static void lazy(void) { shootdown_enter_lazy(), shootdown_switch(&a); }

static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    {"flush-alone", flush_alone},       {"flush-one", flush_one},    {"switch", switch_twice},
    {"switch-untagged", switch_twice},  {"lazy", lazy},              {"alone-and-wait", flush_and_wait},
    {"lazy-and-wait", flush_and_wait},  {"one-and-wait", flush_and_wait},
    {"tables-and-wait", flush_tables}};

int main(int count, char **words) {
    struct shootdown_config config = {.layout = SHOOTDOWN_LAYOUT, .tag_count = 6};
    if (count != 3)
        return 1;
    if (strcmp(words[1], "switch-untagged") == 0)
        config.tag_count = 0;
    shootdown_cpu_init(state_of(0)), shootdown_cpu_init(state_of(1));
    on(0);
    shootdown_init(&config);
    shootdown_space_init(&a, 0xa000), shootdown_space_init(&b, 0xb000);
    on(1), shootdown_online();
    if (strncmp(words[1], "flush-one", 9) == 0 || strcmp(words[1], "lazy-and-wait") == 0
        || strcmp(words[1], "one-and-wait") == 0)
        shootdown_switch(&a);
    answers = strcmp(words[1], "one-and-wait") == 0;
    if (strcmp(words[1], "lazy-and-wait") == 0)
        shootdown_enter_lazy();
    on(0), shootdown_online();
    shootdown_switch(&b), shootdown_switch(&a);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (strcmp(words[1], paths[i].name) == 0)
            for (int turns = atoi(words[2]); turns > 0; turns--)
                paths[i].run();
    return 0;
}
