/*
 * Calls that break a contract of the C interface, or come close to it. Each runs in a process of
 * its own, on a fresh engine with two CPUs online. A call that the library can know to be wrong
 * must end with a sentence by `shootdown_os_panic`, in builds with and without assertions; all
 * others must return, and leave the state that their function checks. No case may end by a signal.
 *
 * Not tested, because the library cannot know them: memory that was never initialised and looks as
 * if it was; a space or a CPU that is initialised again while it is in use; a CPU that is
 * disconnected while it runs.
 */
#define _POSIX_C_SOURCE 200809L

#include "shootdown.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CPUS = 64, PANICKED = 42, WRONG = 3, SECONDS = 20 };

/* The kernel's part and the processor's part. One thread plays every CPU. */

static struct shootdown_cpu cpus[CPUS];
static uint32_t this_cpu;
static bool masked = true, rung[CPUS], away[CPUS], answers = true, refuses;
static unsigned invalidated, tags_dropped, self_rings, reclaimed, broadcasts;
static uint64_t loaded[CPUS];
static int sentence;
/* Called once, within the next call of the library's of this function. */
static void (*in_ring)(void), (*in_hint)(void), (*in_invalidate)(void), (*in_reclaim)(void);

static void call_once(void (**function)(void)) {
    void (*called)(void) = *function;
    *function = NULL;
    if (called != NULL)
        called();
}

/* Lets the CPUs that were rung take the interrupt. */
static void answer(void) {
    uint32_t cpu = this_cpu;
    bool was_masked = masked;
    for (uint32_t i = 0; i < CPUS; i++)
        if (rung[i] && (i != cpu || !masked)) {
            rung[i] = false;
            this_cpu = i;
            masked = true;
            shootdown_handle_flush_ipi();
            masked = was_masked;
        }
    this_cpu = cpu;
}

struct shootdown_cpu *shootdown_os_cpu(uint32_t number) { return &cpus[number % CPUS]; }
uint32_t shootdown_os_this_cpu(void) { return this_cpu; }
bool shootdown_os_is_away(uint32_t cpu) { return away[cpu]; }

/* The second page is used on entry. */
bool shootdown_os_is_used_on_entry(uint64_t address, size_t count, uint8_t shift) {
    return count == 0 || (address <= 4096 && 4096 < address + ((uint64_t)count << shift));
}

static uint64_t issued, finished;
static unsigned issued_count;
uint64_t shootdown_os_issue_to_devices(const struct shootdown_space *space, uint64_t address,
                                       size_t count, uint8_t shift, bool frees_tables) {
    (void)space, (void)address, (void)shift, (void)frees_tables;
    issued_count = (unsigned)count;
    return ++issued;
}
bool shootdown_os_devices_are_done(uint64_t ticket) { return ticket <= finished; }

void shootdown_os_ring(const uint32_t *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        rung[numbers[i]] = true;
        self_rings += numbers[i] == this_cpu;
    }
    call_once(&in_ring);
}

void shootdown_os_reclaim(struct shootdown_space *space) {
    (void)space;
    reclaimed++;
    call_once(&in_reclaim);
}

void shootdown_os_wait_hint(uint32_t cpu) {
    (void)cpu;
    call_once(&in_hint);
    if (answers)
        answer();
}

void shootdown_os_panic(const char *message, size_t length) {
    if (write(sentence, message, length) < 0)
        abort();
    _exit(PANICKED);
}

uint64_t shootdown_os_trace_clock_ns(void) { return 0; }
void shootdown_os_trace_flush(const struct shootdown_flush_event *event) { (void)event; }
void shootdown_os_trace_wait(const struct shootdown_wait_event *event) { (void)event; }

bool shootdown_mmu_interrupts_masked(void) { return masked; }
void shootdown_mmu_publish(void) {}
void shootdown_mmu_synchronize(void) {}
void shootdown_mmu_load_kernel(void) { loaded[this_cpu] = 0; }
void shootdown_mmu_load(uint64_t root, uint16_t tag, bool keeps) {
    (void)tag, (void)keeps;
    loaded[this_cpu] = root;
}
void shootdown_mmu_invalidate(uint16_t tag, uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)tag, (void)address, (void)shift, (void)f;
    invalidated += count;
    call_once(&in_invalidate);
}
void shootdown_mmu_invalidate_tag(uint16_t tag) {
    (void)tag;
    tags_dropped++;
}
void shootdown_mmu_invalidate_all(void) {}
void shootdown_mmu_invalidate_kernel(uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)address, (void)count, (void)shift, (void)f;
}
bool shootdown_mmu_broadcast(const uint32_t *targets, size_t targets_count, uint16_t tag,
                             uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)targets, (void)targets_count, (void)tag, (void)address, (void)count, (void)shift, (void)f;
    broadcasts++;
    return !refuses;
}
bool shootdown_mmu_broadcast_kernel(uint64_t address, size_t count, uint8_t shift, bool f) {
    (void)address, (void)count, (void)shift, (void)f;
    return !refuses;
}
uint64_t shootdown_mmu_complete_broadcasts(void) { return 0; }
uint64_t shootdown_mmu_clock_ns(void) { return 0; }

