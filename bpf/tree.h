/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who competes with whom: a tree of cgroups, with the VMs in it as its leaves.
 *
 * An entity divides what it gets among its children by their weights, as cgroups do in the kernel: child cgroups, VMs and tasks. A cgroup beyond
 * MAX_DEPTH, or for which there is no room, is its parent as far as this is concerned. With orders that know no VMs only cgroups are entities.
 *
 * Numbers are taken again when a cgroup or VM is gone. What is counted in an entity is taken back by whoever counted it, so that nothing has to be
 * reset then: a thread that outlives its VM's entry gives back what it holds when it next sleeps.
 */
#ifndef COHORT_TREE_H
#define COHORT_TREE_H

#include "policy.h"

/* Virtual time per run time is a fraction of this. */
#define INV_WEIGHT_SHIFT 22

#define WEIGHT_DEFAULT 100

/* The weight of cgroups with cpu.idle: the kernel's 3 of 1024, rounded up to what a weight can be. */
#define WEIGHT_IDLE 1

static __always_inline u64 scale_by_entity(u64 delta_ns, const struct entity_ctx *e)
{
	return delta_ns * e->inv_weight >> INV_WEIGHT_SHIFT;
}

/*
 * How much of the turns that e has paid for is still to come, all together.
 *
 * `turns` has in its upper 48 bits the sum of their ends, in us, and in the lower 16 how many they are: what a turn adds, turn_until(), it takes back when
 * it ends. So it is right at any moment, whoever else begins or ends one.
 */
static __always_inline u64 turns_rest_ns(const struct entity_ctx *e, u64 now)
{
	u64 turns = e->turns, count = turns & 0xffff;
	s64 rest_ns;

	/* So it is with those that wait, and a division is dear. */
	if (!count)
		return 0;
	rest_ns = ((s64)(turns - (count * (now / 1000) << 16)) >> 16) * 1000;
	if (rest_ns <= 0)
		return 0;
	/* By the clock of another pCPU it may seem to be more. */
	return (u64)rest_ns < count * slice_ns ? (u64)rest_ns : count * slice_ns;
}

/* Those of e have run for so long, or, if negative, give so much back. */
static __always_inline void entity_charge(struct entity_ctx *e, s64 delta_ns)
{
	if (delta_ns < 0)
		atomic_add(&e->vtime, -scale_by_entity(-delta_ns, e));
	else if (delta_ns)
		atomic_add(&e->vtime, scale_by_entity(delta_ns, e));
}

static __always_inline u64 turn_until(u64 end_ns)
{
	return (end_ns / 1000 << 16) + 1;
}

/* The weight by which e competes: with cpu.idle not its own, which it has again when that is over. */
static __always_inline u32 entity_weight(const struct entity_ctx *e)
{
	return e->idle || !e->weight ? WEIGHT_IDLE : e->weight;
}

static __always_inline void entity_set_weight(struct entity_ctx *e, u32 weight)
{
	if (e->idle || !weight)
		weight = WEIGHT_IDLE;
	e->inv_weight = (WEIGHT_DEFAULT << INV_WEIGHT_SHIFT) / weight;
}

/* By how much of virtual time e, which has come to vtime, is ahead of those with whom it competes; no more than its present turns can have made it. */
static __always_inline u64 entity_ahead(const struct entity_ctx *e, u64 vtime)
{
	u64 *clock = e->home >= 0 ? clock_get(e->parent, e->home) : NULL, at = clock ? *clock : vtime;
	u64 count = e->turns & 0xffff, most = scale_by_entity(slice_ns, e) * (count ?: 1);
	struct entity_ctx *up = entity_get(e->parent);

	if (up && time_before(at, up->free_clock))
		at = up->free_clock;
	if (!time_before(at, vtime))
		return 0;
	return vtime - at < most ? vtime - at : most;
}

/*
 * The same while it competes. What is left of its turns was paid for at the old weight, and is paid back at the new one. And what it has had beyond the others
 * is a time, which is less virtual time if it becomes heavier (reweight_entity() in the kernel): one that was light would wait for seconds.
 */
