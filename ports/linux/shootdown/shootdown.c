// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * TLB coherence of user spaces by the shootdown engine, which is an object of its own. Flushes of
 * kernel pages are in shootdown_kernel.c, those of the calling CPU alone in tlb.c.
 *
 * The engine calls the functions shootdown_os_...; all other functions are called by the edited
 * places of the kernel. Interrupts are masked around each call of the engine.
 */
#include <linux/export.h>
#include <linux/interrupt.h>
#include <linux/mm.h>
#include <linux/mmu_context.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#ifndef CONFIG_MMU_GATHER_RCU_TABLE_FREE
#include <linux/pagevec.h>
#endif
#include <linux/slab.h>
#include <linux/version.h>
#include <trace/events/csd.h>
#include <trace/events/ipi.h>
#include <trace/events/tlb.h>

#include <asm/apic.h>
#include <asm/cpu.h>
#include <asm/desc.h>
#include <asm/idtentry.h>
#include <asm/shootdown.h>
#include <asm/tlb.h>

#include "mm_internal.h"
#include "shootdown_port.h"

/* The engine reads these two relative to GS, those of other CPUs by __per_cpu_offset. */
DEFINE_PER_CPU_ALIGNED(struct shootdown_cpu, shootdown_os_percpu_state);
DEFINE_PER_CPU(u32, shootdown_os_percpu_number);
/* The ctx_id of the space for which CR4.PCE and the LDT were set last. It may have ended. */
static DEFINE_PER_CPU(u64, set_up_for);
/* With 8192 CPUs, it is too large for the stack. */
static DEFINE_PER_CPU(struct cpumask, rung);

bool shootdown_is_started;

/*
 * Tracing. The work of an operation is read from the engine's counters, and only while somebody
 * traces. The pages of a request are those of the flush that this CPU is in.
 */

DEFINE_PER_CPU(unsigned long, shootdown_requested_pages);

struct tlb_work {
	u64 pages, everything;
};

static struct tlb_work tlb_work(void)
{
	struct shootdown_cpu_counts now = shootdown_cpu_stats(raw_smp_processor_id());

	return (struct tlb_work) { now.pages_invalidated, now.flushes_full };
}

static void trace_tlb_work(struct tlb_work before, enum tlb_flush_reason reason)
{
	struct tlb_work now = tlb_work();

	if (now.everything != before.everything)
		trace_tlb_flush(reason, TLB_FLUSH_ALL);
	else if (now.pages != before.pages || reason == TLB_FLUSH_ON_TASK_SWITCH)
		trace_tlb_flush(reason, now.pages - before.pages);
}

/* Does something, and traces its work. It costs a `nop` while nobody traces. */
#define TRACED(reason, something) do {					\
	if (unlikely(trace_tlb_flush_enabled())) {			\
		struct tlb_work before = tlb_work();			\
									\
		something;						\
		trace_tlb_work(before, reason);				\
	} else {							\
		something;						\
	}								\
} while (0)

/* What the engine calls. */

/* The member of irq_cpustat_t that is the row `TLB`. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0)
#define TLB irq_tlb_count
#endif

/* The name by which tools recognise a flush. */
static void flush_tlb_func(void *unused)
{
	inc_irq_stat(TLB);
	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH_RECEIVED);
	if (!FAULT(flush_unanswered))
		TRACED(TLB_REMOTE_SHOOTDOWN, shootdown_handle_flush_ipi());
}

DEFINE_IDTENTRY_SYSVEC_SIMPLE(sysvec_shootdown)
{
	apic_eoi();
	flush_tlb_func(NULL);
}