/* What the cases have in common. */

static struct shootdown_config config = {
    .layout = SHOOTDOWN_LAYOUT, .tag_count = 6, .traps_stale_writes = true};
static struct shootdown_space a, b, many[33];
static struct shootdown_pending pending, other;
static struct shootdown_batch batch;
static struct shootdown_sent_batch sent;
static struct shootdown_unflushed unflushed;
static struct shootdown_primary_changes changes;
static struct shootdown_secondary_fault fault;
static struct shootdown_vcpu vcpu;

#define PAGE shootdown_page(0x5000)

static void expect(bool is_right) {
    if (!is_right)
        _exit(WRONG);
}

static void init(void) {
    for (size_t i = 0; i < CPUS; i++)
        shootdown_cpu_init(&cpus[i]);
    shootdown_init(&config);
}

static void on(uint32_t cpu) { this_cpu = cpu; }

/* CPUs 0 and 1 are online, and CPU 0 goes on. */
static void start(void) {
    init();
    on(1), shootdown_online();
    on(0), shootdown_online();
    shootdown_space_init(&a, 0xa000);
    shootdown_space_init(&b, 0xb000);
}

/* Both CPUs use `a`. */
static void share(void) {
    start();
    on(1), shootdown_switch(&a);
    on(0), shootdown_switch(&a);
}

static void flush(void) {
    shootdown_flush(&a, PAGE, &pending);
    shootdown_wait(&pending);
}

/* The flush is not done before CPU 1 has answered. */
static void expect_waits(void) {
    expect(!shootdown_poll(&pending));
    answer();
    expect(shootdown_poll(&pending));
}
static void expect_flush_waits(void) { shootdown_flush(&a, PAGE, &pending), expect_waits(); }

static void add_page(void) {
    expect(shootdown_batch_add_space(&batch, &a) == SHOOTDOWN_BATCH_ADDED);
    expect(shootdown_batch_add_space(&batch, &a) == SHOOTDOWN_BATCH_HAS_SPACE);
    shootdown_batch_unmapped(&batch, &a, PAGE, false, &other);
}
static void fill_batch(void) { shootdown_batch_init(&batch), add_page(); }
static void collect(void) {
    shootdown_unflushed_init(&unflushed);
    expect(shootdown_unflushed_add_space(&unflushed, &a) == SHOOTDOWN_BATCH_ADDED);
    expect(shootdown_unflushed_add_space(&unflushed, &a) == SHOOTDOWN_BATCH_HAS_SPACE);
    shootdown_unflushed_unmapped(&unflushed, &a, PAGE);
}
static void defer(void) { collect(), shootdown_unflushed_defer(&unflushed); }

/* The beginning of the engine. */

static void init_twice(void) { init(), init(); }
static void init_null(void) { shootdown_init(NULL); }
static void init_misaligned(void) { shootdown_init((void *)((char *)&config + 1)); }
static void other_layout(void) { config.layout ^= 1, init(); }
static void interrupt_sme(void) {}
static void sme_interrupt(void) { config.interrupt_sme = interrupt_sme, init(); }
static void too_many_cpus(void) { config.cpu_limit = CPUS + 1, init(); }
static void too_many_tags(void) { config.tag_count = 70000, init(); }
static void unknown_tagging(void) { config.tagging = 99, init(); }
static void unknown_reach(void) { config.broadcast.reach = 9, init(); }
static void broadcasts_without_tags(void) {
    config.broadcast.reach = SHOOTDOWN_REACH_EVERYONE, init();
}
static void processor_flags(void) { config.processor = 1, init(); }
static void cpu_above_limit(void) { config.cpu_limit = 1, start(); }
static void ceiling_of_everything(void) {
    config.flush_ceiling = UINT32_MAX, share();
    shootdown_flush(&a, shootdown_pages(0, 4095, 12), &pending);
    shootdown_wait(&pending);
    expect(invalidated == 2 * 4095);
}
static void online_before_init(void) { shootdown_online(); }
static void space_before_init(void) { shootdown_space_init(&a, 0xa000); }
static void spaces_on_zeroed_cpu(void) {
    shootdown_init(&config);
    shootdown_space_init(&a, 0xa000), shootdown_space_init(&b, 0xb000);
    expect(shootdown_space_id(&a) != shootdown_space_id(&b));
}
static void handler_before_init(void) { shootdown_handle_flush_ipi(); }
static void handler_before_online(void) {
    start(), on(7), shootdown_handle_flush_ipi();
    shootdown_online(), shootdown_switch(&a);
    on(0), expect_flush_waits();
}
static void kernel_flush_before_init(void) {
    shootdown_flush_kernel(PAGE, &pending);
    shootdown_wait(&pending);
}
static void wait_for_zeroed(void) {
    shootdown_wait(&pending);
    expect(shootdown_poll(&pending));
}

