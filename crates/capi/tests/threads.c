/*
 * The engine in C, on a software machine: threads play the CPUs, and each has a TLB that never
 * evicts. Readers touch pages; each CPU also unmaps pages, flushes, and frees their frames. A touch
 * through a translation of a frame that was freed since is a stale read.
 *
 *   threads             exits with 0 if there were no stale reads
 *   threads broadcast   the same, where a firmware invalidates on other CPUs
 *   threads silent      flushes nothing on other CPUs: exits with 1, because there were
 *   threads forgetful   a CPU that was away keeps its TLB: exits with 1
 *   threads unrequested a CPU that is away is skipped without a request: exits with 1
 *   threads unmarked    walks by software are not marked: exits with 1
 *
 * It exits with 2 if something else went wrong. Each CPU is sometimes away, as if a hypervisor had
 * stopped it. The library has the features `away` and `broadcast`.
 */
#define _POSIX_C_SOURCE 200809L

#include "shootdown.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CPUS = 4, SPACES = 3, PAGES = 8, TAGS = 2, GLOBAL_TAGS = 15 };

enum mode { INTERRUPTS, BROADCAST, SILENT, FORGETFUL, UNREQUESTED, UNMARKED, ASSIGNED };

/* Each wait may take a time slice of the host. Without waits, more rounds fit into a second. */
enum { ROUNDS = 1000, SILENT_ROUNDS = 4000 };

/* A page table: for each page 0, or 1 + the number of times that its frame was freed before. */
struct address_space {
    struct shootdown_space space;
    _Atomic uint64_t entries[PAGES];
    _Atomic uint64_t freed[PAGES];
    atomic_flag lock;
};

struct translation {
    uint64_t root, entry;
};

struct cpu {
    struct shootdown_cpu state;
    struct shootdown_vcpu vcpu;
    _Atomic bool is_away;
    _Atomic bool interrupt;
    /* Requests to the firmware of this CPU to empty its TLB, and those that it has fulfilled. */
    _Atomic uint64_t fences_requested, fences_done;
    /* Accessed by its own thread only, as a TLB is. */
    struct translation tlb[GLOBAL_TAGS + 1][PAGES];
    uint64_t root, reads, stale_reads;
    uint16_t tag;
};

static struct cpu cpus[CPUS];
static struct address_space spaces[SPACES];
static _Thread_local uint32_t this_cpu;
/* The last request of this CPU to each other CPU. */
static _Thread_local uint64_t requests[CPUS];
static _Atomic uint32_t reclaimed, running = CPUS;
static pthread_barrier_t start;
static enum mode mode;
static const uint64_t no_root = UINT64_MAX;

/* The kernel's part. */

struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number].state; }

uint32_t shootdown_os_this_cpu(void) { return this_cpu; }

void shootdown_os_ring(const uint32_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++)
        atomic_store(&cpus[numbers[i]].interrupt, true);
}

void shootdown_os_reclaim(struct shootdown_space *space) {
    (void)space;
    atomic_fetch_add(&reclaimed, 1);
}

static void firmware_point(void);

void shootdown_os_wait_hint(uint32_t cpu) {
    (void)cpu;
    firmware_point();
    sched_yield();
}

uint64_t shootdown_os_issue_to_devices(const struct shootdown_space *space, uint64_t address,
                                       size_t count, uint8_t shift, bool frees_tables) {
    (void)space, (void)address, (void)count, (void)shift, (void)frees_tables;
    return 0;
}
bool shootdown_os_devices_are_done(uint64_t ticket) { return ticket == 0; }
bool shootdown_os_is_used_on_entry(uint64_t address, size_t count, uint8_t shift) {
    return (void)address, (void)count, (void)shift, false;
}

bool shootdown_os_is_away(uint32_t cpu) {
    return mode == UNREQUESTED ? atomic_load(&cpus[cpu].is_away)
                               : shootdown_vcpu_defer_flush(&cpus[cpu].vcpu);
}

