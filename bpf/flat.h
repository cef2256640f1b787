/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A cgroup's weight, divided among its threads, and a VM's, divided among its vCPUs: for orders whose run queues are flat, where each thread competes for itself. Its
 * virtual time moves at the *rate* at which all above it together have the weight that they are due.
 *
 * The VMM's other threads wake for moments, thousands of times a second. With a part of their own, which they hardly use, a VM of two vCPUs that reads from a disk
 * would lose a third of what it is due. So each competes like one vCPU more, and what they run the vCPUs pay for. When these owe as much as lag_ns the
 * others are not there for moments only: they have a part of their own until nothing is owed. While no vCPU is active they have all of it.
 */
#ifndef COHORT_FLAT_H
#define COHORT_FLAT_H

#include "account.h"

/* Virtual time moves 2^12 times as fast as for one of the default weight, at most. */
#define RATE_MAX (1ULL << (INV_WEIGHT_SHIFT + 12))

/* For how long one that sleeps collects, in multiples of lag_ns. */
#define HOLD 2

/* How many have lately been active at one time: the most, until then. */
struct flat_most {
	u32 most;
	u64 until_ns;
};

struct flat_entity {
	struct flat_most all, vcpus;
	u32 vm;		/* whose entity it was when last told */
	u32 generation; /* the entity's then */
	u64 helped_ns;	/* what the VMM's other threads have run and nobody has paid for yet */
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
	struct flat_entity *f = bpf_map_lookup_elem(&flat_entities, &slot);
	struct entity_ctx *e = entity_get(slot);
	struct vm_ctx *vm = vm_get(t);

	if (!slot || !f || !e || !vm || vm->entity != slot)
		return;
	if (f->vm == t->vm && f->generation == e->generation)
		return;
	f->generation = e->generation;
	f->vm = t->vm;
	f->helped_ns = 0;
	f->apart = 0;
	f->all.most = 0;
	f->vcpus.most = 0;
}

/*
 * One that sleeps for a moment is owed its part of what is given meanwhile; so it counts for as long as it collects that, or else its siblings would have the same
 * once more.
 */
static __always_inline u32 lately_active(struct flat_most *held, u32 active, u64 now)
{
	if (active < held->most && time_before(now, held->until_ns))
		return held->most;
	held->most = active;
	held->until_ns = now + HOLD * lag_ns;
	return active;
}

/*
 * The vCPUs that run or wait of the VM whose entity that is, 1 at least, if its weight is divided among them alone; or 0. all: how many threads of it do. Where none
 * does, a vCPU may be about to wake.
 */
static __always_inline u32 vcpus_alone(u32 slot, const struct flat_entity *f, s32 all)
{
	struct vm_ctx *vm = vm_at(f->vm);
	s32 vcpus;

	if (!slot || !vm || vm->entity != slot || READ_ONCE(f->apart))
		return 0;
	vcpus = READ_ONCE(vm->nr_active);
	if (vcpus <= 0)
		return all <= 0;
	return vcpus;
}

/* Among how many an entity's weight is divided. */
static u64 active_of(u32 slot, const struct entity_ctx *e)
{
	struct flat_entity *f = bpf_map_lookup_elem(&flat_entities, &slot);
	s32 all = READ_ONCE(e->nr_active);
	u32 active = all > 1 ? all : 1, vcpus;
	u64 now;

	if (!f || (active == 1 && f->all.most <= 1 && f->vcpus.most <= 1))
		return active;
	now = now_ns();
	vcpus = vcpus_alone(slot, f, all);
	if (vcpus)
		return lately_active(&f->vcpus, vcpus, now);
	return lately_active(&f->all, active, now);
}

/* t has run for so long. For how long does it pay for what its VM's other threads have run? If it is one of those, that comes to be owed. */
static u64 helped_of(const struct task_ctx *t, u64 delta_ns)
{
	u32 slot = t->run_leaf;
	struct flat_entity *f = bpf_map_lookup_elem(&flat_entities, &slot);
	u64 owed, part;

	if (!f || !t->vm || f->vm != t->vm)
		return 0;
	owed = READ_ONCE(f->helped_ns);
	if (t->vcpu < 0) {
		if (!vcpus_alone(slot, f, 1))
			return 0;
		atomic_add(&f->helped_ns, delta_ns);
		if (owed + delta_ns >= lag_ns)
			f->apart = 1;
		return 0;
	}
	/* Not only by whoever has paid the last of it: apart may be set a moment later. */
	if (!owed) {
		if (f->apart)
			f->apart = 0;
		return 0;
	}
	part = owed < delta_ns ? owed : delta_ns;
	/* Somebody else has paid or come to owe in between: this one pays next time. */
	return atomic_cas(&f->helped_ns, owed, owed - part) == owed ? part : 0;
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