/* Each function whose comment says "Callable: before shootdown_init", but `shootdown_init`. */
static void calls_before_init(void) {
    struct shootdown_extents extents;
    struct shootdown_lazy_predictor predictor;
    shootdown_cpu_init(&cpus[0]);
    shootdown_handle_flush_ipi();
    shootdown_flush_kernel(shootdown_page(0), &pending);
    shootdown_extents_init(&extents);
    shootdown_extents_add(&extents, shootdown_freeing_tables(shootdown_range(0, 9, 12)));
    shootdown_extents_add(&extents, shootdown_pages(0, 9, 12));
    shootdown_extents_add(&extents, shootdown_long_range(0, 1 << 30, 12));
    shootdown_extents_add(&extents, shootdown_whole());
    shootdown_flush_kernel_gathered(&extents, &pending);
    shootdown_pending_init(&other);
    shootdown_join(&pending, &other);
    expect(shootdown_poll_or_wake(&pending));
    expect(shootdown_poll(&pending) && !shootdown_tables_are_clear(shootdown_horizon(&pending)));
    shootdown_wait(&pending);
    shootdown_batch_init(&batch);
    shootdown_lazy_init(&predictor);
    shootdown_lazy_switched(&predictor), shootdown_lazy_entered_kernel(&predictor);
    shootdown_lazy_caught_up(&predictor), shootdown_lazy_interrupted(&predictor);
    shootdown_lazy_returned_to_user(&predictor);
    shootdown_enter_user(), shootdown_enter_kernel();
    shootdown_unflushed_init(&unflushed), shootdown_primary_changes_init(&changes);
}

static uint32_t users;
static void count_user(void *count, uint32_t cpu) { *(uint32_t *)count += cpu == 1; }

/* Each function whose comment says "Callable: before shootdown_online". */
static void calls_before_online(void) {
    struct shootdown_extents extents;
    char line[9];
    start(), on(5), shootdown_extents_init(&extents), shootdown_extents_add(&extents, PAGE);
    shootdown_space_init(&many[0], 0xe000);
    shootdown_space_set_root(&many[0], 0xd000);
    shootdown_space_assign_tag(&many[0], 7);
    expect(shootdown_space_id(&many[0]) != 0 && shootdown_space_root(&many[0]) == 0xd000);
    on(1), shootdown_switch(&a), on(5);
    shootdown_flush(&a, PAGE, &pending), expect_waits();
    shootdown_because(SHOOTDOWN_CAUSE_PROTECT);
    shootdown_for_each_user(&a, count_user, &users), expect(users == 1);
    shootdown_flush_for_resize(&a, PAGE, &pending), expect_waits();
    shootdown_flush_gathered(&a, &extents, &pending), expect_waits();
    /* CPU 1 has published that it has caught up. */
    shootdown_flush_walkers(&a, &pending), expect(shootdown_poll(&pending));
    shootdown_flush_and_wait(&a, 0, 9, 12, false);
    expect(shootdown_flush_tables_and_wait(&a, 0, 9, 12).flush != 0);
    shootdown_batch_init(&batch), shootdown_batch_add_space(&batch, &a);
    shootdown_batch_unmapped(&batch, &a, PAGE, false, &other);
    expect(shootdown_is_batched(&a));
    shootdown_flush_if_batched(&a, PAGE, &pending), expect_waits();
    shootdown_batch_send(&batch, &sent);
    expect(!shootdown_batch_poll(&sent));
    shootdown_batch_wait(&sent);
    shootdown_unflushed_init(&unflushed), shootdown_unflushed_add_space(&unflushed, &a);
    shootdown_unflushed_unmapped(&unflushed, &a, PAGE), shootdown_unflushed_defer(&unflushed);
    expect(shootdown_unflushed_is_due(&unflushed));
    shootdown_unflushed_reuse(&unflushed, &sent), shootdown_batch_wait(&sent);
    expect(shootdown_attach_device(&a)), shootdown_detach_device(&a);
    shootdown_primary_change_start(&changes), shootdown_primary_change_end(&changes);
    expect(shootdown_secondary_fault_begin(&changes, &fault));
    expect(shootdown_secondary_fault_may_install(&changes, &fault));
    shootdown_enter_lazy(), shootdown_leave_space(), shootdown_offline();
    expect(!shootdown_resume(1) && shootdown_resume_loaded() == 0);
    expect(shootdown_loaded().space == 0);
    shootdown_begin_walk(), shootdown_end_walk();
    expect(!shootdown_nmi_may_touch_user(&a) && shootdown_trim_cpumask(&a));
    expect(shootdown_describe_unanswered(1, line, sizeof line) != 0);
    expect(shootdown_cpu_stats(5).switches == 0 && shootdown_space_stats(&a).flushes_full == 0);
    expect(shootdown_pin_tag(&a) == 0), shootdown_complete_broadcasts();
    shootdown_vcpu_init(&vcpu), shootdown_vcpu_defer_flush(&vcpu);
    shootdown_vcpu_stop(&vcpu), shootdown_vcpu_resume(&vcpu);
    shootdown_retire(&b), shootdown_reap();
    expect(reclaimed == 1);
    shootdown_disconnect(1);
    shootdown_online();
}