void shootdown_os_panic(const char *message, size_t length) {
    fprintf(stderr, "%.*s\n", (int)length, message);
    abort();
}

/* Traces: the pages of the flushes whose cause is `munmap`, and the time of all waits. */
static _Atomic uint64_t unmapped_pages, waits;

uint64_t shootdown_os_trace_clock_ns(void) { return 0; }

void shootdown_os_trace_flush(const struct shootdown_flush_event *event) {
    if (event->cause == SHOOTDOWN_CAUSE_UNMAP && event->space != 0)
        atomic_fetch_add(&unmapped_pages, event->pages);
}

void shootdown_os_trace_wait(const struct shootdown_wait_event *event) {
    atomic_fetch_add(&waits, event->targets != 0);
}

/* The processor's part. */

static struct translation *entries_of(uint16_t tag) { return cpus[this_cpu].tlb[tag]; }

static void discard(uint16_t tag) { memset(entries_of(tag), 0, sizeof cpus[0].tlb[0]); }

/* A thread takes the interrupt only where it calls `interrupt_point`. */
bool shootdown_mmu_interrupts_masked(void) { return true; }

void shootdown_mmu_publish(void) { atomic_thread_fence(memory_order_seq_cst); }

void shootdown_mmu_synchronize(void) { atomic_thread_fence(memory_order_seq_cst); }

void shootdown_mmu_load(uint64_t root, uint16_t tag, bool keeps_entries) {
    if (!keeps_entries)
        discard(tag);
    cpus[this_cpu].root = root;
    cpus[this_cpu].tag = tag;
}

void shootdown_mmu_load_kernel(void) {
    cpus[this_cpu].root = no_root;
    cpus[this_cpu].tag = 0;
}

void shootdown_mmu_invalidate(uint16_t tag, uint64_t address, size_t count, uint8_t page_shift,
                              bool frees_tables) {
    (void)frees_tables;
    for (size_t page = address >> page_shift; count > 0; page++, count--)
        if (page < PAGES)
            entries_of(tag)[page].entry = 0;
}

void shootdown_mmu_invalidate_tag(uint16_t tag) { discard(tag); }

void shootdown_mmu_invalidate_all(void) { memset(cpus[this_cpu].tlb, 0, sizeof cpus[0].tlb); }

void shootdown_mmu_invalidate_kernel(uint64_t address, size_t count, uint8_t page_shift,
                                     bool frees_tables) {
    (void)address, (void)count, (void)page_shift, (void)frees_tables;
    shootdown_mmu_invalidate_all();
}

/* The firmware, whose interrupt cannot be masked. */
static void firmware_point(void) {
    struct cpu *cpu = &cpus[this_cpu];
    uint64_t requested = atomic_load(&cpu->fences_requested);
    if (requested != atomic_load(&cpu->fences_done)) {
        shootdown_mmu_invalidate_all();
        atomic_store(&cpu->fences_done, requested);
    }
}

/* Refuses every fourth call, after the first target. */
bool shootdown_mmu_broadcast(const uint32_t *targets, size_t cpu_count, uint16_t tag,
                             uint64_t address, size_t count, uint8_t page_shift,
                             bool frees_tables) {
    (void)tag, (void)address, (void)count, (void)page_shift, (void)frees_tables;
    static _Thread_local unsigned calls;
    bool is_refused = ++calls % 4 == 0;
    for (size_t i = 0; i < (is_refused ? 1 : cpu_count); i++)
        requests[targets[i]] = atomic_fetch_add(&cpus[targets[i]].fences_requested, 1) + 1;
    return !is_refused;
}

/* Never called: these broadcasts name CPUs. */
bool shootdown_mmu_broadcast_kernel(uint64_t address, size_t count, uint8_t page_shift,
                                    bool frees_tables) {
    (void)address, (void)count, (void)page_shift, (void)frees_tables;
    abort();
}

uint64_t shootdown_mmu_complete_broadcasts(void) {
    for (size_t i = 0; i < CPUS; i++)
        while (atomic_load(&cpus[i].fences_done) < requests[i]) {
            firmware_point();
            sched_yield();
        }
    return 0;
}

