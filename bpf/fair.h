/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order vtime: who deserves the pCPU, by weighted virtual run time in the tree of tree.h.
 *
 * Each entity has a virtual time: the CPU time of all threads below it, over its weight. Of two tasks the one deserves the pCPU whose virtual
 * time is less where their ways from the root part: that of two cgroups, of two VMs, of a cgroup and a task beside it, or of two siblings in one
 * VM. So a boost or a busy sibling is paid by its VM and repaid among its siblings, a VM gets its share whether one vCPU of it is busy or all,
 * and what a cgroup cannot use goes to those beside it first.
 *
 * The times of those that compete for the same pCPUs are kept near each other by nothing else than this choice. Those of two that never meet
 * drift apart, as they must: on a partitioned host one has more than the other. So there is no common clock. Each entity has one per pCPU for its
 * children, which follows those that run there; what sleepers and newcomers may claim is measured against the clock of where they come.
 */
#ifndef COHORT_FAIR_H
#define COHORT_FAIR_H

#include "registry.h"

/* How far a clock, or one that has not competed for long, may be away from those that do; in multiples of lag_ns. */
#define LAG_APART 5

/* Who has not had to wait for this long does not compete, and what it used or did not use is forgotten. */
#define REST_NS 1000000000ULL

/* Clocks that many pCPUs share move in steps of this, so that their cache lines do not. */
#define CLOCK_STEP_NS 250000ULL

/* A thread's run time that is not charged yet is at most a tick; what is far beyond was read on a pCPU whose clock is behind. */
#define UNCHARGED_MAX_UNITS 65536

/*
 * entity_ctx.running: how many of its threads run, from this bit on; below, the sum of the times up to which each is charged, in units of 1,024 ns
 * modulo 2^32. One word, so that it is read as one.
 */
#define RUNNING_SHIFT 48

/* A task's place in the order. */
struct rank {
	u64 own;
	u64 credit_ns; /* it may go before others by so much */
	u16 path[MAX_DEPTH];
};

static __always_inline u64 running_units(u64 ns)
{
	return (u32)(ns >> 10);
}

static __always_inline u32 nr_running(const struct entity_ctx *e)
{
	return READ_ONCE(e->running) >> RUNNING_SHIFT;
}

static __always_inline u64 scale_by_weight(u64 delta_ns, u64 weight)
{
	return weight == WEIGHT_DEFAULT ? delta_ns : delta_ns * WEIGHT_DEFAULT / (weight ?: 1);
}

static __always_inline u64 scale_by_entity(u64 delta_ns, const struct entity_ctx *e)
{
	return delta_ns * e->inv_weight >> INV_WEIGHT_SHIFT;
}

/* The entity's virtual time, with what its running threads have run since they were charged. */
static __always_inline u64 entity_vtime(const struct entity_ctx *e, u64 now)
{
	u64 running = READ_ONCE(e->running);
	u32 n = running >> RUNNING_SHIFT;
	u32 units = n * (u32)running_units(now) - (u32)running;

	if (!n || units > n * UNCHARGED_MAX_UNITS)
		return e->vtime;
	return e->vtime + scale_by_entity((u64)units << 10, e);
}

static __always_inline void rank_of_leaf(u32 leaf, u64 own, struct rank *r)
{
	struct entity_ctx *e = entity_get(leaf);

	__builtin_memset(r, 0, sizeof(*r));
	r->own = own;
	if (leaf && e)
		__builtin_memcpy(r->path, e->path, sizeof(r->path));
}

/*
 * A VMM's thread that is no vCPU (an iothread, vhost, the main loop) does what the guest waits for, and its run is short: it may go before others as if its
 * VM had run lag_ns less. The VM pays for it as for every thread.
 */
static __always_inline u64 borrows_ns(const struct task_ctx *t)
{
	return t->vm && t->vcpu < 0 ? lag_ns : 0;
}

VERIFIED_ONCE rank_of(struct task_ctx *t, struct rank *r)
{
	if (!t || !r)
		return 0;
	rank_of_leaf(t->leaf, t->vtime, r);
	r->credit_ns = borrows_ns(t);
	return 0;
}