static void entity_reweigh(struct entity_ctx *e, u32 weight)
{
	u64 rest_ns = turns_rest_ns(e, now_ns()), paid = scale_by_entity(rest_ns, e), old = e->inv_weight;
	u64 ahead = entity_ahead(e, e->vtime - paid), still = ahead;

	entity_set_weight(e, weight);
	if (e->inv_weight < old)
		still = ((ahead >> 12) * e->inv_weight / (old ?: 1)) << 12;
	atomic_add(&e->vtime, scale_by_entity(rest_ns, e) - paid + still - ahead);
}

/* A number is taken: the clocks of its children begin anew. */
VERIFIED_ONCE clocks_reset(u32 slot)
{
	u64 *clock;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		clock = clock_get(slot, i);
		if (clock)
			*clock = 0;
	}
	return 0;
}

/* A free number, now taken, or 0. */
VERIFIED_ONCE entity_alloc(u64 id, u32 kind)
{
	struct entity_ctx *e, *root = entity_get(0);
	u32 slot;
	s32 i;

	bpf_for(i, 1, MAX_ENTITIES) {
		slot = i;
		e = entity_get(slot);
		if (!e || e->kind || atomic_cas(&e->kind, ENTITY_NONE, kind))
			continue;
		e->id = id;
		e->generation++;
		e->idle = 0;
		e->depth = 0;
		e->weight = WEIGHT_DEFAULT;
		e->vtime = 0;
		e->waited_ns = 0;
		e->served_ns = 0;
		e->bound_ns = 0;
		e->home = -1;
		e->free_clock = e->child_clock = 0;
		clocks_reset(slot);
		__builtin_memset(e->path, 0, sizeof(e->path));
		e->used_ns = e->used_at_refill_ns = 0;
		e->nr_periods = e->nr_throttled = e->throttled_ns = 0;
		entity_set_weight(e, WEIGHT_DEFAULT);
		if (root)
			raise_end(&root->end, slot);
		return slot;
	}
	stat_inc(STAT_REGISTRY_FULL);
	return 0;
}

static void entity_free(u32 slot)
{
	struct entity_ctx *e = entity_get(slot);

	if (!e || !slot)
		return;
	e->generation++;
	e->id = 0;
	e->kind = ENTITY_NONE;
}

/*
 * An entity's parent (the lower half) and how many of it are active, in one word: whoever counts the first or the last one knows whose that is at this very
 * moment, though the entity may be moved meanwhile.
 */
static __always_inline aliasing_u64 *parent_and_active(struct entity_ctx *e)
{
	_Static_assert(__builtin_offsetof(struct entity_ctx, parent) % 8 == 0, "no word");
	_Static_assert(__builtin_offsetof(struct entity_ctx, nr_active) ==
			       __builtin_offsetof(struct entity_ctx, parent) + 4,
		       "no word");
	return (aliasing_u64 *)&e->parent;
}

/* One more (1) or one less (-1) of the entity's own runs or waits; the first and the last count for its parent too. */
VERIFIED_ONCE active_add(u32 slot, s32 n)
{
	struct entity_ctx *e;
	u64 old;
	s32 i;

	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_at(slot);
		if (!e)
			break;
		old = atomic_add(parent_and_active(e), (u64)n << 32);
		if ((s32)(old >> 32) != (n > 0 ? 0 : 1))
			break;
		slot = (u32)old;
	}
	return 0;
}

/* Put an entity below another. Return false if that is too deep. */
VERIFIED_ONCE entity_attach(u32 slot, u32 parent)
{
	struct entity_ctx *e = entity_get(slot), *up = entity_get(parent);
	u64 old, seen;
	u32 from;
	s32 i;

	if (!e || !up || up->depth >= MAX_DEPTH)
		return 0;
	old = READ_ONCE(*parent_and_active(e));
	from = (u32)old;
	/* Two of a VM that is moved may both come here; one of them takes along what is active. Who counts meanwhile makes it try again. */
	bpf_for(i, 0, MAX_CPUS) {
		if (from == parent)
			break;
		seen = atomic_cas(parent_and_active(e), old, (old >> 32 << 32) | parent);
		if (seen == old)
			break;
		if ((u32)seen != from)
			return 1;
		old = seen;
	}
	for (i = 0; i < MAX_DEPTH; i++)
		e->path[i] = i < up->depth ? up->path[i] : 0;
	i = up->depth;
	if (i >= 0 && i < MAX_DEPTH)
		e->path[i] = slot;
	e->depth = up->depth + 1;
	if (from != parent && (s32)(old >> 32) > 0) {
		active_add(from, -1);
		active_add(parent, 1);
	}
	return 1;
}

