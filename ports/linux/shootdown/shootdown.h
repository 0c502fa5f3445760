/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the rest of the kernel needs of the shootdown engine: the engine's part of an address space,
 * and the functions that the edited places call.
 */
#ifndef _ASM_SHOOTDOWN_H
#define _ASM_SHOOTDOWN_H

#include <linux/list.h>
#include <linux/llist.h>
#include <linux/smp.h>
#include <linux/threads.h>
#include <linux/types.h>

struct mm_struct;
struct task_struct;
struct mmu_gather;
struct arch_tlbflush_unmap_batch;

/*
 * The CPUs for which the engine's object has room, and the size of its space. With a configuration
 * for more CPUs, a machine uses no more than these.
 */
#if NR_CPUS <= 64
#define SHOOTDOWN_CPUS_MAX 64
#define SHOOTDOWN_MM_WORDS 56
#else
#define SHOOTDOWN_CPUS_MAX 4096
#define SHOOTDOWN_MM_WORDS 184
#endif

/*
 * A member of mm_context_t. The space is storage for the engine's type, whose header only the port
 * includes: most files of the kernel include this one.
 */
struct shootdown_mm {
	u64 space[SHOOTDOWN_MM_WORDS] __aligned(64);
	/* On the list of spaces that the engine has given back. */
	struct llist_node dead;
	/* Page tables that an idle CPU may still walk, in struct ptdesc.pt_list. */
	struct list_head kept;
	bool is_retired;
};

/* A member of mmu_gather: its page tables, and which of them no CPU can walk any more. */
struct shootdown_gather {
	struct list_head tables;
	unsigned int count;
	u64 flush, cleared;
};

static inline void shootdown_gather_init(struct shootdown_gather *gather)
{
	INIT_LIST_HEAD(&gather->tables);
	gather->count = 0;
	gather->flush = 0;
	gather->cleared = 0;
}

void shootdown_mm_init(struct mm_struct *mm);
/* Copies a space, without the engine's part, which other CPUs write. */
void shootdown_mm_copy(struct mm_struct *to, const struct mm_struct *from);
/* The last reference is gone. Returns true if the engine drops the space later. */
bool shootdown_mm_drop(struct mm_struct *mm);
/* Drops the spaces that the engine gave back on this CPU. */
void shootdown_mm_drop_dead(void);

/* The bits that are loaded with the space's root have changed. */
void shootdown_mm_set_root(struct mm_struct *mm);
/* Calls a function on the CPUs that are set up for a space, and waits. */
void shootdown_mm_on_users(struct mm_struct *mm, smp_call_func_t func, void *info);

/* This CPU has dropped what it cached of the space that has this PCID. */
void shootdown_mark_user_half(u16 tag);

/* This CPU runs threads from now on; or it is unplugged. */
void shootdown_cpu_starts(void);
void shootdown_cpu_dies(void);
/* This CPU stops for ever, wherever it was interrupted; and all others have stopped. */
void shootdown_cpu_stops(void);
void shootdown_cpus_stopped(void);

void shootdown_batch_add(struct arch_tlbflush_unmap_batch *batch, struct mm_struct *mm,
			 unsigned long start, unsigned long end);
/* As flush_tlb_mm_range, with interrupts masked, of a space that no other CPU has loaded. */
void shootdown_flush_masked(struct mm_struct *mm, unsigned long start, unsigned long end,
			    unsigned int stride_shift, bool freed_tables);
void shootdown_gather_flush(struct mmu_gather *tlb, unsigned long start, unsigned long end,
			    unsigned int stride_shift);
void shootdown_gather_free(struct mmu_gather *tlb);
void shootdown_walkers_flush(struct mm_struct *mm);

/*
 * Flushes of kernel pages, beside Linux's own: every page; pages that a function names; a page
 * whose page tables are freed next.
 */
void shootdown_flush_kernel_all(void);
void shootdown_flush_kernel_pages(unsigned long (*page)(void *of, unsigned int i), void *of,
				  unsigned int count);
void shootdown_flush_kernel_tables(unsigned long address);

/* On AArch64: the first CPU makes the engine; a CPU loads a space, or none (init_mm). */
void shootdown_start(void);
void shootdown_switch_mm(struct mm_struct *next);
/* On AArch64, TTBR0 had another table: this CPU loads the one that it had. */
void shootdown_reload(void);
void shootdown_answer(void);

/* Functions of the kernel that were static. */
void cond_mitigation(struct task_struct *next);

#endif