/* Return true if a deserves the pCPU more than b, by at least margin_ns of virtual time. */
VERIFIED_ONCE rank_is_before(struct rank *a, struct rank *b, u64 margin_ns, u64 now)
{
	struct entity_ctx *e;
	u64 of_a, of_b;
	u32 i;

	if (!a || !b)
		return 0;
	of_a = a->own;
	of_b = b->own;
	for (i = 0; i < MAX_DEPTH; i++) {
		if (a->path[i] == b->path[i])
			continue;
		if (a->path[i]) {
			e = entity_get(a->path[i]);
			if (e)
				of_a = entity_vtime(e, now);
		}
		if (b->path[i]) {
			e = entity_get(b->path[i]);
			if (e)
				of_b = entity_vtime(e, now);
		}
		of_a -= a->credit_ns;
		of_b -= b->credit_ns;
		break;
	}
	return time_before(of_a + margin_ns, of_b);
}

static __always_inline bool rank_before(struct rank *a, struct rank *b, u64 margin_ns, u64 now)
{
	return rank_is_before(a, b, margin_ns, now);
}

/* Are both of one entity, so that only their own times count? */
static __always_inline bool rank_same_leaf(const struct rank *a, const struct rank *b)
{
	u32 i;

	for (i = 0; i < MAX_DEPTH; i++)
		if (a->path[i] != b->path[i])
			return false;
	return true;
}

/* How far those have come with whom a child of this entity competes on cpu. */
VERIFIED_ONCE_U64 clock_of(u32 entity, s32 cpu, bool everywhere)
{
	u64 *clock = clock_get(entity, cpu);
	struct entity_ctx *e = entity_get(entity);
	u64 at = clock ? *clock : 0;

	if (everywhere && e && time_before(at, e->free_clock))
		at = e->free_clock;
	return at;
}

/*
 * A child of `entity` comes to compete on cpu, or to run there: bring its virtual time near to that of the others there. It keeps what it is owed, within
 * the bound; it does not collect for having slept, nor pay for what it used while nobody else wanted it.
 *
 * `fresh`: it has not competed before, or not for long. `slept`: it was not active.
 */
static u64 come_near(u64 vtime, u64 waited_ns, u64 now, bool slept, bool at_home, u32 entity, s32 cpu, bool everywhere)
{
	bool rested = elapsed_ns(now, waited_ns) > REST_NS;
	u64 clock;

	if (!rested && !(slept && (at_home || everywhere)))
		return vtime;
	clock = clock_of(entity, cpu, everywhere);
	if (!waited_ns)
		return clock;
	if (time_before(vtime, clock - lag_ns))
		return clock - lag_ns;
	if (rested && time_before(clock + LAG_APART * lag_ns, vtime))
		return clock + LAG_APART * lag_ns;
	return vtime;
}

/* t, not counted as active yet if it slept, is about to be queued on cpu, or (not queued) to run there at once. */
VERIFIED_ONCE fair_arrive(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	struct entity_ctx *leaf, *e;
	u32 parent = 0, slot;
	bool slept;
	u64 vtime;
	s32 i;

	if (!t)
		return 0;
	leaf = entity_get(t->leaf);
	slept = t->cpu < 0;
	if (t->leaf && leaf) {
		for (i = 0; i < MAX_DEPTH; i++) {
			slot = leaf->path[i];
			e = entity_get(slot);
			if (!slot || !e)
				break;
			/* Changes of others meanwhile may be lost: as much as they have run since a tick. */
			vtime = come_near(e->vtime, e->waited_ns, now, slept && e->nr_active <= 0, e->home == cpu, parent, cpu,
					  t->everywhere);
			if (vtime != e->vtime)
				e->vtime = vtime;
			if (queued || !e->waited_ns) {
				if (e->home != cpu)
					e->home = cpu;
				if (elapsed_ns(now, e->waited_ns) > 1000000)
					e->waited_ns = now;
			}
			parent = slot;
		}
	}
	t->vtime = come_near(t->vtime, t->waited_ns, now, slept, t->home == cpu, t->leaf, cpu, t->everywhere);
	if (queued || !t->waited_ns) {
		t->home = cpu;
		t->waited_ns = now;
	}
	return 0;
}