/* Pointers and memory. */

static void wait_for_garbage(void) {
    start(), memset(&pending, 0xff, sizeof pending);
    shootdown_wait(&pending);
}
static void poll_garbage(void) {
    start(), memset(&pending, 0x40, sizeof pending);
    shootdown_poll(&pending);
}
static void join_garbage(void) {
    start(), shootdown_pending_init(&pending), memset(&other, 0xff, sizeof other);
    shootdown_join(&pending, &other);
}
static void flush_null(void) { start(), shootdown_flush(NULL, PAGE, &pending); }
static void flush_into_null(void) { start(), shootdown_flush(&a, PAGE, NULL); }
static void flush_misaligned(void) {
    start(), shootdown_flush(&a, PAGE, (void *)((char *)&pending + 4));
}
static void wait_null(void) { start(), shootdown_wait(NULL); }
static void nmi_null(void) { start(), shootdown_nmi_may_touch_user(NULL); }
static void vcpu_null(void) { start(), shootdown_vcpu_defer_flush(NULL); }
static void extents_null(void) { start(), shootdown_extents_add(NULL, PAGE); }
static void flush_zeroed_space(void) {
    start(), memset(&b, 0, sizeof b);
    shootdown_flush(&b, PAGE, &pending);
}
static void switch_to_zeroed_space(void) {
    start(), memset(&b, 0, sizeof b);
    shootdown_switch(&b);
}
static void walkers_of_zeroed_space(void) {
    start(), memset(&b, 0, sizeof b);
    shootdown_flush_walkers(&b, &pending);
}

/* CPUs. */

static void switch_offline(void) { start(), on(5), shootdown_switch(&a); }
static void switch_number_64(void) { start(), on(64), shootdown_switch(&a); }
static void switch_after_offline(void) { share(), shootdown_offline(), shootdown_switch(&a); }
static void online_three_times(void) { start(), shootdown_online(), shootdown_online(); }
static void flush_offline(void) { share(), shootdown_offline(), expect_flush_waits(); }
static void lazy_without_space(void) {
    start(), shootdown_enter_lazy(), shootdown_enter_lazy();
    shootdown_leave_space(), shootdown_leave_space();
}
static void resume_other_ids(void) {
    share(), shootdown_enter_lazy();
    expect(!shootdown_resume(0) && !shootdown_resume(UINT64_MAX) && !shootdown_resume(77));
    expect(shootdown_resume(shootdown_space_id(&a)));
}
static void disconnect_self(void) { start(), shootdown_disconnect(0); }
static void disconnect_number_999(void) { start(), shootdown_disconnect(999); }
static void describe_little_room(void) {
    char line[8];
    start();
    expect(shootdown_describe_unanswered(1, line, 0) == 0);
    expect(shootdown_describe_unanswered(1, line, sizeof line) == sizeof line);
}
static void describe_number_64(void) { start(), shootdown_describe_unanswered(64, NULL, 0); }
static void stats_of_number_64(void) { start(), shootdown_cpu_stats(64); }
static void nmi_on_lazy_cpu(void) {
    share(), expect(shootdown_nmi_may_touch_user(&a));
    shootdown_enter_lazy(), expect(!shootdown_nmi_may_touch_user(&a));
}
static void unknown_cause(void) { start(), shootdown_because(UINT32_MAX); }

/* Spaces. */

static void switch_to_lazy_dead_space(void) {
    start(), shootdown_switch(&a), shootdown_enter_lazy();
    shootdown_retire(&a), shootdown_switch(&a);
}
static void switch_to_dead_space(void) {
    share(), shootdown_leave_space();
    on(1), shootdown_enter_lazy();
    on(0), shootdown_retire(&a), shootdown_switch(&a);
}
static void retire_twice(void) {
    share(), shootdown_leave_space();
    on(1), shootdown_enter_lazy();
    on(0), shootdown_retire(&a), shootdown_retire(&a);
}
static void retire_active(void) { share(), shootdown_leave_space(), shootdown_retire(&a); }
static void retire_unused(void) {
    start(), shootdown_retire(&a);
    expect(reclaimed == 1);
}

/* Extents. */

static bool is_whole(struct shootdown_extent extent) {
    struct shootdown_extent whole = shootdown_whole();
    return memcmp(&extent, &whole, sizeof whole) == 0;
}
static void pages_of_2_kib(void) { init(), shootdown_pages(0, 1, 11); }
static void pages_of_16_tib(void) { init(), shootdown_pages(0, 1, 44); }
static void pages_of_everything(void) {
    init(), expect(is_whole(shootdown_pages(0, SIZE_MAX, 43)));
}
static void reversed_range(void) {
    init();
    expect(is_whole(shootdown_range(0x9000, 0x1000, 12)));
}
static void forged_extents(void) {
    struct shootdown_extents extents;
    share(), shootdown_extents_init(&extents);
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t bits = i == 0 ? UINT64_MAX : i * 0x9e3779b97f4a7c15;
        struct shootdown_extent extent;
        memcpy(&extent, &bits, sizeof extent);
        shootdown_extents_add(&extents, extent);
        shootdown_flush(&a, extent, &pending);
        shootdown_wait(&pending);
    }
    shootdown_flush_gathered(&a, &extents, &pending);
    shootdown_wait(&pending);
}

