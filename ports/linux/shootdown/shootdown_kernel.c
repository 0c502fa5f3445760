// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * TLB coherence of kernel pages, and CPUs that the command line isolates: in user mode, no flush of
 * kernel pages interrupts them. A CPU that returns tells the engine so; when it enters the kernel,
 * it catches up before it uses a page that may have changed.
 */
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/smp.h>
#include <linux/tick.h>

#include <asm/cpu_entry_area.h>
#include <asm/shootdown.h>
#include <asm/shootdown_user.h>
#include <asm/tlbflush.h>

#include "shootdown_port.h"

/* CPUs that nothing interrupts in user mode. */

DEFINE_STATIC_KEY_FALSE(shootdown_isolates);
static DEFINE_PER_CPU(bool, is_isolated);
/*
 * This CPU may have missed flushes: from just before it tells the engine that it is in user mode
 * until it has caught up. Nobody else looks.
 */
static DEFINE_PER_CPU(bool, may_be_stale);
/* The NMIs that this CPU is in and that found may_be_stale, and how often there was a first one. */
static DEFINE_PER_CPU(unsigned int, nmi_depth);
static DEFINE_PER_CPU(unsigned long, nmi_begun);

noinstr void shootdown_cpu_enters_kernel(void)
{
	if (!this_cpu_read(is_isolated))
		return;
	instrumentation_begin();
	if (likely(!shootdown_forgets_on_entry))
		shootdown_enter_kernel();
	barrier();
	this_cpu_write(may_be_stale, false);
	instrumentation_end();
}

noinstr void shootdown_cpu_enters_user(void)
{
	if (!this_cpu_read(is_isolated))
		return;
	instrumentation_begin();
	this_cpu_write(may_be_stale, true);
	barrier();
	shootdown_enter_user();
	instrumentation_end();
}

/* A probe here would run on each entry, before the CPU has caught up. */
NOKPROBE_SYMBOL(shootdown_enter_kernel);
NOKPROBE_SYMBOL(shootdown_enter_user);

/* As native_flush_tlb_global, in which a breakpoint may be set, which comes here again. */
static __always_inline void drop_everything(void)
{
	unsigned long cr4;

	asm volatile("mov %%cr4, %0" : "=r"(cr4) : : "memory");
	asm volatile("mov %0, %%cr4" : : "r"(cr4 ^ X86_CR4_PGE) : "memory");
	asm volatile("mov %0, %%cr4" : : "r"(cr4) : "memory");
}

/*
 * An NMI, or another exception that cannot be masked, may interrupt user mode or the two functions
 * above, and must not call the engine. It drops everything, and says that it runs: flushes that
 * begin while it runs wait for its end.
 */
noinstr void shootdown_nmi_begins(void)
{
	if (!this_cpu_read(may_be_stale))
		return;
	instrumentation_begin();
	/* One that comes between the two is over before the second, and drops everything itself. */
	if (this_cpu_inc_return(nmi_depth) == 1)
		this_cpu_inc(nmi_begun);
	/*
	 * Pairs with the barrier in wait_for_nmis: either the flush sees this NMI, or this CPU walks
	 * the tables that the flush's caller has changed. Without: the handler loads an old entry,
	 * and uses it after the flush.
	 */
	smp_mb();
	drop_everything();
	instrumentation_end();
}

noinstr void shootdown_nmi_ends(void)
{
	if (!this_cpu_read(may_be_stale))
		return;
	/* Pairs with the acquire in wait_for_nmis. The handler's accesses end before the flush. */
	barrier();
	this_cpu_dec(nmi_depth);
}

void shootdown_forget_nmi(void)
{
	this_cpu_write(nmi_depth, 0);
}

static void wait_for_nmis(void)
{
	int cpu, own = raw_smp_processor_id();

	if (!static_branch_unlikely(&shootdown_isolates))
		return;
	/* Pairs with the barrier in shootdown_nmi_begins. */
	smp_mb();
	for_each_possible_cpu(cpu) {
		unsigned int *depth = per_cpu_ptr(&nmi_depth, cpu);
		unsigned long *begun = per_cpu_ptr(&nmi_begun, cpu);
		unsigned long before = smp_load_acquire(begun);

		/* This CPU is in an NMI if it panics there. */
		while (cpu != own && smp_load_acquire(depth) && smp_load_acquire(begun) == before)
			cpu_relax();
	}
}