/* A clock follows a child that runs: forward at once; back only if it is far ahead, as after a stranger's turn. */
static __always_inline void clock_follow(u32 entity, s32 cpu, u64 vtime, bool everywhere)
{
	u64 *clock = clock_get(entity, cpu);
	struct entity_ctx *e;

	if (!clock)
		return;
	if (time_before(*clock, vtime))
		*clock = vtime;
	else if (time_before(vtime + LAG_APART * lag_ns, *clock))
		*clock = vtime + LAG_APART * lag_ns;
	if (!everywhere)
		return;
	e = entity_get(entity);
	if (e && time_before(e->free_clock + CLOCK_STEP_NS, vtime))
		e->free_clock = vtime;
}

/* t, chosen by its rank, starts to run or goes on: virtual time on cpu has come as far. */
VERIFIED_ONCE fair_advance_clocks(struct task_ctx *t, s32 cpu)
{
	struct entity_ctx *e;
	u32 parent = 0, slot;
	s32 i;

	if (!t)
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		slot = t->run_path[i];
		e = entity_get(slot);
		if (!slot || !e)
			break;
		clock_follow(parent, cpu, e->vtime, t->everywhere);
		parent = slot;
	}
	clock_follow(parent, cpu, t->vtime, t->everywhere);
	return 0;
}

/* Those of whom t is a part have run for delta_ns: by `change` their word `running`. */
VERIFIED_ONCE fair_charge_path(struct task_ctx *t, u64 delta_ns, u64 change)
{
	struct entity_ctx *e;
	u32 slot;
	s32 i;

	if (!t)
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		slot = t->run_path[i];
		e = entity_get(slot);
		if (!slot || !e)
			break;
		atomic_add(&e->running, change);
		if (delta_ns)
			atomic_add(&e->vtime, scale_by_entity(delta_ns, e));
	}
	return 0;
}

/* What t has run since it was charged; charges t itself and its VM's statistics. */
static u64 fair_charge_own(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	u64 delta = elapsed_ns(now, t->charged_ns);
	struct vm_ctx *vm;

	if (!delta)
		return 0;
	t->vtime += scale_by_weight(delta, p->scx.weight);
	vm = vm_get(t);
	if (vm)
		atomic_add(&vm->runtime_ns, delta);
	return delta;
}

/* Charge a running task for what it has run since the last time. Return how much that was. */
static u64 fair_charge(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	u64 delta;

	if (!t->charged_ns)
		return 0;
	delta = fair_charge_own(p, t, now);
	if (delta) {
		fair_charge_path(t, delta, running_units(now) - running_units(t->charged_ns));
		t->charged_ns = now;
	}
	return delta;
}

VERIFIED_ONCE fair_start(struct task_ctx *t, u64 now)
{
	struct entity_ctx *leaf;

	if (!t)
		return 0;
	leaf = entity_get(t->leaf);
	__builtin_memset(t->run_path, 0, sizeof(t->run_path));
	if (t->leaf && leaf) {
		__builtin_memcpy(t->run_path, leaf->path, sizeof(t->run_path));
		if (elapsed_ns(now, leaf->served_ns) > 1000000)
			leaf->served_ns = now;
	}
	t->charged_ns = now;
	fair_charge_path(t, 0, (1ULL << RUNNING_SHIFT) + running_units(now));
	return 0;
}

/* Return how much it has run since it was last charged. */
static u64 fair_stop(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	u64 delta;

	if (!t->charged_ns)
		return 0;
	delta = fair_charge_own(p, t, now);
	fair_charge_path(t, delta, -((1ULL << RUNNING_SHIFT) + running_units(t->charged_ns)));
	t->charged_ns = 0;
	return delta;
}

/*
 * Tick: an entity that has all it wants, because no thread below it waits, may not save for later what it leaves to others.
 */
VERIFIED_ONCE fair_forget(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *e;
	u64 least;

	if (!t)
		return 0;
	e = entity_get(t->leaf);
	if (!t->leaf || !e || !t->everywhere || (s32)nr_running(e) < e->nr_active)
		return 0;
	least = clock_of(e->parent, cpu, true) - LAG_APART * lag_ns;
	if (time_before(e->vtime, least))
		e->vtime = least;
	return 0;
}

#endif
