/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Domains, as Xen's schedulers know them: flat, and each with a weight, by which the host is divided among those that are active.
 *
 * A domain is what holds tasks: a VM with all its VMM's threads, with the weight of the cgroup that it is in; a cgroup with the host tasks in it; and
 * the root cgroup, whose tasks count each by its own weight. There is no tree: of nested cgroups each counts as if it were alone.
 *
 * The host is divided every so often, by whoever includes this: first each domain gets its part by weight, but none more than its tasks can use;
 * what such a one leaves goes to the others. Within a domain the tasks share by their weights. Only domains are visited for that: what a task
 * gets is in domain.granted, per unit of weight since ever, and the task takes the difference when somebody looks at it.
 *
 * A task counts from when it wakes, and to the end of the period in which it sleeps: who sleeps for a moment does not change what others get.
 */
#ifndef COHORT_DOMAINS_H
#define COHORT_DOMAINS_H

#include "account.h"

struct domain {
	s64 runnable; /* its tasks that run or wait: see DOMAIN_TASK */
	s64 slept[2]; /* ... that have gone to sleep in this period or (the other one) the last */
	u64 granted;  /* in all, for each unit of weight, in ns << GRANT_SHIFT */
	s64 owed_ns;  /* what its sleepers have left, or owe: part of its next grant */
	u32 owner;    /* entity_ctx.generation of whose domain it is, see domain_is_anothers() */

	/* Of the present division: */
	u64 grant_ns;
	u64 peak_ns; /* more it cannot use */
	u64 weights; /* of its tasks that count, runnable or not */
	u32 weight;  /* 0: it has its grant */
	u32 next;    /* another active domain; MAX_ENTITIES: none */
} __attribute__((aligned(64)));

/* Index: as entities. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, struct domain);
} domains SEC(".maps");

#define GRANT_SHIFT 10

/* Tasks are counted with the sum of their weights, in one number, so that it is one atomic operation. */
#define DOMAIN_TASK_SHIFT 40
#define DOMAIN_TASK(weight) ((s64)(1LL << DOMAIN_TASK_SHIFT) + (weight))

/* What such an order remembers of a task: first in task_ctx.order_state, before its own. */
struct domain_member {
	u32 weight;
	u16 slot;	/* the domain that it counts for */
	u8 counted;	/* it runs or waits, and is counted there */
	u8 class;	/* the order's own */
	u32 generation; /* the period in which it went to sleep */
	u32 flags;	/* the order's own */
};

/* Grows with each division. */
VARIABLE u32 domains_generation = 1;

/* Of the present division: what is left, for whom. */
VARIABLE u64 division_left_ns;
VARIABLE u64 division_weight;

/* ... and what of it comes late: each gets its part of that by weight, on top of what it can use now. */
VARIABLE u64 division_late_ns;
VARIABLE u64 division_weight_of_all;

VARIABLE u32 division_first;

static __always_inline struct domain *domain_get(u32 slot)
{
	return bpf_map_lookup_elem(&domains, &slot);
}

static __always_inline struct domain_member *member_of(struct task_ctx *t)
{
	return (struct domain_member *)t->order_state;
}

static __always_inline u32 member_weight(const struct domain_member *m)
{
	return m->weight ?: WEIGHT_DEFAULT;
}

/* t counts for the domain that it is part of. Return true if that is another than before. */
static __always_inline bool domain_join(struct task_ctx *t)
{
	struct domain_member *m = member_of(t);
	struct domain *d = domain_get(t->leaf);
	u32 generation = domains_generation;
	bool other = m->slot != t->leaf;

	if (!d || (m->counted && !other))
		return false;
	if (m->counted) {
		struct domain *from = domain_get(m->slot);

		if (from)
			atomic_add(&from->runnable, -DOMAIN_TASK(member_weight(m)));
	} else if (!other && m->generation == generation) {
		atomic_add(&d->slept[generation & 1], -DOMAIN_TASK(member_weight(m)));
	}
	m->counted = 1;
	m->slot = t->leaf;
	atomic_add(&d->runnable, DOMAIN_TASK(member_weight(m)));
	return other;
}

/*
 * t has come to d. Is that number another cgroup's or VM's than when this was last asked? Then what was granted there, and is owed, is not this one's. Counts
 * are right all the same: who has counted takes that back.
 */
static __always_inline bool domain_is_anothers(struct domain *d, const struct task_ctx *t)
{
	struct entity_ctx *e = entity_get(t->leaf);

	if (!e || d->owner == e->generation)
		return false;
	d->owner = e->generation;
	return true;
}

/* t sleeps: it counts until the end of this period. */
static __always_inline void domain_leave(struct task_ctx *t)
{
	struct domain_member *m = member_of(t);
	struct domain *d = domain_get(m->slot);
	u32 generation = domains_generation;

	if (!d || !m->counted)
		return;
	m->counted = 0;
	m->generation = generation;
	atomic_add(&d->runnable, -DOMAIN_TASK(member_weight(m)));
	atomic_add(&d->slept[generation & 1], DOMAIN_TASK(member_weight(m)));
}