void shootdown_os_ring(const uint32_t *cpus, size_t count)
{
	struct cpumask *mask = this_cpu_ptr(&rung);
	size_t i;

	count_vm_tlb_event(NR_TLB_REMOTE_FLUSH);
	trace_tlb_flush(TLB_REMOTE_SEND_IPI, this_cpu_read(shootdown_requested_pages));
	if (trace_csd_queue_cpu_enabled())
		for (i = 0; i < count; i++)
			trace_csd_queue_cpu(cpus[i], _THIS_IP_, flush_tlb_func, NULL);
	if (count == 1 || FAULT(others_unnotified)) {
		trace_ipi_send_cpu(cpus[0], _THIS_IP_, flush_tlb_func);
		__apic_send_IPI(cpus[0], SHOOTDOWN_VECTOR);
		return;
	}
	cpumask_clear(mask);
	for (i = 0; i < count; i++)
		__cpumask_set_cpu(cpus[i], mask);
	trace_ipi_send_cpumask(mask, _THIS_IP_, flush_tlb_func);
	__apic_send_IPI_mask(mask, SHOOTDOWN_VECTOR);
}

/* CPUs. */

/*
 * With page-table isolation, a space has a second root and PCID for user mode. The way back to user
 * mode drops what was marked here.
 */
void shootdown_mark_user_half(u16 tag)
{
	if (FAULT(user_half_unmarked))
		return;
	__set_bit(tag, *this_cpu_ptr(&cpu_tlbstate.user_pcid_flush_mask));
}

/* The engine uses PCIDs 1 to 64 without broadcasts. */
static_assert(sizeof_field(struct tlb_state, user_pcid_flush_mask) * BITS_PER_BYTE > 64);

static void start_engine(void)
{
	const bool is_isolated = boot_cpu_has(X86_FEATURE_PTI);
	/*
	 * A walk with interrupts masked (gup_fast) keeps page tables alive, because the flush that
	 * frees them waits for the CPU's answer. A broadcast (INVLPGB) waits for no walk: it needs
	 * tables that RCU frees.
	 */
	const u32 walks = IS_ENABLED(CONFIG_MMU_GATHER_RCU_TABLE_FREE) ?
				  0 : SHOOTDOWN_NEVER_BROADCAST;
	const struct shootdown_config config = {
		.layout = SHOOTDOWN_LAYOUT,
		.cpu_limit = nr_cpu_ids,
		.kernel_root = __sme_pa(init_mm.pgd),
		.processor = SHOOTDOWN_X86_64_KERNEL_SETS_CR4 | walks |
			(is_isolated ? SHOOTDOWN_NEVER_BROADCAST :
				       SHOOTDOWN_X86_64_GLOBAL_KERNEL),
		.mark_user_half = is_isolated ? shootdown_mark_user_half : NULL,
	};
	int cpu;

	/* Its guests have neither this interrupt nor CR3. */
	if (cpu_feature_enabled(X86_FEATURE_XENPV))
		panic("shootdown: Xen runs this kernel in PV mode. try: PVH or HVM mode\n");
	for_each_possible_cpu(cpu) {
		shootdown_cpu_init(per_cpu_ptr(&shootdown_os_percpu_state, cpu));
		per_cpu(shootdown_os_percpu_number, cpu) = cpu;
	}
	shootdown_init(&config);
	pr_info("TLB coherence: shootdown\n");
}

/* On each CPU that starts, with interrupts masked. The first one is here before all others. */
void initialize_tlbstate_and_flush(void)
{
	const bool is_first = !shootdown_is_started;

	if (is_first)
		start_engine();
	shootdown_is_started = true;
	WARN_ON(this_cpu_read(cpu_tlbstate.loaded_mm) != &init_mm);
	write_cr3(__sme_pa(init_mm.pgd));
	/* No user space ran last: the mitigations apply to the first one. */
	this_cpu_write(cpu_tlbstate.last_user_mm_spec, 1);
	this_cpu_write(set_up_for, 0);
	cpu_tlbstate_update_lam(0, mm_untag_mask(&init_mm));
	if (is_first)
		shootdown_online();
}

