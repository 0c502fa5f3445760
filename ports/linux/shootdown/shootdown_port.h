/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the files of the port share. */
#ifndef _MM_SHOOTDOWN_PORT_H
#define _MM_SHOOTDOWN_PORT_H

#include <linux/jump_label.h>
#include <linux/kasan-checks.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <trace/events/tlb.h>

#include <asm/tlbflush.h>

/* In quotes, because gcc defines a macro with the name `linux`. */
#define SHOOTDOWN_TYPES "linux/types.h"
#include <asm/shootdown_engine.h>

/* Counters that the engine does not have. */
struct shootdown_counts {
	u64 requests, kernel_requests, batches, tables_kept, walkers_flushed;
};
DECLARE_PER_CPU(struct shootdown_counts, shootdown_counts);

static inline struct shootdown_space *space_of(struct mm_struct *mm)
{
	void *space = mm->context.shootdown.space;

	/* The engine's own accesses are not instrumented. */
	kasan_check_write(space, sizeof(struct shootdown_space));
	return space;
}

#ifdef CONFIG_X86
#include <asm/mmu_context.h>

/* A copy of a space begins with the mask of the original. */
#define SHOOTDOWN_ROOT(mm) (__sme_pa((mm)->pgd) | mm_lam_cr3_mask(mm))
/* A processor marks an entry dirty by a walk, so no write is lost until the batch is flushed. */
#define SHOOTDOWN_WAS_WRITABLE true

/* Frees the page tables of a space that no CPU can walk since the flush with this number. */
void shootdown_free_some_kept(struct mm_struct *mm, u64 cleared);

static inline void shootdown_free_kept(struct mm_struct *mm, u64 cleared)
{
	if (!list_empty_careful(&mm->context.shootdown.kept))
		shootdown_free_some_kept(mm, cleared);
}

/* While somebody traces, the pages of the flush that this CPU is in. */
DECLARE_PER_CPU(unsigned long, shootdown_requested_pages);

static __always_inline void trace_request(unsigned long start, unsigned long end)
{
	if (trace_tlb_flush_enabled())
		this_cpu_write(shootdown_requested_pages,
			       end == TLB_FLUSH_ALL ? TLB_FLUSH_ALL : (end - start) >> PAGE_SHIFT);
}

#else
#define SHOOTDOWN_ROOT(mm) virt_to_phys((mm)->pgd)
/* Linux flushes a batch with a dirty page before it writes the page. A clean one is not writable. */
#define SHOOTDOWN_WAS_WRITABLE false
#define shootdown_free_kept(mm, cleared) do { } while (0)
#define trace_request(start, end) do { } while (0)
#endif

/* There is an engine. Before, there is one CPU, and no space of users. */
extern bool shootdown_is_started;

/* For a test of the tests: flushes reach this CPU alone. */
DECLARE_STATIC_KEY_FALSE(shootdown_flushes_here_only);

/* For a test of the tests: an isolated CPU that enters the kernel does not tell the engine. */
extern bool shootdown_forgets_on_entry;

/*
 * For tests of the tests, in a kernel of their own: rules that the port can leave out, each by a file
 * in /sys/kernel/debug/shootdown. `cargo xtask port linux --believe faults` has what finds each.
 */
#ifdef SHOOTDOWN_FAULTS
#define SHOOTDOWN_EACH_FAULT(F)						\
	F(flush_unanswered)	/* a CPU ignores the interrupt */	\
	F(others_unnotified)	/* of several CPUs, one is interrupted */	\
	F(range_ends_early)	/* a flush leaves the last page */	\
	F(gather_unflushed)	/* a flush that frees page tables is left out */	\
	F(tables_freed_at_once)	/* page tables do not wait for idle CPUs */	\
	F(batch_lacks_pages)	/* unmapped pages do not join the batch */	\
	F(batch_lacks_spaces)	/* only the first space joins it */	\
	F(batch_unsent)		/* it is freed without a flush */	\
	F(batch_holds_no_space)	/* it has no references of its spaces */	\
	F(space_not_retired)	/* a space is freed while CPUs have it loaded */	\
	F(space_freed_under_lock)	/* it is freed in the middle of a switch */	\
	F(users_uncalled)	/* a new LDT is not loaded by other CPUs */	\
	F(unplugged_stays_online)	/* a CPU is unplugged in silence */	\
	F(kernel_unflushed)	/* flushes of kernel pages are left out */	\
	F(user_half_unmarked)	/* with PTI, PCIDs of user mode are not flushed */	\
	F(asids_overlap)	/* on AArch64, the processor has fewer ASIDs */	\
	F(away_unrequested)	/* under KVM, a CPU that is away is skipped without a request */	\
	F(away_remembered)	/* under KVM, a CPU that was away once counts as away */	\
	/* Mechanisms: without them, flushes are right, and interrupt more. */	\
	F(idle_count_as_busy)	/* idle CPUs are interrupted */	\
	F(tables_do_not_wait)	/* idle CPUs are interrupted when page tables are freed */	\
	F(batches_have_one_page)	/* reclaim flushes page by page */

#define FAULT_MEMBER(name) bool name;
extern struct shootdown_faults { SHOOTDOWN_EACH_FAULT(FAULT_MEMBER) } shootdown_faults;
#undef FAULT_MEMBER
#define FAULT(name) unlikely(READ_ONCE(shootdown_faults.name))
#else
#define FAULT(name) false
#endif

/* This CPU is in a flush that also waits for CPUs that a hypervisor does not run. */
DECLARE_PER_CPU(bool, shootdown_waits_for_away);

/* This CPU has stopped, possibly in an NMI: no flush waits for its end. */
void shootdown_forget_nmi(void);

#endif