/* Each CPU's hooks begin to act when all of them are in place. */
static int __init isolate_cpus(void)
{
	int cpu;

	/* With FRED, a return that faults enters the kernel without a hook. */
	if (!tick_nohz_full_enabled() || cpu_feature_enabled(X86_FEATURE_FRED))
		return 0;
	static_branch_enable(&shootdown_isolates);
	for_each_possible_cpu(cpu)
		if (tick_nohz_full_cpu(cpu))
			WRITE_ONCE(per_cpu(is_isolated, cpu), true);
	return 0;
}
late_initcall(isolate_cpus);

/*
 * What a CPU uses before it has caught up: its entry area, whose pages perf changes. All else that
 * the entry uses stays where it is while the CPU is in user mode: the image, the variables of the
 * CPU, and the stack and the LDT of its thread. A flush that covers everything is not one of the
 * entry area.
 */
bool shootdown_os_is_used_on_entry(uint64_t address, size_t count, uint8_t page_shift)
{
	const u64 end = CPU_ENTRY_AREA_BASE + CPU_ENTRY_AREA_MAP_SIZE;

	return count && address >= CPU_ENTRY_AREA_BASE && address + (count << page_shift) <= end;
}

/* Flushes of kernel pages. Page tables above them that are freed may be walked in user mode too. */

static void flush_kernel(const struct shootdown_extents *extents)
{
	struct shootdown_pending pending;
	unsigned long flags;

	raw_cpu_inc(shootdown_counts.kernel_requests);
	local_irq_save(flags);
	if (FAULT(kernel_unflushed)) {
		/* Nobody is notified. */
	} else if (likely(shootdown_is_started)) {
		trace_request(0, TLB_FLUSH_ALL);
		shootdown_flush_kernel_gathered(extents, &pending);
		shootdown_wait(&pending);
	} else {
		/* There is one CPU. */
		__flush_tlb_all();
	}
	local_irq_restore(flags);
	wait_for_nmis();
}

static void flush_kernel_extent(struct shootdown_extent extent)
{
	struct shootdown_extents extents;

	shootdown_extents_init(&extents);
	shootdown_extents_add(&extents, extent);
	flush_kernel(&extents);
}

/*
 * The caller may free the page tables next. A CPU that walks them by software (a fault that may be
 * spurious) masks interrupts and has no other protection, so it must answer, even if it is away.
 */
static __always_inline void flush_kernel_tables(struct shootdown_extent extent)
{
	preempt_disable();
	if (IS_ENABLED(CONFIG_SHOOTDOWN_AWAY))
		this_cpu_write(shootdown_waits_for_away, true);
	flush_kernel_extent(shootdown_freeing_tables(extent));
	if (IS_ENABLED(CONFIG_SHOOTDOWN_AWAY))
		this_cpu_write(shootdown_waits_for_away, false);
	preempt_enable();
}

/* Callers do not say whether they free page tables. */
void flush_tlb_all(void)
{
	flush_kernel_tables(shootdown_whole());
}

void flush_tlb_kernel_range(unsigned long start, unsigned long end)
{
	flush_kernel_extent(end == TLB_FLUSH_ALL ? shootdown_whole() :
						   shootdown_range(start, end, PAGE_SHIFT));
}

void shootdown_flush_kernel_all(void)
{
	flush_kernel_extent(shootdown_whole());
}

void shootdown_flush_kernel_pages(unsigned long (*page)(void *of, unsigned int i), void *of,
				  unsigned int count)
{
	struct shootdown_extents extents;
	unsigned int i;

	shootdown_extents_init(&extents);
	for (i = 0; i < count; i++)
		shootdown_extents_add(&extents, shootdown_page(page(of, i)));
	flush_kernel(&extents);
}

void shootdown_flush_kernel_tables(unsigned long address)
{
	flush_kernel_tables(shootdown_page(address));
}