/*
 * The last step before interrupts. Until then, this CPU waits for others with interrupts masked: for
 * jiffies to pass, or for stop_machine. A flush on one of them would wait for this CPU, for ever.
 * What this CPU has missed is dropped here.
 */
void shootdown_cpu_starts(void)
{
	shootdown_online();
}

/*
 * In the idle thread, after which nothing runs. The CPU's APIC is off, and the CPU may wait for
 * another one next, which must not wait for it in a flush.
 */
void shootdown_cpu_dies(void)
{
	unsigned long flags;

	if (FAULT(unplugged_stays_online))
		return;
	local_irq_save(flags);
	switch_mm_irqs_off(NULL, &init_mm, NULL);
	shootdown_offline();
	local_irq_restore(flags);
}

/* Possibly in an NMI, within any function of the engine. */
void shootdown_cpu_stops(void)
{
	write_cr3(__sme_pa(init_mm.pgd));
	shootdown_forget_nmi();
}

void shootdown_cpus_stopped(void)
{
	int cpu;

	/* A CPU that has not reported yet may still use its space. */
	for_each_possible_cpu(cpu)
		if (cpu != smp_processor_id() && !cpumask_test_cpu(cpu, &cpus_stop_mask))
			shootdown_disconnect(cpu);
}

struct call_on_users {
	struct mm_struct *mm;
	smp_call_func_t func;
	void *info;
};

static bool is_set_up(int cpu, void *data)
{
	const struct call_on_users *call = data;

	return READ_ONCE(per_cpu(set_up_for, cpu)) == call->mm->context.ctx_id;
}

static void call_if_set_up(void *data)
{
	const struct call_on_users *call = data;

	if (is_set_up(smp_processor_id(), data))
		call->func(call->info);
}

/* A CPU that is not named sets itself up later, and then finds what the caller has stored. */
void shootdown_mm_on_users(struct mm_struct *mm, smp_call_func_t func, void *info)
{
	struct call_on_users call = { mm, func, info };

	if (FAULT(users_uncalled))
		return;
	/* Pairs with the barrier in set_up. */
	smp_mb();
	on_each_cpu_cond(is_set_up, call_if_set_up, &call, true);
}

/* CPUs that load the space from now on mask addresses (LAM). */
void shootdown_mm_set_root(struct mm_struct *mm)
{
	shootdown_space_set_root(space_of(mm), SHOOTDOWN_ROOT(mm));
}

/* Switching. */

/* If the space begins to mask addresses now, this CPU may have loaded its old root. */
static void set_up_lam(struct mm_struct *next)
{
	unsigned long lam = mm_lam_cr3_mask(next);

	cpu_tlbstate_update_lam(lam, mm_untag_mask(next));
	if (lam && !(__read_cr3() & lam))
		write_cr3(__read_cr3() | lam);
}

/* Linux's own state of a CPU follows the space. The engine compares spaces, not their addresses. */
static void set_up(struct mm_struct *next)
{
	u16 ldt;

	this_cpu_write(cpu_tlbstate.loaded_mm, next);
	this_cpu_write(set_up_for, next == &init_mm ? 0 : next->context.ctx_id);
	/* Pairs with the barrier in shootdown_mm_on_users. */
	smp_mb();
	if (cpu_feature_enabled(X86_FEATURE_LAM))
		set_up_lam(next);
	/* Most spaces may not read counters, nor might the one before. */
	if (static_branch_unlikely(&rdpmc_always_available_key) ||
	    atomic_read(&next->context.perf_rdpmc_allowed) ||
	    (this_cpu_read(cpu_tlbstate.cr4) & X86_CR4_PCE))
		cr4_update_pce(NULL);
	store_ldt(ldt);
	if (unlikely(ldt || next->context.ldt))
		load_mm_ldt(next);
}

/* The CPU is set up for the space, which is therefore loaded: it never is for init_mm. */
static __always_inline bool is_set_up_for(struct mm_struct *mm)
{
	return this_cpu_read(set_up_for) == mm->context.ctx_id;
}

