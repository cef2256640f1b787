/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang strict: a VM's vCPUs run together or not at all, as under ESX 2 ("survey", section 4).
 *
 * Time is cut into turns of a slice, the same for all pCPUs. When one begins, the VMs are asked in the order in which they deserve it; who finds pCPUs for all
 * of its vCPUs that do not sleep has a seat (strict_seats.h) on each for the whole turn, and no VM that has only found some runs. What is left of the
 * pCPUs goes to those that need no more, and to host tasks. All turns end together so that the first in the order always finds every pCPU free: it cannot be
 * kept waiting by smaller VMs that take turns.
 *
 * Idle vCPUs hold no pCPU: one that halts gives its seat away. One that wakes in its VM's turn needs a seat at once: an idle pCPU, or all those of a VM that
 * deserves its turn less. If there is none, the whole VM stops, and goes on when it finds enough.
 *
 * A host task has a pCPU to itself for a turn if it deserves it more than the VM that wants it. In a VM's turn it waits, except kernel threads that
 * are bound to their pCPU: for the moments that those take, and while a real-time task has the pCPU of one, a sibling may run alone; until the next period.
 *
 * A VM that has more busy vCPUs than there are pCPUs for them is wide: as many of it run together as find one, and those first who went without.
 *
 * Nobody waits for ever: who has waited too long (order.urgency) is asked first, VMs and host tasks alike. If the timer should fail that all this hangs on, every
 * gate is open after STRICT_DEAD_NS.
 */
#ifndef COHORT_GANG_STRICT_H
#define COHORT_GANG_STRICT_H

/* How often it is seen whether a turn is over, or has become possible. */
#define STRICT_PERIOD_NS 1000000ULL

/* How much longer than its turn a vCPU may run: the period ends it, not its slice. */
#define STRICT_GRACE_NS (2 * STRICT_PERIOD_NS)

/* Without a period for so long there is no gang scheduling. */
#define STRICT_DEAD_NS 100000000ULL

#include "strict_seats.h"

static __always_inline bool strict_locked(void)
{
	return !atomic_cas(&strict_lock, 0, 1);
}

static __always_inline void strict_unlock(void)
{
	atomic_xchg(&strict_lock, 0);
}

/* Note the VM's place in the order, and how many of its vCPUs do not sleep. Return that number. */
VERIFIED_ONCE strict_rank_vm(u32 vm_id, u64 now)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	struct task_struct *p;
	struct task_ctx *t;
	struct vcpu_ctx *v;
	s32 i, index, pid = 0, cpu = 0;

	if (!s)
		return 0;
	s->runnable = 0;
	if (!vm || !vm->kvm)
		return 0;
	strict_meet(s, vm->generation);
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v || v->state == VCPU_ASLEEP)
			continue;
		s->runnable++;
		/* Who waits speaks for the VM: it knows since when. */
		if (!pid || v->state == VCPU_WAITING) {
			pid = v->pid;
			cpu = vcpu_cpu(v);
		}
	}
	if (!pid)
		return 0;
	p = bpf_task_from_pid(pid);
	t = p ? task_get(p) : NULL;
	if (t) {
		order_rank(t, now, &s->rank);
		s->since_ns = t->queued_ns;
		s->urgency = cpu < 0 || s->on ? URGENCY_NONE : order_urgency(t, &s->rank, cpu, now);
	} else {
		s->runnable = 0;
	}
	if (p)
		bpf_task_release(p);
	return s->runnable;
}

/* Note the best of the tasks on cpu that are no vCPUs. */
VERIFIED_ONCE strict_look_at_host(s32 cpu, u32 scan, u64 now)
{
	struct strict_seat *seat = strict_seat_at(cpu);
	struct pick *other = new_search(SECOND_SEARCH, cpu, now);
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = 0;
	u64 since;

	if (!seat || !c || !other)
		return 0;
	seat->host = 0;
	seat->host_urgency = 0;
	if (c->curr_pid && !seat->vm) {
		seat->host = 1;
		order_rank_of_runner(c, now, &seat->host_rank);
	}
	if (!queue_is_marked(cpu))
		return 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (seen++ >= scan)
			break;
		t = task_get(p);
		if (!t || t->vcpu >= 0)
			continue;
		order_rank(t, now, &other->rank);
		since = order_urgency(t, &other->rank, cpu, now) ? t->queued_ns : 0;
		if (seat->host &&
		    !strict_before(&other->rank, since, &seat->host_rank, seat->host_urgency ? seat->host_since_ns : 0))
			continue;
		seat->host = 1;
		seat->host_rank = other->rank;
		seat->host_urgency = since != 0;
		seat->host_since_ns = since;
	}
	return 0;
}