/* Batches. */

static void batch_without_space(void) {
    share(), shootdown_batch_init(&batch);
    shootdown_batch_unmapped(&batch, &a, PAGE, false, &pending);
}
static void batch_of_33_spaces(void) {
    start(), shootdown_batch_init(&batch);
    for (size_t i = 0; i < 33; i++) {
        shootdown_space_init(&many[i], 0x100000 + i * 0x1000);
        expect((shootdown_batch_add_space(&batch, &many[i]) == SHOOTDOWN_BATCH_ADDED) == (i < 32));
    }
    shootdown_batch_unmapped(&batch, &many[32], PAGE, false, &pending);
}
static void batch_sent_twice(void) {
    share(), fill_batch();
    shootdown_batch_send(&batch, &sent), shootdown_batch_send(&batch, &sent);
}
static void batch_used_while_sent(void) {
    share(), fill_batch(), shootdown_batch_send(&batch, &sent);
    shootdown_batch_add_space(&batch, &b);
}
static void batch_filled_while_sent(void) {
    share(), fill_batch(), shootdown_batch_send(&batch, &sent);
    shootdown_batch_unmapped(&batch, &a, PAGE, false, &pending);
}
static void batch_waited_for_twice(void) {
    share(), fill_batch(), shootdown_batch_send(&batch, &sent), shootdown_batch_wait(&sent);
    fill_batch(), shootdown_batch_wait(&sent);
}
static void batch_polled_after_wait(void) {
    share(), fill_batch(), shootdown_batch_send(&batch, &sent), shootdown_batch_wait(&sent);
    shootdown_batch_poll(&sent);
}
static void batch_used_again(void) {
    share(), shootdown_batch_init(&batch);
    for (int i = 0; i < 3; i++) {
        add_page(), expect(shootdown_is_batched(&a));
        shootdown_batch_send(&batch, &sent);
        shootdown_batch_wait(&sent);
        expect(!shootdown_is_batched(&a));
    }
}
static void flush_if_batched(void) {
    share(), shootdown_flush_if_batched(&a, PAGE, &pending);
    expect(shootdown_poll(&pending));
    fill_batch(), shootdown_flush_if_batched(&a, PAGE, &pending), expect_waits();
}
static void batched_page_that_was_writable(void) {
    config.traps_stale_writes = false, share(), fill_batch();
    expect(shootdown_poll(&other));
    shootdown_batch_unmapped(&batch, &a, PAGE, true, &pending), expect_waits();
}
static void zeroed_batch_sent(void) { start(), shootdown_batch_wait(&sent); }
static void zeroed_batch(void) { start(), expect(shootdown_batch_add_space(&batch, &a)); }

/* Flushes that are joined, or that are initialised again. */

static void joined_with_itself(void) {
    share(), shootdown_flush(&a, PAGE, &pending);
    shootdown_join(&pending, &pending);
    expect(!shootdown_poll(&pending));
    answer();
    expect(shootdown_poll(&pending));
}
static void many_flushes(void) {
    share();
    for (int i = 0; i < 100000; i++)
        flush();
}
static void forged_horizon(void) {
    struct shootdown_horizon_numbers late = {5, 0}, early = {0, UINT64_MAX};
    expect(!shootdown_tables_are_clear(late) && shootdown_tables_are_clear(early));
}

/* Operations within others. */

static void nested_flush(void) { shootdown_flush(&a, PAGE, &other); }
static void nested_switch(void) { shootdown_switch(&b); }
static void nested_leave(void) { shootdown_leave_space(); }
static void nested_retire(void) { shootdown_retire(&b); }
static void nested_offline(void) { shootdown_offline(); }
static void nested_disconnect(void) { answers = false, shootdown_disconnect(1); }

static void flush_in_invalidation(void) { share(), in_invalidate = nested_flush, flush(); }
static void leave_in_ring(void) { share(), in_ring = nested_leave, flush(); }
static void flush_in_ring(void) { share(), in_ring = nested_flush, flush(); }
static void switch_in_hint(void) { share(), in_hint = nested_switch, flush(); }
static void flush_in_hint(void) { share(), in_hint = nested_flush, flush(); }
static void offline_in_hint(void) { share(), in_hint = nested_offline, flush(); }
static void handler_in_ring(void) { share(), in_ring = shootdown_handle_flush_ipi, flush(); }
static void disconnect_in_hint(void) { share(), in_hint = nested_disconnect, flush(), flush(); }
static void retire_in_reclaim(void) {
    start(), in_reclaim = nested_retire;
    shootdown_retire(&a);
}

/* Tags, virtual CPUs, walks. */