/* Returns false if the space was loaded already. */
static __always_inline bool switch_to_mm(struct mm_struct *next, struct task_struct *task)
{
	if (next == &init_mm) {
		if (this_cpu_read(cpu_tlbstate.loaded_mm) == &init_mm)
			return false;
		shootdown_leave_space();
	} else {
		shootdown_switch(space_of(next));
		if (is_set_up_for(next))
			return false;
		cond_mitigation(task);
	}
	set_up(next);
	return true;
}

static noinline void switch_and_trace(struct mm_struct *next, struct task_struct *task)
{
	struct tlb_work before = tlb_work();

	if (switch_to_mm(next, task))
		trace_tlb_work(before, TLB_FLUSH_ON_TASK_SWITCH);
}

static noinline void switch_and_set_up(struct mm_struct *next, struct task_struct *task)
{
	switch_to_mm(next, task);
}

void switch_mm_irqs_off(struct mm_struct *unused, struct mm_struct *next, struct task_struct *task)
{
	/* Each way ends in one call: the usual one, the return to the same space, saves no registers. */
	if (unlikely(trace_tlb_flush_enabled()))
		switch_and_trace(next, task);
	else if (is_set_up_for(next))
		shootdown_switch(space_of(next));
	else
		switch_and_set_up(next, task);
}

void switch_mm(struct mm_struct *prev, struct mm_struct *next, struct task_struct *task)
{
	unsigned long flags;

	local_irq_save(flags);
	switch_mm_irqs_off(prev, next, task);
	local_irq_restore(flags);
}

void leave_mm(void)
{
	switch_mm(NULL, &init_mm, NULL);
}
EXPORT_SYMBOL_GPL(leave_mm);

void enter_lazy_tlb(struct mm_struct *mm, struct task_struct *task)
{
	/* Does nothing if no space of users is loaded. */
	if (!FAULT(idle_count_as_busy))
		shootdown_enter_lazy();
}

bool nmi_uaccess_okay(void)
{
	struct mm_struct *mm = current->mm;

	return mm && shootdown_nmi_may_touch_user(space_of(mm));
}

/* A CPU that answers a flush may leave a space by itself, so only CR3 has the root. */
unsigned long __get_current_cr3_fast(void)
{
	return __read_cr3();
}
EXPORT_SYMBOL_GPL(__get_current_cr3_fast);

/* Flushes. */

#ifdef CONFIG_PARAVIRT
/* Hypervisors replace this one. Nothing calls it: the engine notifies by its interrupt. */
void native_flush_tlb_multi(const struct cpumask *cpus, const struct flush_tlb_info *info)
{
	WARN_ON_ONCE(1);
}
#endif

/* The counters of /proc/vmstat: what was requested here, whatever else this CPU had missed. */
static __always_inline void count_local(struct mm_struct *mm, unsigned long start, unsigned long end, u8 page_shift)
{
	if (!IS_ENABLED(CONFIG_DEBUG_TLBFLUSH) || this_cpu_read(cpu_tlbstate.loaded_mm) != mm)
		return;
	if ((end - start) >> page_shift > tlb_single_page_flush_ceiling)
		count_vm_tlb_event(NR_TLB_LOCAL_FLUSH_ALL);
	else
		count_vm_tlb_events(NR_TLB_LOCAL_FLUSH_ONE, (end - start) >> page_shift);
}

static noinline void flush_here_only(struct mm_struct *mm)
{
	preempt_disable();
	if (this_cpu_read(cpu_tlbstate.loaded_mm) == mm)
		flush_tlb_local();
	preempt_enable();
}

