/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Run queues: one DSQ per pCPU; the choice of who runs next; and what a pCPU takes from others' queues.
 *
 * A DSQ's order is fixed when a task is inserted, and virtual times move on while it waits. So a task is queued by the time that its entity is
 * expected to have when its turn comes, and who runs next is found by looking at the ranks of the first QUEUE_SCAN of the queue, as they are now.
 * What is further back than that is not forgotten: the whole queue is looked through now and then, and whoever has waited for too long goes to a queue
 * of its own, from which every other choice is made.
 */
#ifndef COHORT_RUNQUEUE_H
#define COHORT_RUNQUEUE_H

#include "placement.h"
#include "aside.h"
#include "shared_pcpu.h"

#define QUEUE_SCAN 32
#define REMOTE_QUEUE_SCAN 8

/* Other pCPUs' queues that a busy pCPU looks at for one choice: the nearest, and as many of the others in turn. */
#define REMOTE_NEAR 2
#define REMOTE_FAR 2

/*
 * By how many turns a waiter elsewhere must deserve a busy pCPU more than whoever has it: what runs has paid for its turn, so that two VMs that get the same are
 * a turn or two apart at any moment, and each move costs a cache.
 */
#define PULL_MARGIN 3

/*
 * ... and how often it looks, in parts of a turn. Where tasks sleep and wake in quick succession each of them makes their pCPU choose, and others' virtual times
 * do not come to be turns apart meanwhile.
 */
#define PULL_LOOKS 8

/* Tasks looked at when the whole queue is searched, at most; what is moved away makes room for the next time. */
#define SEARCH_MAX 1024

/* How long one runs whose turn it is only because it has waited for so long, if it is not ahead of its share. */
#define STARVED_SLICE_NS 1000000ULL

/*
 * ... and one that is, or that is of a cgroup whose threads wait for one another: this part of a turn, and no less than that. Each of many threads is such a one, and
 * together they may get more than is due.
 */
#define OVERDUE_PARTS 64
#define OVERDUE_SLICE_MIN_NS 100000ULL

#define OVERDUE_DSQ(cpu) (0x10000ULL + (cpu))

/* The search for who runs next on pCPU cpu, and the best found so far. */
struct pick {
	s32 cpu;
	u32 leaving_vm; /* VM whose vCPU gives up the pCPU now, as task_ctx.vm; 0: none */
	u64 now;
	struct rank prev; /* of the one that gives up the pCPU, if prev_queued: it could go on */
	bool prev_queued;
	u64 rest_ns; /* of the turn of that one, if it was stopped only to look at who was aside; 0: it has none */
	struct rank rank;
	u64 queued_ns;
	u32 vm;
	s32 pid;   /* 0: nobody yet */
	s32 queue; /* the pCPU in whose queue it waits, or NO_QUEUE */
	u32 urgency;
	u32 waiting;	 /* in the pCPU's own queue, as the search has found them: QUEUE_SCAN + 1 stands for more */
	bool restricted; /* some pCPUs are forbidden to it */
	bool anybody;	 /* even where a sibling is: nothing that can run waits for an idle pCPU */
	bool sweeps;	 /* whatever is known of where those in a queue may run */
	bool looks_only; /* from another pCPU, which alone puts aside who waits in its queue */
	/* Of the one that is looked at, for want of stack. A new search does not clear it: it is the last. */
	struct rank looked_at;
};

/* pick.queue: it is on the pCPU, and goes on. */
#define NO_QUEUE -1

/* The search for who runs next, and a second one while that goes on: they do not fit on the stack that a program shares with all that it calls. */
enum {
	FIRST_SEARCH,
	SECOND_SEARCH,
	NR_SEARCHES,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_SEARCHES);
	__type(key, u32);
	__type(value, struct pick);
} searches SEC(".maps");

static __always_inline struct pick *new_search(u32 which, s32 cpu, u64 now)
{
	struct pick *search = bpf_map_lookup_elem(&searches, &which);

	if (search) {
		__builtin_memset(search, 0, __builtin_offsetof(struct pick, looked_at));
		search->cpu = cpu;
		search->now = now;
	}
	return search;
}

/*
 * Would taking t from queue, another pCPU's, put it where a sibling is? One that leaves the pCPU in exchange does not count. Where somebody of a higher class
 * has the queue's pCPU, for as long as it likes, t may go to a sibling all the same. Nobody tells when the one that runs becomes real-time: it just runs on, as
 * nobody that is known here.
 */