static void unpin_without_pin(void) { start(), shootdown_unpin_tag(&a); }
static void pin_without_global_tags(void) { start(), expect(shootdown_pin_tag(&a) == 0); }
static void vcpu_stopped_twice(void) {
    start(), shootdown_vcpu_init(&vcpu);
    expect(!shootdown_vcpu_resume(&vcpu) && !shootdown_vcpu_defer_flush(&vcpu));
    shootdown_vcpu_stop(&vcpu);
    expect(shootdown_vcpu_defer_flush(&vcpu));
    shootdown_vcpu_stop(&vcpu);
    expect(shootdown_vcpu_resume(&vcpu) && !shootdown_vcpu_resume(&vcpu));
}
static void walk_while_away(void) {
    share(), away[1] = true;
    flush(), expect(!rung[1]);
    on(1), shootdown_begin_walk(), shootdown_begin_walk(), shootdown_end_walk();
    on(0), expect_flush_waits();
    on(1), shootdown_end_walk(), on(0);
    shootdown_flush(&a, PAGE, &pending);
    expect(shootdown_poll(&pending));
}

/* Flush at reuse. */

static void reuse_of_deferred(void) {
    share(), defer();
    expect(!rung[1] && shootdown_is_batched(&a) && shootdown_unflushed_is_due(&unflushed));
    shootdown_unflushed_reuse(&unflushed, &sent);
    expect(rung[1] && !shootdown_batch_poll(&sent));
    shootdown_batch_wait(&sent), expect(!shootdown_is_batched(&a));
}
static void reuse_after_switch(void) {
    share(), defer();
    on(1), shootdown_switch(&b), shootdown_switch(&a), on(0);
    expect(!shootdown_unflushed_is_due(&unflushed));
    shootdown_unflushed_reuse(&unflushed, &sent);
    expect(!rung[1] && shootdown_batch_poll(&sent));
    shootdown_batch_wait(&sent);
}
static void reuse_of_33_spaces(void) {
    start(), shootdown_unflushed_init(&unflushed);
    for (int i = 0; i < 33; i++) {
        shootdown_space_init(&many[i], 0x10000 + 0x1000 * (uint64_t)i);
        expect((shootdown_unflushed_add_space(&unflushed, &many[i]) == SHOOTDOWN_BATCH_ADDED) ==
               (i < 32));
    }
    shootdown_unflushed_unmapped(&unflushed, &many[32], PAGE);
}
static void reuse_before_defer(void) {
    share(), collect(), shootdown_unflushed_reuse(&unflushed, &sent);
}
static void due_before_defer(void) {
    share(), collect(), shootdown_unflushed_is_due(&unflushed);
}
static void deferred_twice(void) { share(), defer(), shootdown_unflushed_defer(&unflushed); }
static void unmapped_after_defer(void) {
    share(), defer(), shootdown_unflushed_unmapped(&unflushed, &a, PAGE);
}
static void reused_twice(void) {
    share(), defer(), shootdown_unflushed_reuse(&unflushed, &sent);
    shootdown_unflushed_reuse(&unflushed, &sent);
}
static void tables_at_reuse(void) {
    share(), collect();
    shootdown_unflushed_unmapped(&unflushed, &a, shootdown_freeing_tables(PAGE));
}

/* Devices, and secondary page tables. */

static void device_delays_flush(void) {
    start(), shootdown_switch(&a), expect(shootdown_attach_device(&a));
    shootdown_flush(&a, shootdown_pages(0x5000, 3, 12), &pending);
    expect(issued == 1 && issued_count == 3 && !shootdown_poll(&pending));
    finished = 1, expect(shootdown_poll(&pending));
    shootdown_flush(&a, shootdown_whole(), &pending);
    expect(issued == 2 && issued_count == 0 && !shootdown_poll(&pending));
    finished = 2, shootdown_wait(&pending);
    shootdown_detach_device(&a), flush(), expect(issued == 2);
}
static void device_256(void) {
    start();
    for (int i = 0; i < 256; i++)
        expect(shootdown_attach_device(&a) == (i < 255));
}
static void detached_unattached(void) { start(), shootdown_detach_device(&a); }
static void change_refuses_faults(void) {
    struct shootdown_secondary_fault late;
    start(), shootdown_primary_changes_init(&changes);
    expect(shootdown_secondary_fault_begin(&changes, &fault));
    shootdown_primary_change_start(&changes);
    expect(!shootdown_secondary_fault_begin(&changes, &late));
    expect(!shootdown_secondary_fault_may_install(&changes, &fault));
    shootdown_primary_change_end(&changes);
    expect(!shootdown_secondary_fault_may_install(&changes, &fault));
    expect(shootdown_secondary_fault_begin(&changes, &late));
    expect(shootdown_secondary_fault_may_install(&changes, &late));
}
static void change_65536(void) {
    start(), shootdown_primary_changes_init(&changes);
    for (int i = 0; i < 65535; i++)
        shootdown_primary_change_start(&changes);
    expect(!shootdown_secondary_fault_begin(&changes, &fault));
    shootdown_primary_change_start(&changes);
}

/* Broadcasts that complete when their call returns. */