/* Apart from its callers: then they keep nothing in registers during their one call. */
static noinline void flush_and_trace(struct mm_struct *mm, unsigned long start, unsigned long end,
				     unsigned int stride_shift, bool freed_tables)
{
	trace_request(start, end);
	TRACED(TLB_LOCAL_MM_SHOOTDOWN,
	       shootdown_flush_and_wait(space_of(mm), start, end, stride_shift,
					freed_tables));
}

static __always_inline void flush_masked(struct mm_struct *mm, unsigned long start, unsigned long end,
					 unsigned int stride_shift, bool freed_tables)
{
	raw_cpu_inc(shootdown_counts.requests);
	count_local(mm, start, end, stride_shift);
	if (unlikely(trace_tlb_flush_enabled()))
		flush_and_trace(mm, start, end, stride_shift, freed_tables);
	else
		shootdown_flush_and_wait(space_of(mm), start, end, stride_shift, freed_tables);
}

void shootdown_flush_masked(struct mm_struct *mm, unsigned long start, unsigned long end,
			    unsigned int stride_shift, bool freed_tables)
{
	flush_masked(mm, start, end, stride_shift, freed_tables);
}

void flush_tlb_mm_range(struct mm_struct *mm, unsigned long start, unsigned long end,
			unsigned int stride_shift, bool freed_tables)
{
	lockdep_assert_irqs_enabled();
	if (static_branch_unlikely(&shootdown_flushes_here_only))
		return flush_here_only(mm);
	if (FAULT(range_ends_early) && end != TLB_FLUSH_ALL)
		end -= 1ul << stride_shift;
	local_irq_disable();
	flush_masked(mm, start, end, stride_shift, freed_tables);
	local_irq_enable();
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, start, end);
}

/*
 * Page tables that were unhooked. If a CPU is idle and still has the space loaded, it may walk them
 * speculatively; they are kept until it has caught up, or the space ends. They are on lists by
 * their pt_list, and pt_index is then the number of the flush.
 */

static DEFINE_SPINLOCK(kept_lock);
static unsigned int kept_count;
/* 4 MiB. With more, the idle CPUs are interrupted. */
#define KEPT_TABLES_MAX 1024

#ifdef CONFIG_MMU_GATHER_RCU_TABLE_FREE
/* Before 7.2, a table's destructor has run before it is gathered. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0)
#define pagetable_dtor_free pagetable_free
#endif

static void free_chain(struct rcu_head *head)
{
	struct ptdesc *table = container_of(head, struct ptdesc, pt_rcu_head), *next;

	for (; table; table = next) {
		next = (struct ptdesc *)table->pt_index;
		pagetable_dtor_free(table);
	}
}

/* Until RCU has waited, the kernel may walk them. RCU's member has the place of the list. */
static void free_tables(struct list_head *tables)
{
	struct ptdesc *table, *next, *first = NULL;

	list_for_each_entry_safe(table, next, tables, pt_list) {
		table->pt_index = (unsigned long)first;
		first = table;
	}
	if (first)
		call_rcu(&first->pt_rcu_head, free_chain);
}
#else
/* As Linux frees the pages of a gather: many at once. */
static void free_tables(struct list_head *tables)
{
	struct ptdesc *table, *next;
	struct folio_batch batch;

	folio_batch_init(&batch);
	list_for_each_entry_safe(table, next, tables, pt_list)
		if (!folio_batch_add(&batch, ptdesc_folio(table)))
			folios_put(&batch);
	if (folio_batch_count(&batch))
		folios_put(&batch);
}
#endif

void shootdown_free_some_kept(struct mm_struct *mm, u64 cleared)
{
	struct list_head *kept = &mm->context.shootdown.kept;
	struct ptdesc *table, *next;
	LIST_HEAD(freed);

	spin_lock(&kept_lock);
	list_for_each_entry_safe(table, next, kept, pt_list)
		if (table->pt_index <= cleared) {
			list_move(&table->pt_list, &freed);
			kept_count--;
		}
	spin_unlock(&kept_lock);
	free_tables(&freed);
}

