/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang cpuco: CPU-based co-scheduling ("sbco" paper, section V), to compare with; there it does far worse than no co-scheduling at all.
 *
 * pCPU 0 decides which VM runs. Whenever it gives a turn to a vCPU, all other pCPUs are forced to run that one's siblings, as far as there are any that
 * wait; and while the turn lasts, so are siblings that wake. A VM that has no vCPU on pCPU 0 gets what the others leave. So each switch on pCPU 0
 * is one on all pCPUs, and a vCPU that works is thrown out because its sibling on pCPU 0 has halted. Shares are not kept. Host tasks and others that
 * have waited too long (order.urgency) go before a forced sibling.
 */
#ifndef COHORT_GANG_CPUCO_H
#define COHORT_GANG_CPUCO_H

#include "force.h"

static void cpuco_began(struct task_ctx *t, s32 cpu, u64 now)
{
	if (cpu == 0 && t->vcpu >= 0)
		force_siblings(t->vm, t->vcpu, cpu, now + slice_ns, now);
}

static void cpuco_changed(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now)
{
	if (from == VCPU_ASLEEP && v->state == VCPU_WAITING)
		settle_later(t->vm);
}

static void cpuco_settle(u32 vm_id, u64 now)
{
	struct cpu_ctx *leader = cpu_get(0);

	if (leader && leader->curr_pid && leader->curr_vm == vm_id)
		force_siblings(vm_id, -1, 0, leader->turn_end_ns, now);
}

static const struct gang gang_cpuco = {
	.of_vms = true,
	.gate = force_gate,
	.began = cpuco_began,
	.changed = cpuco_changed,
	.settle = cpuco_settle,
};

#endif