uint64_t shootdown_mmu_clock_ns(void) { return 0; }

/* The CPUs' programs. */

static void interrupt_point(void) {
    firmware_point();
    if (atomic_load_explicit(&cpus[this_cpu].interrupt, memory_order_relaxed)
        && atomic_exchange(&cpus[this_cpu].interrupt, false))
        shootdown_handle_flush_ipi();
}

static void touch(size_t page) {
    struct cpu *cpu = &cpus[this_cpu];
    struct address_space *space = &spaces[cpu->root];
    struct translation *cached = &entries_of(cpu->tag)[page];
    if (cached->entry == 0) {
        /* Acquires the frame's count, which was written before the entry. */
        uint64_t entry = atomic_load_explicit(&space->entries[page], memory_order_acquire);
        *cached = (struct translation){cpu->root, entry};
    }
    if (cached->entry == 0)
        return;
    cpu->reads++;
    cpu->stale_reads += cached->root != cpu->root
        || cached->entry != 1 + atomic_load_explicit(&space->freed[page], memory_order_relaxed);
}

/* Changed by each call of wake_waiters. */
static _Atomic uint64_t wake_ups;

static void wake_waiters(uint32_t cpu) {
    if (cpu < CPUS)
        atomic_fetch_add(&wake_ups, 1);
}

/* Sleeps until a flush is done. The CPU takes interrupts while its thread sleeps. */
static void sleep_until_done(struct shootdown_pending *pending) {
    for (;;) {
        uint64_t before = atomic_load(&wake_ups);
        if (shootdown_poll_or_wake(pending))
            return;
        while (atomic_load(&wake_ups) == before) {
            interrupt_point();
            sched_yield();
        }
    }
}

static _Atomic uint64_t expected_pages;

/* `munmap` and `mmap` of a page. CPUs that wait for the lock answer the one that holds it. */
static void unmap(struct address_space *space, size_t page, struct shootdown_pending *pending) {
    while (atomic_flag_test_and_set(&space->lock)) {
        interrupt_point();
        sched_yield();
    }
    uint64_t old = atomic_exchange(&space->entries[page], 0);
    struct shootdown_extent extent = shootdown_page((uint64_t)page << 12);
    if (mode == SILENT) {
        shootdown_pending_init(pending);
        if (cpus[this_cpu].root == shootdown_space_root(&space->space))
            entries_of(cpus[this_cpu].tag)[page].entry = 0;
    } else if (page % 3 == 0) {
        shootdown_because(SHOOTDOWN_CAUSE_UNMAP);
        atomic_fetch_add(&expected_pages, 1);
        shootdown_flush(&space->space, extent, pending);
        sleep_until_done(pending);
    } else if (page % 3 == 1) {
        struct shootdown_batch batch;
        struct shootdown_sent_batch sent;
        shootdown_batch_init(&batch);
        if (!shootdown_batch_add_space(&batch, &space->space))
            exit(2);
        shootdown_batch_unmapped(&batch, &space->space, extent, true, pending);
        shootdown_wait(pending);
        shootdown_batch_send(&batch, &sent);
        shootdown_batch_poll(&sent);
        shootdown_batch_wait(&sent);
        if (shootdown_is_batched(&space->space))
            exit(2);
        shootdown_flush_if_batched(&space->space, extent, pending);
    } else {
        struct shootdown_extents extents;
        shootdown_extents_init(&extents);
        shootdown_extents_add(&extents, extent);
        shootdown_flush_gathered(&space->space, &extents, pending);
    }
    shootdown_wait(pending);
    if (old != 0) {
        uint64_t freed = atomic_fetch_add(&space->freed[page], 1);
        atomic_store(&space->entries[page], freed + 2);
    }
    atomic_flag_clear(&space->lock);
}

