/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order credit: Xen's credit scheduler (xen/common/sched_credit.c of Xen 3.2, which the survey measures).
 *
 * A task burns credit while it runs. Every 30 ms domains (domains.h) are given credit by weight. A task that has some left is UNDER, one that owes is
 * OVER, and one that wakes while UNDER is in BOOST until a tick, every 10 ms, finds it running, or it owes when credit is given. A pCPU's queue has
 * BOOST first, then UNDER, then OVER, each in the order in which they came; turns are 30 ms. Who wakes takes the pCPU from one of a worse class. A
 * pCPU that would run OVER looks for UNDER in its peers' queues, and an idle one for anybody.
 *
 * Other than in Xen:
 *
 * - Given is as much as was burnt, not what the host could have: time that goes to interrupts and to higher classes would otherwise make credit
 *   worthless. So what all have together stays the same, and the bounds pull it to where some are UNDER and some OVER.
 * - Burnt is what a task has run, not a tick's worth by whoever runs at the tick.
 * - Who is active is known, so that nobody has to collect credit to be found idle. What a sleeper has left, or owes, is its domain's.
 * - A VM's cap is its cgroup's cpu.max, which its gate enforces; Xen parks a vCPU that is over its cap as well.
 */
#ifndef COHORT_ORDER_CREDIT_H
#define COHORT_ORDER_CREDIT_H

#include "domains.h"

#define CREDIT_SLICE_NS 30000000ULL
#define CREDIT_TICK_NS 10000000ULL

/*
 * Nobody has, nor owes, more than this. Xen's bound is one turn; but where turns are given one at a time, who is due three of four is ahead or behind by
 * more than that between two of the other's.
 */
#define CREDIT_MAX_NS ((s64)(4 * CREDIT_SLICE_NS))

/* OVER is queued behind the UNDER that come in so much time. When they are given credit they are found all the same, as are all of a short queue. */
#define CREDIT_OVER_BEHIND_NS (10 * CREDIT_SLICE_NS)

enum credit_class {
	CREDIT_BOOST,
	CREDIT_UNDER,
	CREDIT_OVER,
};

struct credit_task {
	struct domain_member m;
	s64 credit_ns;
	u64 seen; /* domain.granted when it last took its part */
};

_Static_assert(sizeof(struct credit_task) <= sizeof(((struct task_ctx *)0)->order_state), "credit_task is too big");

/* What has been burnt on a pCPU since the scheduler was loaded. */
struct credit_burnt {
	u64 ns;
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct credit_burnt);
} credit_burnt SEC(".maps");

/* All that had been burnt at the last accounting. */
VARIABLE u64 credit_burnt_ns;

/* What domains have left since then because their tasks sleep, or (below 0) been spared: it goes to all. */
VARIABLE s64 credit_spilt_ns;

static __always_inline struct credit_task *credit_of(struct task_ctx *t)
{
	return (struct credit_task *)t->order_state;
}

/* t takes what its domain was granted since it last did. Several pCPUs may look at it at once. */
VERIFIED_ONCE credit_take(struct task_ctx *t)
{
	struct credit_task *s;
	struct domain *d;
	u64 seen, granted;
	s64 credit, within;
	bool owes;

	if (!t)
		return 0;
	s = credit_of(t);
	d = domain_get(s->m.slot);
	if (!d || !s->m.counted)
		return 0;
	seen = s->seen;
	granted = d->granted;
	if (seen == granted || atomic_cas(&s->seen, seen, granted) != seen)
		return 0;
	credit = s->credit_ns + (s64)((granted - seen) * member_weight(&s->m) >> GRANT_SHIFT);
	within = credit;
	if (within > CREDIT_MAX_NS)
		within = CREDIT_MAX_NS;
	if (within < -CREDIT_MAX_NS)
		within = -CREDIT_MAX_NS;
	atomic_add(&s->credit_ns, within - s->credit_ns);
	/* Who owed when it woke (credit_wake()) and has been given nothing owes still: what it left when it last slept is its domain's. */
	owes = within < 0 || (!within && s->m.class == CREDIT_OVER && d->owed_ns < 0);
	/* Xen's accounting ends boosts too: or who sleeps whenever its tick comes would be boosted for ever, whatever it owes. */
	if (s->m.class != CREDIT_BOOST || owes)
		s->m.class = owes ? CREDIT_OVER : CREDIT_UNDER;
	return 0;
}

