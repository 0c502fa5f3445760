// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What the port has on every architecture: the life of a space, batches of reclaim, statistics.
 *
 * The engine calls the functions shootdown_os_...; all other functions are called by the edited
 * places of the kernel. Interrupts are masked around each call of the engine.
 */
#include <linux/debugfs.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include <asm/shootdown.h>

#include "shootdown_port.h"

static_assert(sizeof_field(struct shootdown_mm, space) == sizeof(struct shootdown_space));

DEFINE_PER_CPU(struct shootdown_counts, shootdown_counts);
/* The spaces that the engine gave back on this CPU. */
static DEFINE_PER_CPU(struct llist_head, dead_mms);

/* For tests of the tests: flushes reach this CPU alone; a CPU that enters the kernel is silent. */
DEFINE_STATIC_KEY_FALSE(shootdown_flushes_here_only);
bool shootdown_forgets_on_entry;
#ifdef SHOOTDOWN_FAULTS
struct shootdown_faults shootdown_faults;
#endif

/* The caller may hold the lock of the run queue, so the space is dropped later. */
void shootdown_os_reclaim(struct shootdown_space *space)
{
	struct mm_struct *mm =
		container_of((void *)space, struct mm_struct, context.shootdown.space);

	if (FAULT(space_freed_under_lock))
		return __mmdrop(mm);
	llist_add(&mm->context.shootdown.dead, this_cpu_ptr(&dead_mms));
}

void shootdown_os_wait_hint(uint32_t cpu)
{
}

void shootdown_os_panic(const char *message, size_t length)
{
	panic("shootdown: %.*s", (int)length, message);
}

/* The life of a space. */

void shootdown_mm_init(struct mm_struct *mm)
{
	shootdown_space_init(space_of(mm), SHOOTDOWN_ROOT(mm));
	INIT_LIST_HEAD(&mm->context.shootdown.kept);
	mm->context.shootdown.is_retired = false;
}

void shootdown_mm_copy(struct mm_struct *to, const struct mm_struct *from)
{
	const size_t begin = offsetof(struct mm_struct, context.shootdown);
	const size_t end = begin + sizeof(to->context.shootdown);

	memcpy(to, from, begin);
	memcpy((char *)to + end, (const char *)from + end, sizeof(*to) - end);
}

bool shootdown_mm_drop(struct mm_struct *mm)
{
	unsigned long flags;

	if (mm->context.shootdown.is_retired)
		return false;
	mm->context.shootdown.is_retired = true;
	if (FAULT(space_not_retired))
		return false;
	local_irq_save(flags);
	shootdown_retire(space_of(mm));
	local_irq_restore(flags);
	/* Nearly always this one. */
	shootdown_mm_drop_dead();
	return true;
}

void shootdown_mm_drop_dead(void)
{
	struct mm_struct *mm, *next;
	struct llist_node *dead;

	if (llist_empty(raw_cpu_ptr(&dead_mms)))
		return;
	dead = llist_del_all(raw_cpu_ptr(&dead_mms));
	llist_for_each_entry_safe(mm, next, dead, context.shootdown.dead) {
		shootdown_free_kept(mm, U64_MAX);
		__mmdrop(mm);
	}
}

/* Batches of reclaim. A batch has memory from its first page to its flush. */

struct shootdown_mm_batch {
	struct shootdown_batch engine;
	/* A space must not end before the batch is done. */
	struct mm_struct *mms[32];
	unsigned int count;
};

static bool batch_has_mm(struct shootdown_mm_batch *batch, struct mm_struct *mm)
{
	if (FAULT(batch_lacks_spaces) && batch->count)
		return true;
	switch (shootdown_batch_add_space(&batch->engine, space_of(mm))) {
	case SHOOTDOWN_BATCH_FULL:
		return false;
	case SHOOTDOWN_BATCH_ADDED:
		if (!FAULT(batch_holds_no_space))
			mmgrab(mm);
		batch->mms[batch->count++] = mm;
	}
	return true;
}

/*
 * The entries were cleared under the lock of their page table, which is still held. A thread that
 * relies on their flush takes the lock first, and then finds the space in the batch.
 */
