/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A VM's or cgroup's weight, divided among the threads that it has: for orders whose run queues are flat, where each thread competes for itself. Its virtual
 * time moves at the *rate* at which all above it together have the weight that they are due.
 */
#ifndef COHORT_FLAT_H
#define COHORT_FLAT_H

#include "account.h"

/* Virtual time moves 2^12 times as fast as for one of the default weight, at most. */
#define RATE_MAX (1ULL << (INV_WEIGHT_SHIFT + 12))

/* For how long one that sleeps collects, in multiples of lag_ns. */
#define HOLD 2

/* How many of an entity's own have lately been active at one time: the most, until then. */
struct flat_entity {
	u32 most;
	u64 until_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, struct flat_entity);
} flat_entities SEC(".maps");

/*
 * Among how many an entity's weight is divided. One that sleeps for a moment is owed its part of what is given meanwhile; so it counts for as long as it collects
 * that, or else its siblings would have the same once more.
 */
static u64 active_of(u32 slot, s32 nr_active)
{
	struct flat_entity *held = bpf_map_lookup_elem(&flat_entities, &slot);
	u32 active = nr_active > 1 ? nr_active : 1;
	u64 now;

	if (!held || (active == 1 && held->most <= 1))
		return active;
	now = now_ns();
	if (active < held->most && time_before(now, held->until_ns))
		return held->most;
	held->most = active;
	held->until_ns = now + HOLD * lag_ns;
	return active;
}

/*
 * How fast the virtual time of a thread of that entity moves, as scale_by_entity() has it: its weight is its part of what all above it may have. The children of
 * a cgroup count as if they weighed 100 each; so a cgroup of heavier ones gets more beside its neighbours than it should, each child the right part of it.
 */
static u64 rate_of(u32 leaf_slot, u64 weight)
{
	struct entity_ctx *leaf = entity_get(leaf_slot), *e;
	u64 rate = (WEIGHT_DEFAULT << INV_WEIGHT_SHIFT) / (weight ?: 1);
	u32 slot, i;

	if (!leaf_slot || !leaf)
		return rate;
	for (i = 0; i < MAX_DEPTH; i++) {
		slot = leaf->path[i];
		e = entity_get(slot);
		if (!slot || !e)
			break;
		rate = rate * e->inv_weight >> INV_WEIGHT_SHIFT;
		rate *= active_of(slot, e->nr_active);
		if (rate > RATE_MAX)
			rate = RATE_MAX;
	}
	return rate ?: 1;
}

static __always_inline u64 at_rate(u64 delta_ns, u64 rate)
{
	return delta_ns * rate >> INV_WEIGHT_SHIFT;
}

#endif