/* t counts for its domain, with what that is granted from now on. */
static __always_inline void credit_join(struct task_ctx *t)
{
	struct credit_task *s = credit_of(t);
	bool was_counted = s->m.counted, other;
	struct domain *d;

	if (was_counted)
		credit_take(t);
	other = domain_join(t);
	if (!other && was_counted)
		return;
	d = domain_get(s->m.slot);
	if (!d)
		return;
	/* What a VM that has ended has left, or owes, is not that of the one which has its number now. */
	if (other && domain_is_anothers(d, t))
		atomic_add(&credit_spilt_ns, atomic_xchg(&d->owed_ns, 0));
	s->seen = d->granted;
}

static void credit_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	struct credit_task *s = credit_of(t);
	bool rested = s->m.generation != domains_generation;
	struct domain *d;

	credit_join(t);
	t->waited_ns = now;
	t->vtime = now;
	if (!is_asleep(t))
		return;
	/* Since an accounting its own account is empty; what it left is its domain's. */
	d = domain_get(s->m.slot);
	if (rested && d)
		s->m.class = d->owed_ns < 0 ? CREDIT_OVER : CREDIT_UNDER;
	if (s->m.class == CREDIT_UNDER && !t->aside)
		s->m.class = CREDIT_BOOST;
}

static void credit_sleep(struct task_ctx *t)
{
	struct credit_task *s = credit_of(t);
	struct domain *d = domain_get(s->m.slot);

	if (!d || !s->m.counted)
		return;
	credit_take(t);
	if (s->m.class == CREDIT_BOOST && !t->comes_back)
		s->m.class = CREDIT_UNDER;
	atomic_add(&d->owed_ns, s->credit_ns);
	s->credit_ns = 0;
	domain_leave(t);
}

/* The class, then who came first. */
#define CREDIT_CLASS_SHIFT 60

static __always_inline u64 credit_place(const struct credit_task *s, u64 since_ns)
{
	return (u64)s->m.class << CREDIT_CLASS_SHIFT | (since_ns & ((1ULL << CREDIT_CLASS_SHIFT) - 1));
}

static void credit_rank(struct task_ctx *t, u64 now, struct rank *r)
{
	credit_take(t);
	/* Who could go on queues behind all of its class. */
	r->own = credit_place(credit_of(t), t->queued_ns ?: now);
	r->path[0] = t->leaf;
}

static void credit_rank_of_runner(const struct cpu_ctx *c, u64 now, struct rank *r)
{
	r->own = c->curr_vtime;
	r->path[0] = c->curr_leaf;
}

/* To come first is worth nothing where something has to be gained: a pCPU taken from another, or a move. */
static bool credit_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	u64 of_a = a->own >> CREDIT_CLASS_SHIFT, of_b = b->own >> CREDIT_CLASS_SHIFT;

	if (of_a != of_b)
		return of_a < of_b;
	return !margin_ns && a->own < b->own;
}

static u64 credit_key(const struct task_ctx *t)
{
	const struct credit_task *s = (const struct credit_task *)t->order_state;

	return t->queued_ns + (s->m.class == CREDIT_OVER ? CREDIT_OVER_BEHIND_NS : 0);
}

static void credit_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank)
{
	struct cpu_ctx *c = cpu_get(cpu);

	credit_join(t);
	domain_set_weight(t, weight);
	credit_take(t);
	if (c)
		c->curr_vtime = credit_place(credit_of(t), now_ns());
}

static void credit_charge(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	u32 cpu = t->cpu < 0 ? 0 : t->cpu;
	struct credit_burnt *burnt = bpf_map_lookup_elem(&credit_burnt, &cpu);

	atomic_add(&credit_of(t)->credit_ns, -(s64)delta_ns);
	if (burnt)
		atomic_add(&burnt->ns, delta_ns);
}