/* A hypervisor stops this CPU for a time slice. */
static void be_away(void) {
    shootdown_vcpu_stop(&cpus[this_cpu].vcpu);
    atomic_store(&cpus[this_cpu].is_away, true);
    sched_yield();
    atomic_store(&cpus[this_cpu].is_away, false);
    if (shootdown_vcpu_resume(&cpus[this_cpu].vcpu) && mode != FORGETFUL)
        shootdown_mmu_invalidate_all();
}

/*
 * Reads the page table of the loaded space by software, and uses what it found after the hypervisor
 * has stopped the CPU. A broadcast would not wait for that.
 */
static void walk(struct address_space *space) {
    struct cpu *cpu = &cpus[this_cpu];
    uint64_t found[PAGES];
    if (mode != UNMARKED)
        shootdown_begin_walk();
    for (size_t page = 0; page < PAGES; page++)
        found[page] = atomic_load_explicit(&space->entries[page], memory_order_acquire);
    be_away();
    for (size_t page = 0; page < PAGES; page++)
        cpu->stale_reads += found[page] != 0
            && found[page] != 1 + atomic_load_explicit(&space->freed[page], memory_order_relaxed);
    if (mode != UNMARKED)
        shootdown_end_walk();
}

/* Idles, and returns to the space without a switch. */
static void idle(struct address_space *space) {
    shootdown_enter_lazy();
    sched_yield();
    interrupt_point();
    uint64_t id = shootdown_space_id(&space->space);
    if (shootdown_resume(id + 1) || shootdown_resume_loaded() != id || !shootdown_resume(id))
        exit(2);
}

/* The predictor of whether to enter lazy: it does after an interrupt in the kernel. */
static bool predictor_works(void) {
    struct shootdown_lazy_predictor predictor;
    shootdown_lazy_init(&predictor);
    bool before = shootdown_lazy_switched(&predictor);
    shootdown_lazy_interrupted(&predictor);
    shootdown_lazy_returned_to_user(&predictor);
    bool after = shootdown_lazy_entered_kernel(&predictor);
    shootdown_lazy_caught_up(&predictor);
    return !before && after && shootdown_lazy_entered_kernel(&predictor);
}

static void touch_all(void) {
    for (size_t page = 0; page < 4 * PAGES; page++) {
        touch(page % PAGES);
        interrupt_point();
    }
}

static void *run(void *number) {
    this_cpu = (uint32_t)(uintptr_t)number;
    uint64_t seed = this_cpu + 1;
    shootdown_online();
    pthread_barrier_wait(&start);
    for (int round = 0; round < (mode == SILENT ? SILENT_ROUNDS : ROUNDS); round++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t random = seed >> 33;
        struct address_space *space = &spaces[random % SPACES];
        shootdown_switch(&space->space);
        touch_all();
        if (random / 8192 % 8 == 0) {
            if (random % 4 == 1 && mode != BROADCAST)
                walk(space);
            else if (random % 2)
                be_away();
            else
                idle(space);
            touch_all();
        }
        if (random / SPACES % 4 == 0) {
            struct shootdown_pending pending;
            unmap(space, random / 64 % PAGES, &pending);
        }
        /* On a host with fewer cores, the CPUs take turns in the middle of their work. */
        if (random / 4096 % 8 == 0)
            sched_yield();
        if (random / 16 % 4 == 0)
            shootdown_enter_lazy();
        if (random / 1024 % 64 == 0)
            shootdown_leave_space();
        if (random / 2048 % 64 == 0)
            shootdown_trim_cpumask(&space->space);
    }
    shootdown_enter_lazy();
    atomic_fetch_sub(&running, 1);
    /* The others may wait for this CPU, or not yet have gone lazy. */
    while (atomic_load(&running) != 0) {
        interrupt_point();
        sched_yield();
    }
    if (this_cpu == 0)
        for (size_t i = 0; i < SPACES; i++)
            shootdown_retire(&spaces[i].space);
    shootdown_offline();
    return NULL;
}

