/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A cgroup's weight, divided among its threads, and a VM's, divided among its vCPUs: for orders whose run queues are flat, where each thread competes for itself. Its
 * virtual time moves at the *rate* at which all above it together have the weight that they are due.
 *
 * The VMM's other threads wake for moments, thousands of times a second. With a part of their own, which they hardly use, a VM of two vCPUs that reads from a disk
 * would lose a third of what it is due. So each competes like one vCPU more, and what they run the vCPUs pay for. When these owe as much as lag_ns the
 * others are not there for moments only: they have a part of their own until all is paid.
 */
#ifndef COHORT_FLAT_H
#define COHORT_FLAT_H

#include "account.h"

/* Virtual time moves 2^12 times as fast as for one of the default weight, at most. */
#define RATE_MAX (1ULL << (INV_WEIGHT_SHIFT + 12))

/* For how long one that sleeps collects, in multiples of lag_ns. */
#define HOLD 2

struct flat_entity {
	u32 most; /* of its own that have lately been active at one time, until: */
	u32 vm;	  /* whose entity it was when last told */
	u64 until_ns;
	u64 helped_ns;	/* what the VMM's other threads have run and no vCPU has paid for yet */
	u32 generation; /* of the entity, when last told */
	u32 apart;	/* they have a part of their own */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, struct flat_entity);
} flat_entities SEC(".maps");

/* The VM of a thread that comes has this entity; another one may have had it before. */
static void flat_tell(const struct task_ctx *t)
{
	u32 slot = t->leaf;
	struct flat_entity *held = bpf_map_lookup_elem(&flat_entities, &slot);
	struct entity_ctx *e = entity_get(slot);
	struct vm_ctx *vm = vm_get(t);

	if (!slot || !held || !e || !vm || vm->entity != slot)
		return;
	if (held->vm == t->vm && held->generation == e->generation)
		return;
	held->generation = e->generation;
	held->vm = t->vm;
	held->helped_ns = 0;
	held->apart = 0;
	held->most = 0;
}

/* The vCPUs of the VM that has that entity and that run or wait; 0 if it is no VM's. */
static __always_inline s32 active_vcpus(u32 slot, const struct flat_entity *held)
{
	struct vm_ctx *vm = vm_at(held->vm);

	return slot && vm && vm->entity == slot ? (s32)READ_ONCE(vm->nr_active) : 0;
}

/*
 * Among how many an entity's weight is divided. One that sleeps for a moment is owed its part of what is given meanwhile; so it counts for as long as it collects
 * that, or else its siblings would have the same once more.
 */
static u64 active_of(u32 slot, const struct entity_ctx *e)
{
	struct flat_entity *held = bpf_map_lookup_elem(&flat_entities, &slot);
	s32 all = READ_ONCE(e->nr_active), vcpus;
	u32 active = all > 1 ? all : 1;
	u64 now;

	if (!held)
		return active;
	vcpus = active_vcpus(slot, held);
	if (vcpus > 0 && !READ_ONCE(held->apart))
		active = vcpus;
	if (active == 1 && held->most <= 1)
		return active;
	now = now_ns();
	if (active < held->most && time_before(now, held->until_ns))
		return held->most;
	held->most = active;
	held->until_ns = now + HOLD * lag_ns;
	return active;
}

/* t has run for so long. For how long does it pay for its VM's other threads? If it is one of those, the vCPUs come to owe that. */
static u64 helped_of(const struct task_ctx *t, u64 delta_ns)
{
	u32 slot = t->run_leaf;
	struct flat_entity *held = bpf_map_lookup_elem(&flat_entities, &slot);
	u64 owed, part;
	s32 vcpus;

	if (!held || !t->vm || held->vm != t->vm)
		return 0;
	vcpus = active_vcpus(slot, held);
	owed = READ_ONCE(held->helped_ns);
	if (t->vcpu < 0) {
		if (vcpus <= 0 || READ_ONCE(held->apart))
			return 0;
		atomic_add(&held->helped_ns, delta_ns);
		if (owed + delta_ns >= lag_ns)
			held->apart = 1;
		return 0;
	}
	part = owed < delta_ns ? owed : delta_ns;
	/* Somebody else has paid or come to owe in between: this one pays next time. */
	if (!part || vcpus <= 0 || atomic_cas(&held->helped_ns, owed, owed - part) != owed)
		return 0;
	if (owed == part && held->apart) {
		held->most = vcpus;
		held->apart = 0;
	}
	return part;
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
		rate *= active_of(slot, e);
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