static void start_broadcasts(uint32_t reach) {
    config.tagging = SHOOTDOWN_TAGS_GLOBAL, config.tag_count = 255;
    config.broadcast.reach = reach;
    share();
}
static void start_firmware(void) { start_broadcasts(SHOOTDOWN_REACH_TARGETS); }
static void unmasked_wait_for_firmware(void) {
    start_firmware();
    for (int i = 0; i < 100; i++) {
        shootdown_flush(&a, PAGE, &pending);
        masked = i % 2 != 0;
        shootdown_wait(&pending);
        masked = true;
    }
    expect(broadcasts == 100 && self_rings == 0 && !rung[0] && !rung[1]);
}
static void refused_by_firmware(void) { refuses = true, start_firmware(), expect_flush_waits(); }

static unsigned kernel_flush_rings(struct shootdown_extent extent) {
    uint64_t skipped = shootdown_cpu_stats(0).skipped_in_user;
    shootdown_flush_kernel(extent, &pending);
    bool is_rung = rung[1];
    if (is_rung)
        on(1), shootdown_enter_kernel(), rung[1] = false, shootdown_handle_flush_ipi(),
            shootdown_enter_user(), on(0);
    shootdown_wait(&pending);
    expect(shootdown_cpu_stats(0).skipped_in_user == skipped + !is_rung);
    return is_rung;
}
static void kernel_flush_skips_user(void) {
    start(), on(1), shootdown_enter_user(), on(0);
    expect(!kernel_flush_rings(PAGE));
    expect(kernel_flush_rings(shootdown_pages(4096, 1, 12)));
    expect(!kernel_flush_rings(shootdown_pages(8192, 9, 12)));
    expect(kernel_flush_rings(shootdown_freeing_tables(PAGE)));
    expect(kernel_flush_rings(shootdown_whole()));
    on(1), shootdown_enter_kernel(), on(0);
    shootdown_flush_kernel(PAGE, &pending), expect_waits();
}
static void flush_in_user(void) {
    start(), shootdown_enter_user();
    shootdown_flush_kernel(PAGE, &pending);
}
static void user_in_user(void) { start(), shootdown_enter_user(), shootdown_enter_user(); }
static void entry_in_kernel(void) {
    start(), shootdown_enter_kernel();
    shootdown_flush_kernel(PAGE, &pending), expect_waits();
}

static void kernel_flush_refused(void) {
    refuses = true, start_broadcasts(SHOOTDOWN_REACH_EVERYONE);
    shootdown_flush_kernel(PAGE, &pending), expect_waits();
}

static const char POINTER[] = "a pointer is null, or not aligned", NESTED[] = "in an operation";
static const char FOREIGN[] = "another engine's", NO_FLUSH[] = "pending flush is not initialised";
static const char OFFLINE[] = "an offline CPU", RETIRED[] = "the space is retired";
static const char NOT_ADDED[] = "was not added", SENT[] = "was sent is used";
static const char IN_USER[] = "is in user mode";
static const char EARLY[] = "before shootdown_unflushed_defer", LATE[] = "that was deferred";
static const char UNSENT[] = "there is no batch";
static const char BEFORE_INIT[] = "shootdown_init comes before";

#define RETURNS(name) {#name, NULL, name}
#define PANICS(name, words) {#name, words, name}

