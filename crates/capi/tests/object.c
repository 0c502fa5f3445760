/*
 * A kernel without C library links the object of `cargo xtask capi-object`. It is not run.
 */
#define SHOOTDOWN_TYPES "types.h"
#include "shootdown.h"

static struct shootdown_cpu cpus[SHOOTDOWN_CPUS_MAX];

struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number]; }
uint32_t shootdown_os_this_cpu(void) { return 0; }
void shootdown_os_ring(const uint32_t *numbers, size_t count) { (void)numbers, (void)count; }
void shootdown_os_reclaim(struct shootdown_space *space) { (void)space; }
void shootdown_os_wait_hint(uint32_t cpu) { (void)cpu; }
void shootdown_os_panic(const char *text, size_t length) { for (;;) (void)text, (void)length; }

void *memcpy(void *to, const void *from, size_t count) { return (void)from, (void)count, to; }
void *memset(void *to, int byte, size_t count) { return (void)byte, (void)count, to; }

void start(void) {
    static const struct shootdown_config config = {.layout = SHOOTDOWN_LAYOUT};
    shootdown_init(&config);
    shootdown_online();
}
