/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gate quota: cpu.max of cgroups, as in the kernel (Documentation/admin-guide/cgroup-v2.rst, "Bandwidth control"): in each period a cgroup with all that is
 * below it gets `quota` of CPU time, plus up to `burst` that it left in periods before.
 *
 * Run time is charged when it is charged to virtual time. Whoever has used it up loses its pCPU at the next tick at the latest; what was overdrawn until
 * then is taken from the next period, so that the rate is kept. Tasks that may not run are put aside: out of the run queue, where they would be in the way of
 * the search, and not counted as active, so that their share goes to others meanwhile.
 *
 * A timer per cgroup refills it, as long as something happens there.
 */
#ifndef COHORT_QUOTA_H
#define COHORT_QUOTA_H

#include "aside.h"

struct quota_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, struct quota_timer);
} quota_timers SEC(".maps");

/* Has a cgroup that t is in used up what it may? */
static u32 quota_ask(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *e;
	u32 slot;
	s32 i;

	if (!nr_quotas || !t->limits)
		return GATE_OPEN;
	slot = t->limits;
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		if (e->quota_ns && e->budget_ns <= 0)
			return GATE_ASIDE;
		slot = e->parent;
	}
	return GATE_OPEN;
}

/*
 * So many new periods begin for e. Return false if nothing happens there any more. What is counted is what cpu.stat counts: a period is throttled if its
 * end finds somebody who may not run.
 */
static bool quota_refill(struct entity_ctx *e, u64 periods, u64 now)
{
	s64 most = e->quota_ns + e->burst_ns, budget;
	u64 used = e->used_ns;

	if (used == e->used_at_refill_ns && !e->throttled_since_ns && e->budget_ns >= most)
		return false;
	e->used_at_refill_ns = used;
	e->nr_periods += periods;
	if (e->throttled_since_ns)
		e->nr_throttled += periods;
	budget = e->budget_ns + (s64)(periods * e->quota_ns);
	if (budget > most)
		atomic_add(&e->budget_ns, most - e->budget_ns);
	else
		atomic_add(&e->budget_ns, (s64)(periods * e->quota_ns));
	if (e->throttled_since_ns && e->budget_ns > 0) {
		e->throttled_ns += elapsed_ns(now, e->throttled_since_ns);
		e->throttled_since_ns = 0;
	}
	return true;
}

/* Periods follow one another without a gap, however late the timer is. */
static void quota_arm(struct quota_timer *timer, struct entity_ctx *e, u64 periods)
{
	e->period_end_ns += periods * e->period_ns;
	bpf_timer_start(&timer->timer, e->period_end_ns, BPF_F_TIMER_ABS);
}

static int quota_period(void *map, int *key, struct quota_timer *timer)
{
	struct entity_ctx *e = entity_get(*key);
	u64 period_ns, periods;
	bool was_throttled;

	if (!e)
		return 0;
	period_ns = e->period_ns;
	was_throttled = e->throttled_since_ns;
	periods = period_ns ? 1 + elapsed_ns(bpf_ktime_get_ns(), e->period_end_ns) / period_ns : 0;
	if (!e->quota_ns || !periods || !quota_refill(e, periods, now_ns())) {
		e->timer_on = 0;
		return 0;
	}
	quota_arm(timer, e, periods);
	if (was_throttled && !e->throttled_since_ns)
		gate_recheck();
	return 0;
}

/* Something runs under e's quota: its periods go on. */
static void quota_start_timer(struct entity_ctx *e, u32 slot)
{
	struct quota_timer *timer = bpf_map_lookup_elem(&quota_timers, &slot);

	if (!timer || atomic_cas(&e->timer_on, 0, 1))
		return;
	e->period_end_ns = bpf_ktime_get_ns();
	quota_arm(timer, e, 1);
}

static void quota_charge(struct task_ctx *t, u64 delta_ns, u64 now)
{
	struct entity_ctx *e;
	u32 slot;
	s32 i;

	if (!nr_quotas || !t->limits)
		return;
	slot = t->limits;
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		if (e->quota_ns) {
			if (!e->timer_on)
				quota_start_timer(e, slot);
			atomic_add(&e->used_ns, delta_ns);
			if (atomic_add(&e->budget_ns, -(s64)delta_ns) <= (s64)delta_ns && !e->throttled_since_ns)
				e->throttled_since_ns = now;
		}
		slot = e->parent;
	}
}

/* cpu.max of a cgroup is now this. */
static void quota_set(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	bool had, has = quota_us != NO_QUOTA && quota_us && period_us;
	struct entity_ctx *e = cgroup_entity(cgrp);
	u32 slot = cgroup_slot(cgroup_id(cgrp));
	struct quota_timer *timer;

	if (!e)
		return;
	timer = bpf_map_lookup_elem(&quota_timers, &slot);
	if (has && timer) {
		/* Fails if it was done before; then nothing has to be. */
		bpf_timer_init(&timer->timer, &quota_timers, CLOCK_MONOTONIC);
		bpf_timer_set_callback(&timer->timer, quota_period);
	}
	had = e->quota_ns;
	e->quota_ns = 0;
	e->period_ns = period_us * 1000;
	e->burst_ns = has ? burst_us * 1000 : 0;
	e->budget_ns = has ? quota_us * 1000 : 0;
	e->throttled_since_ns = 0;
	/* Whoever runs there next sets it anew, for the new period. */
	e->timer_on = 0;
	e->quota_ns = has ? quota_us * 1000 : 0;
	if (has && !had)
		atomic_add(&nr_quotas, 1);
	if (!has && had)
		atomic_add(&nr_quotas, -1);
	atomic_add(&tree_generation, 1);
	gate_recheck();
}

/* The cgroup goes. */
static void quota_drop(struct cgroup *cgrp)
{
	struct entity_ctx *e = cgroup_entity(cgrp);

	if (e && e->quota_ns) {
		e->quota_ns = 0;
		atomic_add(&nr_quotas, -1);
	}
}

static const struct gate gate_quota = {
	.ask = quota_ask,
	.charge = quota_charge,
};

#endif