static __always_inline u64 cgroup_id(struct cgroup *cgrp)
{
	struct kernfs_node *kn = BPF_CORE_READ(cgrp, kn);

	return BPF_CORE_READ(kn, id);
}

/* The entity of the cgroup with that id; 0: the root's. */
static __always_inline u32 cgroup_slot(u64 id)
{
	u32 *slot = bpf_map_lookup_elem(&cgroup_slots, &id);

	return slot ? *slot : 0;
}

/* A cgroup appears. */
static void tree_add_cgroup(struct cgroup *cgrp, u32 weight)
{
	u64 id = cgroup_id(cgrp);
	struct entity_ctx *e;
	struct cgroup *up;
	u32 parent = 0, slot;

	if (cgrp->level <= 0)
		return;
	up = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (up) {
		parent = cgroup_slot(cgroup_id(up));
		bpf_cgroup_release(up);
	}
	slot = entity_alloc(id, ENTITY_GROUP);
	if (slot && !entity_attach(slot, parent)) {
		stat_inc(STAT_REGISTRY_FULL);
		entity_free(slot);
		slot = 0;
	}
	e = entity_get(slot);
	if (slot && e) {
		e->weight = weight;
		entity_set_weight(e, weight);
	} else {
		slot = parent;
	}
	/* Unknown, it would be the root's: its limits and weight, and those above it, would not hold. */
	if (!bpf_map_update_elem(&cgroup_slots, &id, &slot, BPF_ANY))
		return;
	stat_inc(STAT_REGISTRY_FULL);
	/* By its id nobody finds its entry any more, who could give that back. */
	if (slot != parent)
		entity_free(slot);
}

/* The cgroup's own entity, or NULL if it has none: the root, or one that is part of its parent. */
static struct entity_ctx *cgroup_entity(struct cgroup *cgrp)
{
	u64 id = cgroup_id(cgrp);
	struct entity_ctx *e = entity_get(cgroup_slot(id));

	return e && e->kind == ENTITY_GROUP && e->id == id ? e : NULL;
}

/*
 * VMs show the weight of the cgroup that they are in. Nobody else has to hear of a new one: virtual time goes by what the entity has. With a new generation for
 * each write all tasks would look up their places again and again, and a user may have been given cpu.weight.
 */
VERIFIED_ONCE tree_tell_vms(u32 slot, u32 weight)
{
	u32 nobody = 0, end;
	struct vm_ctx *vm = bpf_map_lookup_elem(&vms, &nobody);
	s32 i;

	end = vm ? vm->end : 0;
	bpf_for(i, 1, MAX_VMS) {
		vm = vm_at(i);
		if (!vm || (u32)i >= end)
			break;
		if (vm->kvm && vm->group == slot)
			vm->weight = weight;
	}
	return 0;
}

static void tree_set_weight(struct cgroup *cgrp, u32 weight)
{
	struct entity_ctx *e = cgroup_entity(cgrp);

	if (!e)
		return;
	e->weight = weight;
	entity_reweigh(e, weight);
	tree_tell_vms(cgroup_slot(cgroup_id(cgrp)), weight);
}

static void tree_set_idle(struct cgroup *cgrp, bool idle)
{
	struct entity_ctx *e = cgroup_entity(cgrp);

	if (!e)
		return;
	/* As it was before: cpu.weight says 100 then (sched_group_set_idle()), but to sched_ext it has not changed. */
	e->idle = idle;
	entity_reweigh(e, e->weight);
}

