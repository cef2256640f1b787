/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gate quota: cpu.max of cgroups, as in the kernel (Documentation/admin-guide/cgroup-v2.rst, "Bandwidth control"): in each period a cgroup with all that is
 * below it gets `quota` of CPU time, plus up to `burst` that it left in periods before.
 *
 * Run time is charged when it is charged to virtual time. What runs and is not charged yet is known all the same: a period may be shorter than a tick, and a
 * budget that seems to be full at its end would get nothing. A turn lasts until the budget is empty if those that run go on; if others join them, what is
 * overdrawn until then is taken from the next period, so that the rate is kept. Tasks that may not run are put aside: out of the run queue, where they would
 * be in the way of the search, and not counted as active, so that their share goes to others meanwhile.
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

/* Not worth a turn: so long is one at least. What it overdraws is repaid. */
#define QUOTA_TURN_MIN_NS 20000ULL

/* What one that runs from now on adds to entity_ctx.uncharged: in the upper 48 bits when that is, in us, in the lower 16 itself. */
static __always_inline u64 runs_from(u64 ktime_ns)
{
	return (ktime_ns / 1000 << 16) + 1;
}

static __always_inline u32 nr_uncharged(const struct entity_ctx *e)
{
	return e->uncharged & 0xffff;
}

/* What those in e that run have run since they were charged, all together. By the clock that is the same for all pCPUs. */
static __always_inline u64 uncharged_ns(const struct entity_ctx *e)
{
	u64 sum = e->uncharged, count = sum & 0xffff;
	s64 us;

	if (!count)
		return 0;
	us = (s64)((count * (bpf_ktime_get_ns() / 1000) << 16) - (sum - count)) >> 16;
	return us > 0 ? us * 1000 : 0;
}

/* What is left of e's budget, as of now. */
static __always_inline s64 quota_left(const struct entity_ctx *e)
{
	return e->budget_ns - (s64)uncharged_ns(e);
}

/*
 * So many new periods begin for e. Return false if nothing happens there any more. What is counted is what cpu.stat counts: a period is throttled if its
 * end finds somebody who may not run. Those are told of the budget, also who was turned away only just now.
 */
static bool quota_refill(struct entity_ctx *e, u32 slot, u64 periods, u64 now)
{
	s64 most = e->quota_ns + e->burst_ns, left = quota_left(e), more = periods * e->quota_ns;
	u64 used = e->used_ns;

	if (used == e->used_at_refill_ns && !nr_uncharged(e) && !e->throttled_since_ns && left >= most)
		return false;
	e->used_at_refill_ns = used;
	e->nr_periods += periods;
	if (e->throttled_since_ns)
		e->nr_throttled += periods;
	if (more > most - left)
		more = most - left;
	atomic_add(&e->budget_ns, more);
	if (e->throttled_since_ns && left + more > 0) {
		e->throttled_ns += elapsed_ns(now, e->throttled_since_ns);
		e->throttled_since_ns = 0;
		gate_recheck(limit_bit(slot), SCX_KICK_PREEMPT);
	} else if (e->throttled_since_ns && elapsed_ns(now, e->throttled_since_ns) > ASIDE_MAX_NS) {
		/* Overdrawn for so long that they run all the same, for a moment. A pCPU that idles must look; others do so when a turn ends. */
		gate_recheck(limit_bit(slot), SCX_KICK_IDLE);
	}
	return true;
}

/*
 * Periods follow one another without a gap, however late the timer is. The kernel may have no memory to start one: then whoever runs next under it tries
 * again, or asks whether he may.
 */
static void quota_arm(struct quota_timer *timer, struct entity_ctx *e, u64 periods)
{
	e->period_end_ns += periods * e->period_ns;
	if (bpf_timer_start(&timer->timer, e->period_end_ns, BPF_F_TIMER_ABS))
		e->timer_on = 0;
}

static int quota_period(void *map, int *key, struct quota_timer *timer)
{
	struct entity_ctx *e = entity_get(*key);
	u64 period_ns, periods;

	if (!e)
		return 0;
	period_ns = e->period_ns;
	periods = period_ns ? 1 + elapsed_ns(bpf_ktime_get_ns(), e->period_end_ns) / period_ns : 0;
	if (!e->quota_ns || !periods || !quota_refill(e, *key, periods, now_ns())) {
		e->timer_on = 0;
		return 0;
	}
	quota_arm(timer, e, periods);
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

/* While no cgroup has ever had a quota nobody is under any. */
static bool quota_concerns(const struct task_ctx *t)
{
	return t->limits;
}

/* Has a cgroup that t is in used up what it may? */
static u32 quota_ask(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *e;
	u32 slot;
	s32 i;

	if (!nr_quotas || !t->limits)
		return GATE_OPEN;
	slot = t->limits;
	bpf_for(i, 0, MAX_DEPTH) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		if (e->quota_ns && quota_left(e) <= 0) {
			/* Nothing else would ever fill it: nobody runs there who could start the timer. */
			if (!e->timer_on)
				quota_start_timer(e, slot);
			if (!e->throttled_since_ns)
				e->throttled_since_ns = now;
			return GATE_ASIDE;
		}
		slot = e->parent;
	}
	return GATE_OPEN;
}