/* The VM that is next in the order of those that want a turn and have not been asked, or 0. */
VERIFIED_ONCE strict_next_vm(u32 end)
{
	struct strict_vm *s, *best = NULL;
	u32 i, found = 0;

	bpf_for(i, 1, MAX_VMS) {
		if (i >= end)
			break;
		s = strict_vm_at(i);
		best = strict_vm_at(found);
		if (!s || !best || !s->runnable || s->asked)
			continue;
		if (found && !strict_before(&s->rank, strict_urgent_since(s), &best->rank, strict_urgent_since(best)))
			continue;
		found = i;
	}
	return found;
}

/* Nobody of the VM has a seat any more, from the next commit on. */
static void strict_stop(u32 vm_id)
{
	struct strict_vm *s = strict_vm_at(vm_id);

	strict_stand_up(vm_id, false);
	if (s)
		s->on = 0;
}

/* Find seats for all of the VM's vCPUs. `first`: nobody has been asked before. */
static __always_inline int strict_ask(u32 vm_id, u32 how, bool first)
{
	struct strict_vm *s = strict_vm_at(vm_id);

	if (!s)
		return 0;
	if (!s->on && how == STRICT_RANK && s->wide && first)
		s->wide = 0;
	if (!strict_seat_all(vm_id, how)) {
		s->on = 1;
		return 1;
	}
	if (first && !s->wide) {
		strict_stop(vm_id);
		/* Could it, if nobody else were there? */
		s->wide = strict_seat_all(vm_id, STRICT_EMPTY) != 0;
		strict_stop(vm_id);
		if (s->wide)
			strict_seat_all(vm_id, how);
	}
	if (s->wide) {
		s->on = strict_is_seated(vm_id);
		return s->on;
	}
	strict_stop(vm_id);
	return 0;
}

/* Forget seats whose vCPU sleeps or is gone, and stop VMs that have lost a pCPU; with `all`, nobody keeps anything. */
VERIFIED_ONCE strict_clear(bool all)
{
	struct strict_seat *seat;
	struct vcpu_ctx *v;
	struct cpu_ctx *c;
	u32 *seat_of;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		seat = strict_seat_at(i);
		c = cpu_get(i);
		if (!seat || !c)
			break;
		seat->next_vm = seat->vm;
		seat->next_vcpu = seat->vcpu;
		if (!seat->vm)
			continue;
		v = vcpu_at(seat->vcpu);
		seat_of = strict_seat_of_vcpu(seat->vcpu);
		if (!all && v && seat_of && v->state != VCPU_ASLEEP && *seat_of == (u32)i + 1 && c->online && !c->taken)
			continue;
		seat->next_vm = 0;
		if (seat_of && *seat_of == (u32)i + 1)
			*seat_of = 0;
	}
	return 0;
}

/* Give turns: all anew when the old ones are over, otherwise to those who find what they need among what is idle. */
VERIFIED_ONCE strict_plan(u64 now, bool anew)
{
	bool first = anew, waiting = false;
	u32 i, vm_id, end = strict_vm_end;
	struct strict_vm *s;

	strict_clear(anew);
	bpf_for(i, 1, MAX_VMS) {
		if (i >= end)
			break;
		s = strict_vm_at(i);
		if (!s)
			break;
		s->asked = 0;
		strict_rank_vm(i, now);
		if (s->runnable && !s->on)
			waiting = true;
		if (anew || !s->runnable)
			s->on = 0;
		/* In the middle of a turn those come first who have one: a vCPU of theirs may have woken unseen. */
		if (s->on) {
			s->asked = 1;
			if (!s->wide && strict_seat_all(i, STRICT_IDLE))
				strict_stop(i);
		}
	}
	if (anew) {
		bpf_for(i, 0, MAX_CPUS) {
			if (i >= nr_cpus)
				break;
			strict_look_at_host(i, QUEUE_SCAN, now);
		}
	}
	if (anew || waiting) {
		bpf_for(i, 1, MAX_VMS) {
			if (i >= end)
				break;
			vm_id = strict_next_vm(end);
			s = strict_vm_at(vm_id);
			if (!vm_id || !s)
				break;
			s->asked = 1;
			strict_ask(vm_id, anew ? STRICT_RANK : STRICT_IDLE, first);
			first = false;
		}
	}
	strict_commit(now);
	return 0;
}

static void strict_period(u64 now)
{
	bool anew = !time_before(now, strict_end_ns);

	if (!strict_locked())
		return;
	if (anew)
		strict_end_ns = now + slice_ns;
	strict_plan(now, anew);
	strict_looked_ns = now;
	strict_unlock();
}

