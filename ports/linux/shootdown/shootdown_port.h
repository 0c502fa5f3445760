/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the two files of the port share. */
#ifndef _MM_SHOOTDOWN_PORT_H
#define _MM_SHOOTDOWN_PORT_H

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

/* While somebody traces, the pages of the flush that this CPU is in. */
DECLARE_PER_CPU(unsigned long, shootdown_requested_pages);

static __always_inline void trace_request(unsigned long start, unsigned long end)
{
	if (trace_tlb_flush_enabled())
		this_cpu_write(shootdown_requested_pages,
			       end == TLB_FLUSH_ALL ? TLB_FLUSH_ALL : (end - start) >> PAGE_SHIFT);
}

/* There is an engine. Before, there is one CPU, and no space of users. */
extern bool shootdown_is_started;

/* For a test of the tests: an isolated CPU that enters the kernel does not tell the engine. */
extern bool shootdown_forgets_on_entry;

/* This CPU has stopped, possibly in an NMI: no flush waits for its end. */
void shootdown_forget_nmi(void);

#endif
