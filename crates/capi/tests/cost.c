/*
 * The paths whose instructions `cargo xtask bench paths` counts: `cost PATH TURNS`. One thread plays
 * two CPUs, and the kernel's functions do as little as they can.
 */
#include "shootdown.h"

#include <stdlib.h>
#include <string.h>

static struct shootdown_cpu cpus[2];
static uint32_t this_cpu;

struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number]; }
uint32_t shootdown_os_this_cpu(void) { return this_cpu; }
bool shootdown_os_is_away(uint32_t cpu) { return (void)cpu, false; }
void shootdown_os_ring(const uint32_t *numbers, size_t count) { (void)numbers, (void)count; }
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
static void flush_one(void) {
    shootdown_flush(&a, shootdown_page(0x5000), &pending);
    this_cpu = 1, shootdown_handle_flush_ipi(), this_cpu = 0;
    shootdown_wait(&pending);
}
static void switch_twice(void) { shootdown_switch(&b), shootdown_switch(&a); }
static void lazy(void) { shootdown_enter_lazy(), shootdown_switch(&a); }

static const struct {
    const char *name;
    void (*run)(void);
} paths[] = {
    {"flush-alone", flush_alone}, {"flush-one", flush_one}, {"switch", switch_twice}, {"lazy", lazy}};

int main(int count, char **words) {
    static const struct shootdown_config config = {.layout = SHOOTDOWN_LAYOUT, .tag_count = 6};
    if (count != 3)
        return 1;
    shootdown_cpu_init(&cpus[0]), shootdown_cpu_init(&cpus[1]);
    shootdown_init(&config);
    shootdown_space_init(&a, 0xa000), shootdown_space_init(&b, 0xb000);
    this_cpu = 1, shootdown_online();
    if (strcmp(words[1], "flush-one") == 0)
        shootdown_switch(&a);
    this_cpu = 0, shootdown_online();
    shootdown_switch(&b), shootdown_switch(&a);
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++)
        if (strcmp(words[1], paths[i].name) == 0)
            for (int turns = atoi(words[2]); turns > 0; turns--)
                paths[i].run();
    return 0;
}
