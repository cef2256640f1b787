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

/* A task's place in the order. */
struct rank {
	u64 own;
	u64 unused_ns; /* paid for turns that are not over: a runner's own, and a VM's other threads' */
	u64 credit_ns; /* it may go before others by so much */
	u64 behind_ns; /* of a vCPU: how far it is behind its furthest sibling */
	u16 path[MAX_DEPTH];
};

static __always_inline u64 scale_by_weight(u64 delta_ns, u64 weight)
{
	return weight == WEIGHT_DEFAULT ? delta_ns : delta_ns * WEIGHT_DEFAULT / (weight ?: 1);
}

static __always_inline u64 scale_by_entity(u64 delta_ns, const struct entity_ctx *e)
{
	return delta_ns * e->inv_weight >> INV_WEIGHT_SHIFT;
}

/* The place of one that is part of that entity. `settled`: 1 if it is counted as running there and has paid for nothing beyond now. */
static __always_inline void rank_of_leaf(u32 leaf, u64 own, s32 settled, u64 now, struct rank *r)
{
	struct entity_ctx *e = entity_get(leaf);
	s32 running;

	__builtin_memset(r, 0, sizeof(*r));
	r->own = own;
	if (!leaf || !e)
		return;
	__builtin_memcpy(r->path, e->path, sizeof(r->path));
	if (e->kind != ENTITY_VM)
		return;
	if (time_before(own, e->child_clock))
		r->behind_ns = e->child_clock - own;
	/* What its siblings have paid for this turn does not keep a vCPU from joining it. */
	running = e->nr_running - settled;
	if (gang == GANG_ALIGNED && running > 0)
		r->unused_ns = running * elapsed_ns(e->turn_end_ns, now);
}

/*
 * A VMM's thread that is no vCPU (an iothread, vhost, the main loop) does what the guest waits for, and its run is short: it may go before others as if its
 * VM had run lag_ns less. The VM pays for it as for every thread.
 */
static __always_inline u64 borrows_ns(const struct task_ctx *t)
{
	return t->vm && t->vcpu < 0 ? lag_ns : 0;
}

VERIFIED_ONCE rank_of(struct task_ctx *t, u64 now, struct rank *r)
{
	if (!t || !r)
		return 0;
	rank_of_leaf(t->leaf, t->vtime, t->charged_ns != 0, now, r);
	r->credit_ns = borrows_ns(t);
	return 0;
}

/* Virtual time where a's and b's ways part, at this entity of r's path or (0) at its own. */
static __always_inline u64 rank_vtime(const struct rank *r, u32 slot)
{
	struct entity_ctx *e = entity_get(slot);

	if (!slot || !e)
		return r->own - r->credit_ns;
	return e->vtime - scale_by_entity(r->unused_ns, e) - r->credit_ns;
}

/* The virtual time that a turn costs there. */
static __always_inline u64 rank_turn(u32 slot)
{
	struct entity_ctx *e = entity_get(slot);

	return slot && e ? scale_by_entity(slice_ns, e) : slice_ns;
}

/*
 * Return true if a deserves the pCPU more than b, by at least margin_ns of virtual time.
 *
 * Where their ways part within less than a turn, neither deserves it more than the other, for turns are what is given. Then that one goes first
 * which its own siblings have left behind. Otherwise threads of two VMs that are pinned in the same way would never take turns: that of one VM here and
 * that of the other there could go on for ever, each VM having its share.
 */
VERIFIED_ONCE rank_is_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	u64 of_a, of_b, turn;
	u32 i;

	if (!a || !b)
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		if (a->path[i] == b->path[i])
			continue;
		of_a = rank_vtime(a, a->path[i]);
		of_b = rank_vtime(b, b->path[i]);
		turn = rank_turn(b->path[i]);
		if (b->behind_ns > a->behind_ns + 2 * slice_ns && time_before(of_b, of_a + turn))
			return 0;
		turn = rank_turn(a->path[i]);
		if (!margin_ns && a->behind_ns > b->behind_ns + 2 * slice_ns && time_before(of_a, of_b + turn))
			return 1;
		return time_before(of_a + margin_ns, of_b);
	}
	return time_before(a->own + margin_ns, b->own);
}

static __always_inline bool rank_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	return rank_is_before(a, b, margin_ns);
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
 * waited_ns: when it last competed; 0: never. slept: nothing of it was active.
 */
