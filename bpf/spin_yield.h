/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spin yield: what Xen does on a pause-loop exit. The vCPU yields (xen/arch/x86/hvm/vmx/vmx.c, EXIT_REASON_PAUSE_INSTRUCTION): whoever is the best of those
 * that wait for its pCPU goes first, once, even if it deserves the pCPU less. Nobody asks who that is: it may be a sibling or not. Whom KVM offers is not
 * run either.
 */
#ifndef COHORT_SPIN_YIELD_H
#define COHORT_SPIN_YIELD_H

#include "runqueue.h"

static void yield_on_spin(struct task_ctx *t, s32 cpu, bool in_kernel)
{
	if (!queue_is_marked(cpu))
		return;
	t->steps_back = true;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

static const struct spin spin_yield = {
	.on_spin = yield_on_spin,
};

#endif