/* t, counted, weighs this from now on. */
static __always_inline void domain_set_weight(struct task_ctx *t, u32 weight)
{
	struct domain_member *m = member_of(t);
	u32 old = member_weight(m);
	struct domain *d;

	m->weight = weight;
	d = domain_get(m->slot);
	if (d && m->counted && old != weight)
		atomic_add(&d->runnable, (s64)weight - old);
}

/* What the tasks of a domain weigh together, and how many they are; 0 if a count is off for a moment. */
static __always_inline u32 domain_tasks(s64 count)
{
	return count > 0 ? count >> DOMAIN_TASK_SHIFT : 0;
}

static __always_inline u64 domain_weights(s64 count)
{
	return count > 0 ? count & ((1LL << DOMAIN_TASK_SHIFT) - 1) : 0;
}

/* The weight of a domain that has such tasks. */
static __always_inline u64 domain_weight(u32 slot, s64 tasks)
{
	struct entity_ctx *e = entity_get(slot);

	if (!slot || !e)
		return domain_weights(tasks);
	if (e->kind == ENTITY_VM) {
		if (!e->parent)
			return WEIGHT_DEFAULT;
		e = entity_get(e->parent);
		if (!e)
			return WEIGHT_DEFAULT;
	}
	return entity_weight(e);
}

/* The division begins: who is active, and how much could each use? A task can use at most task_ns. keep_vms: a VM that sleeps has its part too. */
VERIFIED_ONCE domains_survey(u64 task_ns, bool keep_vms)
{
	u32 old = domains_generation & 1, slot, first = MAX_ENTITIES, end;
	struct entity_ctx *e, *root = entity_get(0);
	u64 weights = 0;
	struct domain *d;
	s64 tasks;
	s32 i;

	domains_generation++;
	/* Nobody beyond has ever been anything. */
	end = root ? root->end : 0;
	bpf_for(i, 0, MAX_ENTITIES) {
		slot = i;
		d = domain_get(slot);
		if (slot >= end || !d)
			break;
		tasks = d->runnable + d->slept[old];
		d->slept[old] = 0;
		d->grant_ns = 0;
		d->weight = 0;
		e = entity_get(slot);
		if (!domain_tasks(tasks)) {
			if (!d->owed_ns && !(keep_vms && e && e->kind == ENTITY_VM))
				continue;
			if (!keep_vms)
				d->peak_ns = 0;
		} else {
			d->weights = domain_weights(tasks);
			d->peak_ns = domain_tasks(tasks) * task_ns;
		}
		d->weight = domain_weight(slot, tasks) ?: 1;
		weights += d->peak_ns ? d->weight : 0;
		d->next = first;
		first = slot;
	}
	division_first = first;
	division_weight = weights;
	division_weight_of_all = weights;
	return 0;
}

/* The grant of all who get as much as they can use. Return true if there were any: then the others get more. */
VERIFIED_ONCE domains_fill(u64 task_ns)
{
	u64 left = division_left_ns, weights = division_weight, all = division_weight_of_all, most;
	u32 slot = division_first;
	bool found = false;
	struct domain *d;
	s32 i;

	UNUSED_YET(task_ns);
	if (!weights || !all)
		return 0;
	bpf_for(i, 0, MAX_ENTITIES) {
		d = domain_get(slot);
		if (slot >= MAX_ENTITIES || !d)
			break;
		slot = d->next;
		if (!d->weight || !d->peak_ns)
			continue;
		most = d->peak_ns + division_late_ns * d->weight / all;
		if (left * d->weight / weights < most)
			continue;
		d->grant_ns = most;
		division_left_ns -= most;
		division_weight -= d->weight;
		d->weight = 0;
		found = true;
	}
	return found;
}

/* Rounds of that; what is left then is divided as if nobody had enough. */
#define DIVISION_ROUNDS 6

/*
 * Divide total_ns, of which late_ns should have been given before. Afterwards every active domain has its grant_ns, and the list of them begins at
 * division_first.
 */
static void domains_divide(u64 total_ns, u64 late_ns, u64 task_ns, bool keep_vms)
{
	s32 i;

	domains_survey(task_ns, keep_vms);
	division_late_ns = late_ns;
	division_left_ns = total_ns;
	for (i = 0; i < DIVISION_ROUNDS; i++)
		if (!domains_fill(task_ns))
			break;
}

/* What domain d gets: its share of what is left, if it has not got all that it can use. */
static __always_inline u64 domain_share(const struct domain *d)
{
	if (!d->weight)
		return d->grant_ns;
	return division_weight ? division_left_ns * d->weight / division_weight : 0;
}

#endif
