/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task is queued.
 *
 * balance ("BAL" in the co-scheduling literature): a vCPU is never queued where a sibling runs or waits while an allowed pCPU without one
 * exists; otherwise where the fewest siblings are, then where the queue is shortest. Two siblings on one pCPU cannot run together, and one
 * that spins for the other then wastes the very time that the other needs.
 *
 * any: where it last ran.
 */
#ifndef COHORT_PLACEMENT_H
#define COHORT_PLACEMENT_H

#include "fair.h"

/* pCPUs examined for one placement, at most. */
#define PLACEMENT_SCAN 64

/* The runner's rank, as far as pCPU's context tells. Return false if nobody runs there. */
static bool rank_of_runner(const struct cpu_ctx *c, u64 now, struct rank *r)
{
	struct vm_ctx *vm;
	u32 slot;

	if (!c->curr_pid)
		return false;
	r->own = c->curr_vtime + scale_by_weight(now - c->curr_since_ns, c->curr_weight);
	r->entity = r->own;
	r->vm = 0;
	if (c->curr_vm && fair == FAIR_VM) {
		slot = c->curr_vm - 1;
		vm = bpf_map_lookup_elem(&vms, &slot);
		if (!vm)
			return false;
		r->entity = vm_vtime(vm, now);
		r->vm = c->curr_vm;
	}
	return true;
}

/* Would a task of this rank preempt what runs on the pCPU? */
static __always_inline bool would_preempt(const struct cpu_ctx *c, const struct rank *r, u64 now)
{
	struct rank runner;

	if (!rank_of_runner(c, now, &runner))
		return true;
	return rank_before(r, &runner, wakeup_gran_ns);
}

/* The pCPU to queue p on. prev is where it was last, or where the kernel would put it; ties stay there. */
static s32 place(const struct task_struct *p, const struct task_ctx *t, s32 prev, u64 now)
{
	u64 cost, best_cost = ~0ULL;
	struct cpu_ctx *c;
	struct rank rank;
	s32 i, cpu, best = prev;

	if (placement == PLACEMENT_ANY || t->vcpu < 0 || task_is_pinned(p)) {
		c = cpu_get(prev);
		if (c && c->online && task_allowed_on(p, prev))
			return prev;
	}

	rank_of(t, now, &rank);
	bpf_for(i, 0, PLACEMENT_SCAN) {
		if (i >= nr_cpus)
			break;
		cpu = prev + i;
		if (cpu >= nr_cpus)
			cpu -= nr_cpus;
		c = cpu_get(cpu);
		if (!c || !c->online || !task_allowed_on(p, cpu))
			continue;
		cost = (u64)siblings_on(t, cpu) << 32;
		cost += (u64)scx_bpf_dsq_nr_queued(cpu) << 1;
		if (!would_preempt(c, &rank, now))
			cost += 1;
		if (cost < best_cost) {
			best_cost = cost;
			best = cpu;
		}
	}
	return best;
}

#endif