void shootdown_batch_add(struct arch_tlbflush_unmap_batch *arch, struct mm_struct *mm,
			 unsigned long start, unsigned long end)
{
	struct shootdown_pending pending;
	unsigned long flags;

	if (FAULT(batches_have_one_page))
		return flush_tlb_mm_range(mm, start, end, PAGE_SHIFT, false);
	if (arch->batch && !batch_has_mm(arch->batch, mm))
		arch_tlbbatch_flush(arch);
	if (!arch->batch) {
		arch->batch = kmalloc(sizeof(*arch->batch), GFP_ATOMIC | __GFP_NOWARN);
		if (!arch->batch)
			return flush_tlb_mm_range(mm, start, end, PAGE_SHIFT, false);
		arch->batch->count = 0;
		shootdown_batch_init(&arch->batch->engine);
		batch_has_mm(arch->batch, mm);
	}
	if (FAULT(batch_lacks_pages))
		return;
	local_irq_save(flags);
	trace_request(start, end);
	shootdown_batch_unmapped(&arch->batch->engine, space_of(mm),
				 shootdown_range(start, end, PAGE_SHIFT), SHOOTDOWN_WAS_WRITABLE,
				 &pending);
	shootdown_wait(&pending);
	local_irq_restore(flags);
}

void arch_tlbbatch_flush(struct arch_tlbflush_unmap_batch *arch)
{
	struct shootdown_mm_batch *batch = arch->batch;
	struct shootdown_sent_batch sent;
	unsigned long flags;

	if (!batch)
		return;
	raw_cpu_inc(shootdown_counts.batches);
	local_irq_save(flags);
	trace_request(0, TLB_FLUSH_ALL);
	if (!FAULT(batch_unsent)) {
		shootdown_batch_send(&batch->engine, &sent);
		shootdown_batch_wait(&sent);
	}
	local_irq_restore(flags);
	while (batch->count && !FAULT(batch_holds_no_space))
		mmdrop(batch->mms[--batch->count]);
	arch->batch = NULL;
	kfree(batch);
}

/* Statistics: /sys/kernel/debug/shootdown. */

static int counts_show(struct seq_file *file, void *unused)
{
	struct shootdown_cpu_counts engine = {};
	struct shootdown_counts port = {};
	unsigned int cpu, i;

	for_each_possible_cpu(cpu) {
		struct shootdown_cpu_counts more = shootdown_cpu_stats(cpu);

		for (i = 0; i < sizeof(more) / sizeof(u64); i++)
			((u64 *)&engine)[i] += ((u64 *)&more)[i];
		for (i = 0; i < sizeof(port) / sizeof(u64); i++)
			((u64 *)&port)[i] += ((u64 *)per_cpu_ptr(&shootdown_counts, cpu))[i];
	}
#define SHOW(from, name) seq_printf(file, #name " %llu\n", (u64)from.name)
	SHOW(port, requests);
	SHOW(port, kernel_requests);
	SHOW(port, batches);
	SHOW(port, tables_kept);
	SHOW(port, walkers_flushed);
	SHOW(engine, interrupts_sent);
	SHOW(engine, rings_coalesced);
	SHOW(engine, skipped_lazy);
	SHOW(engine, skipped_elsewhere);
	SHOW(engine, skipped_in_user);
	if (IS_ENABLED(CONFIG_SHOOTDOWN_AWAY))
		SHOW(engine, skipped_away);
	SHOW(engine, answers);
	SHOW(engine, flushes_full);
	SHOW(engine, flushes_ranged);
	SHOW(engine, pages_invalidated);
	SHOW(engine, caught_up);
	SHOW(engine, switches);
	SHOW(engine, switches_flushed);
	SHOW(engine, spaces_reclaimed);
	SHOW(engine, flushes_local);
	SHOW(engine, rollovers);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counts);

static int set_here_only(void *unused, u64 value)
{
	if (value)
		static_branch_enable(&shootdown_flushes_here_only);
	else
		static_branch_disable(&shootdown_flushes_here_only);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(here_only_fops, NULL, set_here_only, "%llu\n");

static int __init create_files(void)
{
	struct dentry *folder = debugfs_create_dir("shootdown", NULL);

	debugfs_create_file("counts", 0444, folder, NULL, &counts_fops);
	debugfs_create_file_unsafe("flush_here_only", 0200, folder, NULL, &here_only_fops);
#ifdef CONFIG_X86
	debugfs_create_bool("forget_on_entry", 0644, folder, &shootdown_forgets_on_entry);
#endif
#ifdef SHOOTDOWN_FAULTS
#define FILE(name) debugfs_create_bool(#name, 0644, folder, &shootdown_faults.name);
	SHOOTDOWN_EACH_FAULT(FILE)
#undef FILE
#endif
	return 0;
}
late_initcall(create_files);
