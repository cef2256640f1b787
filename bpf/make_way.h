/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who makes way for whom, where not everybody may run everywhere.
 *
 * room:  a runner whose turn goes on leaves its pCPU to one that waits there and may not go where a worse one runs, and goes there itself.
 * third: neither of the two may go there, but another runner may, and one of the two to his pCPU. He is asked to go; then his pCPU takes the waiter, or whom else
 *        it can get. A longer way, over two others, is not looked for.
 * sent:  the waiter comes first and may go there, the runner may not. That pCPU takes the waiter.
 *
 * In each case the one who deserves it least gives up a pCPU, wherever he has it, or one that idles is used. By the runners' own pCPUs alone, threads whose
 * affinities overlap in part had next to nothing beside an idle pCPU, and one that is due a whole pCPU was stopped for an entity of which another had one that it
 * deserved less. The last two are looked for about once a turn: somebody's affinity has to forbid the short way.
 */
#ifndef COHORT_MAKE_WAY_H
#define COHORT_MAKE_WAY_H

#include "runqueue.h"
#include "turn.h"
#include "period.h"

/* Neighbours that are looked at for a runner who could make room. */
#define MOVE_SCAN 8

/*
 * A pCPU near the search's to which p may go so that somebody of its rank gets a turn: an idle one, unless somebody else is to run there next, or the one whose
 * runner is last of those whom the rank comes before by a turn. -1: there is none. It is p itself whose turn has ended and who looks for a worse runner (waiter is
 * NULL), or the rank is that of a waiter who may not go there, and for whom p makes room. One who may go there himself needs no such exchange: it would take p's
 * pCPU from p, who may be due all of it.
 */
static s32 room_for(const struct task_struct *p, struct task_ctx *t, struct pick *search,
		    const struct task_struct *waiter)
{
	struct cohort_neighbours *near = neighbours_of(search->cpu);
	struct rank *rank = &search->rank, runner, last = {};
	s32 i, other, found = -1;
	u64 now = search->now;
	struct cpu_ctx *c;

	if (!near || task_is_pinned(p))
		return -1;
	bpf_for(i, 0, MOVE_SCAN) {
		other = neighbour(near, i);
		if (other < 0)
			break;
		c = cpu_get(other);
		if (!c || !c->online || c->taken || !task_allowed_on(p, other))
			continue;
		if (waiter && promised_pid(c, now))
			continue;
		if (waiter && task_allowed_on(waiter, other))
			continue;
		if (is_idle(other) && !wish_is_fresh(c, now) && !c->kept_pid)
			return other;
		/* Nor to take a sibling's place: its VM would gain nothing, and have two there. */
		if (placement == PLACEMENT_BALANCE && siblings_on(t, other))
			continue;
		if (!rank_of_runner(c, now, &runner) || !order_before(rank, &runner, slice_ns))
			continue;
		if (found >= 0 && !order_before(&last, &runner, 0))
			continue;
		found = other;
		last = runner;
	}
	return found;
}

/* Would t, queued on cpu, come before all that wait there? */
VERIFIED_ONCE would_be_first(struct task_ctx *t, s32 cpu, u64 now)
{
	struct pick *search = new_search(SECOND_SEARCH, cpu, now);

	if (!t || !search || !queue_is_marked(cpu))
		return 1;
	search->looks_only = true;
	order_rank(t, now, &search->prev);
	best_waiter(cpu, QUEUE_SCAN, 0, search);
	return !search->pid || (!search->urgency && !order_before(&search->rank, &search->prev, 0));
}

/* May somebody be sent to that pCPU: is it not another class's, and not spoken for? */
static __always_inline bool may_be_had(const struct cpu_ctx *c, u64 now)
{
	return c && c->online && !c->taken && !c->kept_pid && !wish_is_fresh(c, now) && !promised_pid(c, now);
}

/* Does prev, t, whose turn goes on, go elsewhere so that the best waiter here, who may not go there, has a turn, if both gain? */
static __noinline bool makes_room(const struct task_struct *prev, struct task_ctx *t, struct pick *best)
{
	struct task_struct *waiter = bpf_task_from_pid(best->pid);
	s32 to;

	if (!waiter)
		return false;
	to = room_for(prev, t, best, waiter);
	if (to < 0) {
		/* None that is near. One that idles is claimed, and so told to look, whether prev comes or not. */
		to = scx_bpf_pick_idle_cpu(prev->cpus_ptr, 0);
		if (to >= 0)
			scx_bpf_kick_cpu(to, SCX_KICK_IDLE);
		if (to >= 0 && may_be_had(cpu_get(to), best->now) && !task_allowed_on(waiter, to))
			t->placed = to + 1;
		else
			t->placed = 0;
		bpf_task_release(waiter);
		return t->placed;
	}
	bpf_task_release(waiter);
	/* Not to lose its turn to somebody who waits there. */
	if (to >= 0 && !is_idle(to) && !would_be_first(t, to, best->now))
		to = -1;
	t->placed = to + 1;
	return to >= 0;
}

