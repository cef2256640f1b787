/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order sedf: Xen's simple earliest deadline first (xen/common/sched_sedf.c of Xen 3.2).
 *
 * Each task has a period of 100 ms, a slice of CPU time that it is to get in each, and takes part in what is left over ("extra time"). Of those that have
 * not had their slice the one goes first whose period ends first. Where all have, extra time is shared in proportion to their slices.
 *
 * Slices follow from weights, as in Xen: of 100 ms of each pCPU 95 are divided among the domains (domains.h) by weight, none more than its tasks can
 * use, and within a domain among its tasks. Xen divides a pCPU among those that are on it, and never moves one; here the host is divided, and a pCPU that would
 * run extra time looks for somebody with a slice in its peers' queues. A VM that sleeps keeps its part, and what it does not use is extra time.
 *
 * Who wakes after its period's end begins a new one. Who wakes earlier keeps its period, unless the rest of its slice would be more than its part of the
 * rest of the period: then it begins a new one as well (Abeni and Buttazzo's constant bandwidth server), so that nobody takes others' time by sleeping.
 *
 * Turns are 5 ms at most. So who begins a period waits for no longer, and that is what the 5 of 100 ms that no slice has are for.
 */
#ifndef COHORT_ORDER_SEDF_H
#define COHORT_ORDER_SEDF_H

#include "domains.h"

#define SEDF_PERIOD_NS 100000000ULL

/* No slice has these. */
#define SEDF_SAFETY_NS 5000000ULL
#define SEDF_TURN_NS SEDF_SAFETY_NS

/* Not worth a turn. */
#define SEDF_TURN_MIN_NS 200000ULL

/* Slices are made anew this often, for those that have been active in between. */
#define SEDF_DIVIDE_NS 500000000ULL

/* Who waits for extra time may have missed so much of it, in run time of a task that has all of a pCPU. */
#define SEDF_EXTRA_LAG_NS 20000000ULL

struct sedf_task {
	struct domain_member m; /* flags: its slice in this period, in us */
	u64 deadline_ns;	/* when its period ends */
	s64 left_ns;		/* of its slice */
};

_Static_assert(sizeof(struct sedf_task) <= sizeof(((struct task_ctx *)0)->order_state), "sedf_task is too big");

enum sedf_class {
	SEDF_SLICE,
	SEDF_EXTRA,
};

static __always_inline struct sedf_task *sedf_of(struct task_ctx *t)
{
	return (struct sedf_task *)t->order_state;
}

/* What t is to get in a period: domain.granted is for a period here, not since ever. */
static __always_inline u64 sedf_slice_of(struct sedf_task *s)
{
	struct domain *d = domain_get(s->m.slot);
	u64 slice = d ? d->granted * member_weight(&s->m) >> GRANT_SHIFT : 0;

	return slice > SEDF_PERIOD_NS - SEDF_SAFETY_NS ? SEDF_PERIOD_NS - SEDF_SAFETY_NS : slice;
}

/* A new period of t. */
static __always_inline void sedf_begin_period(struct sedf_task *s, u64 deadline_ns)
{
	u64 slice = sedf_slice_of(s);

	s->deadline_ns = deadline_ns;
	s->left_ns = slice;
	s->m.flags = slice / 1000;
}

/* t runs or waits, and its period may be over. */
VERIFIED_ONCE sedf_renew(struct task_ctx *t, u64 now)
{
	struct sedf_task *s;
	u64 late, deadline;

	if (!t)
		return 0;
	s = sedf_of(t);
	deadline = s->deadline_ns;
	if (!s->m.counted || time_before(now, deadline))
		return 0;
	late = now - deadline;
	/* Several pCPUs may look at it at once; whoever takes the deadline away sets the next. */
	if (atomic_cas(&s->deadline_ns, deadline, deadline + (late / SEDF_PERIOD_NS + 1) * SEDF_PERIOD_NS) != deadline)
		return 0;
	if (s->left_ns > 0 && s->m.flags)
		stat_inc(STAT_DEADLINES_MISSED);
	sedf_begin_period(s, s->deadline_ns);
	return 0;
}

/* t counts for its domain. The slices that a VM which has ended had are not those of the one which has its number now: others have them. */
static __always_inline void sedf_join(struct task_ctx *t)
{
	struct domain *d;

	if (!domain_join(t))
		return;
	d = domain_get(t->leaf);
	if (d && domain_is_anothers(d, t))
		d->granted = 0;
}

static void sedf_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	struct sedf_task *s = sedf_of(t);
	u64 *clock = clock_get(0, cpu), rest;

	sedf_join(t);
	t->waited_ns = now;
	if (is_asleep(t)) {
		rest = time_before(now, s->deadline_ns) ? s->deadline_ns - now : 0;
		if (!rest || (s->left_ns > 0 && (u64)s->left_ns * (SEDF_PERIOD_NS / 1000) > rest * s->m.flags))
			sedf_begin_period(s, now + SEDF_PERIOD_NS);
	}
	if (clock && time_before(t->vtime, *clock - SEDF_EXTRA_LAG_NS))
		t->vtime = *clock - SEDF_EXTRA_LAG_NS;
}

