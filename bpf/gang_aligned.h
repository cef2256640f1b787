/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang aligned: the vCPUs of a VM take their turns together.
 *
 * When a vCPU starts to run and its VM has no turn, or one that is as good as over (in_turn()), a turn begins, one slice long, whether siblings run or not.
 * Siblings that wait on other pCPUs are asked to join, where the runner deserves its pCPU less than the VM does; who joins later gets what is left of the turn,
 * so that all end together and the next VM's turn begins on all those pCPUs at once. Nobody is forced: virtual time decides as ever, no pCPU is left idle for
 * the sake of a turn, and a VM with idle vCPUs holds no pCPU for them. It keeps the good part of PROCCO ("sbco" paper, section 2) without its price.
 */
#ifndef COHORT_GANG_ALIGNED_H
#define COHORT_GANG_ALIGNED_H

#include "wish.h"

/* The turn, as long as it is not over. */
static u64 aligned_slice(u32 vm_id, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_at(vm_id);

	return vm && in_turn(vm, now) ? vm->turn_end_ns - now : 0;
}

/* If this begins its VM's turn, ask the siblings. */
static void aligned_began(struct task_ctx *t, s32 cpu, u64 now)
{
	struct vm_ctx *vm;
	struct rank rank;
	struct vcpu_ctx *v;
	struct cpu_ctx *c;
	s32 i, there, index;

	vm = vm_get(t);
	if (!vm || t->vcpu < 0 || in_turn(vm, now))
		return;
	vm->turn_end_ns = now + slice_ns;
	order_rank(t, now, &rank);
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		/* It counts as one that waits until its state is set, where it was taken from. */
		if (i == t->vcpu)
			continue;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v)
			continue;
		there = vcpu_cpu(v);
		if (v->state != VCPU_WAITING || there < 0 || there == cpu)
			continue;
		c = cpu_get(there);
		if (!c || c->wish_pid || !c->curr_pid || c->curr_vm == t->vm || !would_preempt(c, &rank, now))
			continue;
		stat_inc(STAT_GANG_STARTS);
		wish_leave(there, t->vm, index, v, WISH_MIGRATE, boost_slice_ns, now);
		scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
	}
}

static const struct gang gang_aligned = {
	.of_vms = true,
	.began = aligned_began,
	.slice = aligned_slice,
};

#endif
