#ifndef SHOOTDOWN_H
#define SHOOTDOWN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Number of CPUs for which the library has room: 64, or 512 or 4096 if it was built with the
 * feature `cpus-512` or `cpus-4096`. */
#ifndef SHOOTDOWN_CPUS_MAX
#define SHOOTDOWN_CPUS_MAX 64
#endif

#define SHOOTDOWN_ALIGNED(n) __attribute__((aligned(n)))

/* Sizes in words of 64 bits. */
#if SHOOTDOWN_CPUS_MAX == 64
#define SHOOTDOWN_SPACE_WORDS 56
#define SHOOTDOWN_PENDING_WORDS 9
#define SHOOTDOWN_SENT_BATCH_WORDS 10
#elif SHOOTDOWN_CPUS_MAX == 512
#define SHOOTDOWN_SPACE_WORDS 64
#define SHOOTDOWN_PENDING_WORDS 16
#define SHOOTDOWN_SENT_BATCH_WORDS 17
#elif SHOOTDOWN_CPUS_MAX == 4096
#define SHOOTDOWN_SPACE_WORDS 176
#define SHOOTDOWN_PENDING_WORDS 72
#define SHOOTDOWN_SENT_BATCH_WORDS 73
#else
#error "SHOOTDOWN_CPUS_MAX must be 64, 512 or 4096"
#endif
#define SHOOTDOWN_CPU_WORDS 312
#define SHOOTDOWN_BATCH_WORDS 193
#define SHOOTDOWN_EXTENTS_WORDS 5
#define SHOOTDOWN_VCPU_WORDS 1
#define SHOOTDOWN_LAZY_PREDICTOR_WORDS 1
#define SHOOTDOWN_STEAL_TIME_WORDS 8

/* Shows the library that it belongs to this header. */
#define SHOOTDOWN_LAYOUT \
    ((uint64_t)SHOOTDOWN_CPU_WORDS | (uint64_t)SHOOTDOWN_SPACE_WORDS << 16 \
     | (uint64_t)SHOOTDOWN_PENDING_WORDS << 32 \
     | (uint64_t)(SHOOTDOWN_BATCH_WORDS + SHOOTDOWN_SENT_BATCH_WORDS) << 48)


/**
 * `tagging`: each CPU gives its few tags to the spaces that it ran last (x86: PCIDs).
 */
#define SHOOTDOWN_TAGS_PER_CPU 0

/**
 * `tagging`: a space has the same tag on all CPUs (Arm, RISC-V).
 */
#define SHOOTDOWN_TAGS_GLOBAL 1

/**
 * `tagging`: each CPU counts tags up, and gives a space the next one instead of invalidating
 * (ARC).
 */
#define SHOOTDOWN_TAGS_RENAMED 2

/**
 * `broadcast.reach`: there are no broadcasts.
 */
#define SHOOTDOWN_REACH_NOBODY 0

/**
 * `broadcast.reach`: a broadcast reaches every CPU (Arm's `TLBI … IS`).
 */
#define SHOOTDOWN_REACH_EVERYONE 1

/**
 * `broadcast.reach`: a broadcast reaches the CPUs that it names (SBI's remote fence, a hypercall).
 */
#define SHOOTDOWN_REACH_TARGETS 2

/**
 * `processor`, on x86-64: all entries of the kernel's pages have G (bit 8) set. Without this flag,
 * each flush of kernel pages drops all translations where the processor has tags.
 */
#define SHOOTDOWN_X86_64_GLOBAL_KERNEL (1 << 0)

/**
 * `processor`, on AArch64: the CPUs have the erratum that requires each broadcast to be issued
 * twice (Arm's errata 1286807, 2441007 and 2441009, for instance).
 */
#define SHOOTDOWN_AARCH64_REPEAT_BROADCASTS (1 << 1)

/**
 * `processor`, on RISC-V: all CPUs have the extension Svinval.
 */
#define SHOOTDOWN_RISCV64_SVINVAL (1 << 2)

/**
 * `processor`, on RISC-V: a write of `satp` ends the walks that began with the old value. The
 * manual does not promise this, so set it only if the manufacturer does, or under QEMU. Without
 * it, a CPU that loads another space drops what it has cached of the old one.
 */
#define SHOOTDOWN_RISCV64_SATP_ENDS_WALKS (1 << 3)

/**
 * The engine's state of one CPU. Allocate one for each CPU, in memory near that CPU, and
 * initialise it with `shootdown_cpu_init`.
 */
struct SHOOTDOWN_ALIGNED(64) shootdown_cpu {
    uint64_t words[SHOOTDOWN_CPU_WORDS];
};

/**
 * The engine's part of an address space. Put it into your structure of the address space, and
 * initialise it with `shootdown_space_init`. It must not move after the first
 * `shootdown_switch` to it.
 */
struct SHOOTDOWN_ALIGNED(64) shootdown_space {
    uint64_t words[SHOOTDOWN_SPACE_WORDS];
};

/**
 * Costs with which the engine chooses between interrupts and broadcasts, in nanoseconds.
 */
struct shootdown_notify_costs {
    /**
     * Time to interrupt one or more CPUs: to send, and to wait for the first answer. 0 to
     * broadcast whatever it costs.
     */
    uint64_t interrupt_ns;
    /**
     * Additional time for each CPU that is interrupted.
     */
    uint64_t interrupt_each_ns;
    /**
     * Time to issue and complete a broadcast of one operation.
     */
    uint64_t broadcast_ns;
    /**
     * Additional time for each CPU that the broadcast names.
     */
    uint64_t broadcast_each_ns;
    /**
     * Additional time for each further operation of the broadcast.
     */
    uint64_t operation_ns;
};

