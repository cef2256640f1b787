/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where a task is queued.
 *
 * balance ("BAL" in the co-scheduling literature): a vCPU is never queued where a sibling runs or waits while an allowed pCPU without one
 * exists among those looked at; otherwise where the fewest siblings are, then where it gets the pCPU soonest, then on a core without a sibling,
 * then near where it was. Two siblings on one pCPU cannot run together, and one that spins for the other then wastes the very time that the
 * other needs.
 *
 * any: where it last ran.
 */
#ifndef COHORT_PLACEMENT_H
#define COHORT_PLACEMENT_H

#include "account.h"
#include "topology.h"

/* Neighbours that a host task may go to. */
#define HOST_TASK_SCAN 8

/* The runner's rank, as far as pCPU's context tells. Return false if nobody runs there. */
static bool rank_of_runner(struct cpu_ctx *c, u64 now, struct rank *r)
{
	if (!c->curr_pid)
		return false;
	order_rank_of_runner(c, now, r);
	return true;
}

/* Would a task of this rank preempt what runs on the pCPU? */
VERIFIED_ONCE would_preempt(struct cpu_ctx *c, struct rank *r, u64 now)
{
	struct rank runner;

	if (!c || !r || c->taken || gang_holds(c, now))
		return 0;
	if (!rank_of_runner(c, now, &runner))
		return 1;
	return order_before(r, &runner, wakeup_gran_ns);
}

/* The same of one that was sent there in the runner's place: it need not come before him by much. */
VERIFIED_ONCE has_place_of_runner(struct cpu_ctx *c, struct rank *r, u64 now)
{
	struct rank runner;

	if (!c || !r || c->taken || gang_holds(c, now) || !rank_of_runner(c, now, &runner))
		return 0;
	return order_before(r, &runner, 0);
}

/*
 * A runner's place is promised to one that was sent there: where turns end together two would go, each for the sake of another, and one of them would wait
 * behind the other, though it deserves a pCPU more than both for whom they made room. Or a third pCPU would take the one that is on its way, and stop a runner
 * who deserves his pCPU more than others do. Not for longer than this.
 */
#define PROMISED_NS 1000000ULL

static __always_inline s32 promised_pid(const struct cpu_ctx *c, u64 now)
{
	return c && c->sent_pid && elapsed_ns(now, c->sent_ns) < PROMISED_NS ? (s32)c->sent_pid : 0;
}

/* Do siblings of t run or wait on other threads of cpu's core? */
VERIFIED_ONCE core_has_sibling(struct task_ctx *t, s32 cpu)
{
	struct cohort_neighbours *near = neighbours_of(cpu);
	s32 i;

	if (!t || !near)
		return 0;
	for (i = 0; i < 8; i++) {
		if (i >= near->core_end)
			break;
		if (siblings_on(t, neighbour(near, i)))
			return 1;
	}
	return 0;
}

/* What speaks against queueing t there, if it may go there; ~0: it cannot. Once that is more than another place's the rest is not asked for. */
VERIFIED_ONCE_U64 cost_of_place(struct task_ctx *t, struct rank *rank, s32 cpu, u64 others, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 cost;

	if (!t || !rank || !c || !c->online)
		return ~0ULL;
	cost = (u64)siblings_on(t, cpu) << 32;
	cost += (u64) !!c->taken << 24;
	if (queue_is_marked(cpu))
		cost += (u64)scx_bpf_dsq_nr_queued(cpu) << 2;
	if (cost >= others)
		return cost;
	if (c->kept_pid || !would_preempt(c, rank, now))
		cost += 2;
	/* Who is no vCPU has none. */
	if (t->vm && t->vcpu >= 0 && core_has_sibling(t, cpu))
		cost += 1;
	return cost;
}

static __always_inline u64 placement_cost(const struct task_struct *p, struct task_ctx *t, struct rank *rank, s32 cpu,
					  u64 others, u64 now)
{
	return task_allowed_on(p, cpu) ? cost_of_place(t, rank, cpu, others, now) : ~0ULL;
}

/*
 * The pCPU to queue p on. prev is where it was last, or where the kernel would put it. It stays there unless another is clearly better; the
 * farther away, the more so. known: its rank; NULL: nobody has asked for it.
 */
static s32 place(const struct task_struct *p, struct task_ctx *t, s32 prev, u64 now, const struct rank *known)
{
	struct cohort_neighbours *near;
	u64 cost, best_cost;
	struct cpu_ctx *c;
	struct rank rank;
	s32 i, cpu, best = prev;

	if (known)
		rank = *known;
	else
		order_rank(t, now, &rank);
	if (placement == PLACEMENT_ANY) {
		/* It stays there whatever speaks against that. */
		c = cpu_get(prev);
		if (c && c->online && task_allowed_on(p, prev))
			return prev;
	}
	best_cost = placement_cost(p, t, &rank, prev, ~0ULL, now);
	if (best_cost != ~0ULL && task_is_pinned(p))
		return prev;
	near = neighbours_of(prev);
	if (!near)
		return prev;
	bpf_for(i, 0, NEIGHBOURS) {
		/* A host task has no siblings to keep away from. */
		if (!best_cost || (i >= HOST_TASK_SCAN && t->vcpu < 0 && best_cost != ~0ULL))
			break;
		cpu = neighbour(near, i);
		if (cpu < 0)
			break;
		cost = placement_cost(p, t, &rank, cpu, best_cost, now);
		if (cost == ~0ULL)
			continue;
		/* A waiter more or less is no reason to leave a cache, four none to leave a node. */
		if (i >= near->llc_end)
			cost += i >= near->node_end ? 16 : 4;
		if (cost < best_cost) {
			best_cost = cost;
			best = cpu;
		}
	}
	return best;
}

/* Is nobody on that pCPU? */
static __always_inline bool is_idle(s32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool found = bpf_cpumask_test_cpu(cpu, idle);

	scx_bpf_put_idle_cpumask(idle);
	return found;
}

#endif
