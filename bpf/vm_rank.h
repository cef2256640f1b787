/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which of two deserves the pCPU more, in order vm: their places in the tree, and where their ways from the root part.
 */
#ifndef COHORT_VM_RANK_H
#define COHORT_VM_RANK_H

#include "account.h"

/* The weight that t had in its last turn, 0 before the first: no operation that ranks t has it at hand. */
static __always_inline u64 *last_weight(struct task_ctx *t)
{
	return &t->order_state[0];
}

/* Until its run time, as paid_until_ns has it after a turn, has come to this t is fresh: it has slept, and has not had half a turn's time since. */
static __always_inline u64 *fresh_until(struct task_ctx *t)
{
	return &t->order_state[1];
}

/*
 * How far behind its siblings a vCPU counts, in turns, at most. Where their affinities differ it may fall behind without end. But what each of them has is no
 * share, and does not come before what a cgroup owes its children.
 */
#define BEHIND_IN_VM 16

/* The place of one of that weight that is part of that entity. */
static __always_inline void rank_of_leaf(u32 leaf, u64 own, u64 weight, u64 now, struct rank *r)
{
	struct entity_ctx *e = entity_at(leaf);

	weight = weight ?: WEIGHT_DEFAULT;
	r->own = own;
	r->own_turn_us = weight == WEIGHT_DEFAULT ? slice_us : scale_by_weight(slice_ns, weight) / 1000;
	if (!e)
		return;
	__builtin_memcpy(r->path, e->path, sizeof(r->path));
	if (time_before(own, e->child_clock))
		r->behind_ns = unscale_by_weight(e->child_clock - own, weight);
	if (e->kind != ENTITY_VM)
		return;
	if (r->behind_ns > BEHIND_IN_VM * slice_ns)
		r->behind_ns = BEHIND_IN_VM * slice_ns;
	/* What its siblings have paid for this turn does not keep a vCPU from joining it. */
	if (chosen_gang() == GANG_aligned)
		r->unused_ns = turns_rest_ns(e, now);
}

/*
 * A VMM's thread that is no vCPU (an iothread, vhost, the main loop) does what the guest waits for, and its run is short: it may go before others as if its
 * VM had run lag_ns less. The VM pays for it as for every thread.
 */
static __always_inline u64 borrows_ns(const struct task_ctx *t)
{
	return t->vm && t->vcpu < 0 ? lag_ns : 0;
}

static void vtime_rank(struct task_ctx *t, u64 now, struct rank *r)
{
	rank_of_leaf(t->leaf, t->vtime, *last_weight(t), now, r);
	r->credit_ns = borrows_ns(t);
	if ((is_asleep(t) && !t->aside) || time_before(t->paid_until_ns, *fresh_until(t)))
		r->own_turn_us = 0;
}

static void vtime_rank_of_runner(const struct cpu_ctx *c, u64 now, struct rank *r)
{
	u64 unused = elapsed_ns(c->turn_end_ns, now);

	/* Its own time as of now; that of its entities as of now by what is left of its turn, and of those with it. */
	rank_of_leaf(c->curr_leaf, c->curr_vtime - scale_by_weight(unused, c->curr_weight), c->curr_weight, now, r);
	if (r->unused_ns < unused)
		r->unused_ns = unused;
	if (time_before(now, c->curr_fresh_until_ns))
		r->own_turn_us = 0;
}

/* Virtual time where a's and b's ways part, at this entity of r's path or (0) at its own. *turn: the virtual time that a turn costs there. */
static __always_inline u64 rank_vtime(const struct rank *r, u32 slot, u64 *turn)
{
	struct entity_ctx *e = entity_at(slot);

	if (!e) {
		*turn = r->own_turn_us ? r->own_turn_us * 1000ULL : slice_ns;
		return r->own - r->credit_ns;
	}
	*turn = scale_by_entity(slice_ns, e);
	return e->vtime - scale_by_entity(r->unused_ns, e) - r->credit_ns;
}

/* By how much of virtual time `first`, whose turn costs `turn`, must be before one whose turn costs `width` for that to be no tie. */
static __always_inline u64 tie_width(const struct rank *first, u64 turn, u64 width)
{
	u64 own = first->own_turn_us ? turn : 0;

	return width > own ? width : own;
}

/* So far behind, in turns, is only who is due more than it can have: nearly a whole pCPU for each of its threads. */
#define SATURATED_BEHIND 64

/* What is owed at an outer level comes before what is owed further inside, if it is so many turns more. */
#define OWED_FIRST 16

/* By so many turns more than a tie its entity may be ahead, and it keeps its pCPU. */
#define SATURATED_TURNS 3

/*
 * How much more than a tie that is, in virtual time, if the second, whose turn costs `turn`, is behind as that: its entity is ahead by turns of others below it
 * that have just ended, and the neighbours may have the next ones of those. A turn that it loses itself it can never make up for. But who has just slept does
 * not wait for that. Nor is it more than six turns of the usual weight: those of a light entity are long.
 */