static u64 come_near(u64 vtime, u64 waited_ns, u64 now, bool slept, bool at_home, u32 entity, s32 cpu, bool everywhere)
{
	/* Of one that runs elsewhere meanwhile the place where it competes is there. */
	bool rested = slept && elapsed_ns(now, waited_ns) > REST_NS;
	u64 clock;

	if (waited_ns && !rested && !(slept && (at_home || everywhere)))
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
			vtime = come_near(e->vtime, e->waited_ns, now, slept && e->nr_active <= 0, e->home == cpu,
					  parent, cpu, t->everywhere);
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
	e = entity_get(parent);
	if (parent && e && time_before(e->child_clock + CLOCK_STEP_NS, t->vtime))
		e->child_clock = t->vtime;
	return 0;
}

/*
 * What is charged is what the kernel counts (cpu.stat): it leaves no gap between two tasks for what it does itself, while a time read when one starts or stops
 * leaves out the choice of the next one. With thousands of switches a second that is a share worth having. Never 0.
 */
static __always_inline u64 run_clock(const struct task_struct *p)
{
	return p->se.sum_exec_runtime + 1;
}

/* Charge those of whom t is a part with delta_ns, or pay it back if negative. */
VERIFIED_ONCE fair_charge_path(struct task_ctx *t, s64 delta_ns)
{
	struct entity_ctx *e;
	u32 slot;
	s32 i;

	if (!t || !delta_ns)
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		slot = t->run_path[i];
		e = entity_get(slot);
		if (!slot || !e)
			break;
		if (delta_ns < 0)
			atomic_add(&e->vtime, -scale_by_entity(-delta_ns, e));
		else
			atomic_add(&e->vtime, scale_by_entity(delta_ns, e));
	}
	return 0;
}

/*
 * A turn is paid for when it begins, by all of whom the task is a part, and what is not used is paid back when it ends. If it were paid for afterwards, an
 * entity that is entitled to one of two pCPUs would be behind for both at once, and have two threads run half of the time where it should have its best
 * one run all the time.
 */
static void fair_prepay(const struct task_struct *p, struct task_ctx *t, u64 slice)
{
	t->paid_until_ns = run_clock(p) + slice;
	t->vtime += scale_by_weight(slice, p->scx.weight);
	fair_charge_path(t, slice);
}

/* The turn has lasted for as long as is counted, and no longer. */
static void fair_settle(const struct task_struct *p, struct task_ctx *t)
{
	s64 more = t->charged_ns - t->paid_until_ns;

	if (more < 0)
		t->vtime -= scale_by_weight(-more, p->scx.weight);
	else
		t->vtime += scale_by_weight(more, p->scx.weight);
	fair_charge_path(t, more);
	t->paid_until_ns = t->charged_ns;
}

/* Count what a running task has run since the last time; charge what it has not paid for. Return how much it has run. */
static u64 fair_charge(const struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm;
	u64 delta;

	if (!t->charged_ns)
		return 0;
	delta = elapsed_ns(run_clock(p), t->charged_ns);
	t->charged_ns += delta;
	vm = vm_get(t);
	if (vm && delta)
		atomic_add(&vm->runtime_ns, delta);
	if (time_before(t->paid_until_ns, t->charged_ns))
		fair_settle(p, t);
	return delta;
}

static void fair_start(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	struct entity_ctx *leaf = entity_get(t->leaf);

	__builtin_memset(t->run_path, 0, sizeof(t->run_path));
	t->run_leaf = t->leaf;
	if (t->leaf && leaf) {
		__builtin_memcpy(t->run_path, leaf->path, sizeof(t->run_path));
		atomic_add(&leaf->nr_running, 1);
		if (elapsed_ns(now, leaf->served_ns) > 1000000)
			leaf->served_ns = now;
	}
	t->charged_ns = run_clock(p);
}

/* Return how much it has run since it was last charged. */
static u64 fair_stop(const struct task_struct *p, struct task_ctx *t)
{
	struct entity_ctx *leaf;
	u64 delta;

	if (!t->charged_ns)
		return 0;
	delta = fair_charge(p, t);
	fair_settle(p, t);
	leaf = entity_get(t->run_leaf);
	if (t->run_leaf && leaf)
		atomic_add(&leaf->nr_running, -1);
	t->charged_ns = 0;
	return delta;
}

/*
 * Tick: an entity that has all it wants, because no thread below it waits, may not save for later what it leaves to others.
 */
VERIFIED_ONCE fair_forget(struct task_ctx *t, s32 cpu)
{
	struct entity_ctx *e;
	u64 least;

	if (!t)
		return 0;
	e = entity_get(t->leaf);
	if (!t->leaf || !e || !t->everywhere || e->nr_running < e->nr_active)
		return 0;
	least = clock_of(e->parent, cpu, true) - LAG_APART * lag_ns;
	if (time_before(e->vtime, least))
		e->vtime = least;
	return 0;
}

#endif
