/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang procco: process-based co-scheduling ("sbco" paper, section V), to compare with.
 *
 * When vCPU 0 of a VM is scheduled, its siblings that wait are forced onto other pCPUs at once: where they wait, if that is another pCPU, otherwise where none
 * of them is. Whoever runs there loses its pCPU, whatever it deserves. The VM pays for it, so that its vCPU 0 comes later the next time; but each VM pays for
 * what it has forced, and not for whom it has hit, so that shares are not kept. Host tasks and others that have waited too long (order.urgency)
 * go before a forced sibling.
 */
#ifndef COHORT_GANG_PROCCO_H
#define COHORT_GANG_PROCCO_H

#include "force.h"

static void procco_began(struct task_ctx *t, s32 cpu, u64 now)
{
	if (t->vcpu == 0)
		force_siblings(t->vm, t->vcpu, cpu, now + slice_ns, now);
}

static const struct gang gang_procco = {
	.of_vms = true,
	.gate = force_gate,
	.began = procco_began,
};

#endif