static __always_inline u64 saturated_width(const struct rank *first, u64 turn)
{
	if (!first->own_turn_us)
		return 0;
	return SATURATED_TURNS * (turn < 2 * slice_ns ? turn : 2 * slice_ns);
}

/*
 * How far the entity at that level of r's path is behind the furthest of its siblings, in time; at the level below its last one: how far the one of that rank
 * is itself. Further below nobody is. Not at the root.
 */
VERIFIED_ONCE_U64 behind_at(struct rank *r, u64 at)
{
	struct entity_ctx *e, *up;
	u64 vtime, parent = at - 1;
	u32 slot = 0, above;

	/* The check is to be of what is used: the compiler would count another pointer along. */
	asm volatile("" : "+r"(parent));
	if (!r || parent >= MAX_DEPTH)
		return 0;
	above = r->path[parent];
	if (!above)
		return 0;
	asm volatile("" : "+r"(at));
	if (at < MAX_DEPTH)
		slot = r->path[at];
	if (!slot)
		return r->behind_ns;
	e = entity_get(slot);
	up = entity_get(above);
	if (!e || !up)
		return 0;
	vtime = e->vtime - scale_by_entity(r->unused_ns, e) - r->credit_ns;
	return time_before(vtime, up->child_clock) ? unscale_by_weight(up->child_clock - vtime, entity_weight(e)) : 0;
}

/*
 * Of two whose ways part at this level: have its siblings, at a level below, left the second behind further than those of the first have left that one?
 *
 * By far: the outermost level decides at which the two differ by so much. What a cgroup owes its children comes before what each of those owes its own. Else
 * both would fall behind at the same pace, where the children of one are pinned in the same way as the grandchildren of another. By little: within a tie,
 * and at whatever level.
 */
static __always_inline bool is_left_behind(struct rank *first, struct rank *second, u64 level, bool is_tie)
{
	u64 of_first, of_second, most_of_first = 0, most_of_second = 0, at;
	u64 by = OWED_FIRST * slice_ns, needs = is_tie ? by : SATURATED_BEHIND * slice_ns;
	u32 i;

	for (i = 1; i <= MAX_DEPTH; i++) {
		at = level + i;
		of_first = behind_at(first, at);
		of_second = behind_at(second, at);
		if (of_second > of_first + needs)
			return true;
		if (of_first > of_second + by)
			return false;
		if (of_first > most_of_first)
			most_of_first = of_first;
		if (of_second > most_of_second)
			most_of_second = of_second;
		asm volatile("" : "+r"(at));
		if (at >= MAX_DEPTH || (!first->path[at] && !second->path[at]))
			break;
	}
	return is_tie && most_of_second > most_of_first + 2 * slice_ns;
}

/* The level at which the ways of a and b from the root part; MAX_DEPTH: both are part of the same entity. */
static __always_inline u64 parting_level(const struct rank *a, const struct rank *b)
{
	u32 i;

	for (i = 0; i < MAX_DEPTH; i++) {
		if (a->path[i] != b->path[i])
			break;
	}
	return FORGOTTEN(i, a->own);
}

/*
 * Return true if a deserves the pCPU more than b, by at least margin_ns of virtual time.
 *
 * Where their ways part within less than a turn of either, neither deserves it more than the other, for turns are what is given. (Of one that has just slept
 * only the other's turn counts: those that are light and sleep now and then would wait for heavy ones.) Then that one goes first
 * which its siblings, at a level below, have left behind. Otherwise a cgroup that has two turns at once would give one of them to a child that is due
 * none, and threads of two VMs that are pinned in the same way would never take turns: that of one VM here and that of the other there could go on for
 * ever, each VM having its share.
 */
static __always_inline bool vtime_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	struct rank *first = a, *second = b;
	u64 of_a, of_b, turn_of_a, turn_of_b, turn, apart, level = parting_level(a, b), width;
	bool a_is_first;

	if (level >= MAX_DEPTH)
		return time_before(a->own + margin_ns, b->own);
	of_a = rank_vtime(a, a->path[level], &turn_of_a);
	of_b = rank_vtime(b, b->path[level], &turn_of_b);
	apart = of_b - of_a;
	a_is_first = time_before(of_a + margin_ns, of_b);
	if (!a_is_first) {
		if (margin_ns)
			return false;
		first = b;
		second = a;
		apart = of_a - of_b;
	}
	turn = a_is_first ? turn_of_b : turn_of_a;
	width = tie_width(first, a_is_first ? turn_of_a : turn_of_b, turn);
	if (!time_before(apart, width + saturated_width(first, turn)))
		return a_is_first;
	/* Less than a turn before the other, or little more, and its siblings have left the other behind, or far behind. */
	return is_left_behind(first, second, level, time_before(apart, width)) ? !a_is_first : a_is_first;
}

#endif