/* Those above t without a quota count it as well: they may get one while it runs. */
static void quota_charge(struct task_ctx *t, u64 delta_ns, bool goes_on, u64 now)
{
	struct entity_ctx *e;
	u64 runs_since;
	u32 slot;
	s32 i;

	if (!t->limits || (!nr_quotas && !t->runs_since))
		return;
	runs_since = goes_on && t->runs_since ? runs_from(bpf_ktime_get_ns()) : 0;
	slot = t->limits;
	bpf_for(i, 0, MAX_DEPTH) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		atomic_add(&e->uncharged, runs_since - t->runs_since);
		if (e->quota_ns) {
			if (!e->timer_on)
				quota_start_timer(e, slot);
			atomic_add(&e->used_ns, delta_ns);
			if (atomic_add(&e->budget_ns, -(s64)delta_ns) <= (s64)delta_ns && !e->throttled_since_ns)
				e->throttled_since_ns = now;
		}
		slot = e->parent;
	}
	t->runs_since = runs_since;
}

/* The budget of each cgroup that t is in is for all that run there. */
static u64 quota_lasts_ns(struct task_ctx *t)
{
	u64 least = 0, runs_since, part;
	struct entity_ctx *e;
	s64 left;
	u32 slot;
	s32 i;

	if (!nr_quotas || !t->limits)
		return 0;
	runs_since = t->runs_since ?: runs_from(bpf_ktime_get_ns());
	slot = t->limits;
	bpf_for(i, 0, MAX_DEPTH) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		if (runs_since != t->runs_since)
			atomic_add(&e->uncharged, runs_since);
		if (e->quota_ns) {
			if (!e->timer_on)
				quota_start_timer(e, slot);
			left = quota_left(e);
			part = left > 0 ? (u64)left / (nr_uncharged(e) ?: 1) : 0;
			if (part < QUOTA_TURN_MIN_NS)
				part = QUOTA_TURN_MIN_NS;
			if (!least || part < least)
				least = part;
		}
		slot = e->parent;
	}
	t->runs_since = runs_since;
	return least;
}

/* Is there a timer that refills the budget? Memory for it may be short. */
static bool quota_has_timer(struct quota_timer *timer)
{
	long err;

	if (!timer)
		return false;
	err = bpf_timer_init(&timer->timer, &quota_timers, CLOCK_MONOTONIC);
	/* Busy: it was done before. */
	if (err && err != -EBUSY)
		return false;
	return !bpf_timer_set_callback(&timer->timer, quota_period);
}

/* Whoever writes cpu.max ends others' turns so often at most, in parts of a turn: a user may have been given that file. */
#define QUOTA_KICKS 8

VARIABLE u64 quota_kicked_ns;

/* cpu.max of a cgroup is now this. */
static void quota_set(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	bool had, has = quota_us != NO_QUOTA && quota_us && period_us;
	struct entity_ctx *e = cgroup_entity(cgrp);
	u32 slot = cgroup_slot(cgroup_id(cgrp));
	struct quota_timer *timer;
	u64 now = now_ns();
	bool may_kick;

	if (!e)
		return;
	had = e->quota_ns;
	/* So it is with each new cgroup. Nothing changes for anybody, and nobody's turn ends. */
	if (!has && !had)
		return;
	timer = bpf_map_lookup_elem(&quota_timers, &slot);
	/* A budget that nobody refills would stop the cgroup for good. */
	if (has && !quota_has_timer(timer)) {
		has = false;
		stat_inc(STAT_REGISTRY_FULL);
	}
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
	/* Once: a user may have been given cpu.max, and all tasks would look up their places again and again. */
	if (has && !quotas_known) {
		quotas_known = 1;
		atomic_add(&tree_generation, 1);
	}
	may_kick = elapsed_ns(now, quota_kicked_ns) >= slice_ns / QUOTA_KICKS;
	if (may_kick)
		quota_kicked_ns = now;
	gate_recheck(limit_bit(slot), may_kick ? SCX_KICK_PREEMPT : SCX_KICK_IDLE);
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
	.concerns = quota_concerns,
	.charge = quota_charge,
	.lasts_ns = quota_lasts_ns,
};

#endif