VERIFIED_ONCE would_stack(struct pick *best, struct task_ctx *t, s32 queue)
{
	struct cpu_ctx *c;

	if (!best || !t || placement != PLACEMENT_BALANCE || best->anybody)
		return 0;
	/* A sibling that leaves in exchange goes where t was. */
	if (!siblings_on(t, best->cpu) || (best->leaving_vm && best->leaving_vm == t->vm))
		return 0;
	c = cpu_get(queue);
	if (!c || c->taken)
		return 0;
	return c->curr_pid || !t->queued_ns || elapsed_ns(best->now, t->queued_ns) < slice_ns;
}

/* Does a waiting task, starved or not, replace the best found so far? */
static __always_inline bool is_better(struct pick *best, const struct task_ctx *t, u32 urgency, u64 margin_ns)
{
	if (!best->pid)
		return true;
	if (!best->urgency != !urgency)
		return urgency;
	/* Among the starved, rank is what starved them. */
	if (urgency)
		return time_before(t->queued_ns, best->queued_ns);
	return order_before(&best->looked_at, &best->rank, margin_ns);
}

/* By how much must t deserve the pCPU more than the best found so far? */
static __always_inline u64 margin_of(const struct pick *best, const struct task_ctx *t, u64 margin_ns)
{
	return best->queue == NO_QUEUE && best->leaving_vm ? margin_beside(t, best->leaving_vm, margin_ns) : margin_ns;
}

/*
 * Let the best of the first `scan` that wait in queue replace *best if it deserves the pCPU more by margin_ns. A starved task goes before
 * everybody.
 */
VERIFIED_ONCE best_waiter(s32 queue, u32 scan, u64 margin_ns, struct pick *best)
{
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = 0, moved = 0, urgency, gate;
	s32 promised;

	if (!best)
		return 0;
	/* Who is on the way to a runner's place is not taken from there by a pCPU that is busy. */
	promised = queue != best->cpu && best->pid ? promised_pid(cpu_get(queue), best->now) : 0;
	bpf_for_each(scx_dsq, p, queue, 0) {
		if (seen++ >= scan)
			break;
		t = task_get(p);
		if (!t || !task_allowed_on(p, best->cpu) || (queue != best->cpu && would_stack(best, t, queue)))
			continue;
		if (promised && p->pid == promised)
			continue;
		gate = gate_of(p, t, best->cpu, best->now);
		if (gate) {
			if (gate == GATE_ASIDE && queue == best->cpu && !best->looks_only &&
			    goes_aside(t, queue, best->now) &&
			    scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, ASIDE_DSQ(queue), 0)) {
				now_aside(t, best->now);
				moved++;
			}
			continue;
		}
		order_rank(t, best->now, &best->looked_at);
		urgency = may_be_urgent(t, best->now) ? order_urgency(t, &best->looked_at, best->cpu, best->now) :
							URGENCY_NONE;
		if (!is_better(best, t, urgency, margin_of(best, t, margin_ns)))
			continue;
		best->rank = best->looked_at;
		best->queued_ns = t->queued_ns;
		best->vm = t->vm;
		best->pid = p->pid;
		best->queue = queue;
		best->urgency = urgency;
		best->restricted = !t->everywhere;
	}
	if (queue == best->cpu)
		best->waiting = seen - moved;
	return 0;
}

/* Nobody is in that queue, although it is marked: that of a pCPU that went offline stays so (pcpu_ops.h), and is not worth a look. */
static __always_inline bool is_left_marked(s32 cpu)
{
	struct cpu_ctx *c = nr_online < nr_cpus ? cpu_get(cpu) : NULL;

	return c && !c->online && scx_bpf_dsq_nr_queued(cpu) <= 0 && scx_bpf_dsq_nr_queued(OVERDUE_DSQ(cpu)) <= 0;
}

