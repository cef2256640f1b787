/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who deserves the pCPU: weighted virtual run time.
 *
 * Two levels. Between VMs (and host tasks, each for itself) the entity's virtual time decides: CPU time used by all threads of the VM, over
 * its weight. Between siblings of one VM, each one's own. So a boost or a busy sibling is paid by its VM, and repaid among its siblings,
 * and a VM gets its share whether one vCPU of it is busy or all. With --fair task there is only the second level, for every task.
 */
#ifndef COHORT_FAIR_H
#define COHORT_FAIR_H

#include "registry.h"

/* How far an entity that cannot use its share (too few vCPUs) may fall behind, in multiples of lag_ns. */
#define LAG_ACTIVE 5

/* The clock is shared by all pCPUs; it moves in steps of this, so that its cache line does not. */
#define VCLOCK_STEP_NS 250000ULL

#define WEIGHT_DEFAULT 100

/* A task's place in the order. */
struct rank {
	u64 entity; /* virtual time of its VM, or its own */
	u64 own;
	u32 vm; /* as task_ctx.vm */
};

static __always_inline u64 scale_by_weight(u64 delta_ns, u64 weight)
{
	return weight == WEIGHT_DEFAULT ? delta_ns : delta_ns * WEIGHT_DEFAULT / (weight ?: 1);
}

/* Run time of the VM's running threads that is not charged yet. */
static __always_inline u64 vm_uncharged_ns(const struct vm_ctx *vm, u64 now)
{
	u32 n = READ_ONCE(vm->nr_running);
	u64 sum = READ_ONCE(vm->run_start_sum);
	s64 ns = (s64)(n * now - sum);

	/* The two are not read as one: a reading in the middle of a change is far out of range, and a tick bounds the true value. */
	if (n != READ_ONCE(vm->nr_running) || ns < 0 || ns > (s64)(n * lag_ns))
		return 0;
	return ns;
}

static __always_inline u64 vm_vtime(const struct vm_ctx *vm, u64 now)
{
	return vm->vtime + scale_by_weight(vm_uncharged_ns(vm, now), vm->weight);
}

static __always_inline bool by_vm(const struct vm_ctx *vm)
{
	return vm && fair == FAIR_VM;
}

/* The weight of a task's own virtual time. Between VMs the cgroup's weight is the VM's. */
static __always_inline u64 own_weight(const struct task_struct *p, const struct task_ctx *t, const struct vm_ctx *vm)
{
	return by_vm(vm) ? p->scx.weight : (u64)p->scx.weight * t->weight / WEIGHT_DEFAULT;
}

static void rank_of(const struct task_ctx *t, u64 now, struct rank *r)
{
	struct vm_ctx *vm = vm_get(t);

	r->own = t->vtime;
	if (by_vm(vm)) {
		r->entity = vm_vtime(vm, now);
		r->vm = t->vm;
	} else {
		r->entity = t->vtime;
		r->vm = 0;
	}
}

/* Return true if a deserves the pCPU more than b, by at least margin_ns of virtual time. */
static __always_inline bool rank_before(const struct rank *a, const struct rank *b, u64 margin_ns)
{
	if (a->vm && a->vm == b->vm)
		return time_before(a->own + margin_ns, b->own);
	return time_before(a->entity + margin_ns, b->entity);
}

/* A task wakes (or is new): it keeps what it is owed, within the bound; it does not collect for having slept. */
static void fair_activate(struct task_ctx *t)
{
	struct vm_ctx *vm = vm_get(t);
	u64 clock = vclock;

	if (!by_vm(vm)) {
		if (time_before(t->vtime, clock - lag_ns))
			t->vtime = clock - lag_ns;
		return;
	}
	if (!vm->nr_active && !vm->nr_running && time_before(vm->vtime, clock - lag_ns))
		vm->vtime = clock - lag_ns;
	if (time_before(t->vtime, vm->sibling_clock - lag_ns))
		t->vtime = vm->sibling_clock - lag_ns;
}

/* Charge a running task for what it has run since the last time. */
static void fair_charge(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm;
	s64 delta;

	if (!t->charged_ns)
		return;
	delta = now - t->charged_ns;
	if (delta <= 0)
		return;
	t->charged_ns = now;

	vm = vm_get(t);
	t->vtime += scale_by_weight(delta, own_weight(p, t, vm));
	if (!vm)
		return;
	__sync_fetch_and_add(&vm->run_start_sum, delta);
	__sync_fetch_and_add(&vm->runtime_ns, delta);
	__sync_fetch_and_add(&vm->vtime, scale_by_weight(delta, vm->weight));
	if (time_before(vm->vtime, vclock - LAG_ACTIVE * lag_ns))
		vm->vtime = vclock - LAG_ACTIVE * lag_ns;
}

/* t starts to run, or is given another slice: virtual time has come as far. */
static void fair_advance_clock(const struct task_ctx *t)
{
	struct vm_ctx *vm = vm_get(t);
	u64 started = by_vm(vm) ? vm->vtime : t->vtime;

	if (vm && time_before(vm->sibling_clock, t->vtime))
		vm->sibling_clock = t->vtime;
	if (time_before(vclock + VCLOCK_STEP_NS, started))
		vclock = started;
}

static void fair_start(struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm = vm_get(t);

	t->charged_ns = now;
	if (vm) {
		/* This order makes a reader in between see too little, which it takes for nothing. */
		__sync_fetch_and_add(&vm->run_start_sum, now);
		__sync_fetch_and_add(&vm->nr_running, 1);
	}
	fair_advance_clock(t);
}

static void fair_stop(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm;

	if (!t->charged_ns)
		return;
	fair_charge(p, t, now);
	vm = vm_get(t);
	if (vm) {
		__sync_fetch_and_add(&vm->nr_running, -1);
		__sync_fetch_and_add(&vm->run_start_sum, -t->charged_ns);
	}
	t->charged_ns = 0;
}

/* The cgroup's weight times its ancestors', each relative to the default, so that a group within a group counts for both. */
static u32 cgroup_weight(struct cgroup *cgrp)
{
	u64 weight = WEIGHT_DEFAULT;
	struct cgroup *c;
	s32 level, i;
	u32 *own;

	level = cgrp->level;
	bpf_for(i, 1, level + 1) {
		c = bpf_cgroup_ancestor(cgrp, i);
		if (!c)
			break;
		own = bpf_cgrp_storage_get(&cgroup_weights, c, 0, 0);
		if (own)
			weight = weight * *own / WEIGHT_DEFAULT;
		bpf_cgroup_release(c);
		if (weight < 1)
			weight = 1;
		if (weight > 1000000)
			weight = 1000000;
	}
	return weight;
}

/* Bring t's weight, and its VM's, up to date. Only from operations that hold p's run queue. */
static void fair_refresh_weight(struct task_struct *p, struct task_ctx *t)
{
	struct cgroup *cgrp;
	struct vm_ctx *vm;

	if (t->weight_generation == weight_generation)
		return;
	t->weight_generation = weight_generation;
	t->weight = WEIGHT_DEFAULT;
	if (bpf_ksym_exists(scx_bpf_task_cgroup)) {
		cgrp = scx_bpf_task_cgroup(p);
		if (cgrp) {
			t->weight = cgroup_weight(cgrp);
			bpf_cgroup_release(cgrp);
		}
	}
	vm = vm_get(t);
	if (vm && t->vcpu >= 0)
		vm->weight = t->weight;
}

#endif
