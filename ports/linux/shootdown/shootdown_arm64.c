// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * TLB coherence of user spaces by the shootdown engine on AArch64. Linux's broadcasts stay for the
 * kernel's pages.
 *
 * A CPU that idles or runs a kernel thread loads the empty table, so no idle CPU can walk page
 * tables that are freed. Walks by software are ended by RCU, as in Linux.
 */
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/smp.h>

#include <asm/mmu_context.h>
#include <asm/shootdown.h>

#include "shootdown_port.h"

/* The engine's object uses X18. */
static_assert(!IS_ENABLED(CONFIG_SHADOW_CALL_STACK));

static DEFINE_PER_CPU_ALIGNED(struct shootdown_cpu, engine_state);
/* With many CPUs, it is too large for the stack. */
static DEFINE_PER_CPU(struct cpumask, rung);
/* The space of this CPU's thread. It lives as long as it is here. */
static DEFINE_PER_CPU(struct mm_struct *, loaded_mm);

bool shootdown_is_started;

/* What the engine calls. */

struct shootdown_cpu *shootdown_os_cpu(uint32_t number)
{
	return per_cpu_ptr(&engine_state, number);
}

uint32_t shootdown_os_this_cpu(void)
{
	return raw_smp_processor_id();
}

/* All interrupts that software sends are in use, so flushes share that of function calls. */
void shootdown_os_ring(const uint32_t *cpus, size_t count)
{
	struct cpumask *mask = this_cpu_ptr(&rung);
	size_t i;

	cpumask_clear(mask);
	for (i = 0; i < count; i++)
		__cpumask_set_cpu(cpus[i], mask);
	arch_send_call_function_ipi_mask(mask);
}

void shootdown_answer(void)
{
	if (!FAULT(flush_unanswered))
		shootdown_handle_flush_ipi();
}

/* CPUs. */

/* With this word on the command line, ASIDs have 8 bits, and run out. */
static bool asids_are_short __ro_after_init;

static int __init shorten_asids(char *unused)
{
	asids_are_short = true;
	return 0;
}
early_param("shootdown_short_asids", shorten_asids);

static void set_asid_size(bool are_short)
{
	if (!are_short || !(read_sysreg(tcr_el1) & TCR_ASID16))
		return;
	sysreg_clear_set(tcr_el1, TCR_ASID16, 0);
	isb();
	local_flush_tlb_all();
}

/* Early, on the first CPU, with interrupts masked. */
void __init shootdown_start(void)
{
	const struct shootdown_config config = {
		.layout = SHOOTDOWN_LAYOUT,
		.cpu_limit = nr_cpu_ids,
		.kernel_root = __pa_symbol(reserved_pg_dir),
	};
	int cpu;

	for_each_possible_cpu(cpu)
		shootdown_cpu_init(per_cpu_ptr(&engine_state, cpu));
	set_asid_size(asids_are_short);
	shootdown_init(&config);
	shootdown_online();
	shootdown_is_started = true;
	pr_info("TLB coherence: shootdown\n");
}

/* The engine names each space by one ASID. By now, the console shows the reason. */
static int __init refuse_isolation(void)
{
	if (arm64_kernel_unmapped_at_el0())
		panic("shootdown: page tables of user mode lack the kernel. try: kpti=off\n");
	return 0;
}
late_initcall(refuse_isolation);

/* The last step before interrupts. What this CPU has missed is dropped here. */
void shootdown_cpu_starts(void)
{
	set_asid_size(asids_are_short);
	shootdown_online();
}

/* In the idle thread, after which nothing runs; or in the interrupt that stops this CPU. */
void shootdown_cpu_dies(void)
{
	unsigned long flags;

	if (FAULT(unplugged_stays_online))
		return;
	shootdown_switch_mm(&init_mm);
	local_irq_save(flags);
	shootdown_offline();
	local_irq_restore(flags);
	/* Pairs with the barrier in shootdown_cpus_stopped. */
	smp_mb();
}

/* Possibly within a function of the engine, which has panicked. */
void shootdown_cpu_stops(void)
{
	cpu_set_reserved_ttbr0();
	shootdown_complete_broadcasts();
	/* Pairs with the barrier in shootdown_cpus_stopped. */
	smp_mb();
}

void shootdown_cpus_stopped(void)
{
	int cpu;

	/*
	 * Pairs with the barriers of CPUs that stop: a CPU that is found offline has loaded the empty
	 * table, and its broadcasts are complete. Otherwise, it could be disconnected before that.
	 */
	smp_mb();
	/* A CPU that has not reported may still use its space. Others were never online. */
	for_each_present_cpu(cpu)
		if (cpu != smp_processor_id() && !cpu_online(cpu))
			shootdown_disconnect(cpu);
}

/* Switching. */

void shootdown_switch_mm(struct mm_struct *next)
{
	unsigned long flags;

	local_irq_save(flags);
	set_asid_size(FAULT(asids_overlap));
	if (this_cpu_read(loaded_mm) == next) {
		/* As after a switch of threads. */
	} else if (next == &init_mm) {
		this_cpu_write(loaded_mm, NULL);
		shootdown_leave_space();
	} else {
		this_cpu_write(loaded_mm, next);
		arm64_apply_bp_hardening();
		shootdown_switch(space_of(next));
	}
	local_irq_restore(flags);
}

void shootdown_reload(void)
{
	struct shootdown_loaded_root loaded = shootdown_loaded();

	if (!loaded.space)
		return;
	write_sysreg(phys_to_ttbr(loaded.root) | (u64)loaded.tag << USER_ASID_BIT, ttbr0_el1);
	isb();
	post_ttbr_update_workaround();
}

/* Flushes. */

void flush_tlb_mm_range(struct mm_struct *mm, unsigned long start, unsigned long end,
			unsigned int stride_shift, bool freed_tables)
{
	unsigned long flags;

	if (static_branch_unlikely(&shootdown_flushes_here_only)) {
		preempt_disable();
		if (this_cpu_read(loaded_mm) == mm)
			local_flush_tlb_all();
		preempt_enable();
		return;
	}
	if (FAULT(range_ends_early) && end != -1ul)
		end -= 1ul << stride_shift;
	if (FAULT(gather_unflushed) && freed_tables)
		return;
	raw_cpu_inc(shootdown_counts.requests);
	local_irq_save(flags);
	shootdown_flush_and_wait(space_of(mm), start, end, stride_shift, freed_tables);
	local_irq_restore(flags);
	mmu_notifier_arch_invalidate_secondary_tlbs(mm, start, end);
}
EXPORT_SYMBOL_GPL(flush_tlb_mm_range);