/* A cgroup goes: nobody is in it. */
static void tree_remove_cgroup(struct cgroup *cgrp)
{
	u64 id = cgroup_id(cgrp);

	if (cgroup_entity(cgrp))
		entity_free(cgroup_slot(id));
	bpf_map_delete_elem(&cgroup_slots, &id);
}

/* p may run on those pCPUs. The kernel's number of them counts those that are offline. */
static void task_may_run_on(struct task_struct *p, struct task_ctx *t, const struct cpumask *mask)
{
	bool lacks = false;
	struct cpu_ctx *c;
	u64 reach = 0;
	s32 i;

	if (p->nr_cpus_allowed < nr_cpus) {
		bpf_for(i, 0, MAX_CPUS) {
			if (i >= nr_cpus)
				break;
			c = cpu_get(i);
			if (bpf_cpumask_test_cpu(i, mask))
				reach |= reach_bit(i);
			else if (c && c->online)
				lacks = true;
		}
	}
	/* One pCPU of several is that of a section that forbids migration, for a while. What is known of it stays true. */
	if (p->nr_cpus_allowed > 1 && task_is_pinned(p) && !(reach & (reach - 1))) {
		if (t->reach)
			return;
		reach = EVERYWHERE;
		lacks = p->nr_cpus_allowed < nr_online;
	}
	t->everywhere = !lacks;
	t->reach = lacks ? reach : EVERYWHERE;
}

/* When an entity's pinned threads last kept others waiting is known to this. */
#define BOUND_STEP_NS 20000000ULL

/* t, which runs, may not run everywhere, and others wait for its pCPU. */
static __always_inline void note_bound(struct task_ctx *t, u64 now)
{
	struct entity_ctx *e;
	s32 i;

	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_at(t->run_path[i]);
		if (!e)
			break;
		if (elapsed_ns(now, e->bound_ns) > BOUND_STEP_NS)
			e->bound_ns = now;
	}
}

/* t is part of that entity from now on. Not while t's run time is being charged. */
static void leaf_set(struct task_ctx *t, u32 slot)
{
	if (t->leaf == slot)
		return;
	if (t->cpu >= 0) {
		active_add(t->leaf, -1);
		active_add(slot, 1);
	}
	t->leaf = slot;
	t->waited_ns = 0;
}

/* Bring up to date which entity t is part of, and which quotas it is under. Only from operations that hold p's run queue, while p is not charged. */
static void leaf_refresh(struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm = vm_get(t);
	u32 slot = 0, domain = 0;
	struct entity_ctx *e, *up;
	struct cgroup *cgrp;
	u64 id;

	t->tree_generation = tree_generation;
	task_may_run_on(p, t, p->cpus_ptr);
	if (bpf_ksym_exists(scx_bpf_task_cgroup)) {
		cgrp = scx_bpf_task_cgroup(p);
		if (cgrp) {
			slot = cgroup_slot(cgroup_id(cgrp));
			/* A VMM's threads may be in cgroups of their own below the VM's, made for limits; the VM is where the process is. */
			id = cgroup_domain_id(cgrp);
			domain = id ? cgroup_slot(id) : slot;
			bpf_cgroup_release(cgrp);
		}
	}
	t->limits = quotas_known ? slot : 0;
	if (!vm || !order_is_of_vms()) {
		leaf_set(t, slot);
		return;
	}
	e = entity_get(vm->entity);
	if (!e || !vm->entity) {
		leaf_set(t, slot);
		return;
	}
	up = entity_get(domain);
	if (t->vcpu >= 0) {
		vm->group = domain;
		vm->weight = up && domain ? up->weight : WEIGHT_DEFAULT;
	}
	/* Too deep for an entity of its own: its threads are tasks of what the VM is in. */
	if (!up || up->depth >= MAX_DEPTH) {
		leaf_set(t, domain);
		return;
	}
	if (t->vcpu >= 0 && (e->parent != domain || !e->depth))
		entity_attach(vm->entity, domain);
	leaf_set(t, vm->entity);
}

#endif
