// Reads or writes a page of a shared mapping of a file and discards it, again and again, with a thread
// on each CPU:
//
//     folios FILE CPUS ITERATIONS [advise]
//
// The threads share a mapping of 4 MiB. If the page cache has the file in large folios, Linux maps
// 2 MiB with one entry, and splits it at each discard. `advise` asks for such entries. The
// iterations are those of all CPUs together.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, LARGE = 2 << 20, BYTES = 2 * LARGE };

static int cpus, iterations;
static volatile char *area;
static pthread_barrier_t start;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) exit(2);
}

static void *repeat(void *cpu) {
    pin((long)cpu);
    pthread_barrier_wait(&start);
    for (int i = 0; i < iterations / cpus; i++) {
        volatile char *page = area + ((i * 7L * cpus + (long)cpu) * PAGE) % BYTES;
        if (i & 1) *page = 1;
        else (void)*page;
        madvise((void *)page, PAGE, MADV_DONTNEED);
    }
    return 0;
}

int main(int count, char **words) {
    pthread_t others[64];
    if (count < 4) return 2;
    cpus = atoi(words[2]);
    if (cpus > 64) return 2;
    iterations = atoi(words[3]);
    int file = open(words[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    static char bytes[BYTES];
    if (write(file, bytes, BYTES) != BYTES) return 2;
    // An address that is a multiple of 2 MiB.
    char *room = mmap(0, BYTES + LARGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *at = (char *)(((long)room + LARGE - 1) & ~(LARGE - 1L));
    area = mmap(at, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
    if (area == MAP_FAILED) return 2;
    if (count > 4) madvise((void *)area, BYTES, MADV_HUGEPAGE);
    pthread_barrier_init(&start, 0, cpus);
    for (long cpu = 1; cpu < cpus; cpu++) pthread_create(&others[cpu], 0, repeat, (void *)cpu);
    repeat(0);
    for (int cpu = 1; cpu < cpus; cpu++) pthread_join(others[cpu], 0);
    return 0;
}
