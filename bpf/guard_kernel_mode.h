/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guard kernel-mode: a vCPU that was preempted in the guest's kernel gets its pCPU back at once, for a moment.
 *
 * A guest's kernel releases its spin locks before it goes to user mode. So user mode is safe to preempt, and kernel mode is not: a lock's holder without a
 * pCPU holds up all who want the lock (Uhlig et al., VM'04, the non-intrusive technique). The host cannot see when the guest leaves its critical
 * section, nor ask it to; it can only wait. So it waits for a bounded time, guard_grace_ns, twice at most; then the vCPU queues like everybody.
 * The time is charged to the VM like all time, and whoever was to run has its whole turn afterwards.
 *
 * Who spins is in kernel mode too. One that has just given its pCPU away for a sibling, at a pause-loop exit, is not spared.
 */
#ifndef COHORT_GUARD_KERNEL_MODE_H
#define COHORT_GUARD_KERNEL_MODE_H

#include "wish.h"

/* Graces in a row. */
#define GUARD_GRACES 2

static u64 kernel_mode_grace_ns(struct task_ctx *t, struct vcpu_ctx *v, s32 cpu, u64 now)
{
	if (v->gave_way || v->graces >= GUARD_GRACES || !vcpu_preempted_in_kernel((struct kvm_vcpu *)v->kvm_vcpu))
		return 0;
	return guard_grace_ns < slice_ns ? guard_grace_ns : slice_ns;
}

static const struct guard guard_kernel_mode = {
	.grace_ns = kernel_mode_grace_ns,
};

#endif