/* Somebody whose turn goes on needs one more pCPU: stop the last in the order whom the VM goes before. Return false if there is none. */
static __always_inline bool strict_evict_for(u32 vm_id, u64 now)
{
	struct strict_vm *s = strict_vm_at(vm_id), *other, *last;
	u32 i, found = 0;

	if (!s || !strict_rank_vm(vm_id, now))
		return 0;
	bpf_for(i, 1, MAX_VMS) {
		if (i >= strict_vm_end)
			break;
		other = strict_vm_at(i);
		if (!other || i == vm_id || !other->on || !strict_rank_vm(i, now))
			continue;
		last = strict_vm_at(found);
		if (!last || !order_before(found ? &last->rank : &s->rank, &other->rank, found ? 0 : wakeup_gran_ns))
			continue;
		found = i;
	}
	if (!found)
		return 0;
	strict_stop(found);
	return 1;
}

/* A vCPU of the VM no longer sleeps. In its VM's turn it starts at once, or all stop; otherwise all start if there is room. */
VERIFIED_ONCE strict_woken(u32 vm_id, u64 now)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	struct vm_ctx *vm;

	if (!s)
		return 0;
	/* Before the lock: if another pCPU has it, the next period does this VM's part, and must know of it. */
	raise_end(&strict_vm_end, vm_id);
	if (!strict_locked())
		return 0;
	vm = vm_at(vm_id);
	if (vm)
		strict_meet(s, vm->generation);
	if (strict_seat_all(vm_id, STRICT_IDLE) && !s->wide) {
		if (!s->on)
			strict_stand_up(vm_id, true);
		else if (!strict_evict_for(vm_id, now) || strict_seat_all(vm_id, STRICT_IDLE))
			strict_stop(vm_id);
	} else {
		s->on = !s->wide || strict_is_seated(vm_id);
	}
	strict_commit(now);
	strict_unlock();
	return 0;
}

static void strict_changed(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now)
{
	u32 *seat_of = strict_seat_of_vcpu(t->vcpu_at);
	struct strict_seat *seat;
	struct cpu_ctx *c;
	bool away;
	s32 cpu;

	if (!seat_of)
		return;
	/* Off its queue because something about it changes: it comes back at once, as a rule to where its seat is. */
	if (v->state == VCPU_ASLEEP && t->comes_back)
		return;
	away = from == VCPU_ASLEEP && *seat_of != (u32)v->cpu + 1;
	if ((v->state == VCPU_ASLEEP || away) && *seat_of) {
		seat = strict_seat_at(*seat_of - 1);
		if (seat && seat->vm == t->vm && seat->vcpu == t->vcpu_at) {
			seat->vm = 0;
			seat->next_vm = 0;
		}
		*seat_of = 0;
	}
	if (away) {
		settle_later(t->vm);
	} else if (from == VCPU_RUNNING && v->state == VCPU_WAITING && *seat_of && *seat_of != (u32)v->cpu + 1) {
		/* It was moved while it ran, and its new pCPU may have looked for it before it stopped. */
		cpu = *seat_of - 1;
		c = cpu_get(cpu);
		if (!c || (v->pid && c->resume_pid == (u32)v->pid))
			return;
		wish_leave(cpu, t->vm, t->vcpu_at, v, WISH_FORCED | WISH_MIGRATE | WISH_BY_RANK,
			   elapsed_ns(strict_end_ns, now) + STRICT_GRACE_NS, now);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

static void strict_settle(u32 vm_id, u64 now)
{
	strict_woken(vm_id, now);
}

/* Whose seat is it? */
static u32 strict_gate(struct task_ctx *t, s32 cpu, u64 now)
{
	struct strict_seat *seat = strict_seat_at(cpu);

	if (!seat || !strict_looked_ns || elapsed_ns(now, strict_looked_ns) > STRICT_DEAD_NS)
		return GATE_OPEN;
	if (t->vcpu < 0 || !vm_get(t))
		return seat->vm ? GATE_WAIT : GATE_OPEN;
	return seat->vm == t->vm && seat->vcpu == t->vcpu_at ? GATE_OPEN : GATE_WAIT;
}

/* Until all turns end. */
static u64 strict_slice(u32 vm_id, s32 cpu, u64 now)
{
	struct strict_seat *seat = strict_seat_at(cpu);

	if (!seat || !vm_id || seat->vm != vm_id)
		return 0;
	return elapsed_ns(strict_end_ns, now) + STRICT_GRACE_NS;
}

static const struct gang gang_strict = {
	.of_vms = true,
	.changed = strict_changed,
	.settle = strict_settle,
	.gate = strict_gate,
	.slice = strict_slice,
	.period = strict_period,
	.period_ns = STRICT_PERIOD_NS,
};

#endif
