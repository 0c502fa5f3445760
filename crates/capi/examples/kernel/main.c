/*
 * A kernel in C with the engine: one CPU unmaps the pages that three others read.
 *
 * A freed frame gets a mark. A reader that finds the mark has used a translation that should be
 * gone: a stale read. With the engine there are none. Then the same without notification, as in a
 * kernel that flushes on its own CPU only: there must be many, or this kernel detects nothing.
 */
#include "kernel.h"
#include "riscv.h"

enum { ROUNDS = 30, READS_PER_ROUND = 256, STALE_READS_EXPECTED = 1000 };

static uint64_t frames[2][PAGES][PAGE_BYTES / 8] __attribute__((aligned(4096)));
static struct address_space with_engine, without_notification;
static struct reader readers[CPUS];
/* The space that the readers read, and the number of CPUs that are online and that read it. */
static struct address_space *read_space;
static uint32_t online, reading;

#define load(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define store(place, value) __atomic_store_n(&(place), value, __ATOMIC_RELEASE)
#define add(place, value) __atomic_add_fetch(&(place), value, __ATOMIC_ACQ_REL)

void print(const char *text) {
    for (; *text != 0; text++)
        *(volatile char *)SERIAL = *text;
}

static void print_number(uint64_t number) {
    char digits[21] = {0};
    char *first = &digits[20];
    do
        *--first = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    print(first);
}

_Noreturn void stop(bool has_passed) {
    print(has_passed ? "passed\n" : "failed\n");
    for (;;)
        *(volatile uint32_t *)TEST_DEVICE = has_passed ? TEST_PASSED : TEST_FAILED;
}

/* Returns where to continue. */
uint64_t trap(uint64_t cause, uint64_t pc, uint64_t address) {
    if (cause == SOFTWARE_INTERRUPT) {
        flush_interrupt();
        return pc;
    }
    if (cause == LOAD_PAGE_FAULT && pc == (uint64_t)load_user) {
        /* The page may be mapped now: the CPU must not remember that it was not. */
        shootdown_forget_refused(address);
        return (uint64_t)load_user_failed;
    }
    print("unexpected trap\n");
    stop(false);
}

static void wait_for(const uint32_t *counter, uint32_t cpus) {
    while (load(*counter) != cpus)
        ;
}

/* Runs with interrupts enabled, as a thread does. */
static void read_space_until_it_ends(struct reader *reader, struct address_space *space) {
    mask_interrupts();
    run_space(space);
    unmask_interrupts();
    add(reading, 1);
    while (load(read_space) == space)
        read_pages(reader, space);
    mask_interrupts();
    idle();
    unmask_interrupts();
    add(reading, -1);
}

static void set_up_cpu(void) {
    load_kernel_root();
    csr_set(sstatus, SSTATUS_SUM);
    csr_write(sie, SIE_SSIE);
}

void other_cpu(void) {
    set_up_cpu();
    join_engine();
    unmask_interrupts();
    add(online, 1);
    for (;;) {
        struct address_space *space = load(read_space);
        if (space != NULL)
            read_space_until_it_ends(&readers[this_cpu()], space);
    }
}

static void set_frames(unsigned set, uint64_t value) {
    for (unsigned page = 0; page < PAGES; page++)
        __atomic_store_n(&frames[set][page][0], value, __ATOMIC_RELEASE);
}

/* Waits until each reader has read all pages several times. */
static void await_reads(void) {
    for (int cpu = 1; cpu < CPUS; cpu++) {
        uint64_t before = load(readers[cpu].reads);
        while (load(readers[cpu].reads) < before + READS_PER_ROUND)
            ;
    }
}

static void print_notifications(void) {
    uint64_t interrupts = 0, broadcasts = 0;
    for (uint32_t cpu = 0; cpu < CPUS; cpu++) {
        struct shootdown_cpu_counts counts = shootdown_cpu_stats(cpu);
        interrupts += counts.interrupts_sent;
        broadcasts += counts.broadcasts_sent;
    }
    print_number(interrupts);
    print(" interrupts and ");
    print_number(broadcasts);
    print(" broadcasts so far\n");
}

/* Unmaps pages under the readers, again and again. Returns the number of stale reads. */
static uint64_t unmap_under_readers(struct address_space *space, bool notifies) {
    for (int cpu = 1; cpu < CPUS; cpu++)
        readers[cpu] = (struct reader){0};
    create_tables(space);
    shootdown_space_init(&space->engine, (uint64_t)space->root);
    store(read_space, space);
    wait_for(&reading, CPUS - 1);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned set = round % 2;
        set_frames(set, MAPPED);
        for (unsigned page = 0; page < PAGES; page++)
            map_page(space, page, frames[set][page]);
        await_reads();
        if (notifies) {
            unmap_pages(space);
        } else {
            for (unsigned page = 0; page < PAGES; page++) {
                unmap_page(space, page);
                drop_page(USER + page * PAGE_BYTES);
            }
        }
        set_frames(set, FREED);
    }
    store(read_space, NULL);
    wait_for(&reading, 0);
    uint64_t reads = 0, stale_reads = 0;
    for (int cpu = 1; cpu < CPUS; cpu++) {
        reads += readers[cpu].reads;
        stale_reads += readers[cpu].stale_reads;
    }
    print_number(ROUNDS * PAGES);
    print(" pages unmapped, ");
    print_number(reads);
    print(" reads, ");
    print_number(stale_reads);
    print(" stale; ");
    print_notifications();
    return stale_reads;
}

/* On the first CPU. */
void first_cpu(uint64_t hart) {
    map_kernel_root();
    set_up_cpu();
    harts[0] = hart;
    start_engine();
    join_engine();
    /* Firmware chooses the first hart. */
    for (uint64_t next = 0, cpu = 1; cpu < CPUS; next++) {
        if (next == hart)
            continue;
        harts[cpu] = next;
        if (start_hart(next, cpu++) != 0)
            stop(false);
    }
    unmask_interrupts();
    wait_for(&online, CPUS - 1);
    print("C kernel, with the engine: ");
    uint64_t stale_reads = unmap_under_readers(&with_engine, true);
    mask_interrupts();
    end_space(&with_engine);
    unmask_interrupts();
    bool is_reclaimed = reclaimed == &with_engine;
    if (!is_reclaimed)
        print("the space is not reclaimed\n");
    /* This leaves stale translations in the TLBs, so it comes last. */
    print("C kernel, without notification: ");
    uint64_t without = unmap_under_readers(&without_notification, false);
    stop(stale_reads == 0 && is_reclaimed && without > STALE_READS_EXPECTED);
}
