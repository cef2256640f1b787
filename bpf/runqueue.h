/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Run queues: one DSQ per pCPU, ordered by virtual time; the choice of who runs next; and what a pCPU takes from others' queues.
 *
 * A DSQ's order is fixed when a task is inserted, and a VM's virtual time moves on while its vCPUs wait. So the order in the DSQ is
 * only approximate, and who runs next is found by looking at the ranks of those that wait, as they are now, up to QUEUE_SCAN of them.
 */
#ifndef COHORT_RUNQUEUE_H
#define COHORT_RUNQUEUE_H

#include "placement.h"

#define QUEUE_SCAN 32
#define REMOTE_QUEUE_SCAN 8
#define REMOTE_CPU_SCAN 16
#define TAIL_SCAN 4

/* After this many times starve_ns a task runs next even if its VM has had far more than its share. */
#define STARVE_MAX 10

/* The search for who runs next on pCPU cpu, and the best found so far. */
struct pick {
	s32 cpu;
	u32 leaving_vm; /* VM whose vCPU gives up the pCPU now, as task_ctx.vm; 0: none */
	u64 now;
	struct rank prev; /* of the one that gives up the pCPU, if prev_queued: it could go on */
	bool prev_queued;
	struct rank rank;
	u64 queued_ns;
	s32 pid;   /* 0: nobody yet */
	s32 queue; /* the pCPU in whose queue it waits; -1: it is on cpu and goes on */
	bool starved;
};

/* Would taking t from queue put it where a sibling is? One that leaves the pCPU in exchange does not count. */
static __always_inline bool would_stack(const struct pick *best, const struct task_ctx *t, s32 queue)
{
	u32 siblings;

	if (queue == best->cpu || placement != PLACEMENT_BALANCE)
		return false;
	siblings = siblings_on(t, best->cpu);
	return siblings > (best->leaving_vm && best->leaving_vm == t->vm ? 1 : 0);
}

/* Has t waited too long? A vCPU whose VM is ahead of vclock waits for its VM's sake and must be more patient. */
static __always_inline bool is_starved(const struct task_ctx *t, const struct rank *r, u64 now)
{
	u64 waited = t->queued_ns ? now - t->queued_ns : 0;

	if (waited <= starve_ns)
		return false;
	return waited > STARVE_MAX * starve_ns || !time_before(vclock + lag_ns, r->entity);
}

/* Does a waiting task, starved or not, replace the best found so far? */
static __always_inline bool is_better(const struct pick *best, const struct task_ctx *t, const struct rank *r,
				      bool starved, u64 margin_ns)
{
	if (!best->pid)
		return true;
	if (best->starved != starved)
		return starved;
	/* Among the starved, rank is what starved them. */
	if (starved)
		return time_before(t->queued_ns, best->queued_ns);
	return rank_before(r, &best->rank, margin_ns);
}

/*
 * Let the best of the first `scan` that wait in queue replace *best if it deserves the pCPU more by margin_ns. A starved task goes before
 * everybody, and with flags SCX_DSQ_ITER_REV only such are looked for, from the queue's end, where the lightest are.
 */
VERIFIED_ONCE best_waiter(s32 queue, u32 scan, u64 margin_ns, struct pick *best, u64 flags)
{
	struct task_struct *p;
	struct task_ctx *t;
	struct rank rank;
	bool starved;
	u32 seen = 0;

	if (!best)
		return 0;
	bpf_for_each(scx_dsq, p, queue, flags) {
		if (seen++ >= scan)
			break;
		t = task_get(p);
		if (!t || !task_allowed_on(p, best->cpu) || would_stack(best, t, queue))
			continue;
		rank_of(t, best->now, &rank);
		starved = is_starved(t, &rank, best->now);
		if ((flags && !starved) || !is_better(best, t, &rank, starved, margin_ns))
			continue;
		best->rank = rank;
		best->queued_ns = t->queued_ns;
		best->pid = p->pid;
		best->queue = queue;
		best->starved = starved;
	}
	return 0;
}

/* Look for somebody in other pCPUs' queues. An idle pCPU takes from the longest queue; a busy one only who deserves it much more. */
VERIFIED_ONCE best_remote_waiter(u64 margin_ns, struct pick *best)
{
	s32 i, from, queued, most = 0, longest = -1;

	if (!best)
		return 0;
	bpf_for(i, 1, REMOTE_CPU_SCAN) {
		if (i >= nr_cpus)
			break;
		from = best->cpu + i;
		if (from >= nr_cpus)
			from -= nr_cpus;
		queued = scx_bpf_dsq_nr_queued(from);
		if (queued <= 0)
			continue;
		if (best->pid) {
			best_waiter(from, REMOTE_QUEUE_SCAN, margin_ns, best, 0);
		} else if (queued > most) {
			most = queued;
			longest = from;
		}
	}
	if (!best->pid && longest >= 0)
		best_waiter(longest, QUEUE_SCAN, 0, best, 0);
	return 0;
}

/* Put waiting task pid, from queue, on this pCPU, cpu. Return false if it is no longer there. */
static bool take(s32 pid, s32 queue, s32 cpu, u64 slice)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct task_ctx *t;
	bool taken = false;

	p = bpf_task_from_pid(pid);
	if (!p)
		return false;
	if (!bpf_iter_scx_dsq_new(&it, queue, 0)) {
		/* Checked after the iterator is made: if affinity changes from here on, p is queued anew and the move fails. */
		if (task_allowed_on(p, cpu)) {
			scx_bpf_dsq_move_set_slice(&it, slice);
			taken = scx_bpf_dsq_move(&it, p, SCX_DSQ_LOCAL, 0);
		}
	}
	bpf_iter_scx_dsq_destroy(&it);
	if (taken) {
		/* At once: whoever it replaces here is placed before it runs. */
		t = task_get(p);
		if (t)
			account_place(t, cpu);
	}
	bpf_task_release(p);
	return taken;
}

/* Last resort, so that nothing that can run waits for an idle pCPU: the first movable task of any queue. */
static bool take_any(s32 cpu)
{
	s32 i, from;

	if (scx_bpf_dsq_move_to_local(cpu))
		return true;
	bpf_for(i, 1, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		from = cpu + i;
		if (from >= nr_cpus)
			from -= nr_cpus;
		if (scx_bpf_dsq_nr_queued(from) > 0 && scx_bpf_dsq_move_to_local(from))
			return true;
	}
	return false;
}

/* Queue p on cpu. */
static void queue_insert(struct task_struct *p, const struct task_ctx *t, s32 cpu, u64 enq_flags, u64 now)
{
	struct rank rank;
	u64 key;

	rank_of(t, now, &rank);
	key = rank.entity;
	/* Siblings in one queue, in their own order, no further apart than the slice. */
	if (rank.vm) {
		struct vm_ctx *vm = vm_get(t);
		s64 behind = vm ? (s64)(vm->sibling_clock - rank.own) : 0;

		if (behind < 0)
			behind = 0;
		key -= (u64)behind < slice_ns ? (u64)behind : slice_ns;
	}
	scx_bpf_dsq_insert_vtime(p, cpu, slice_ns, key, enq_flags);
}

#endif