void shootdown_walkers_flush(struct mm_struct *mm)
{
	struct shootdown_pending pending;
	unsigned long flags;

	raw_cpu_inc(shootdown_counts.walkers_flushed);
	local_irq_save(flags);
	trace_request(0, TLB_FLUSH_ALL);
	shootdown_flush_walkers(space_of(mm), &pending);
	shootdown_wait(&pending);
	local_irq_restore(flags);
	shootdown_free_kept(mm, shootdown_horizon(&pending).cleared);
}

static noinline struct shootdown_horizon_numbers
flush_tables_and_trace(struct mm_struct *mm, unsigned long start, unsigned long end,
		       unsigned int stride_shift)
{
	struct shootdown_horizon_numbers horizon;

	trace_request(start, end);
	TRACED(TLB_LOCAL_MM_SHOOTDOWN,
	       horizon = shootdown_flush_tables_and_wait(space_of(mm), start, end, stride_shift));
	return horizon;
}

void shootdown_gather_flush(struct mmu_gather *tlb, unsigned long start, unsigned long end,
			    unsigned int stride_shift)
{
	struct shootdown_horizon_numbers horizon;

	if (static_branch_unlikely(&shootdown_flushes_here_only))
		return flush_tlb_mm_range(tlb->mm, start, end, stride_shift, true);
	if (FAULT(gather_unflushed))
		return;
	raw_cpu_inc(shootdown_counts.requests);
	local_irq_disable();
	count_local(tlb->mm, start, end, stride_shift);
	if (unlikely(trace_tlb_flush_enabled()))
		horizon = flush_tables_and_trace(tlb->mm, start, end, stride_shift);
	else
		horizon = shootdown_flush_tables_and_wait(space_of(tlb->mm), start, end,
							  stride_shift);
	local_irq_enable();
	tlb->shootdown.flush = horizon.flush;
	tlb->shootdown.cleared = horizon.cleared;
	mmu_notifier_arch_invalidate_secondary_tlbs(tlb->mm, start, end);
}

/* A gather flushes when it has so many page tables: 2 MiB. */
#define GATHERED_TABLES_MAX 512

/* `table` is a struct ptdesc, which a struct page is as well. */
void tlb_remove_table(struct mmu_gather *tlb, void *table)
{
	list_add_tail(&((struct ptdesc *)table)->pt_list, &tlb->shootdown.tables);
	if (++tlb->shootdown.count == GATHERED_TABLES_MAX)
		tlb_flush_mmu(tlb);
}

static bool keep(struct shootdown_gather *gather, struct mm_struct *mm)
{
	struct ptdesc *table;
	bool are_many;

	raw_cpu_add(shootdown_counts.tables_kept, gather->count);
	list_for_each_entry(table, &gather->tables, pt_list)
		table->pt_index = gather->flush;
	spin_lock(&kept_lock);
	list_splice_tail(&gather->tables, &mm->context.shootdown.kept);
	kept_count += gather->count;
	are_many = kept_count > KEPT_TABLES_MAX;
	spin_unlock(&kept_lock);
	return are_many;
}

/* After the flush of a gather that has page tables. */
void shootdown_gather_free(struct mmu_gather *tlb)
{
	bool are_many = false;

	if (FAULT(tables_do_not_wait))
		shootdown_walkers_flush(tlb->mm);
	if (tlb->shootdown.flush <= tlb->shootdown.cleared || FAULT(tables_freed_at_once) ||
	    FAULT(tables_do_not_wait))
		free_tables(&tlb->shootdown.tables);
	else
		are_many = keep(&tlb->shootdown, tlb->mm);
	INIT_LIST_HEAD(&tlb->shootdown.tables);
	tlb->shootdown.count = 0;
	shootdown_free_kept(tlb->mm, tlb->shootdown.cleared);
	if (are_many)
		shootdown_walkers_flush(tlb->mm);
}
