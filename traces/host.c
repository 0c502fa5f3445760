// Measures costs of communication for the section `cache` of a machine file. `shootdown calibrate`
// measures the kernel's work. Needs two CPUs that are otherwise idle.
//
//   cc -O2 -pthread host.c -o host && ./host
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
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

#define MEASURE(what, count, statement) do { \
    double start = now_ns(); \
    for (long i = 0; i < (count); i++) { statement; } \
    printf("%-58s %8.1f ns\n", what, (now_ns() - start) / (count)); \
} while (0)

static _Alignas(64) atomic_long ball;

static void *pong(void *unused) {
    run_on(1);
    for (long value; (value = atomic_load(&ball)) >= 0;)
        if (value & 1) atomic_store(&ball, value + 1);
    return unused;
}

int main(void) {
    run_on(0);
    atomic_long counter = 0;
    pthread_t other;

    MEASURE("locked operation", 10000000, atomic_fetch_add(&counter, 1));
    MEASURE("PAUSE", 1000000, __builtin_ia32_pause());
    pthread_create(&other, 0, pong, 0);
    usleep(10000);
    MEASURE("line to another CPU and back", 1000000, while (atomic_load(&ball) & 1) {}
            atomic_store(&ball, atomic_load(&ball) + 1));
    while (atomic_load(&ball) & 1) {}
    atomic_store(&ball, -1);
    pthread_join(other, 0);
    return 0;
}
