/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order vm: who deserves the pCPU, by weighted virtual run time in the tree of tree.h.
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
#ifndef COHORT_ORDER_VM_H
#define COHORT_ORDER_VM_H

#include "vm_rank.h"

/* How far a clock, or one that has not competed for long, may be away from those that do; in multiples of lag_ns. */
#define LAG_APART 5

/* Who has not had to wait for this long does not compete, and what it used or did not use is forgotten. */
#define REST_NS 1000000000ULL

/* Clocks that many pCPUs share move in steps of this, so that their cache lines do not. */
#define CLOCK_STEP_NS 250000ULL

/* When an entity was last served is known to this; so that the line is not written at every turn. */
#define SERVED_STEP_NS 20000000ULL

/* How far those have come with whom a child of this entity competes on cpu. */
VERIFIED_ONCE_U64 clock_of(u32 entity, s32 cpu, bool everywhere)
{
	struct entity_ctx *e = everywhere ? entity_get(entity) : NULL;
	u64 *clock = clock_get(entity, cpu);
	u64 at = clock ? *clock : 0;

	if (e && time_before(at, e->free_clock))
		at = e->free_clock;
	return at;
}

/*
 * The same for one that comes to compete: the clock of that pCPU's own queue, as CFS goes by its queue's min_vruntime, unless it is far behind the others'.
 * By the farthest alone, whoever has a queue that is slow would lose what it is owed whenever it sleeps for a moment.
 */
static __always_inline u64 clock_near(u32 entity, s32 cpu, bool everywhere, u64 lag)
{
	struct entity_ctx *e = everywhere ? entity_get(entity) : NULL;
	u64 *own = clock_get(entity, cpu);
	u64 clock = own ? *own : 0, least = e ? e->free_clock - LAG_APART * lag : clock;

	return time_before(clock, least) ? least : clock;
}

/*
 * What t's entity may keep of what it is owed while nothing of it is active. A VM as much as its vCPUs if each competed for itself: they sleep at the same
 * time, and meanwhile another has as many pCPUs. But no more than can run at once.
 */
static __always_inline u64 entity_lag(const struct entity_ctx *e, struct task_ctx *t)
{
	struct vm_ctx *vm = e->kind == ENTITY_VM ? vm_get(t) : NULL;
	u64 vcpus = vm ? vm->nr_vcpus : 1;

	return lag_ns * (vcpus > nr_cpus ? nr_cpus : vcpus ?: 1);
}

/*
 * A child of `entity` comes to compete on cpu, or to run there: bring its virtual time near to that of the others there. It keeps what it is owed, within
 * the bound; it does not collect for having slept, nor pay for what it used while nobody else wanted it.
 *
 * waited_ns: when it last competed; 0: never. slept: nothing of it was active.
 */
static __always_inline u64 come_near(u64 vtime, u64 waited_ns, u64 now, bool slept, bool at_home, u32 entity, s32 cpu,
				     bool everywhere, u64 lag)
{
	/* Of one that runs elsewhere meanwhile the place where it competes is there. */
	bool rested = slept && elapsed_ns(now, waited_ns) > REST_NS;
	u64 clock;

	if (waited_ns && !rested && !(slept && (at_home || everywhere)))
		return vtime;
	/* A pCPU that was idle for long has an old clock: not more of that for a large VM. */
	clock = clock_near(entity, cpu, everywhere, lag_ns);
	if (!waited_ns)
		return clock;
	if (time_before(vtime, clock - lag))
		return clock - lag;
	if (rested && time_before(clock + LAG_APART * lag, vtime))
		return clock + LAG_APART * lag;
	return vtime;
}

/* In vtime_wake(): that it is to be queued, beside the pCPU. */
#define WAKES_QUEUED (1ULL << 32)

/* The same as vtime_wake() for one entity that t is part of, below that parent. Return 0 if there is none. */
VERIFIED_ONCE vtime_wake_entity(struct task_ctx *t, u32 slot, u32 parent, u64 where, u64 now)
{
	struct entity_ctx *e = entity_get(slot);
	s32 cpu = (u32)where;
	bool slept;
	u64 vtime;

	if (!t || !slot || !e)
		return 0;
	slept = is_asleep(t) && e->nr_active <= 0;
	/* Changes of others meanwhile may be lost: as much as they have run since a tick. */
	vtime = come_near(e->vtime, e->waited_ns, now, slept, e->home == cpu, parent, cpu, t->everywhere,
			  entity_lag(e, t));
	if (vtime != e->vtime)
		e->vtime = vtime;
	if (where & WAKES_QUEUED || !e->waited_ns) {
		if (e->home != cpu)
			e->home = cpu;
		if (elapsed_ns(now, e->waited_ns) > 1000000)
			e->waited_ns = now;
	}
	return 1;
}