/* cpu has nothing to do, and those that wait elsewhere may not come: is there a runner near who may, and would make room for one of them? */
static void ask_for_runner(s32 cpu)
{
	struct cohort_neighbours *near = neighbours_of(cpu);
	struct task_struct *p;
	struct cpu_ctx *c;
	bool may = false;
	s32 i, other;

	if (!near || no_queue_is_marked())
		return;
	bpf_for(i, 0, MOVE_SCAN) {
		other = neighbour(near, i);
		if (other < 0 || may)
			break;
		c = cpu_get(other);
		if (!c || !c->curr_pid || !queue_is_marked(other))
			continue;
		p = bpf_task_from_pid(c->curr_pid);
		if (!p)
			continue;
		may = task_allowed_on(p, cpu);
		bpf_task_release(p);
		if (may)
			scx_bpf_kick_cpu(other, SCX_KICK_PREEMPT);
	}
}

/* A pCPU looks for a third, or for where to send somebody, once a turn, about. */
static __always_inline u64 next_look_ns(u64 now)
{
	return now + slice_ns / 2;
}

/* After this long what a pCPU was asked for does not count: its runner may be another, and the waiter have had his turn. */
#define ASKED_STALE_NS 1000000ULL

/* Is that pCPU one for somebody of that rank: does it idle, and for nobody, or would he preempt its runner? */
static bool is_for_rank(s32 cpu, struct rank *rank, u64 margin_ns, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct rank runner;

	if (!may_be_had(c, now))
		return false;
	if (is_idle(cpu))
		return true;
	return rank_of_runner(c, now, &runner) && order_before(rank, &runner, margin_ns);
}

/*
 * Where the runner of the pCPU `third` can go so that the best waiter, or prev_pid who gives up the waiter's pCPU, can have that one; -1: nowhere. Not where one of
 * these two may go himself.
 */
VERIFIED_ONCE way_of(s32 third, struct pick *best, s32 prev_pid)
{
	struct cohort_neighbours *near = neighbours_of(third);
	struct pick *runner = new_search(SECOND_SEARCH, third, now_ns());
	struct task_struct *p, *waiter, *prev;
	struct cpu_ctx *c = cpu_get(third);
	struct task_ctx *t;
	s32 i, other, found = -1;

	if (!best || !runner || !c || !near || !rank_of_runner(c, best->now, &runner->rank))
		return -1;
	p = bpf_task_from_pid(c->curr_pid);
	if (!p)
		return -1;
	waiter = bpf_task_from_pid(best->pid);
	prev = bpf_task_from_pid(prev_pid);
	t = task_get(p);
	bpf_for(i, 0, MOVE_SCAN) {
		other = neighbour(near, i);
		if (other < 0 || !t || !waiter || found >= 0)
			break;
		if (other == best->cpu || !task_allowed_on(p, other) || task_allowed_on(waiter, other) ||
		    (prev && task_allowed_on(prev, other)))
			continue;
		if (placement == PLACEMENT_BALANCE && siblings_on(t, other))
			continue;
		if (is_for_rank(other, &best->rank, slice_ns, best->now) &&
		    is_for_rank(other, &runner->rank, wakeup_gran_ns, best->now))
			found = other;
	}
	if (prev)
		bpf_task_release(prev);
	if (waiter)
		bpf_task_release(waiter);
	bpf_task_release(p);
	return found;
}

/*
 * The best waiter of this pCPU may not go everywhere, and prev, t, could go on: ask a third for whom there is somewhere else. Where prev does not (t is NULL), the waiter
 * has this pCPU.
 */
static void ask_a_third(const struct task_struct *prev, struct task_ctx *t, struct pick *best)
{
	struct cohort_neighbours *near;
	struct cpu_ctx *c, *third;
	struct task_struct *waiter;
	s32 i, other, to = -1;
	bool may;

	if (!prev || !t || !best->pid || !best->restricted || gang_may_refuse())
		return;
	near = neighbours_of(best->cpu);
	c = cpu_get(best->cpu);
	if (!c || !near || time_before(best->now, c->asks_a_third_ns))
		return;
	c->asks_a_third_ns = next_look_ns(best->now);
	bpf_for(i, 0, MOVE_SCAN) {
		other = neighbour(near, i);
		if (other < 0)
			break;
		third = cpu_get(other);
		if (!third || !third->curr_pid || third->taken)
			continue;
		waiter = bpf_task_from_pid(best->pid);
		if (!waiter)
			break;
		may = task_allowed_on(waiter, other) || task_allowed_on(prev, other);
		bpf_task_release(waiter);
		if (may)
			to = way_of(other, best, prev->pid);
		if (to < 0)
			continue;
		third->makes_way_to = to + 1;
		third->makes_way_pid = third->curr_pid;
		third->takes_from = best->cpu + 1;
		third->asked_ns = best->now;
		scx_bpf_kick_cpu(other, SCX_KICK_PREEMPT);
		break;
	}
}