static void credit_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	struct credit_task *s = credit_of(t);
	struct cpu_ctx *c = cpu_get(cpu);
	u64 since_ns;

	credit_take(t);
	if (!c)
		return;
	since_ns = c->curr_vtime & ((1ULL << CREDIT_CLASS_SHIFT) - 1);
	/* Who is found running at Xen's tick uses too much to be boosted for. */
	if (s->m.class == CREDIT_BOOST && since_ns / CREDIT_TICK_NS != now / CREDIT_TICK_NS)
		s->m.class = CREDIT_UNDER;
	c->curr_vtime = credit_place(s, since_ns);
}

static u64 credit_slice(const struct task_ctx *t, s32 cpu)
{
	return slice_ns ? slice_for(cpu) * CREDIT_SLICE_NS / slice_ns : CREDIT_SLICE_NS;
}

/* Domain d is granted its share: its runnable tasks take it, or it is kept for the sleepers that count. */
static __always_inline void credit_grant(struct domain *d)
{
	u64 share = domain_share(d), weights = domain_weights(d->runnable);
	s64 owed = atomic_xchg(&d->owed_ns, 0), grant, most = d->peak_ns;

	if (!d->peak_ns) {
		/* Asleep through all of the period: credit goes, and debt heals as fast as it would be paid. */
		if (owed > 0 || -owed < (s64)share)
			share = -owed;
		if (owed < 0)
			atomic_add(&d->owed_ns, owed + (s64)share);
		atomic_add(&credit_spilt_ns, -(s64)share);
		return;
	}
	grant = share + owed;
	if (grant > 0 && weights) {
		atomic_add(&d->granted, ((u64)grant << GRANT_SHIFT) / weights);
		return;
	}
	if (grant > most) {
		atomic_add(&credit_spilt_ns, grant - most);
		grant = most;
	}
	if (grant < -most) {
		atomic_add(&credit_spilt_ns, grant + most);
		grant = -most;
	}
	/* Seen as granted, if nothing, so that classes follow. */
	if (weights)
		atomic_add(&d->granted, 1);
	atomic_add(&d->owed_ns, grant);
}

VERIFIED_ONCE credit_grant_all(u64 now)
{
	u32 slot = division_first;
	struct domain *d;
	s32 i;

	UNUSED_YET(now);
	bpf_for(i, 0, MAX_ENTITIES) {
		d = domain_get(slot);
		if (slot >= MAX_ENTITIES || !d)
			break;
		slot = d->next;
		credit_grant(d);
	}
	return 0;
}

/* The accounting. */
static void credit_period(u64 now)
{
	u64 could = nr_online * CREDIT_SLICE_NS, used, task_ns;
	s64 burnt = 0, total;
	struct credit_burnt *of_cpu;
	u32 cpu;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		cpu = i;
		of_cpu = bpf_map_lookup_elem(&credit_burnt, &cpu);
		if (i >= nr_cpus || !of_cpu)
			break;
		burnt += of_cpu->ns;
	}
	used = burnt - credit_burnt_ns;
	credit_burnt_ns = burnt;
	total = used + atomic_xchg(&credit_spilt_ns, 0);
	if (total > (s64)(8 * could))
		total = 8 * could;
	/* The rest later, so that nobody has more than the bounds let him keep. */
	if (total > (s64)(2 * could)) {
		atomic_add(&credit_spilt_ns, total - (s64)(2 * could));
		total = 2 * could;
	}
	/* What has been counted is a tick more or less than 30 ms of each pCPU; so is what one task can use. */
	task_ns = CREDIT_SLICE_NS * (used > could ? used * 1024 / could : 1024) / 1024;
	/* Xen's csched_acct() adds its part of a negative balance to each domain's peak. */
	domains_divide(total > 0 ? total : 0, total > (s64)used ? total - used : 0, task_ns, false);
	if (total < 0)
		atomic_add(&credit_spilt_ns, total);
	credit_grant_all(now);
}

static const struct order order_credit = {
	.of_vms = true,
	.rank = credit_rank,
	.rank_of_runner = credit_rank_of_runner,
	.before = credit_before,
	.key = credit_key,
	.wake = credit_wake,
	.sleep = credit_sleep,
	.begin = credit_begin,
	.charge = credit_charge,
	.slice = credit_slice,
	.tick = credit_tick,
	.period = credit_period,
	.period_ns = CREDIT_SLICE_NS,
};

#endif
