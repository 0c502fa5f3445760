// Performs one operation on memory again and again, with a thread or process on each CPU:
//
//     loops KIND CPUS ITERATIONS
//
// The iterations are those of all CPUs together. Prints their number. Build it with
// `gcc -O2 -static -pthread`, and it needs no file of the system.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, COPIED_PAGES = 16 };

static int cpus, iterations;
static pthread_barrier_t start;

static void pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) exit(2);
}

static char *map(long pages) {
    char *area = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) exit(2);
    return area;
}

// Write a page and discard it.
static void madvise_once(char *page) {
    *page = 1;
    madvise(page, PAGE, MADV_DONTNEED);
}

// Write-protect a page, permit writing again, and write.
static void mprotect_once(char *page) {
    mprotect(page, PAGE, PROT_READ);
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
    *page = 1;
}

// Map a page, write it, and unmap it.
static void munmap_once(char *unused) {
    (void)unused;
    char *page = map(1);
    *page = 1;
    munmap(page, PAGE);
}

// Read a page, which maps the page of zeros, and write it. Then discard it.
static void fault_once(char *page) {
    volatile char *byte = page;
    (void)*byte;
    *byte = 1;
    madvise(page, PAGE, MADV_DONTNEED);
}

static int place;

// Write a page and discard it, each time on another CPU. With one thread only.
static void migrate_once(char *page) {
    pin(place++ % cpus);
    madvise_once(page);
}

// Fork a child, which writes a page and ends.
static void fork_once(char *page) {
    *page = 1;
    if (!fork()) {
        *page = 2;
        _exit(0);
    }
    wait(0);
}

// Fork a child, which maps and writes pages and ends: page tables are freed.
static void exit_once(char *unused) {
    (void)unused;
    if (!fork()) {
        char *area = map(COPIED_PAGES);
        for (int page = 0; page < COPIED_PAGES; page++) area[page * PAGE] = 1;
        _exit(0);
    }
    wait(0);
}

static const struct kind {
    const char *name;
    void (*once)(char *page);
    int is_alone;
} kinds[] = {
    {"madvise", madvise_once, 0}, {"mprotect", mprotect_once, 0}, {"munmap", munmap_once, 0},
    {"fault", fault_once, 0},     {"migrate", migrate_once, 1},   {"fork", fork_once, 1},
    {"exit", exit_once, 1},
};
static const struct kind *kind;

static void *repeat(void *cpu) {
    pin((long)cpu);
    char *page = map(1);
    pthread_barrier_wait(&start);
    int count = kind->is_alone ? iterations : iterations / cpus;
    for (int i = 0; i < count; i++) kind->once(page);
    return 0;
}

// Two processes on each CPU, which switch to each other through pipes.
static void switch_all(void) {
    for (int cpu = 0; cpu < cpus; cpu++) {
        if (fork()) continue;
        pin(cpu);
        int there[2], back[2];
        char byte = 0;
        if (pipe(there) || pipe(back)) _exit(2);
        int is_child = !fork();
        for (int i = 0; i < iterations / cpus / 2; i++) {
            if (!is_child && write(there[1], &byte, 1) != 1) _exit(2);
            if (read(is_child ? there[0] : back[0], &byte, 1) != 1) _exit(2);
            if (is_child && write(back[1], &byte, 1) != 1) _exit(2);
        }
        if (!is_child) wait(0);
        _exit(0);
    }
    while (wait(0) > 0) {}
}

int main(int count, char **words) {
    if (count != 4) return 2;
    cpus = atoi(words[2]);
    iterations = atoi(words[3]);
    if (!strcmp(words[1], "switch")) {
        switch_all();
    } else {
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
            if (!strcmp(words[1], kinds[i].name)) kind = &kinds[i];
        if (!kind) return 2;
        int threads = kind->is_alone ? 1 : cpus;
        pthread_barrier_init(&start, 0, threads);
        pthread_t others[4096];
        for (long cpu = 1; cpu < threads; cpu++) pthread_create(&others[cpu], 0, repeat, (void *)cpu);
        repeat(0);
        for (int cpu = 1; cpu < threads; cpu++) pthread_join(others[cpu], 0);
    }
    printf("%d\n", iterations);
    return 0;
}
