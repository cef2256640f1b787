/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Wishes: "run this waiting vCPU next, on that pCPU". Whoever spins, or gathers a gang, leaves one with a pCPU and makes it choose anew; it is granted
 * there, by the pCPU itself, so that nobody touches two queues. A pCPU has one; the last counts.
 */
#ifndef COHORT_WISH_H
#define COHORT_WISH_H

#include "runqueue.h"

enum wish_flags {
	WISH_MIGRATE = 1, /* it may come from another pCPU's queue */
	WISH_FORCED = 2,  /* whatever its VM has had; not before those who have waited too long */
	WISH_GRACE = 4,	  /* it had this pCPU, and the guard gives it back: no boost */
	WISH_BY_RANK = 8, /* its turn has come: what sleepers may claim is measured against it */
	WISH_BRIEF = 16,  /* for its slice only, also in its VM's turn */
};

/* Has the VM a turn of its own (vm_ctx.turn_end_ns) that is not over? */
static __always_inline bool in_turn(const struct vm_ctx *vm, u64 now)
{
	return time_before(now + TURN_REST_MIN_NS, vm->turn_end_ns);
}

/* Where a vCPU runs or waits, or -1; it may change at any moment, so this is read once. */
static __always_inline s32 vcpu_cpu(const struct vcpu_ctx *v)
{
	s32 cpu = READ_ONCE(v->cpu);

	return cpu >= 0 && cpu < nr_cpus ? cpu : -1;
}

/* May that vCPU run on the pCPU? */
static bool vcpu_allowed_on(const struct vcpu_ctx *v, s32 cpu)
{
	struct task_struct *p;
	bool allowed;

	if (!v->restricted)
		return true;
	p = bpf_task_from_pid(v->pid);
	if (!p)
		return false;
	allowed = task_allowed_on(p, cpu);
	bpf_task_release(p);
	return allowed;
}

/* Leave with cpu the wish that vCPU v of a VM, at `index` in the map vcpus, runs there next, for slice at most. Return false if there is no such pCPU. */
static bool wish_leave(s32 cpu, u32 vm_id, u32 index, const struct vcpu_ctx *v, u32 flags, u64 slice, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (!c)
		return false;
	c->wish_vcpu = index;
	c->wish_vm = vm_id;
	c->wish_at_ns = now;
	c->wish_slice_ns = slice;
	c->wish_flags = flags;
	c->wish_pid = v->pid;
	return true;
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

/* Does that rival of a wished for vCPU keep it from running? Siblings do not, where VMs compete as one: only their VM's time counts. */
static __always_inline bool wish_is_outranked(struct rank *rival, struct rank *rank, u64 margin_ns)
{
	return !(order_is_of_vms() && rank_same_leaf(rival, rank)) && order_before(rival, rank, margin_ns);
}

/* By how much of virtual time a rival must come before a wished for vCPU to keep it waiting. */
static __always_inline u64 wish_margin(void)
{
	return boost & BOOST_UNFAIR ? lag_ns : order_is_of_vms() ? 0 : wakeup_gran_ns;
}

/*
 * May waiting vCPU t run before those that wait here, and the one that ran? It may borrow (boost unfair), but not without limit: what is never repaid
 * would be a share taken from others. An order that knows no VMs bounds what threads borrow, siblings too; there a wish goes as far ahead as a task that
 * wakes does, which is what the fair class grants to KVM's choice (wakeup_preempt_entity() in pick_next_entity(), until 6.5).
 */
static bool wish_is_affordable(s32 pid, struct task_ctx *t, struct pick *search)
{
	struct pick *rival = new_search(SECOND_SEARCH, search->cpu, search->now);
	u64 margin_ns = wish_margin();
	struct rank rank;

	if (!rival)
		return true;
	order_rank(t, search->now, &rank);
	if (search->prev_queued && wish_is_outranked(&search->prev, &rank, margin_ns))
		return false;
	best_waiter(search->cpu, QUEUE_SCAN, 0, rival);
	if (!rival->pid || rival->pid == pid)
		return true;
	/* The rank of one that has waited too long says nothing, and others may wait behind it that deserve the pCPU more. */
	return !rival->urgency && !wish_is_outranked(&rival->rank, &rank, margin_ns);
}

/* Has somebody other than the wished for thread waited here for so long that not even a forced wish goes first? */
static __always_inline bool wish_must_wait(s32 pid, struct pick *search)
{
	struct pick *rival = new_search(SECOND_SEARCH, search->cpu, search->now);

	if (!rival)
		return false;
	best_waiter(search->cpu, QUEUE_SCAN, 0, rival);
	return rival->pid && rival->pid != pid && rival->urgency;
}

/* May the thread of that pid run here and now, as far as the gates and its VM's credit go? */
VERIFIED_ONCE wish_is_granted(s32 pid, struct pick *search, u32 flags)
{
	struct task_struct *p;
	struct task_ctx *t;
	bool granted;

	if (!search)
		return 0;
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_get(p);
	granted = t && !gate_for(t, search->cpu, search->now) &&
		  (flags & WISH_FORCED ? !wish_must_wait(pid, search) : wish_is_affordable(pid, t, search));
	bpf_task_release(p);
	return granted;
}

/* Dispatch: run the vCPU that this pCPU was asked to run, if it still waits. */
VERIFIED_ONCE wish_redeem(struct pick *search, struct cpu_ctx *c)
{
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u64 slice, now;
	u32 pid, flags;
	s32 from, cpu;

	if (!search || !c || !c->wish_pid)
		return 0;
	now = search->now;
	cpu = search->cpu;
	pid = c->wish_pid;
	slice = c->wish_slice_ns;
	flags = c->wish_flags;
	c->wish_pid = 0;
	v = vcpu_at(c->wish_vcpu);
	vm = vm_at(c->wish_vm);
	if (!v || !vm || v->pid != pid || v->state != VCPU_WAITING || time_before(c->wish_at_ns + WISH_STALE_NS, now))
		goto missed;
	from = vcpu_cpu(v);
	if (from < 0 || (from != cpu && !(flags & WISH_MIGRATE)) || overdue_is_next(c, cpu))
		goto missed;
	if (!wish_is_granted(pid, search, flags))
		goto missed;
	if (flags & WISH_GRACE) {
		if (!take(pid, from, cpu, slice))
			return 0;
		v->in_grace = 1;
		stat_inc(STAT_GRACE_TAKEN);
		return 1;
	}
	if (!(flags & WISH_BRIEF) && in_turn(vm, now))
		slice = vm->turn_end_ns - now;
	if (!take(pid, from, cpu, slice))
		goto missed;
	stat_inc(STAT_BOOST_GRANTED);
	if (from != cpu)
		stat_inc(STAT_BOOST_MIGRATED);
	atomic_add(&vm->counts.boosts, 1);
	c->out_of_turn = !(flags & WISH_BY_RANK);
	return 1;
missed:
	if (!(flags & WISH_GRACE))
		stat_inc(STAT_BOOST_MISSED);
	return 0;
}

#endif
