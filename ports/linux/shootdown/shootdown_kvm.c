// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Virtual CPUs that KVM has preempted: a flush neither interrupts nor waits for one. It leaves a
 * request in the steal time of the CPU, and KVM empties the CPU's TLB before it runs the CPU again,
 * as for stock's kvm_flush_tlb_multi.
 *
 * Such a CPU may have stopped in a walk of page tables by software. Tables of users are freed by
 * RCU, which waits for the walk. For tables of the kernel, see flush_tlb_all.
 */
#include <linux/init.h>
#include <linux/jump_label.h>
#include <linux/kvm_para.h>
#include <linux/mm.h>

#include <asm/paravirt.h>
#include <asm/tlbflush.h>

#include "shootdown_port.h"

static_assert(IS_ENABLED(CONFIG_MMU_GATHER_RCU_TABLE_FREE));

/* Of arch/x86/kernel/kvm.c. While KVM does not write it, the CPU counts as running. */
DECLARE_PER_CPU(struct kvm_steal_time, steal_time);

static DEFINE_STATIC_KEY_FALSE(can_defer);
DEFINE_PER_CPU(bool, shootdown_waits_for_away);

/* The request is confirmed by the exchange: a CPU that was away may run by now, with its old TLB. */
bool shootdown_os_is_away(uint32_t cpu)
{
	u8 *word, state;

	if (!static_branch_unlikely(&can_defer) || this_cpu_read(shootdown_waits_for_away))
		return false;
	word = &per_cpu(steal_time.preempted, cpu);
	state = READ_ONCE(*word);
	if (FAULT(away_remembered) && per_cpu(steal_time.steal, cpu))
		return true;
	while (state & KVM_VCPU_PREEMPTED)
		if (FAULT(away_unrequested) ||
		    try_cmpxchg(word, &state, KVM_VCPU_PREEMPTED | KVM_VCPU_FLUSH_TLB))
			return true;
	return false;
}

/* Linux has replaced its flush of other CPUs if KVM can empty their TLBs, and may preempt them. */
static int __init ask_kvm(void)
{
	if (kvm_para_available() && pv_ops.mmu.flush_tlb_multi != native_flush_tlb_multi) {
		static_branch_enable(&can_defer);
		pr_info("shootdown: KVM flushes for virtual CPUs that are away\n");
	}
	return 0;
}
late_initcall(ask_kvm);