static const struct {
    const char *name, *words;
    void (*run)(void);
} cases[] = {
    PANICS(init_twice, "exists already"),
    PANICS(init_null, POINTER),
    PANICS(init_misaligned, POINTER),
    PANICS(other_layout, "shootdown_config.layout"),
    PANICS(sme_interrupt, "leave it null"),
    PANICS(too_many_cpus, "room for 64"),
    PANICS(too_many_tags, "tags have 16 bits"),
    PANICS(unknown_tagging, "not a SHOOTDOWN_TAGS_ value"),
    PANICS(unknown_reach, "not a SHOOTDOWN_REACH_ value"),
    PANICS(broadcasts_without_tags, "need SHOOTDOWN_TAGS_GLOBAL"),
    PANICS(processor_flags, "without the feature"),
    PANICS(cpu_above_limit, "the limit is 1"),
    RETURNS(ceiling_of_everything),
    RETURNS(calls_before_init),
    RETURNS(calls_before_online),
    PANICS(online_before_init, BEFORE_INIT),
    PANICS(space_before_init, BEFORE_INIT),
    RETURNS(spaces_on_zeroed_cpu),
    RETURNS(handler_before_init),
    RETURNS(handler_before_online),
    RETURNS(kernel_flush_before_init),
    RETURNS(kernel_flush_skips_user),
    RETURNS(entry_in_kernel),
    PANICS(flush_in_user, IN_USER),
    PANICS(user_in_user, IN_USER),
    RETURNS(wait_for_zeroed),
    PANICS(wait_for_garbage, NO_FLUSH),
    PANICS(poll_garbage, NO_FLUSH),
    PANICS(join_garbage, NO_FLUSH),
    PANICS(flush_null, POINTER),
    PANICS(flush_into_null, POINTER),
    PANICS(flush_misaligned, POINTER),
    PANICS(wait_null, POINTER),
    PANICS(nmi_null, POINTER),
    PANICS(vcpu_null, POINTER),
    PANICS(extents_null, POINTER),
    PANICS(flush_zeroed_space, FOREIGN),
    PANICS(switch_to_zeroed_space, FOREIGN),
    PANICS(walkers_of_zeroed_space, FOREIGN),
    PANICS(switch_offline, OFFLINE),
    PANICS(switch_number_64, "out of bounds"),
    PANICS(switch_after_offline, OFFLINE),
    RETURNS(online_three_times),
    RETURNS(flush_offline),
    RETURNS(lazy_without_space),
    RETURNS(resume_other_ids),
    PANICS(disconnect_self, "goes offline"),
    PANICS(disconnect_number_999, "there is no CPU 999"),
    RETURNS(describe_little_room),
    PANICS(describe_number_64, "there is no CPU 64"),
    PANICS(stats_of_number_64, "there is no CPU 64"),
    RETURNS(nmi_on_lazy_cpu),
    PANICS(unknown_cause, "there is no cause"),
    PANICS(switch_to_lazy_dead_space, RETIRED),
    PANICS(switch_to_dead_space, RETIRED),
    PANICS(retire_twice, "retired twice"),
    PANICS(retire_active, "active on CPU 1"),
    RETURNS(retire_unused),
    PANICS(pages_of_2_kib, "page sizes"),
    PANICS(pages_of_16_tib, "page sizes"),
    RETURNS(pages_of_everything),
    RETURNS(reversed_range),
    RETURNS(forged_extents),
    PANICS(batch_without_space, NOT_ADDED),
    PANICS(batch_of_33_spaces, NOT_ADDED),
    PANICS(batch_sent_twice, "sent twice"),
    PANICS(batch_used_while_sent, SENT),
    PANICS(batch_filled_while_sent, SENT),
    PANICS(batch_waited_for_twice, UNSENT),
    PANICS(batch_polled_after_wait, UNSENT),
    RETURNS(batch_used_again),
    RETURNS(flush_if_batched),
    RETURNS(batched_page_that_was_writable),
    PANICS(zeroed_batch_sent, UNSENT),
    RETURNS(reuse_of_deferred),
    RETURNS(reuse_after_switch),
    PANICS(reuse_of_33_spaces, NOT_ADDED),
    PANICS(reuse_before_defer, EARLY),
    PANICS(due_before_defer, EARLY),
    PANICS(deferred_twice, LATE),
    PANICS(unmapped_after_defer, LATE),
    PANICS(reused_twice, SENT),
    PANICS(tables_at_reuse, "that frees tables"),
    RETURNS(device_delays_flush),
    RETURNS(device_256),
    PANICS(detached_unattached, "more often than attached"),
    RETURNS(change_refuses_faults),
    PANICS(change_65536, "65535 changes"),
    RETURNS(zeroed_batch),
    RETURNS(joined_with_itself),
    RETURNS(many_flushes),
    RETURNS(forged_horizon),
    PANICS(flush_in_invalidation, NESTED),
    PANICS(leave_in_ring, NESTED),
    PANICS(flush_in_ring, NESTED),
    PANICS(switch_in_hint, NESTED),
    PANICS(flush_in_hint, NESTED),
    PANICS(offline_in_hint, NESTED),
    RETURNS(handler_in_ring),
    RETURNS(disconnect_in_hint),
    PANICS(retire_in_reclaim, NESTED),
    PANICS(unpin_without_pin, "unpinned more often than pinned"),
    RETURNS(pin_without_global_tags),
    RETURNS(vcpu_stopped_twice),
    RETURNS(walk_while_away),
    RETURNS(unmasked_wait_for_firmware),
    RETURNS(refused_by_firmware),
    RETURNS(kernel_flush_refused),
};

/* Runs a case. Returns true if it ended as expected. */
static bool run(size_t number) {
    int ends[2], status;
    if (pipe(ends) != 0)
        exit(2);
    pid_t child = fork();
    if (child == 0) {
        sentence = ends[1];
        alarm(SECONDS);
        cases[number].run();
        _exit(0);
    }
    close(ends[1]);
    char text[512];
    ssize_t length = read(ends[0], text, sizeof text - 1);
    text[length < 0 ? 0 : length] = 0;
    close(ends[0]);
    if (waitpid(child, &status, 0) != child)
        exit(2);
    const char *words = cases[number].words;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    bool is_right = words ? code == PANICKED && strstr(text, words) : code == 0;
    if (!is_right)
        printf("%s: ended with %d (42: a panic, 3: a wrong state, negative: a signal) %s\n",
               cases[number].name, code, text);
    return is_right;
}

int main(void) {
    size_t count = sizeof cases / sizeof *cases, wrong = 0;
    for (size_t number = 0; number < count; number++)
        wrong += !run(number);
    printf("%zu calls, %zu of them wrong\n", count, wrong);
    return wrong != 0;
}
