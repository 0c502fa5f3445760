// Measures costs of system calls and of communication on the machine that makes the recordings. The
// results are the source of numbers in machines/emerald-rapids-kvm.toml. Needs two CPUs that are
// otherwise idle.
//
//   cc -O2 -pthread host.c -o host && ./host
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

#define MEASURE(what, count, statement) MEASURE_EACH(what, count, count, statement)
#define MEASURE_EACH(what, count, parts, statement) do { \
    double start = now_ns(); \
    for (long i = 0; i < (count); i++) { statement; } \
    printf("%-58s %8.1f ns\n", what, (now_ns() - start) / (parts)); \
} while (0)

static _Alignas(64) atomic_long ball;
static atomic_int stop;

static void *pong(void *unused) {
    run_on(1);
    for (long value; (value = atomic_load(&ball)) >= 0;)
        if (value & 1) atomic_store(&ball, value + 1);
    return unused;
}

static void *spin(void *unused) {
    run_on(1);
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {}
    return unused;
}

static void protect_twice(char *page) {
    mprotect(page, 4096, PROT_READ);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

static void use_and_discard(char *page) {
    *(volatile char *)page = 1;
    madvise(page, 4096, MADV_DONTNEED);
}

static void write_pages(char *pages, long count) {
    for (long i = 0; i < count; i++) *(volatile char *)(pages + i * 4096) = 1;
}

// The time by which a fork takes longer for each written page.
static void fork_pages(char *pages, long few, long many) {
    double times[2] = {0};
    for (int i = 0; i < 40; i++) {
        if (i == 20) write_pages(pages, many);
        double start = now_ns();
        if (fork() == 0) _exit(0);
        times[i / 20] += (now_ns() - start) / 20;
        wait(0);
        write_pages(pages, i < 20 ? few : many);
    }
    printf("%-58s %8.1f ns\n", "fork, each written page", (times[1] - times[0]) / (many - few));
}

static void files(void) {
    enum { PAGES = 2048 };
    FILE *file = tmpfile();
    for (long i = 0; i < PAGES * 4096L; i++) putc(1, file);
    fflush(file);
    char *pages = mmap(0, PAGES * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    volatile char *page = pages;
    for (long i = 0; i < PAGES; i++) (void)page[i * 4096];
    MEASURE("read and madvise of a page of a file, neighbours mapped", 100000,
            (void)page[7 * 4096]; madvise(pages + 7 * 4096, 4096, MADV_DONTNEED));
    MEASURE("write, madvise and read of each page of a file (tlb_flush1)", PAGES,
            page[i * 4096] = 1; madvise(pages + i * 4096, 4096, MADV_DONTNEED); (void)page[i * 4096]);
}

static void round_trips(int cpu, const char *what) {
    int there[2], back[2];
    char byte = 0;
    if (pipe(there) || pipe(back)) return;
    if (fork() == 0) {
        run_on(cpu);
        close(there[1]);
        while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1) {}
        _exit(0);
    }
    MEASURE(what, 100000, if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1) return);
    close(there[1]);
    wait(0);
}

int main(void) {
    run_on(0);
    enum { PAGES = 1 << 16 };
    char *pages = mmap(0, PAGES * 4096L, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *untouched = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_long counter = 0;
    pthread_t other;

    MEASURE("system call (getppid)", 1000000, syscall(SYS_getppid));
    MEASURE("locked operation", 10000000, atomic_fetch_add(&counter, 1));
    MEASURE("PAUSE", 1000000, __builtin_ia32_pause());
    madvise(pages, PAGES * 4096L, MADV_NOHUGEPAGE);
    MEASURE("first read of a page", PAGES, (void)*(volatile char *)(pages + i * 4096));
    write_pages(pages, 2048);
    madvise(pages, 2048 * 4096L, MADV_DONTNEED);
    MEASURE("write of a discarded page", 2048, *(volatile char *)(pages + i * 4096) = 1);
    MEASURE_EACH("madvise(DONTNEED) of 512 pages, each", 4, 2048,
                 madvise(pages + i * 512 * 4096, 512 * 4096, MADV_DONTNEED));
    MEASURE("madvise(DONTNEED), nothing present", 200000, madvise(pages, 4096, MADV_DONTNEED));
    MEASURE("mmap and munmap of an untouched page", 200000,
            char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            munmap(page, 4096));
    fork_pages(pages, 2048, 8192);
    files();
    MEASURE("mprotect twice, nothing present", 200000, protect_twice(untouched));
    *(volatile char *)pages = 1;
    MEASURE("mprotect twice, a page present", 200000, protect_twice(pages));
    MEASURE("write and madvise(DONTNEED)", 200000, use_and_discard(pages));

    pthread_create(&other, 0, spin, 0);
    usleep(10000);
    *(volatile char *)pages = 1;
    MEASURE("mprotect twice, another CPU in user mode", 100000, protect_twice(pages));
    MEASURE("write and madvise, another CPU in user mode", 100000, use_and_discard(pages));
    atomic_store(&stop, 1);
    pthread_join(other, 0);

    pthread_create(&other, 0, pong, 0);
    usleep(10000);
    MEASURE("line to another CPU and back", 1000000, while (atomic_load(&ball) & 1) {}
            atomic_store(&ball, atomic_load(&ball) + 1));
    while (atomic_load(&ball) & 1) {}
    atomic_store(&ball, -1);
    pthread_join(other, 0);

    round_trips(0, "round trip through pipes on one CPU");
    round_trips(1, "round trip through pipes between two");
    return 0;
}
