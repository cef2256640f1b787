/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A pCPU that is kept for a vCPU which sleeps: nobody who waits has it meanwhile. The guard says for how long (policy.h).
 *
 * If the vCPU wakes in time its turn goes on. Whoever else wakes and is given the idle pCPU has what is left of that turn, so that those who wait are asked for when it
 * ends at the latest, however many sleep and wake in it. It is given up at once for a boosted vCPU, for those who are overdue, and for one that comes to
 * wait there and would have preempted the vCPU (wake.h). The time that it was kept is charged to the vCPU as if it had run: a VM that sleeps and wakes in quick
 * succession has no more of the host for that.
 *
 * Of what is noted in cpu_ctx only the pCPU itself writes, but that others may end it (kept_until_ns).
 */
#ifndef COHORT_KEEP_H
#define COHORT_KEEP_H

#include "policy_calls.h"

/* t, a vCPU, stops running on c because it sleeps; before the end of its turn is forgotten. */
static __always_inline void keep_begin(const struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, u64 now)
{
	struct vcpu_ctx *v;
	u64 keep_ns;

	if (!guard_may_keep() || t->vcpu < 0 || c->taken || !time_before(now, c->turn_end_ns))
		return;
	/* A sibling that waits here has the turn at once. */
	if (siblings_on(t, scx_bpf_task_cpu(p)))
		return;
	v = vcpu_get(t);
	keep_ns = v ? guard_keep_for(v, c->turn_end_ns - now) : 0;
	if (!keep_ns)
		return;
	c->kept_pid = p->pid;
	c->kept_vcpu = t->vcpu_at;
	c->kept_ns = now;
	c->kept_until_ns = now + keep_ns;
	c->kept_turn_ns = c->turn_end_ns;
	stat_inc(STAT_KEPT);
}

/* It is kept no longer. */
VERIFIED_ONCE keep_end(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;
	struct task_ctx *t;
	u64 kept_ns;

	if (!c || !c->kept_pid)
		return 0;
	p = bpf_task_from_pid(c->kept_pid);
	c->kept_pid = 0;
	/* A pCPU that has been offline meanwhile, or a real-time task's, was not kept for so long. */
	kept_ns = elapsed_ns(time_before(now, c->kept_until_ns) ? now : c->kept_until_ns, c->kept_ns);
	stat_add(STAT_KEPT_US, kept_ns / 1000);
	if (!p)
		return 0;
	t = task_get(p);
	if (t)
		order_kept(t, p->scx.weight, kept_ns);
	bpf_task_release(p);
	return 0;
}

/* cpu is about to choose who runs next; prev_queued: the last one could go on. Return true if nobody is to. */
VERIFIED_ONCE keep_holds(s32 cpu, bool prev_queued, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct vcpu_ctx *v;

	if (!c || !c->kept_pid)
		return 0;
	v = vcpu_at(c->kept_vcpu);
	/* A timer that cannot be set would leave the pCPU idle for as long as nothing else happens there. */
	if (!prev_queued && v && v->pid == (s32)c->kept_pid && v->state == VCPU_ASLEEP && !wish_is_fresh(c, now) &&
	    !has_overdue(c, cpu) && !has_aside(cpu) && keep_watch(cpu, now))
		return 1;
	keep_end(cpu, now);
	return 0;
}

/* Is that pCPU, on which it ran last, kept for p, which wakes? */
static __always_inline bool keep_is_for(const struct task_struct *p, s32 cpu, u64 now)
{
	struct cpu_ctx *c = guard_may_keep() ? cpu_get(cpu) : NULL;

	return c && c->kept_pid == (u32)p->pid && time_before(now, c->kept_until_ns) && task_allowed_on(p, cpu);
}

/* p has that pCPU now: how much of its slice there is before the turn ends in which it was kept. */
static __always_inline u64 keep_cut(const struct task_struct *p, struct cpu_ctx *c, u64 slice, u64 now)
{
	u64 rest = elapsed_ns(c->kept_turn_ns, now);

	if (!c->kept_pid)
		return slice;
	/* Not by its rank. */
	if (c->kept_pid != (u32)p->pid)
		c->out_of_turn = 1;
	else
		stat_inc(STAT_KEPT_IN_TIME);
	/* Time to see that it is over. */
	if (rest < TURN_EARLY_NS)
		rest = TURN_EARLY_NS;
	return rest < slice ? rest : slice;
}

#endif