/* Look for somebody in other pCPUs' queues. An idle pCPU takes from the longest queue near it; a busy one only who deserves it much more. */
VERIFIED_ONCE best_remote_waiter(u64 margin_ns, struct pick *best)
{
	struct cohort_neighbours *near;
	s32 i, from, queued, most = 0, longest = -1;
	struct cpu_ctx *c, *other;
	u32 index, looked = 0, start;
	u64 margin;

	if (!best)
		return 0;
	c = cpu_get(best->cpu);
	if (!c)
		return 0;
	if (!best->pid && no_queue_is_marked())
		return 0;
	near = neighbours_of(best->cpu);
	if (!near || !near->n)
		return 0;
	if (best->pid) {
		c->looked_around_ns = best->now;
		start = c->rotation;
		bpf_for(i, 0, NEIGHBOURS) {
			if (i >= near->n || looked >= REMOTE_NEAR + REMOTE_FAR)
				break;
			/* The nearest first, then on from where the last search ended. */
			index = i < REMOTE_NEAR ? i : REMOTE_NEAR + (start + i) % NEIGHBOURS;
			if (index >= near->n) {
				if (near->n <= REMOTE_NEAR)
					break;
				index = REMOTE_NEAR + (index - REMOTE_NEAR) % (near->n - REMOTE_NEAR);
			}
			if (i >= REMOTE_NEAR)
				c->rotation++;
			from = neighbour(near, index);
			if (from < 0 || !queue_is_marked(from))
				continue;
			other = cpu_get(from);
			if (!other || !reaches(other, best->cpu) || is_left_marked(from))
				continue;
			looked++;
			/* For as long as a task of a higher class has a pCPU, who waits there is to come to where he deserves it. */
			margin = other->taken ? 0 : margin_ns * (1 + distance(near, index));
			best_waiter(from, REMOTE_QUEUE_SCAN, margin, best);
		}
		return 0;
	}
	bpf_for(i, 0, NEIGHBOURS) {
		from = neighbour(near, i);
		if (from < 0)
			break;
		/* Somebody near is better than more of them far away. */
		if (longest >= 0 && (i == near->llc_end || i == near->node_end))
			break;
		if (!queue_is_marked(from) || !queue_reaches(from, best->cpu))
			continue;
		queued = scx_bpf_dsq_nr_queued(from);
		if (queued > most) {
			most = queued;
			longest = from;
		}
	}
	if (longest >= 0)
		best_waiter(longest, QUEUE_SCAN, 0, best);
	return 0;
}

/* The same, if it is time for that: a pCPU of that context that has somebody to run looks now and then. */
static __always_inline void look_around(u64 margin_ns, const struct cpu_ctx *c, struct pick *best)
{
	if (best->pid && elapsed_ns(best->now, c->looked_around_ns) < slice_ns / PULL_LOOKS)
		return;
	best_remote_waiter(margin_ns, best);
}

/* Put waiting task pid, from queue, on this pCPU, cpu. Return false if it is no longer there. */
VERIFIED_ONCE take_now(s32 pid, u64 queue, s32 cpu, u64 slice)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct task_ctx *t;
	bool taken = false;

	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		/* Checked after the iterator is made: if affinity changes from here on, p is queued anew and the move fails. */
		if (task_allowed_on(p, cpu)) {
			scx_bpf_dsq_move_set_slice(&it, slice);
			taken = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	/* Who waited here counts here already. */
	if (taken && queue != (u32)cpu) {
		/* At once: whoever it replaces here is placed before it runs. */
		t = task_get(p);
		if (t)
			account_place(t, cpu);
	}
	bpf_task_release(p);
	return taken;
}

/* The same, if its gang does not let it wait. */
static __always_inline bool take(s32 pid, u64 queue, s32 cpu, u64 slice)
{
	return (!gang_may_refuse() || gang_lets(pid, cpu)) && take_now(pid, queue, cpu, slice);
}

/*
 * Does somebody wait in this pCPU's own queue? Whoever queues somebody marks it, but the kernel inserts them only when that operation is over: if this pCPU has
 * looked in between, it has found nobody and taken the mark away.
 */
static __always_inline bool queue_has_some(s32 cpu)
{
	if (!queue_is_marked(cpu) && scx_bpf_dsq_nr_queued(cpu) > 0)
		queue_mark(cpu, EVERYWHERE);
	return queue_is_marked(cpu);
}

/* How many gangs in one queue may refuse their best, or other pCPUs have been faster, before the rest of it is left alone. */
#define REFUSALS_MAX 8

/* Take somebody who waits in that queue. */
VERIFIED_ONCE take_any_of(s32 queue, struct pick *best)
{
	s32 i;

	if (!best)
		return 0;
	bpf_for(i, 0, REFUSALS_MAX) {
		best->pid = 0;
		best_waiter(queue, SEARCH_MAX, 0, best);
		if (!best->pid)
			break;
		if (take(best->pid, queue, best->cpu, slice_ns))
			return 1;
	}
	best->pid = 0;
	return 0;
}

/*
 * Is it time for an idle pCPU to look at all queues? Who came to one that was unmarked at that moment is known there, and may be hidden from others by who
 * came next.
 */
static __always_inline bool is_to_sweep(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (!c || elapsed_ns(now, c->swept_ns) <= starve_ns)
		return false;
	c->swept_ns = now;
	return true;
}

