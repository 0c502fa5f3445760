// A kernel in C++ includes the header and calls the library.
#include "shootdown.h"

static shootdown_cpu cpus[2];

extern "C" shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number]; }

struct address_space {
    shootdown_space engine;
};

void unmap(address_space &space, uint64_t address) {
    shootdown_pending pending;
    shootdown_flush(&space.engine, shootdown_page(address), &pending);
    shootdown_wait(&pending);
}