/* t, not counted as active yet if it slept, is about to be queued on cpu, or (not queued) to run there at once. */
static void vtime_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	u64 where = (u32)cpu | (queued ? WAKES_QUEUED : 0);
	struct entity_ctx *leaf;
	u32 parent = 0, slot;
	bool slept;
	s32 i;

	leaf = entity_at(t->leaf);
	slept = is_asleep(t);
	for (i = 0; leaf && i < MAX_DEPTH; i++) {
		slot = leaf->path[i];
		if (!slot || !vtime_wake_entity(t, slot, parent, where, now))
			break;
		parent = slot;
	}
	if (slept && !t->aside)
		*fresh_until(t) = t->paid_until_ns + slice_ns / 2;
	t->vtime = come_near(t->vtime, t->waited_ns, now, slept, t->home == cpu, t->leaf, cpu, t->everywhere, lag_ns);
	if (queued || !t->waited_ns) {
		t->home = cpu;
		t->waited_ns = now;
	}
}

/* A clock of that entity, e, follows a child that runs: forward at once; back only if it is far ahead, as after a stranger's turn. */
static __always_inline void clock_follow(u32 entity, struct entity_ctx *e, s32 cpu, u64 vtime, bool everywhere)
{
	u64 *clock = clock_get(entity, cpu);

	if (!clock)
		return;
	if (time_before(*clock, vtime))
		*clock = vtime;
	else if (time_before(vtime + LAG_APART * lag_ns, *clock))
		*clock = vtime + LAG_APART * lag_ns;
	if (everywhere && e && time_before(e->free_clock + CLOCK_STEP_NS, vtime))
		e->free_clock = vtime;
}

/* The furthest child of that entity: what the others are behind is measured against it. */
static __always_inline void child_clock_follow(u32 entity, struct entity_ctx *e, u64 vtime)
{
	if (entity && e && time_before(e->child_clock + CLOCK_STEP_NS, vtime))
		e->child_clock = vtime;
}

/* How far e has come, without what it has paid for beyond now. */
static __always_inline u64 settled_vtime(const struct entity_ctx *e, u64 now)
{
	return e->vtime - scale_by_entity(turns_rest_ns(e, now), e);
}

/* In vtime_begin_path(): it was chosen by its rank. */
#define BEGINS_BY_RANK (1ULL << 32)

/*
 * A turn of t, so long, begins on the pCPU in the lower half of `where`: those of whom t is a part pay for it. If t was chosen by its rank virtual time
 * there has come as far as each of them.
 */
VERIFIED_ONCE vtime_begin_path(struct task_ctx *t, u64 where, s64 turn_ns, u64 now)
{
	struct entity_ctx *up = entity_get(0), *e;
	u64 vtime, turn, served_ns;
	u32 parent = 0, slot;
	s32 i, cpu = (u32)where;

	if (!t)
		return 0;
	turn = turn_until(now + turn_ns);
	served_ns = is_overdue(t, now) ? 0 : now;
	for (i = 0; i < MAX_DEPTH; i++) {
		slot = t->run_path[i];
		e = entity_at(slot);
		if (!e)
			break;
		if (where & BEGINS_BY_RANK) {
			/* Not beyond what it has had: others that sleep would pay for its turns that are still to come, once for each of a large VM's vCPUs. */
			vtime = settled_vtime(e, now);
			clock_follow(parent, up, cpu, vtime, t->everywhere);
			child_clock_follow(parent, up, vtime);
		}
		atomic_add(&e->turns, turn - t->turn);
		if (elapsed_ns(served_ns, e->served_ns) > SERVED_STEP_NS)
			e->served_ns = served_ns;
		entity_charge(e, turn_ns);
		parent = slot;
		up = e;
	}
	if (where & BEGINS_BY_RANK) {
		clock_follow(parent, up, cpu, t->vtime, t->everywhere);
		child_clock_follow(parent, up, t->vtime);
	}
	t->turn = turn;
	return 0;
}

/* Its turn is over, and was so much longer than those have paid for of whom t is a part; shorter, if negative. */
VERIFIED_ONCE vtime_end_path(struct task_ctx *t, s64 more_ns)
{
	struct entity_ctx *e;
	s32 i;

	if (!t || (!more_ns && !t->turn))
		return 0;
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_at(t->run_path[i]);
		if (!e)
			break;
		atomic_add(&e->turns, -t->turn);
		entity_charge(e, more_ns);
	}
	t->turn = 0;
	return 0;
}

/*
 * A turn is paid for when it begins, by all of whom the task is a part, and what is not used is paid back when it ends. If it were paid for afterwards, an
 * entity that is entitled to one of two pCPUs would be behind for both at once, and have two threads run half of the time where it should have its best
 * one run all the time.
 */