/* Last resort, so that nothing that can run waits for an idle pCPU: somebody out of any queue. */
VERIFIED_ONCE take_any(s32 cpu, u64 now)
{
	struct pick *best = new_search(SECOND_SEARCH, cpu, now);
	s32 i, from;

	if (!best)
		return 0;
	best->anybody = true;
	best->sweeps = is_to_sweep(cpu, now);
	if (scx_bpf_dsq_move_to_local(OVERDUE_DSQ(cpu)))
		return 1;
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus || (!i && no_queue_is_marked()))
			break;
		from = cpu + i;
		if (from >= nr_cpus)
			from -= nr_cpus;
		if (!queue_is_marked(from) || !(best->sweeps || queue_reaches(from, cpu)) || is_left_marked(from))
			continue;
		if (take_any_of(from, best))
			return 1;
		if (from != cpu && scx_bpf_dsq_move_to_local(OVERDUE_DSQ(from)))
			return 1;
	}
	/* A move gives up this pCPU's lock for a moment. Who came to its own queue meanwhile has kicked it in vain, in the middle of choosing. */
	return queue_has_some(cpu) && take_any_of(cpu, best);
}

static __always_inline u64 overdue_slice(void)
{
	u64 slice = slice_ns / OVERDUE_PARTS;

	if (slice > STARVED_SLICE_NS)
		return STARVED_SLICE_NS;
	return slice > OVERDUE_SLICE_MIN_NS ? slice : OVERDUE_SLICE_MIN_NS;
}

/* How long a task runs: less where many wait. */
static __always_inline u64 slice_for(s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);
	s32 queued = c && c->crowded ? scx_bpf_dsq_nr_queued(cpu) : 0;

	return queued > QUEUE_SCAN ? slice_ns * QUEUE_SCAN / queued : slice_ns;
}

/* The turn of the best, which is to run. One that comes in its sibling's place from elsewhere shares the pCPU with it. */
static __always_inline u64 slice_in_place(const struct pick *best, u64 slice)
{
	return best->queue != best->cpu && best->vm && best->vm == best->leaving_vm ? slice_shared(slice) : slice;
}

/* Queue p on cpu, whose context is c. */
static __always_inline void queue_insert(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, s32 cpu,
					 u64 enq_flags)
{
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, order_key(t), enq_flags);
	queue_mark_of(c, cpu, t->reach ?: EVERYWHERE);
}

/* Does somebody wait in this pCPU's queue of the overdue? Only the pCPU itself puts them there; others may take them. */
static __always_inline bool has_overdue(struct cpu_ctx *c, s32 cpu)
{
	if (c->has_overdue && scx_bpf_dsq_nr_queued(OVERDUE_DSQ(cpu)) <= 0)
		c->has_overdue = 0;
	return c->has_overdue;
}

/*
 * Every starve_ns: where those in the queue may run is found anew; and, if it is longer than what a choice looks at, whoever is overdue goes to the queue of the
 * overdue.
 */
VERIFIED_ONCE search_queue(struct cpu_ctx *c, s32 cpu, u32 scan, u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	bool is_long, is_all;
	u64 reach = 0;
	u32 seen = 0;

	if (!c)
		return 0;
	c->searched_ns = now;
	is_long = scx_bpf_dsq_nr_queued(cpu) > QUEUE_SCAN;
	is_all = !has_overdue(c, cpu);
	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (seen++ >= scan)
			break;
		t = task_get(p);
		reach |= t && t->reach ? t->reach : EVERYWHERE;
		if (!is_long || !t || !is_overdue(t, now))
			continue;
		c->has_overdue = 1;
		scx_bpf_dsq_move_set_slice(BPF_FOR_EACH_ITER, overdue_slice());
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, OVERDUE_DSQ(cpu), 0);
	}
	if (is_all && seen <= scan)
		queue_renew(c, reach);
	return 0;
}

static __always_inline void search_overdue(struct cpu_ctx *c, s32 cpu, u32 scan, u64 now)
{
	if (elapsed_ns(now, c->searched_ns) >= starve_ns)
		search_queue(c, cpu, scan, now);
}

/* Every other choice is one of the overdue, if there are any. Is the next one? */
static __always_inline bool overdue_is_next(struct cpu_ctx *c, s32 cpu)
{
	return !c->overdue_last && has_overdue(c, cpu);
}

/* Take the one that is overdue for longest. */
VERIFIED_ONCE take_overdue_now(struct cpu_ctx *c, s32 cpu)
{
	if (!c)
		return 0;
	if (!scx_bpf_dsq_move_to_local(OVERDUE_DSQ(cpu)))
		return 0;
	c->overdue_last = 1;
	c->out_of_turn = 1;
	stat_inc(STAT_STARVED);
	return 1;
}

/* The same, if it is time for that. */
static __always_inline bool take_overdue(struct cpu_ctx *c, s32 cpu)
{
	if (overdue_is_next(c, cpu))
		return take_overdue_now(c, cpu);
	c->overdue_last = 0;
	return false;
}

#endif