/**
 * The broadcasts of a kernel that defines `shootdown_mmu_broadcast` and the functions after it.
 */
struct shootdown_broadcast_config {
    /**
     * One of `SHOOTDOWN_REACH_…`. All but `SHOOTDOWN_REACH_NOBODY` need `SHOOTDOWN_TAGS_GLOBAL`.
     */
    uint32_t reach;
    /**
     * Number of pages that one operation invalidates; 0 for 1.
     */
    uint32_t pages_per_operation;
    /**
     * Number of operations above which a broadcast drops the whole tag; 0 for 1.
     */
    uint32_t operation_ceiling;
    /**
     * The costs of both methods.
     */
    struct shootdown_notify_costs costs;
};

/**
 * The properties of the machine, for `shootdown_init`.
 *
 * Set `layout`, and leave all other members 0 for which the default is right. If the library was
 * built with the feature `processor`, set `kernel_root` as well. All members after `processor` are
 * for libraries without this feature, and must be 0 with it.
 */
struct shootdown_config {
    /**
     * Must be `SHOOTDOWN_LAYOUT`: shows that this header belongs to the library.
     */
    uint64_t layout;
    /**
     * Physical address of the page table that has only the kernel's pages. It must stay valid for
     * ever. 0 without the feature `processor`: then `shootdown_mmu_load_kernel` has it.
     */
    uint64_t kernel_root;
    /**
     * Upper limit of the number of CPUs; 0 for `SHOOTDOWN_CPUS_MAX`.
     */
    uint32_t cpu_limit;
    /**
     * Flags of the processor that the library has: `SHOOTDOWN_X86_64_…`, `SHOOTDOWN_AARCH64_…` or
     * `SHOOTDOWN_RISCV64_…`. 0 is right on every processor.
     */
    uint32_t processor;
    /**
     * True if the processor walks the page tables before the first write to
     * a page that it has cached as not dirty. Batches then defer writable pages as well.
     */
    bool traps_stale_writes;
    /**
     * True if a CPU may have translations of two sizes for one address.
     */
    bool tolerates_mixed_sizes;
    /**
     * One of `SHOOTDOWN_TAGS_…`.
     */
    uint32_t tagging;
    /**
     * Number of tags (PCIDs, ASIDs) for spaces, below 65536; 0 if the TLB has none. At most 64 are
     * used if they are per CPU.
     */
    uint32_t tag_count;
    /**
     * Number of pages above which a CPU drops a whole tag instead of single
     * pages; 0 for 33.
     */
    uint32_t flush_ceiling;
    /**
     * The broadcasts, if the library was built with the feature `broadcast`.
     */
    struct shootdown_broadcast_config broadcast;
};

/**
 * The pages that a flush covers: up to 4095 pages of one size, or the whole space. Made by
 * `shootdown_page` and the functions below it.
 */
struct shootdown_extent {
    uint64_t bits;
};

/**
 * A flush that was sent and may not yet be done, usually on the stack. Every flush function
 * initialises it. Pass it to `shootdown_wait` before the pages are reused: C has no destructor
 * that would do so.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_pending {
    uint64_t words[SHOOTDOWN_PENDING_WORDS];
};

/**
 * The extents of one operation, for one flush.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_extents {
    uint64_t words[SHOOTDOWN_EXTENTS_WORDS];
};

/**
 * The page tables that no CPU can walk any more, as numbers of flushes of one space.
 *
 * Keep unhooked page tables on a list of their space, each with the `flush` that unhooked it. When
 * a later flush of the space is done, free those whose number is at most its `cleared`.
 */
struct shootdown_horizon_numbers {
    /**
     * Number of this flush, among those of its space.
     */
    uint64_t flush;
    /**
     * Number of the last flush whose unhooked tables no CPU can walk any more; 0 if there is none.
     */
    uint64_t cleared;
};

/**
 * Unmapped pages of up to 32 spaces that were not flushed yet.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_batch {
    uint64_t words[SHOOTDOWN_BATCH_WORDS];
};

/**
 * A batch whose flush was sent.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_sent_batch {
    uint64_t words[SHOOTDOWN_SENT_BATCH_WORDS];
};

/**
 * The word of a virtual CPU, which its hypervisor and the flushing CPUs of its guest share.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_vcpu {
    uint64_t words[SHOOTDOWN_VCPU_WORDS];
};

/**
 * The record of a virtual CPU under KVM on x86-64, which KVM writes (`struct kvm_steal_time`).
 */
struct SHOOTDOWN_ALIGNED(64) shootdown_kvm_steal_time {
    uint64_t words[SHOOTDOWN_STEAL_TIME_WORDS];
};

/**
 * The predictor of a CPU of whether to enter lazy.
 */
struct SHOOTDOWN_ALIGNED(8) shootdown_lazy_predictor {
    uint64_t words[SHOOTDOWN_LAZY_PREDICTOR_WORDS];
};

/**
 * What a CPU has done so far. All numbers only grow.
 */
