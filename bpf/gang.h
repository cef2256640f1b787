/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * gang aligned: the vCPUs of a VM take their turns together.
 *
 * When a vCPU of a VM starts to run and none of its siblings does, the VM's turn begins, one slice long. Siblings that wait on other pCPUs
 * are asked to join, where the runner deserves its pCPU less than the VM does; who joins later gets what is left of the turn, so that all
 * end together and the next VM's turn begins on all those pCPUs at once. Nobody is forced: virtual time decides as ever, no pCPU is left
 * idle for the sake of a turn, and a VM with idle vCPUs holds no pCPU for them. It keeps the good part of PROCCO ("sbco" paper, section 2)
 * without its price.
 */
#ifndef COHORT_GANG_H
#define COHORT_GANG_H

#include "boost.h"

/* siblings asked to join at the start of a turn, at most: all */
#define GANG_SCAN MAX_VCPUS

/* How long a vCPU of this VM (as task_ctx.vm), or with 0 a host task, runs when it starts on cpu now. */
static u64 turn_slice(u32 vm_id, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_at(vm_id);

	if (gang != GANG_ALIGNED || !vm || !in_turn(vm, now))
		return slice_for(cpu);
	return vm->turn_end_ns - now;
}

/* t has been given this pCPU, or goes on: if that begins its VM's turn, ask the siblings. */
VERIFIED_ONCE gang_start(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *e;
	struct vm_ctx *vm;
	struct rank rank;
	struct vcpu_ctx *v;
	struct cpu_ctx *c;
	s32 i, there, index;

	if (!t || gang != GANG_ALIGNED)
		return 0;
	vm = vm_get(t);
	if (!vm || t->vcpu < 0 || fair != FAIR_VM)
		return 0;
	if (in_turn(vm, now))
		return 0;
	vm->turn_end_ns = now + slice_ns;
	e = entity_get(vm->entity);
	if (e)
		e->turn_end_ns = vm->turn_end_ns;
	rank_of(t, now, &rank);
	bpf_for(i, 0, GANG_SCAN) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v)
			continue;
		there = vcpu_cpu(v);
		if (v->state != VCPU_WAITING || there < 0 || there == cpu)
			continue;
		c = cpu_get(there);
		if (!c || c->boost_pid || !c->curr_pid || c->curr_vm == t->vm || !would_preempt(c, &rank, now))
			continue;
		stat_inc(STAT_GANG_STARTS);
		boost_ask(there, t->vm, index, v, now);
		scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
	}
	return 0;
}

#endif