static void vtime_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 now = t->begins_ns;

	*last_weight(t) = weight;
	t->paid_until_ns = t->charged_ns + slice;
	vtime_begin_path(t, (u32)cpu | (by_rank ? BEGINS_BY_RANK : 0), slice, now);
	t->vtime += scale_by_weight(slice, weight);
	if (c) {
		c->curr_vtime = t->vtime;
		c->curr_fresh_until_ns = now + elapsed_ns(*fresh_until(t), t->charged_ns);
	}
}

/* The turn has lasted for as long as is counted, and no longer. */
static void vtime_end(struct task_ctx *t, u64 weight)
{
	s64 more = t->charged_ns - t->paid_until_ns;

	if (more < 0)
		t->vtime -= scale_by_weight(-more, weight);
	else
		t->vtime += scale_by_weight(more, weight);
	vtime_end_path(t, more);
	t->paid_until_ns = t->charged_ns;
}

/* Charge what it has not paid for. */
static void vtime_charge(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	if (time_before(t->paid_until_ns, t->charged_ns))
		vtime_end(t, weight);
}

/*
 * t exits: those that compete have come as far as it has, though no turn of another has begun since. Of a chain of tasks, each of which begins the next before
 * its turn is over, every one would come where the first one came, and before a neighbour that has paid for a turn.
 */
static void vtime_exits(struct task_ctx *t, s32 cpu)
{
	u64 *clock = clock_get(t->leaf, cpu), at = t->vtime, most;

	if (!clock)
		return;
	/* What it is ahead by other things than this turn is not others' to have had. */
	most = *clock + scale_by_weight(slice_ns, *last_weight(t) ?: WEIGHT_DEFAULT);
	if (time_before(most, at))
		at = most;
	if (time_before(*clock, at))
		*clock = at;
}

/* What has come as far as `vtime` forfeits what it is behind `least`; no more than LAG_APART * lag at once. */
static __always_inline u64 forfeit(u64 vtime, u64 least, u64 lag)
{
	if (!time_before(vtime, least))
		return vtime;
	return least - vtime < LAG_APART * lag ? least : vtime + LAG_APART * lag;
}

/*
 * t may claim as much for what it leaves to others as one that sleeps, and forfeits the rest. Else whoever yields in a loop would save up without a bound,
 * and let nobody run for a second when it computes. An entity forfeits, where the ways of the two part, only if nothing else of it is active: what others of
 * it wait for is not t's to give. And not everything at once: a light neighbour is seconds ahead after a turn, and one yield beside it would cost as much.
 */
static void vtime_yields(struct task_ctx *t, struct rank *own, struct rank *to)
{
	u64 level = parting_level(own, to), least = to->own, turn;
	u32 i, slot = t->leaf, parts_at = 0;
	struct entity_ctx *e;

	if (level < MAX_DEPTH) {
		parts_at = own->path[level];
		least = rank_vtime(to, to->path[level], &turn);
	}
	if (!parts_at) {
		t->vtime = forfeit(t->vtime, least - lag_ns, lag_ns);
		return;
	}
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_get(slot);
		if (!slot || !e || e->nr_active > 1)
			return;
		if (slot == parts_at) {
			e->vtime = forfeit(e->vtime, least - entity_lag(e, t), lag_ns);
			return;
		}
		slot = e->parent;
	}
}

/* A pCPU was kept for it: its VM pays for that as for a turn. */
static void vtime_kept(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	struct entity_ctx *e;
	s32 i;

	t->vtime += scale_by_weight(delta_ns, weight);
	/* It may have begun another turn elsewhere, which is not touched. */
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_at(t->run_path[i]);
		if (!e)
			break;
		atomic_add(&e->vtime, scale_by_entity(delta_ns, e));
	}
}

/* Has a child of that entity, with this virtual time, had more than those it competes with on cpu? */
static __always_inline bool is_ahead(u32 entity, s32 cpu, u64 vtime)
{
	u64 *clock = clock_get(entity, cpu);

	return !clock || time_before(*clock + lag_ns, vtime);
}

/* Nor does what somebody there ran beside others: or whoever sleeps would come back as far ahead as that, again and again. The other pCPUs raise it again. */
static __always_inline void clock_forget(u32 entity, u64 most, bool everywhere)
{
	struct entity_ctx *e = entity_get(entity);

	if (everywhere && e && time_before(most, e->free_clock))
		e->free_clock = most;
}

/*
 * t waits on cpu, and something that it is part of may have had no turn at all for REST_NS, for it is ahead of the others here by more than its turns can
 * have made it: it used a pCPU that it may use no more, or in another cgroup, or beside others than these. That does not count here beyond the bound. It
 * would wait for as long as it was alone there.
 */