/* All CPUs are offline by now. */
static bool is_described(void) {
    char line[100];
    size_t length = shootdown_describe_unanswered(1, line, sizeof line);
    const char expected[] = "CPU 1: offline";
    return length >= sizeof expected - 1 && memcmp(line, expected, sizeof expected - 1) == 0;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"", "broadcast", "silent", "forgetful",
                                        "unrequested", "unmarked", "assigned"};
    for (enum mode known = INTERRUPTS; known <= ASSIGNED; known++)
        if (argc > 1 && strcmp(argv[1], names[known]) == 0)
            mode = known;
    struct shootdown_config config = {
        .layout = SHOOTDOWN_LAYOUT,
        .cpu_limit = CPUS,
        .tagging = SHOOTDOWN_TAGS_PER_CPU,
        .tag_count = TAGS,
        .traps_stale_writes = true,
        .wake_waiters = wake_waiters,
    };
    if (mode == BROADCAST) {
        config.tagging = SHOOTDOWN_TAGS_GLOBAL;
        config.tag_count = GLOBAL_TAGS;
        config.broadcast.reach = SHOOTDOWN_REACH_TARGETS;
    }
    /* Spaces share tags, because there are fewer. */
    if (mode == ASSIGNED)
        config.tagging = SHOOTDOWN_TAGS_ASSIGNED;
    /* Before there is an engine, a flush of kernel pages does nothing, and is done. */
    struct shootdown_pending early, joined;
    shootdown_flush_kernel(shootdown_page(0), &early);
    shootdown_pending_init(&joined);
    shootdown_join(&joined, &early);
    shootdown_wait(&joined);
    if (!shootdown_poll(&joined) || !predictor_works())
        return 2;
    shootdown_init(&config);
    for (size_t i = 0; i < SPACES; i++) {
        for (size_t page = 0; page < PAGES; page++)
            atomic_store(&spaces[i].entries[page], 1);
        shootdown_space_init(&spaces[i].space, i);
        if (mode == ASSIGNED)
            shootdown_space_assign_tag(&spaces[i].space, 1 + i % TAGS);
    }
    pthread_t threads[CPUS];
    pthread_barrier_init(&start, NULL, CPUS);
    for (uint32_t i = 0; i < CPUS; i++) {
        shootdown_cpu_init(&cpus[i].state);
        shootdown_vcpu_init(&cpus[i].vcpu);
        cpus[i].root = no_root;
    }
    for (uint32_t i = 0; i < CPUS; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i) != 0)
            return 2;
    uint64_t reads = 0, stale_reads = 0, interrupts = 0, broadcasts = 0, skipped = 0, away = 0;
    for (uint32_t i = 0; i < CPUS; i++) {
        pthread_join(threads[i], NULL);
        reads += cpus[i].reads;
        stale_reads += cpus[i].stale_reads;
        struct shootdown_cpu_counts counts = shootdown_cpu_stats(i);
        interrupts += counts.interrupts_sent;
        broadcasts += counts.broadcasts_sent;
        skipped += counts.skipped_lazy + counts.skipped_elsewhere;
        away += counts.skipped_away;
    }
    printf("%llu reads, %llu stale; %llu interrupts, %llu broadcasts, %llu CPUs spared and %llu "
           "away; %u of %d spaces reclaimed\n",
           (unsigned long long)reads, (unsigned long long)stale_reads,
           (unsigned long long)interrupts, (unsigned long long)broadcasts,
           (unsigned long long)skipped, (unsigned long long)away, reclaimed, SPACES);
    if (reads == 0 || reclaimed != SPACES || unmapped_pages != expected_pages)
        return 2;
    if ((waits == 0) != (interrupts == 0) || !is_described())
        return 2;
    /* A waiter of a broadcast need not sleep. */
    if (wake_ups == 0 && (mode == INTERRUPTS || mode == ASSIGNED))
        return 2;
    if ((interrupts + broadcasts == 0) != (mode == SILENT) || (broadcasts != 0) != (mode == BROADCAST))
        return 2;
    return stale_reads != 0;
}