static void sedf_sleep(struct task_ctx *t)
{
	domain_leave(t);
}

/* The class, then the deadline, or extra time. */
#define SEDF_CLASS_SHIFT 62

static __always_inline u64 sedf_place(const struct sedf_task *s, u64 extra)
{
	if (s->left_ns > 0)
		return s->deadline_ns;
	return (u64)SEDF_EXTRA << SEDF_CLASS_SHIFT | (extra & ((1ULL << SEDF_CLASS_SHIFT) - 1));
}

static void sedf_rank(struct task_ctx *t, u64 now, struct rank *r)
{
	sedf_renew(t, now);
	r->own = sedf_place(sedf_of(t), t->vtime);
	r->path[0] = t->leaf;
}

static void sedf_rank_of_runner(const struct cpu_ctx *c, u64 now, struct rank *r)
{
	r->own = c->curr_vtime;
	r->path[0] = c->curr_leaf;
}

/* A slice goes before extra time whatever the margin. */
static bool sedf_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	u64 of_a = a->own >> SEDF_CLASS_SHIFT, of_b = b->own >> SEDF_CLASS_SHIFT;

	if (of_a != of_b)
		return of_a < of_b;
	return time_before(a->own + margin_ns, b->own);
}

/* Who waits for extra time has a slice again at its deadline. */
static u64 sedf_key(const struct task_ctx *t)
{
	const struct sedf_task *s = (const struct sedf_task *)t->order_state;

	return s->left_ns > 0 ? s->deadline_ns : s->deadline_ns + SEDF_PERIOD_NS;
}

static void sedf_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank)
{
	struct sedf_task *s = sedf_of(t);
	u64 *clock = clock_get(0, cpu);
	struct cpu_ctx *c = cpu_get(cpu);

	sedf_join(t);
	domain_set_weight(t, weight);
	sedf_renew(t, now_ns());
	if (c)
		c->curr_vtime = sedf_place(s, t->vtime);
	/* Extra time on cpu has come as far as who gets it. */
	if (clock && by_rank && s->left_ns <= 0)
		*clock = t->vtime;
}

/* Slices first; the rest is extra time, which costs the less the larger one's slice is. */
static void sedf_charge(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	struct sedf_task *s = sedf_of(t);
	u64 of_slice, part_us = s->m.flags;

	of_slice = s->left_ns <= 0 ? 0 : (u64)s->left_ns < delta_ns ? (u64)s->left_ns : delta_ns;
	s->left_ns -= of_slice;
	if (part_us < SEDF_PERIOD_NS / 1000 / 100)
		part_us = SEDF_PERIOD_NS / 1000 / 100;
	t->vtime += (delta_ns - of_slice) * (SEDF_PERIOD_NS / 1000) / part_us;
}

static void sedf_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);

	sedf_renew(t, now);
	if (c)
		c->curr_vtime = sedf_place(sedf_of(t), t->vtime);
}

static u64 sedf_slice(const struct task_ctx *t, s32 cpu)
{
	const struct sedf_task *s = (const struct sedf_task *)t->order_state;
	s64 left = s->left_ns;

	if (left <= 0 || left > (s64)SEDF_TURN_NS)
		return SEDF_TURN_NS;
	return left < (s64)SEDF_TURN_MIN_NS ? SEDF_TURN_MIN_NS : (u64)left;
}

/* Each domain's tasks have slices that make up its share. */
VERIFIED_ONCE sedf_grant_all(u64 now)
{
	u32 slot = division_first;
	struct domain *d;
	u64 weights;
	s32 i;

	UNUSED_YET(now);
	bpf_for(i, 0, MAX_ENTITIES) {
		d = domain_get(slot);
		if (slot >= MAX_ENTITIES || !d)
			break;
		slot = d->next;
		weights = d->weights;
		d->granted = weights ? (domain_share(d) << GRANT_SHIFT) / weights : 0;
	}
	return 0;
}

static void sedf_period(u64 now)
{
	u64 task_ns = SEDF_PERIOD_NS - SEDF_SAFETY_NS;

	domains_divide(nr_online * task_ns, 0, task_ns, true);
	sedf_grant_all(now);
}

static const struct order order_sedf = {
	.of_vms = true,
	.rank = sedf_rank,
	.rank_of_runner = sedf_rank_of_runner,
	.before = sedf_before,
	.key = sedf_key,
	.wake = sedf_wake,
	.sleep = sedf_sleep,
	.begin = sedf_begin,
	.charge = sedf_charge,
	.slice = sedf_slice,
	.tick = sedf_tick,
	.period = sedf_period,
	.period_ns = SEDF_DIVIDE_NS,
};

#endif