struct shootdown_cpu_counts {
    /**
     * Flush interrupts that this CPU sent.
     */
    uint64_t interrupts_sent;
    /**
     * Rings that sent no interrupt, because one was on its way.
     */
    uint64_t rings_coalesced;
    /**
     * CPUs that this CPU did not interrupt because they were lazy.
     */
    uint64_t skipped_lazy;
    /**
     * CPUs that this CPU did not interrupt because they did not use the space.
     */
    uint64_t skipped_elsewhere;
    /**
     * CPUs that this CPU did not interrupt because they were away.
     */
    uint64_t skipped_away;
    /**
     * Rounds in which this CPU answered other CPUs.
     */
    uint64_t answers;
    /**
     * Invalidations of a whole tag, or of all translations.
     */
    uint64_t flushes_full;
    /**
     * Ranges that were invalidated page by page.
     */
    uint64_t flushes_ranged;
    /**
     * Pages of these ranges.
     */
    uint64_t pages_invalidated;
    /**
     * Flushes with which the CPU caught up when it returned to a space.
     */
    uint64_t caught_up;
    /**
     * Loads of another space.
     */
    uint64_t switches;
    /**
     * Loads of another space that had to invalidate.
     */
    uint64_t switches_flushed;
    /**
     * Dead spaces that this CPU reclaimed.
     */
    uint64_t spaces_reclaimed;
    /**
     * Tags that this CPU allocated.
     */
    uint64_t tags_taken;
    /**
     * Times that no tag was left, and all of them became free again.
     */
    uint64_t rollovers;
    /**
     * Flushes that this CPU broadcast.
     */
    uint64_t broadcasts_sent;
    /**
     * Flushes that had no other CPU to notify.
     */
    uint64_t flushes_local;
};

/**
 * What was done to a space so far. All numbers only grow.
 */