/*
 * The best waiter here comes before prev, t, who may not go where somebody runs who deserves it less than he. If the waiter may, that pCPU is told to take him: of
 * prev's entity the least deserving is to give up a pCPU, not prev because he is here. Then not at once again: the other may have good reasons not to.
 */
static bool is_sent_on(const struct task_struct *prev, struct task_ctx *t, struct pick *best)
{
	struct cohort_neighbours *near = neighbours_of(best->cpu);
	struct cpu_ctx *c = cpu_get(best->cpu), *third;
	struct task_struct *waiter;
	bool is_sent = false;
	s32 i, other;

	if (!c || !near || t->everywhere || gang_may_refuse() || time_before(best->now, c->sends_on_ns))
		return false;
	c->sends_on_ns = next_look_ns(best->now);
	waiter = bpf_task_from_pid(best->pid);
	if (!waiter)
		return false;
	bpf_for(i, 0, MOVE_SCAN) {
		other = neighbour(near, i);
		if (other < 0 || is_sent)
			break;
		third = cpu_get(other);
		if (!third || !task_allowed_on(waiter, other) || task_allowed_on(prev, other) ||
		    !is_for_rank(other, &best->prev, slice_ns, best->now))
			continue;
		third->makes_way_to = 0;
		third->takes_from = best->cpu + 1;
		third->asked_ns = best->now;
		scx_bpf_kick_cpu(other, SCX_KICK_PREEMPT);
		is_sent = true;
	}
	bpf_task_release(waiter);
	return is_sent;
}

/* Was prev, t, whose rank is best->prev and who gives up the pCPU of c, asked to go, and does it still gain by that? */
static __noinline bool makes_way(const struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c,
				 struct pick *best)
{
	s32 to;

	if (!c->makes_way_to)
		return false;
	to = c->makes_way_to - 1;
	c->makes_way_to = 0;
	if (!prev || !t || prev->pid != (s32)c->makes_way_pid || elapsed_ns(best->now, c->asked_ns) > ASKED_STALE_NS ||
	    !task_allowed_on(prev, to) || !is_for_rank(to, &best->prev, wakeup_gran_ns, best->now) ||
	    (!is_idle(to) && !would_be_first(t, to, best->now))) {
		c->takes_from = 0;
		return false;
	}
	t->placed = to + 1;
	return true;
}

/* What becomes of one that gives up its pCPU for the moment, and could go on. */
enum fate {
	WAITS,
	LEAVES, /* it goes elsewhere, and this pCPU takes whom it can get */
	GOES_ON,
	GOES_ON_FOR_NOW, /* until it is seen whether somebody who comes first has been taken elsewhere */
};

/* Of t, which gives up that pCPU for the moment and could go on. What is due by an order that divides anew every so often may be due no more in the rest of a turn. */
static __always_inline void note_prev(struct task_ctx *t, const struct cpu_ctx *c, struct pick *best)
{
	best->leaving_vm = t->vm;
	best->prev_queued = true;
	best->rest_ns = order_period_ns() ? 0 : rest_of_turn_ns(c, best->now);
	order_rank(t, best->now, &best->prev);
}

/* That of prev, t; NULL: it cannot go on. The best waiter of this pCPU, whose context is c, has been found. */
static __always_inline enum fate fate_of(const struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c,
					 struct pick *best, bool steps_back)
{
	if (c->makes_way_to && makes_way(prev, t, c, best))
		return LEAVES;
	if (!t || best->urgency)
		return WAITS;
	if (best->pid && (steps_back || order_before(&best->rank, &best->prev, best->rest_ns ? wakeup_gran_ns : 0)))
		return !steps_back && is_sent_on(prev, t, best) ? GOES_ON_FOR_NOW : WAITS;
	/* Who may go elsewhere makes room for one that may not. */
	if (best->pid && best->restricted && !task_is_pinned(prev) && makes_room(prev, t, best))
		return WAITS;
	return GOES_ON;
}

/* Was somebody sent here, to the pCPU of c? */
static void look_for_sent(struct cpu_ctx *c, struct pick *best)
{
	s32 from;

	if (!c->takes_from)
		return;
	from = c->takes_from - 1;
	c->takes_from = 0;
	if (elapsed_ns(best->now, c->asked_ns) <= ASKED_STALE_NS)
		best_waiter(from, QUEUE_SCAN, 0, best);
}

#endif
