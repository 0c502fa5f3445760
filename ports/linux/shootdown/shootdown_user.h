/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * CPUs that the command line isolates (nohz_full=): while one runs in user mode, flushes of kernel
 * pages do not interrupt it. It catches up when it enters the kernel. Without such CPUs, each hook
 * is a nop.
 */
#ifndef _ASM_X86_SHOOTDOWN_USER_H
#define _ASM_X86_SHOOTDOWN_USER_H

#include <linux/jump_label.h>

DECLARE_STATIC_KEY_FALSE(shootdown_isolates);

void shootdown_cpu_enters_kernel(void);
void shootdown_cpu_enters_user(void);
void shootdown_nmi_begins(void);
void shootdown_nmi_ends(void);

#define SHOOTDOWN_HOOK(name, function)				\
	static __always_inline void name(void)			\
	{							\
		if (static_branch_unlikely(&shootdown_isolates))	\
			function();				\
	}

/* First on each way into the kernel, and last on each way out of it. */
SHOOTDOWN_HOOK(shootdown_enter_from_user, shootdown_cpu_enters_kernel)
SHOOTDOWN_HOOK(shootdown_exit_to_user, shootdown_cpu_enters_user)
/* Around what cannot be masked: it may interrupt user mode, and the two functions above. */
SHOOTDOWN_HOOK(shootdown_nmi_enter, shootdown_nmi_begins)
SHOOTDOWN_HOOK(shootdown_nmi_exit, shootdown_nmi_ends)

#undef SHOOTDOWN_HOOK

#endif