struct shootdown_space_counts {
    /**
     * Flushes of the whole space.
     */
    uint64_t flushes_full;
    /**
     * Ranges that were flushed. One flush may have several.
     */
    uint64_t flushes_ranged;
    /**
     * CPUs of the space's mask that a flush did not interrupt because they did not use the space.
     */
    uint64_t skipped_elsewhere;
    /**
     * Times that the mask was trimmed.
     */
    uint64_t cpumask_trims;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Defined by the kernel: the engine's state of a CPU. Always the same address for the
 * same number, and another one for each number. Called at each flush for each CPU that may use
 * the space.
 */
extern struct shootdown_cpu *shootdown_os_cpu(uint32_t number);

/**
 * Defined by the kernel: the number of the CPU that runs this call, from 0 on, without
 * large gaps.
 */
extern uint32_t shootdown_os_this_cpu(void);

/**
 * Defined by the kernel: sends the flush interrupt to `count` CPUs (at most 64; for more,
 * the engine calls it several times). They are either other CPUs, or only the calling one.
 *
 * Each of them must enter the handler after finite time, unless it masks the interrupt for
 * ever. The handler must observe all stores that this CPU made before the call, which most
 * machines guarantee only after a barrier: `mfence; lfence` before a write to an x2APIC
 * register, `dsb ishst` before an SGI of Arm's GIC. `shootdown_send_ipi` has these barriers.
 */
extern void shootdown_os_ring(const uint32_t *cpus, size_t count);

/**
 * Defined by the kernel: returns a retired space. No CPU can walk its page tables any
 * more, and the engine will not access it again.
 *
 * Called in the middle of `shootdown_switch`, `shootdown_leave_space`, `shootdown_offline`,
 * `shootdown_retire` or `shootdown_reap`, with the flush interrupt masked. It must not call
 * the engine. If memory cannot be freed there, put the space on a list.
 */
extern void shootdown_os_reclaim(struct shootdown_space *space);

/**
 * Defined by the kernel: one turn of the loop that waits for other CPUs. `cpu` is the
 * first one that has not answered. A place to count, to report a CPU that does not answer, or
 * to yield a virtual CPU. It may be empty.
 */
extern void shootdown_os_wait_hint(uint32_t cpu);

/**
 * Defined by the kernel, if the library was built with the feature `away`: returns true if a
 * hypervisor does not run `cpu`, which then empties its TLB before it runs again. A flush asks
 * this before it rings the CPU. It neither interrupts nor waits for a CPU that is away.
 *
 * The answer true is a request and a promise. The kernel guarantees:
 *
 * - the CPU executes nothing, and walks no page table, from before this call returns until it
 *   has dropped all translations, global ones included, under every tag;
 * - it drops them after all earlier stores of the calling CPU;
 * - its accesses before it stopped happen before this call returns.
 *
 * So it is not enough to know that the CPU does not run: it may run again, with its old TLB,
 * before this call returns. `shootdown_vcpu_defer_flush` fulfils this contract.
 */
extern bool shootdown_os_is_away(uint32_t cpu);

/**
 * Defined by the kernel, on RISC-V, if the library was built with the features `processor` and
 * `broadcast`: the number of a CPU's hart, by which the firmware names it. Always the same
 * number for a CPU.
 */
extern uint64_t shootdown_os_hart(uint32_t cpu);

/**
 * Defined by the kernel: a defect was found, in the engine or in the way in which the
 * kernel uses it. `message` has `length` bytes of text, without a final 0. TLBs may be
 * inconsistent from here on, so stop the machine. The function must not return,
 * and must not call the engine.
 */
extern void shootdown_os_panic(const char *message, size_t length) __attribute__((noreturn));

/**
 * Defined by the kernel, like all functions `shootdown_mmu_…`, unless the library was built
 * with the feature `processor`: returns true if the flush interrupt is masked on this CPU.
 */
extern bool shootdown_mmu_interrupts_masked(void);

/**
 * Defined by the kernel: makes this CPU's earlier stores to page tables visible to all
 * page-table walkers, before any later access or invalidation (nothing on x86; `dsb ishst` on
 * Arm).
 */
extern void shootdown_mmu_publish(void);

/**
 * Defined by the kernel: completes all earlier loads and stores of this CPU before any
 * later invalidation (`mfence` on x86, `dsb ish` on Arm).
 */
extern void shootdown_mmu_synchronize(void);

/**
 * Defined by the kernel: makes the page table at `root` current under `tag`. If
 * `keeps_entries` is false, translations under this tag that the CPU has cached before must be
 * gone.
 *
 * Like all functions below, it must have taken full effect when it returns: no later access
 * and no speculative walk uses what it drops.
 */
extern void shootdown_mmu_load(uint64_t root, uint16_t tag, bool keeps_entries);

/**
 * Defined by the kernel: makes the kernel's own page table current, under tag 0. If the
 * TLB has no tags, all translations of user pages must be gone.
 */
extern void shootdown_mmu_load_kernel(void);

/**
 * Defined by the kernel: drops this CPU's translations of `count` pages of
 * 2^`page_shift` bytes from `address` on, under `tag`, which is loaded. If `frees_tables`,
 * also drops the cached entries of upper levels above them.
 */
extern void shootdown_mmu_invalidate(uint16_t tag,
                                     uint64_t address,
                                     size_t count,
                                     uint8_t page_shift,
                                     bool frees_tables);

/**
 * Defined by the kernel: drops all of this CPU's translations under `tag`, which is
 * loaded.
 */
extern void shootdown_mmu_invalidate_tag(uint16_t tag);

/**
 * Defined by the kernel: drops this CPU's translations of these pages of the kernel,
 * global ones included, under every tag. A `count` of 0 means all pages.
 */
extern void shootdown_mmu_invalidate_kernel(uint64_t address,
                                            size_t count,
                                            uint8_t page_shift,
                                            bool frees_tables);

/**
 * Defined by the kernel: drops all translations of this CPU, global ones included, under
 * every tag.
 */
extern void shootdown_mmu_invalidate_all(void);

/**
 * Defined by the kernel, like the three functions below, if the library was built with the
 * feature `broadcast` and without `processor`: begins to drop the translations of these pages
 * under `tag` on other CPUs, as `shootdown_mmu_invalidate` does on this one. A `count` of 0
 * means all translations under the tag.
 *
 * With `SHOOTDOWN_REACH_TARGETS`, `cpus` has the numbers of `cpu_count` CPUs (at most 64; for
 * more, the engine calls it several times). With `SHOOTDOWN_REACH_EVERYONE`, it reaches all
 * CPUs, this one included, and `cpus` is null.
 */
extern void shootdown_mmu_broadcast(const uint32_t *cpus,
                                    size_t cpu_count,
                                    uint16_t tag,
                                    uint64_t address,
                                    size_t count,
                                    uint8_t page_shift,
                                    bool frees_tables);

/**
 * Defined by the kernel: begins to drop the translations of these pages of the kernel on all
 * CPUs, as `shootdown_mmu_invalidate_kernel` does on this one. A `count` of 0 means
 * everything.
 * Called only with `SHOOTDOWN_REACH_EVERYONE`.
 */
extern void shootdown_mmu_broadcast_kernel(uint64_t address,
                                           size_t count,
                                           uint8_t page_shift,
                                           bool frees_tables);

/**
 * Defined by the kernel: waits until all broadcasts that *this* CPU has issued have taken full
 * effect on every CPU that they reach, and until those CPUs have completed each access that
 * used a dropped translation (`dsb ish` on Arm). Returns the duration of the wait in
 * nanoseconds, or 0 if it is not measured.
 */
extern uint64_t shootdown_mmu_complete_broadcasts(void);

/**
 * Defined by the kernel: a clock of this CPU in nanoseconds, with which the engine measures
 * how long other CPUs take to answer. Returns always 0 if it must not measure.
 */
extern uint64_t shootdown_mmu_clock_ns(void);

/**
 * Initialises the engine. Call this once, on the first CPU, before it starts other CPUs, and
 * before any other function of the library except `shootdown_cpu_init`. Flushes of kernel pages
 * before it do nothing: no CPU is online, and a CPU that comes online empties its TLB.
 *
 * # Safety
 *
 * `config` must be valid. No other call of the library may run at the same time. All functions
 * `shootdown_os_…` and `shootdown_mmu_…` must work.
 *
 * If the library was built with the feature `processor`, this CPU has paging enabled (on Arm,
 * `TCR_EL1` is set up as on all CPUs, with `A1` = 0), and all CPUs have the features of this one.
 * `config->kernel_root` is a valid page table for ever, and maps no user page.
 *
 * # Panics
 *
 * If the library was initialised already; if it was built for another `SHOOTDOWN_CPUS_MAX` than
 * this header; if a member of `config` is out of range.
 */
void shootdown_init(const struct shootdown_config *config);

/**
 * Returns the page of 4 KiB that contains `address`.
 */
struct shootdown_extent shootdown_page(uint64_t address);

/**
 * Returns `count` pages of 2^`page_shift` bytes, beginning with the page that contains `address`.
 * `page_shift` must be that of the smallest page that may be cached for these addresses. The
 * result is empty for a `count` of 0, and the whole space if there are more than 4095 pages.
 *
 * # Panics
 *
 * If `page_shift` is not within 12 to 43.
 */
struct shootdown_extent shootdown_pages(uint64_t address, size_t count, uint8_t page_shift);

/**
 * Returns the pages of 2^`page_shift` bytes that overlap the addresses from `start` to before
 * `end`; the whole space if there are more than 4095.
 *
 * # Panics
 *
 * If `page_shift` is not within 12 to 43.
 */
struct shootdown_extent shootdown_range(uint64_t start, uint64_t end, uint8_t page_shift);

/**
 * Returns the whole address space.
 */
struct shootdown_extent shootdown_whole(void);

/**
 * Returns `extent`, with page tables above it unhooked and about to be freed: CPUs then drop the
 * upper levels that they cache as well.
 */
struct shootdown_extent shootdown_freeing_tables(struct shootdown_extent extent);

/**
 * Initialises the state of a CPU that is offline. Call this before the CPU comes online, and
 * before `shootdown_os_cpu` returns the state. May be called before `shootdown_init`.
 *
 * # Safety
 *
 * `cpu` must be valid for writes, and stay in place as long as the engine is used.
 */
void shootdown_cpu_init(struct shootdown_cpu *cpu);

/**
 * Brings this CPU online: from now on, flushes interrupt it. Empties its TLB. Call this as the
 * last step before the CPU runs threads, when its flush interrupt is set up.
 *
 * # Safety
 *
 * The flush interrupt is masked on this CPU, and so is every interrupt whose handler calls the
 * library. Do not call it in an NMI or a machine-check handler. The same holds for all functions
 * below that say "masked".
 *
 * The CPU runs on the kernel's own page table. On x86-64, if the library was built with the
 * feature `processor`, this function enables global pages and tags (`CR4.PGE` and `CR4.PCIDE`), so
 * bits 11 to 0 of CR3 are 0, and no other code changes these two bits of CR4.
 */
void shootdown_online(void);

/**
 * Takes this CPU offline: it leaves its space, and no other CPU interrupts it or waits for it
 * until it comes back online. Until then, it may use only kernel pages that are never flushed.
 *
 * # Safety
 *
 * Masked, and the interrupt stays masked until `shootdown_online`.
 */
void shootdown_offline(void);

/**
 * Handles the flush interrupt: a call of this function is the whole handler, after the interrupt
 * was acknowledged (`shootdown_acknowledge_ipi`, or by the kernel's driver of the interrupt
 * controller). The handler must observe all stores from before the interrupt was sent.
 *
 * Also call it in loops that wait for a lock with the interrupt masked, because the holder may be
 * waiting for this CPU.
 *
 * # Safety
 *
 * Masked. May also be called in `shootdown_os_ring`, `shootdown_os_wait_hint` and
 * `shootdown_os_reclaim`, where they wait for a lock.
 */
void shootdown_handle_flush_ipi(void);

/**
 * Makes `space` active on this CPU: call this before it runs a thread of the space. Cheap if the
 * space is still loaded, as after `shootdown_enter_lazy`.
 *
 * # Safety
 *
 * Masked, and this CPU is online. `space` is initialised, and not retired. From now on until
 * `shootdown_os_reclaim` gets it, it must not move, nor be freed or written, and its root must
 * stay a valid page table.
 */
void shootdown_switch(struct shootdown_space *space);

/**
 * Publishes that this CPU keeps its space loaded, but accesses no user memory: it idles, or runs a
 * kernel thread. From now on flushes do not interrupt it. It catches up at `shootdown_switch`.
 *
 * # Safety
 *
 * Masked.
 */
void shootdown_enter_lazy(void);

/**
 * Makes the space with this id active again if this CPU still has it loaded, as
 * `shootdown_switch` would, and returns true. Returns false if it is not loaded, or is retired:
 * then the CPU must use another space.
 *
 * For a kernel thread that borrows the loaded space. It must not call `shootdown_switch`, because
 * the space may be dead.
 *
 * # Safety
 *
 * Masked, and this CPU is online. No other CPU is within `shootdown_retire` for this space.
 */
bool shootdown_resume(uint64_t id);

/**
 * Makes the loaded space active again, whichever it is, and returns its id. Returns 0 if no space
 * is loaded, or if it is retired. For a kernel that enters lazy where it does not have the space
 * at hand, such as around the idle loop's halt.
 *
 * # Safety
 *
 * As `shootdown_resume`.
 */
uint64_t shootdown_resume_loaded(void);

/**
 * Loads the kernel's own page table. Call this on a CPU that enters a deep idle state, so that it
 * keeps no dead space's page tables allocated.
 *
 * # Safety
 *
 * Masked.
 */
void shootdown_leave_space(void);

/**
 * Returns true if a handler that cannot be masked, such as that of an NMI, may access user memory
 * of `space` on this CPU until it returns. The handler must not call any other function of the
 * library.
 *
 * # Safety
 *
 * `space` must be initialised, and not reclaimed.
 */
bool shootdown_nmi_may_touch_user(const struct shootdown_space *space);

/**
 * Initialises a space whose page tables start at the physical address `root`. The root must be
 * initialised before.
 *
 * # Safety
 *
 * `space` must be valid for writes, and no CPU may use it yet.
 */
void shootdown_space_init(struct shootdown_space *space, uint64_t root);

/**
 * Returns the id of a space: 1 for the first one, 2 for the second, and so on. Ids are not reused.
 *
 * # Safety
 *
 * `space` must be initialised, and not reclaimed.
 */
uint64_t shootdown_space_id(const struct shootdown_space *space);

/**
 * Returns the physical address of the root of a space.
 *
 * # Safety
 *
 * `space` must be initialised, and not reclaimed.
 */
uint64_t shootdown_space_root(const struct shootdown_space *space);

/**
 * Ends a space. The pages that it mapped may be freed when this returns, without a flush. The
 * space itself and its page tables may be freed when `shootdown_os_reclaim` gets it: during this
 * call if no CPU can walk its tables, otherwise when the last CPU drops it.
 *
 * # Safety
 *
 * Masked. All of this must hold:
 *
 * - a CPU could switch to the space until now, and it is retired only once;
 * - every CPU that used the space has entered lazy, left the space or switched away before this
 *   call. This CPU may have it loaded only lazily;
 * - every flush of the space was waited for;
 * - no CPU switches to the space again.
 */
void shootdown_retire(struct shootdown_space *space);

/**
 * Interrupts every CPU that keeps a retired space from being reclaimed, and waits until it has
 * dropped the space. For a kernel that is short of memory.
 *
 * # Safety
 *
 * Masked.
 */
void shootdown_reap(void);

/**
 * Removes from the space's mask all CPUs that do not use the space. Such a CPU registers again
 * when it next switches to the space. Returns false if another CPU is doing the same.
 *
 * Flushes do this by themselves, when the mask has cost them too many probes. Call this if the
 * kernel detects earlier that the mask is stale: a process has become single-threaded.
 *
 * # Safety
 *
 * Masked. `space` is initialised, and not retired.
 */
bool shootdown_trim_cpumask(const struct shootdown_space *space);

/**
 * Flushes `extent` of `space`. Call this after you change page tables, and before the pages that
 * they mapped are used for anything else.
 *
 * Invalidates on this CPU, and interrupts the CPUs that could be using the space. When
 * `shootdown_wait(pending)` has returned, no CPU can use the old translations. Drop your locks
 * between the two.
 *
 * Do not flush for an entry that was not valid before, or that only gained permissions.
 *
 * # Safety
 *
 * Masked. `space` is initialised, and not retired. `pending` is valid for writes, and has nothing
 * left to wait for, or is not initialised.
 */
void shootdown_flush(const struct shootdown_space *space,
                     struct shootdown_extent extent,
                     struct shootdown_pending *pending);

/**
 * Flushes `extent` of `space` before an entry of another size replaces its entries (Arm's
 * break-before-make). Wait for it before you write the new entry.
 *
 * # Safety
 *
 * As `shootdown_flush`.
 */
void shootdown_flush_for_resize(const struct shootdown_space *space,
                                struct shootdown_extent extent,
                                struct shootdown_pending *pending);

/**
 * Flushes `extent` of the kernel's own pages, which all spaces share, on all CPUs that are online.
 *
 * Does nothing before `shootdown_init`, so that code of the kernel that also runs early in the
 * boot can call it. If such code relies on the flush on its own CPU, it must invalidate by itself.
 *
 * # Safety
 *
 * Masked. `pending` as for `shootdown_flush`.
 */
void shootdown_flush_kernel(struct shootdown_extent extent, struct shootdown_pending *pending);

/**
 * Initialises `pending` as a flush that is done, to which others can be joined.
 *
 * # Safety
 *
 * `pending` as for `shootdown_flush`.
 */
void shootdown_pending_init(struct shootdown_pending *pending);

/**
 * Waits until the flush is done: no CPU can use its old translations. Returns at once if it is
 * done already.
 *
 * May be called on any CPU, masked or not. Masked is better for many flushes at the same time: the
 * waiter then answers other CPUs itself. Unmasked, the thread may be moved while it waits. There
 * is no timeout.
 *
 * # Safety
 *
 * `pending` is initialised. The caller holds no lock for which another CPU waits masked, unless
 * that CPU calls `shootdown_handle_flush_ipi` in its loop. It is not in a handler that has
 * interrupted a function of the library.
 */
void shootdown_wait(struct shootdown_pending *pending);

/**
 * Returns true if the flush is done, without waiting for other CPUs.
 *
 * # Safety
 *
 * As `shootdown_wait`.
 */
bool shootdown_poll(struct shootdown_pending *pending);

/**
 * Adds the flush `other` to `pending`, which is then done when both are. `other` has nothing left
 * to wait for afterwards.
 *
 * # Safety
 *
 * As `shootdown_wait`, for both, which must not be the same.
 */
void shootdown_join(struct shootdown_pending *pending, struct shootdown_pending *other);

/**
 * Initialises an empty set of extents.
 *
 * # Safety
 *
 * `extents` must be valid for writes.
 */
void shootdown_extents_init(struct shootdown_extents *extents);

/**
 * Adds an extent. Adjacent extents are joined. A set of more than four joins the closest ones, so
 * it may cover more than was added, and never less. For each unhooked page table, add a page below
 * it: `shootdown_freeing_tables(shootdown_page(address))`.
 *
 * # Safety
 *
 * `extents` must be initialised.
 */
void shootdown_extents_add(struct shootdown_extents *extents, struct shootdown_extent extent);

/**
 * Flushes all extents in one flush; nothing if there are none.
 *
 * As `shootdown_flush`, except where page tables were unhooked: CPUs that are lazy on the space
 * are not interrupted, and may still walk these tables when the flush is done. `shootdown_horizon`
 * tells which tables can be freed then.
 *
 * # Safety
 *
 * As `shootdown_flush`. `extents` must be initialised.
 */
void shootdown_flush_gathered(const struct shootdown_space *space,
                              const struct shootdown_extents *extents,
                              struct shootdown_pending *pending);

/**
 * Flushes all extents of the kernel's own pages in one flush, which interrupts each CPU once;
 * nothing if there are none. For a kernel that collects the ranges that it unmaps.
 *
 * # Safety
 *
 * As `shootdown_flush_kernel`. `extents` must be initialised.
 */
void shootdown_flush_kernel_gathered(const struct shootdown_extents *extents,
                                     struct shootdown_pending *pending);

/**
 * Notifies every CPU that could still walk unhooked page tables of `space`. When `pending` is
 * done, the tables of every earlier flush can be freed. For a kernel that keeps too many of them.
 *
 * # Safety
 *
 * As `shootdown_flush`.
 */
void shootdown_flush_walkers(const struct shootdown_space *space,
                             struct shootdown_pending *pending);

/**
 * Returns which page tables no CPU can walk any more when `pending` is done.
 *
 * # Safety
 *
 * `pending` must be the result of `shootdown_flush_gathered`, `shootdown_flush_walkers`, or of a
 * flush that frees tables.
 */
struct shootdown_horizon_numbers shootdown_horizon(const struct shootdown_pending *pending);

/**
 * Returns true if the tables of this flush itself can be freed when it is done.
 */
bool shootdown_tables_are_clear(struct shootdown_horizon_numbers horizon);

/**
 * Initialises an empty batch.
 *
 * # Safety
 *
 * `batch` must be valid for writes.
 */
void shootdown_batch_init(struct shootdown_batch *batch);

/**
 * Adds a space to a batch, unless it is in it. Call this before you clear the first entry of the
 * space. Returns false if the batch already has 32 other spaces: then send it first.
 *
 * # Safety
 *
 * `batch` is initialised, and was not sent without a wait. `space` is initialised, and stays in
 * place until the batch is done.
 */
bool shootdown_batch_add_space(struct shootdown_batch *batch, const struct shootdown_space *space);

/**
 * Adds `extent` of `space`, in which entries were cleared. `was_writable` is true if an entry was
 * writable, whether dirty or not.
 *
 * Where a CPU could still write to such a page unnoticed, it is flushed immediately: wait for
 * `pending` before you read whether the pages are dirty. Otherwise `pending` is done.
 *
 * Until the batch is done, keep the pages, and write none of them back.
 *
 * # Safety
 *
 * Masked. `batch` and `space` as for `shootdown_batch_add_space`, and `pending` as for
 * `shootdown_flush`.
 *
 * # Panics
 *
 * If the space was not added.
 */
void shootdown_batch_unmapped(struct shootdown_batch *batch,
                              const struct shootdown_space *space,
                              struct shootdown_extent extent,
                              bool was_writable,
                              struct shootdown_pending *pending);

/**
 * Sends a batch: interrupts each CPU once that could be using one of its pages.
 *
 * # Safety
 *
 * Masked. `batch` is initialised, and neither moved nor used until `shootdown_batch_wait`. `sent`
 * is valid for writes.
 */
void shootdown_batch_send(struct shootdown_batch *batch, struct shootdown_sent_batch *sent);

/**
 * Returns true if the flush of a batch is done, without waiting for other CPUs. Call
 * `shootdown_batch_wait` then, which does not wait any more.
 *
 * # Safety
 *
 * `sent` is the result of `shootdown_batch_send`, and was not waited for. Otherwise as
 * `shootdown_wait`.
 */
bool shootdown_batch_poll(struct shootdown_sent_batch *sent);

/**
 * Waits until no CPU can use the pages of the batch, which is empty then and can be used again.
 *
 * # Safety
 *
 * `sent` is the result of `shootdown_batch_send`, and is waited for once. Otherwise as
 * `shootdown_wait`.
 */
void shootdown_batch_wait(struct shootdown_sent_batch *sent);

/**
 * Returns true if a batch has unmapped pages of `space` whose flush is not yet done.
 *
 * # Safety
 *
 * `space` is initialised, and not reclaimed.
 */
bool shootdown_is_batched(const struct shootdown_space *space);

/**
 * Flushes `extent` of `space`, if a batch has unflushed pages of the space. Call this after an
 * operation (munmap, mprotect) that found nothing to flush where reclaim may just have unmapped a
 * page.
 *
 * # Safety
 *
 * As `shootdown_flush`.
 */
void shootdown_flush_if_batched(const struct shootdown_space *space,
                                struct shootdown_extent extent,
                                struct shootdown_pending *pending);

/**
 * Gives `space` a tag (ASID) that it keeps, for a device that shares its page tables and observes
 * the CPUs' broadcasts. Returns the tag; 0 if the machine has no global tags, cannot broadcast, or
 * has none left.
 *
 * # Safety
 *
 * Masked. `space` is initialised, and not retired.
 */
uint16_t shootdown_pin_tag(const struct shootdown_space *space);

/**
 * Undoes one `shootdown_pin_tag`, when the device does not use the tag any more. Do so before the
 * space is retired.
 *
 * # Safety
 *
 * As `shootdown_pin_tag`.
 *
 * # Panics
 *
 * If the space is not pinned.
 */
void shootdown_unpin_tag(const struct shootdown_space *space);

/**
 * Sends an interrupt to CPUs, with the barrier that the controller needs. For
 * `shootdown_os_ring`, in a kernel without a driver of its own. In a library with the feature
 * `processor`, like all functions below.
 *
 * | processor | controller | `interrupt` | `targets` |
 * |---|---|---|---|
 * | x86-64 | local APIC in x2APIC mode | vector, 16 to 255 | x2APIC IDs |
 * | AArch64 | GICv3 or later, EOImode 0 | SGI, 0 to 15 | affinities, as in MPIDR_EL1 |
 * | RISC-V | firmware (SBI) | 0 | numbers of harts |
 * | LoongArch64 | IOCSR | 0 to 31 | numbers of cores |
 *
 * # Safety
 *
 * `targets` has `count` numbers. Each CPU has its controller set up as in the table, and has a
 * handler of the interrupt, which calls `shootdown_acknowledge_ipi` and then
 * `shootdown_handle_flush_ipi`.
 *
 * # Panics
 *
 * If `interrupt` is out of range, or if the firmware refuses.
 */
void shootdown_send_ipi(uint32_t interrupt, const uint64_t *targets, size_t count);

/**
 * Acknowledges the interrupt `interrupt` of `shootdown_send_ipi` on the CPU that has taken it.
 * Call this before `shootdown_handle_flush_ipi`: a CPU that rings in the meantime then causes
 * another interrupt.
 *
 * # Safety
 *
 * In the handler of the interrupt. On AArch64, the handler has read the number from
 * `ICC_IAR1_EL1`.
 */
void shootdown_acknowledge_ipi(uint32_t interrupt);

/**
 * Makes this CPU forget that an access to `address` was refused.
 *
 * Call this in the handler of page faults, on the CPU that took the fault, before the access is
 * tried again. No flush follows a change that only makes more accesses valid, so a CPU that caches
 * refused accesses (Arm, RISC-V and LoongArch do) would fault again and again.
 *
 * # Safety
 *
 * Masked.
 */
void shootdown_forget_refused(uint64_t address);

/**
 * Makes new entries for the kernel's pages of `extent` usable by the next access of this CPU. The
 * entries must not have been valid before; otherwise, flush.
 *
 * Before another CPU uses the pages, it must observe that they are mapped, by an acquiring load
 * for instance. On RISC-V and LoongArch, which cache missing pages, that CPU must also call this
 * function.
 *
 * # Safety
 *
 * Masked.
 */
void shootdown_publish_kernel(struct shootdown_extent extent);

/**
 * Initialises the word of a virtual CPU that runs. May be called before `shootdown_init`.
 *
 * # Safety
 *
 * `vcpu` must be valid for writes.
 */
void shootdown_vcpu_init(struct shootdown_vcpu *vcpu);

/**
 * Records that a virtual CPU has stopped. The hypervisor calls this after the CPU's last access.
 *
 * # Safety
 *
 * `vcpu` is initialised.
 */
void shootdown_vcpu_stop(struct shootdown_vcpu *vcpu);

/**
 * Records that a virtual CPU is about to run. The hypervisor calls this before the CPU's first
 * access. If the result is true, it must then drop all translations of the CPU, global ones
 * included, under every tag, before the CPU accesses memory or walks page tables.
 *
 * # Safety
 *
 * `vcpu` is initialised.
 */
bool shootdown_vcpu_resume(struct shootdown_vcpu *vcpu);

/**
 * Requests that a virtual CPU's TLB is emptied before the CPU runs again. Returns false if the CPU
 * is not away: then there is no request. For `shootdown_os_is_away`, which is called after the
 * flush's stores.
 *
 * # Safety
 *
 * `vcpu` is initialised.
 */
bool shootdown_vcpu_defer_flush(struct shootdown_vcpu *vcpu);

/**
 * Returns true if this is a guest of a KVM that empties the TLBs of preempted CPUs on request. If
 * false, `shootdown_os_is_away` must always return false. On x86-64, in a library with the feature
 * `processor`, like all functions below.
 */
bool shootdown_kvm_can_defer_flushes(void);

/**
 * Initialises the record of a CPU, which KVM does not write yet.
 *
 * # Safety
 *
 * `record` must be valid for writes.
 */
void shootdown_kvm_init(struct shootdown_kvm_steal_time *record);

/**
 * Returns the value with which a CPU registers its record at this physical address, by a write of
 * the register 0x4b564d03 (`MSR_KVM_STEAL_TIME`). 0 in the register ends it.
 *
 * # Panics
 *
 * If the address is not a multiple of 64.
 */
uint64_t shootdown_kvm_msr_value(uint64_t physical_address);

/**
 * Requests that KVM empties the CPU's TLB before it runs the CPU again. Returns false if the CPU
 * runs: then there is no request. For `shootdown_os_is_away`.
 *
 * # Safety
 *
 * `record` is initialised, and is that of the CPU.
 */
bool shootdown_kvm_defer_flush(struct shootdown_kvm_steal_time *record);

/**
 * Initialises the predictor of a CPU, for a kernel whose threads access no user address while they
 * are in the kernel. May be called before `shootdown_init`.
 *
 * # Safety
 *
 * `predictor` must be valid for writes. Only its CPU calls the functions below for it, in
 * interrupt handlers or not.
 */
void shootdown_lazy_init(struct shootdown_lazy_predictor *predictor);

/**
 * Records that the CPU has switched to a space, whose thread is in the kernel. Returns true if the
 * CPU should enter lazy.
 *
 * # Safety
 *
 * `predictor` is initialised, and is that of this CPU.
 */
bool shootdown_lazy_switched(struct shootdown_lazy_predictor *predictor);

/**
 * Records that the thread enters the kernel. Returns true if the CPU should enter lazy.
 *
 * # Safety
 *
 * As `shootdown_lazy_switched`.
 */
bool shootdown_lazy_entered_kernel(struct shootdown_lazy_predictor *predictor);

/**
 * Records that the thread returns to user mode. If the CPU is lazy, first call `shootdown_resume`.
 *
 * # Safety
 *
 * As `shootdown_lazy_switched`.
 */
void shootdown_lazy_returned_to_user(struct shootdown_lazy_predictor *predictor);

/**
 * Records that the CPU caught up with a flush on its way to user mode: `caught_up` in its counters
 * has grown. To enter lazy has then saved an interrupt.
 *
 * # Safety
 *
 * As `shootdown_lazy_switched`.
 */
void shootdown_lazy_caught_up(struct shootdown_lazy_predictor *predictor);

/**
 * Records that the flush interrupt has arrived. Call this in its handler.
 *
 * # Safety
 *
 * As `shootdown_lazy_switched`.
 */
void shootdown_lazy_interrupted(struct shootdown_lazy_predictor *predictor);

/**
 * Returns the counters of a CPU. May be called on any CPU, at any time after `shootdown_cpu_init`
 * and `shootdown_init`.
 *
 * # Panics
 *
 * If `cpu` is not below `SHOOTDOWN_CPUS_MAX`.
 */
struct shootdown_cpu_counts shootdown_cpu_stats(uint32_t cpu);

/**
 * Returns the counters of a space. May be called on any CPU.
 *
 * # Safety
 *
 * `space` is initialised, and not reclaimed.
 */
struct shootdown_space_counts shootdown_space_stats(const struct shootdown_space *space);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHOOTDOWN_H */
