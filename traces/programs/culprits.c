// Programs with a known cause of shootdowns, and the same programs with the change that removes
// them, if that is not a setting of the allocator:
//
//     culprits NAME [changed]
//
// A second thread of each computes all the time on another CPU, which the kernel must interrupt.
// They need CPUs 0 and 1. Build it with `cc -O1 -g -pthread`. `cargo xtask soak culprits` checks what `shootdown explain` finds.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

// A function whose call is in the call stack: not inlined, and no tail call.
#define CALL __attribute__((noinline))
#define END __asm__ volatile("")

extern char **environ;

static bool changed;
static volatile bool started, stop;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) exit(2);
}

static void *compute(void *unused) {
    (void)unused;
    pin(1);
    started = true;
    for (volatile unsigned long steps = 0; !stop; steps++) {
    }
    return NULL;
}

static char *map(long pages) {
    char *area = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) exit(2);
    return area;
}

// A server that returns the memory of each request. The change: keep it.
CALL static void release_pages(char *area) {
    if (!changed) madvise(area, 16 * PAGE, MADV_DONTNEED);
    END;
}

static void discards(void) {
    char *area = map(16);
    for (int request = 0; request < 4000; request++) {
        memset(area, 1, 16 * PAGE);
        release_pages(area);
    }
}

// A sparse table that is read before it is filled, which maps the page of zeros. The change: write
// first.
CALL static void insert(char *table, long index) {
    volatile char *entry = table + index * PAGE;
    if (changed || *entry == 0) *entry = 1;
    END;
}

static void reads_first(void) {
    char *table = map(4000);
    for (long index = 0; index < 4000; index++) insert(table, index);
}

// A compiler that makes its code writable and executable in turn. The change: leave it writable.
CALL static void protect(char *code, int protection) {
    if (!changed) mprotect(code, 4 * PAGE, protection);
    END;
}

static void protects(void) {
    char *code = map(4);
    for (int function = 0; function < 2000; function++) {
        protect(code, PROT_READ | PROT_WRITE);
        memset(code, 0xc3, 64);
        protect(code, PROT_READ);
    }
}

// A buffer that is unmapped after each use. The change: reuse it.
CALL static void free_buffer(char *buffer) {
    munmap(buffer, 64 * PAGE);
    END;
}

static void unmaps(void) {
    char *buffer = map(64);
    for (int use = 0; use < 2000; use++) {
        memset(buffer, 1, 64 * PAGE);
        if (changed) continue;
        free_buffer(buffer);
        buffer = map(64);
    }
}

// A process that starts programs by `fork`, and then writes its memory again. The change:
// `posix_spawn`.
CALL static void start_program(void) {
    char *arguments[] = {"true", NULL};
    pid_t child = 0;
    if (changed) {
        if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ)) exit(2);
    } else if ((child = fork()) == 0) {
        execv("/bin/true", arguments);
        _exit(1);
    }
    waitpid(child, NULL, 0);
}

static void forks(void) {
    char *memory = map(200);
    for (int round = 0; round < 40; round++) {
        for (long page = 0; page < 200; page++) memory[page * PAGE] = (char)round;
        start_program();
    }
}

// Programs whose allocator returns memory to the kernel: many small blocks that are freed together,
// and large ones. Settings of the allocator change that.
enum { BLOCKS = 32, BLOCK = 16 * PAGE };

// Read by jemalloc: freed pages are returned at once.
const char *malloc_conf = "dirty_decay_ms:0";

CALL static void free_blocks(char **blocks) {
    for (int at = BLOCKS - 1; at >= 0; at--) free(blocks[at]);
    END;
}

static void frees_small(void) {
    for (int round = 0; round < 500; round++) {
        char *blocks[BLOCKS];
        for (int at = 0; at < BLOCKS; at++) {
            blocks[at] = malloc(BLOCK);
            memset(blocks[at], 1, BLOCK);
        }
        free_blocks(blocks);
    }
}

static void *work(void *unused) {
    (void)unused;
    frees_small();
    return NULL;
}

static void frees_in_thread(void) {
    pthread_t worker;
    if (pthread_create(&worker, NULL, work, NULL)) exit(2);
    pthread_join(worker, NULL);
}

// Larger than what glibc may come to take from the heap: 32 MiB.
CALL static void free_large(char *block) {
    free(block);
    END;
}

static void frees_large(void) {
    for (int round = 0; round < 1000; round++) {
        char *block = malloc(10000 * PAGE);
        memset(block, 1, 8 * PAGE);
        free_large(block);
    }
}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CULPRITS[] = {
        {"discards", discards}, {"reads-first", reads_first}, {"protects", protects},
        {"unmaps", unmaps},     {"forks", forks},
        {"frees-small", frees_small}, {"frees-in-thread", frees_in_thread},
        {"frees-large", frees_large},
    };
    changed = count == 3 && strcmp(arguments[2], "changed") == 0;
    for (size_t at = 0; count >= 2 && at < sizeof CULPRITS / sizeof *CULPRITS; at++) {
        if (strcmp(arguments[1], CULPRITS[at].name)) continue;
        pthread_t other;
        if (pthread_create(&other, NULL, compute, NULL)) return 2;
        pin(0);
        while (!started) sched_yield();
        CULPRITS[at].run();
        stop = true;
        pthread_join(other, NULL);
        return 0;
    }
    fprintf(stderr, "culprits NAME [changed]\n");
    return 2;
}