VERIFIED_ONCE vtime_forget(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *leaf, *e;
	u32 parent = 0, slot;
	u64 most;
	s32 i;

	if (!t)
		return 0;
	leaf = entity_at(t->leaf);
	for (i = 0; leaf && i < MAX_DEPTH; i++) {
		slot = leaf->path[i];
		e = entity_at(slot);
		if (!e)
			break;
		most = clock_of(parent, cpu, false) + LAG_APART * lag_ns + nr_online * scale_by_entity(slice_ns, e);
		if (elapsed_ns(now, e->served_ns) > REST_NS && time_before(most, e->vtime)) {
			e->vtime = most;
			clock_forget(parent, most, t->everywhere);
		}
		parent = slot;
	}
	most = clock_of(t->leaf, cpu, false) + LAG_APART * lag_ns +
	       scale_by_weight(slice_ns, *last_weight(t) ?: WEIGHT_DEFAULT);
	if (waited_ns(t, now) > REST_NS && time_before(most, t->vtime)) {
		t->vtime = most;
		clock_forget(t->leaf, most, t->everywhere);
	}
	return 0;
}

/* One whose entity is ahead of the others here waits for its entity's sake and must be more patient. */
static u32 vtime_urgency(struct task_ctx *t, struct rank *r, s32 cpu, u64 now)
{
	struct entity_ctx *e;
	u32 parent = 0, i;

	if (waited_ns(t, now) <= starve_ns)
		return URGENCY_NONE;
	if (t->cpu == cpu)
		vtime_forget(t, cpu, now);
	/* Of the many that a cgroup may have each waits for the others. */
	if (t->leaf && t->vcpu < 0)
		return is_overdue(t, now) ? URGENCY_OVERDUE : URGENCY_NONE;
	if (!r->path[0] && is_ahead(0, cpu, r->own))
		return is_overdue(t, now) ? URGENCY_OVERDUE : URGENCY_NONE;
	/* At any level: a VM with a small part of its cgroup is ahead there, although the cgroup is not. */
	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_at(r->path[i]);
		if (!e)
			break;
		if (is_ahead(parent, cpu, settled_vtime(e, now)))
			return is_overdue(t, now) ? URGENCY_OVERDUE : URGENCY_NONE;
		parent = r->path[i];
	}
	return URGENCY_STARVED;
}

/* By the time that its entity will have come to when those of it that wait already have had their turns. */
static u64 vtime_key(const struct task_ctx *t)
{
	struct entity_ctx *leaf = entity_at(t->leaf), *top;
	u64 key = t->vtime;
	s32 before;

	if (leaf) {
		top = entity_get(leaf->path[0]);
		before = leaf->nr_active - leaf->nr_running - 1;
		if (top)
			key = top->vtime + (before > 0 ? before * scale_by_entity(slice_ns, top) : 0);
	}
	return key;
}

/*
 * An entity that has all it wants, because no thread below it waits, may not save for later what it leaves to others; nor may those above it of whom
 * nothing else is active, as the scope that libvirt makes for each VM. Unless others wait for the pCPU of a pinned thread of it: they would get a part of that
 * as if they competed with those that run elsewhere.
 */
static void vtime_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	struct entity_ctx *e = entity_at(t->leaf);
	u64 least, lag = lag_ns;
	s32 i;

	if (e && !t->everywhere && queue_is_marked(cpu))
		note_bound(t, now);
	if (!e || !t->everywhere || e->nr_running < e->nr_active)
		return;
	for (i = 0; i < MAX_DEPTH; i++) {
		if (e->bound_ns && elapsed_ns(now, e->bound_ns) <= REST_NS)
			break;
		least = clock_of(e->parent, cpu, true) - LAG_APART * lag;
		if (time_before(e->vtime, least))
			e->vtime = least;
		/* What is above keeps as much as its vCPUs could claim. */
		lag = i ? lag : entity_lag(e, t);
		if (!e->parent)
			break;
		e = entity_get(e->parent);
		if (!e || e->nr_active != 1)
			break;
	}
}

static const struct order order_vm = {
	.of_vms = true,
	.rank = vtime_rank,
	.rank_of_runner = vtime_rank_of_runner,
	.before = vtime_before,
	.key = vtime_key,
	.wake = vtime_wake,
	.exits = vtime_exits,
	.begin = vtime_begin,
	.charge = vtime_charge,
	.pays_ahead = true,
	.kept = vtime_kept,
	.end = vtime_end,
	.yields = vtime_yields,
	.urgency = vtime_urgency,
	.tick = vtime_tick,
};

#endif
