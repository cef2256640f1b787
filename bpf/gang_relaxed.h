/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang relaxed: who has left its siblings behind waits for them, as under ESX 4 ("sbco", section VI). ESX 3 stopped all vCPUs of the VM instead.
 *
 * A vCPU falls behind while it is runnable and does not run. Running is progress, and so is idling: a halted vCPU has nothing to catch up with. A vCPU's
 * lead is the time that its slowest sibling has fallen behind more than itself. Whose lead exceeds the limit (skew_limit_ns) while the slowest waits is
 * co-stopped: its gate closes, and the slowest runs as soon as it deserves a pCPU more than whoever has it. When the slowest runs, or the lead is within the
 * limit, the leader goes on in the same way. Whose lead has grown by half a slice more, by and by, waits until it is within the limit, whoever runs.
 *
 * Why the leader does not wait for that in any case: two VMs whose vCPUs hold one another's pCPUs would have leaders at the same time, and all their gates would
 * close and open in turns, one VM's here with the other's there. Each would get the same, whatever they weigh, and never run together.
 *
 * Leads are looked at when a vCPU's state changes and at the clock's tick, so one grows to the limit and a tick at most. Who wakes has a lead between nothing
 * and the limit over those that did not sleep: what is longer ago says nothing about what they are about to do together.
 *
 * Nobody waits for ever: the slowest is never stopped, a sibling that sleeps is nobody's laggard, and after the time in which a vCPU is overdue
 * (account.h) its gate is open.
 */
#ifndef COHORT_GANG_RELAXED_H
#define COHORT_GANG_RELAXED_H

#include "wish.h"

/* How far a vCPU may be ahead of its slowest sibling. */
KNOB u64 skew_limit_ns = 3000000;

/* How often those that are stopped are looked at. */
#define RELAXED_PERIOD_NS 1000000ULL

/* Beside the vcpu_ctx of the same index. User space leaves it small where the policy is not chosen. */
struct relaxed_vcpu {
	u64 behind_ns; /* it has been runnable without running for so long, until it last began to wait */
	u64 since_ns;  /* it waits since; 0: it does not */
	s32 pid;
	u32 stopped; /* enum relaxed_stop */
	u32 woke;    /* enum relaxed_woke */
};

/* Has it woken, and its lead is not bounded yet? */
enum relaxed_woke {
	RELAXED_AWAKE,
	RELAXED_WOKE,
	RELAXED_NEW, /* ... and has none from before */
};

enum relaxed_stop {
	RELAXED_GOES_ON,
	RELAXED_STOPPED,      /* until the slowest runs */
	RELAXED_STOPPED_LONG, /* ... and is within the limit */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPU_BLOCKS *VCPU_BLOCK);
	__type(key, u32);
	__type(value, struct relaxed_vcpu);
} relaxed_vcpus SEC(".maps");

/* Beside the vm_ctx. */
struct relaxed_vm {
	u64 slowest_ns; /* the most that a vCPU which does not sleep has fallen behind, when that was last looked at */
	s32 slowest;	/* its index in the map vcpus; -1: all sleep */
	u32 has_stopped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct relaxed_vm);
} relaxed_vms SEC(".maps");

/* 1 + the highest VM's number that has had somebody stopped. */
VARIABLE u32 relaxed_vm_end;

static __always_inline struct relaxed_vcpu *relaxed_vcpu_at(u32 index)
{
	return bpf_map_lookup_elem(&relaxed_vcpus, &index);
}

static __always_inline struct relaxed_vm *relaxed_vm_at(u32 vm)
{
	return bpf_map_lookup_elem(&relaxed_vms, &vm);
}

static __always_inline u64 relaxed_behind(const struct relaxed_vcpu *r, u64 now)
{
	return r->behind_ns + (r->since_ns ? elapsed_ns(now, r->since_ns) : 0);
}

/* Find the VM's slowest vCPU of those that do not sleep, other than those that have woken only now. Return 1 if there is one. */
VERIFIED_ONCE relaxed_find_slowest(u32 vm_id, u64 now)
{
	struct relaxed_vm *rvm = relaxed_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	struct relaxed_vcpu *r;
	struct vcpu_ctx *v;
	s32 i, index;
	u64 behind;

	if (!rvm || !vm)
		return 0;
	rvm->slowest = -1;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		r = relaxed_vcpu_at(index);
		if (index < 0 || !v || !r || v->state == VCPU_ASLEEP || r->woke)
			continue;
		behind = relaxed_behind(r, now);
		if (rvm->slowest >= 0 && !time_before(rvm->slowest_ns, behind))
			continue;
		rvm->slowest = index;
		rvm->slowest_ns = behind;
	}
	return rvm->slowest >= 0;
}

/*
 * A waiting vCPU is to run at once: on an idle pCPU, or where it waits if it deserves that pCPU more than whoever runs there, as if it had just woken. Never
 * in a sibling's place, and not for less than that margin: two VMs would throw out one another without end.
 */
VERIFIED_ONCE relaxed_start(u32 vm_id, u32 index, u64 now)
{
	struct vcpu_ctx *v = vcpu_at(index);
	s32 idle = -1, there;
	struct task_struct *p;
	struct task_ctx *t;
	bool deserves = false;
	struct cpu_ctx *c;
	struct rank rank;

	if (!v || v->state != VCPU_WAITING)
		return 0;
	there = vcpu_cpu(v);
	c = cpu_get(there);
	if (there < 0 || !c)
		return 0;
	p = bpf_task_from_pid(v->pid);
	if (!p)
		return 0;
	t = task_get(p);
	if (t) {
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		order_rank(t, now, &rank);
		deserves = would_preempt(c, &rank, now);
	}
	bpf_task_release(p);
	if (idle >= 0) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return 0;
	}
	if (!deserves || !c->curr_pid || c->curr_vm == vm_id || c->wish_pid)
		return 0;
	wish_leave(there, vm_id, index, v, 0, slice_ns, now);
	scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
	return 1;
}

/* Must a vCPU with that lead stop, or stay stopped? */
static __always_inline u32 relaxed_verdict(s64 lead_ns, u32 stopped, bool slowest_runs)
{
	if (lead_ns <= (s64)skew_limit_ns)
		return RELAXED_GOES_ON;
	if (stopped == RELAXED_STOPPED_LONG || lead_ns > (s64)(skew_limit_ns + slice_ns / 2))
		return RELAXED_STOPPED_LONG;
	return slowest_runs ? RELAXED_GOES_ON : RELAXED_STOPPED;
}

/* Is one of the VM's vCPUs stopped? */
VERIFIED_ONCE relaxed_finds_stopped(u32 vm_id)
{
	struct vm_ctx *vm = vm_at(vm_id);
	struct relaxed_vcpu *r;
	struct vcpu_ctx *v;
	s32 i, index;

	if (!vm)
		return 0;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		r = relaxed_vcpu_at(index);
		if (index >= 0 && v && r && v->state != VCPU_ASLEEP && r->stopped)
			return 1;
	}
	return 0;
}

/* Stop those of the VM's vCPUs that are too far ahead, and let those go on that no longer are. Return true if any is stopped. */
VERIFIED_ONCE relaxed_look(u32 vm_id, u64 now)
{
	struct relaxed_vm *rvm = relaxed_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	struct relaxed_vcpu *r;
	struct vcpu_ctx *v;
	bool slowest_runs, any = false;
	s32 i, index, there;
	u32 was, is;

	if (!rvm || !vm)
		return 0;
	if (!relaxed_find_slowest(vm_id, now))
		return 0;
	v = vcpu_at(rvm->slowest);
	slowest_runs = v && v->state == VCPU_RUNNING;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		r = relaxed_vcpu_at(index);
		if (index < 0 || !v || !r || v->state == VCPU_ASLEEP)
			continue;
		was = r->stopped;
		is = relaxed_verdict(rvm->slowest_ns - relaxed_behind(r, now), was, slowest_runs);
		r->stopped = is;
		if (is)
			rvm->has_stopped = any = true;
		if (!was == !is)
			continue;
		if (!is) {
			relaxed_start(vm_id, index, now);
		} else {
			stat_inc(STAT_GANG_STOPS);
			there = vcpu_cpu(v);
			if (v->state == VCPU_RUNNING && there >= 0)
				scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
		}
	}
	if (!any)
		return 0;
	if (relaxed_vm_end < vm_id + 1)
		relaxed_vm_end = vm_id + 1;
	relaxed_start(vm_id, rvm->slowest, now);
	return 1;
}

/* The same, and the note whether anybody is stopped. Another pCPU may be looking, too, and stop one that this one has passed. */
static void relaxed_review(u32 vm_id, u64 now)
{
	struct relaxed_vm *rvm;

	if (relaxed_look(vm_id, now))
		return;
	rvm = relaxed_vm_at(vm_id);
	if (!rvm || !rvm->has_stopped)
		return;
	rvm->has_stopped = 0;
	if (relaxed_finds_stopped(vm_id))
		rvm->has_stopped = 1;
}

/* Those of the VM that have woken: their leads are between nothing and the limit. */
VERIFIED_ONCE relaxed_bound_woken(u32 vm_id, u64 now)
{
	struct relaxed_vm *rvm = relaxed_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	struct relaxed_vcpu *r;
	bool others;
	s32 i, index;

	if (!rvm || !vm)
		return 0;
	others = relaxed_find_slowest(vm_id, now);
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		r = relaxed_vcpu_at(index);
		if (index < 0 || !r || !r->woke)
			continue;
		if (others && (r->woke == RELAXED_NEW || time_before(rvm->slowest_ns, r->behind_ns)))
			r->behind_ns = rvm->slowest_ns;
		else if (others && time_before(r->behind_ns + skew_limit_ns, rvm->slowest_ns))
			r->behind_ns = rvm->slowest_ns - skew_limit_ns;
		r->woke = RELAXED_AWAKE;
	}
	return 0;
}

static void relaxed_changed(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now)
{
	struct relaxed_vcpu *r = relaxed_vcpu_at(t->vcpu_at);
	struct relaxed_vm *rvm = relaxed_vm_at(t->vm);

	if (!r || !rvm)
		return;
	/* Off its queue because something about it changes: it comes back at once, and has waited since it began to. */
	if (v->state == VCPU_ASLEEP && t->comes_back)
		return;
	if (from == VCPU_ASLEEP && r->since_ns) {
		if (v->state == VCPU_WAITING && r->pid == v->pid && !time_before(r->since_ns, now))
			return;
		/* It was put aside instead, or has been another class's. */
		r->since_ns = 0;
	}
	if (r->since_ns) {
		r->behind_ns += elapsed_ns(now, r->since_ns);
		r->since_ns = 0;
	}
	if (v->state == VCPU_WAITING)
		r->since_ns = now;
	if (v->state == VCPU_ASLEEP) {
		r->stopped = RELAXED_GOES_ON;
		r->woke = RELAXED_AWAKE;
	} else if (r->pid != v->pid) {
		r->pid = v->pid;
		r->stopped = RELAXED_GOES_ON;
		r->woke = RELAXED_NEW;
	} else if (from == VCPU_ASLEEP) {
		r->woke = RELAXED_WOKE;
	}
	/* Also when the slowest stops, over whom others may have a lead. */
	if (r->woke || rvm->has_stopped || v->state == VCPU_WAITING)
		settle_later(t->vm);
}

static void relaxed_settle(u32 vm_id, u64 now)
{
	relaxed_bound_woken(vm_id, now);
	relaxed_review(vm_id, now);
}

static void relaxed_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	if (t->vcpu >= 0 && vm_get(t))
		relaxed_review(t->vm, now);
}

static u32 relaxed_gate(struct task_ctx *t, s32 cpu, u64 now)
{
	struct relaxed_vcpu *r;

	if (t->vcpu < 0)
		return GATE_OPEN;
	r = relaxed_vcpu_at(t->vcpu_at);
	if (!r || !r->stopped || is_overdue(t, now))
		return GATE_OPEN;
	return GATE_WAIT;
}

static void relaxed_period(u64 now)
{
	struct relaxed_vm *rvm;
	u32 i;

	bpf_for(i, 1, MAX_VMS) {
		if (i >= relaxed_vm_end)
			break;
		rvm = relaxed_vm_at(i);
		if (rvm && rvm->has_stopped)
			relaxed_review(i, now);
	}
}

static const struct gang gang_relaxed = {
	.of_vms = true,
	.changed = relaxed_changed,
	.settle = relaxed_settle,
	.gate = relaxed_gate,
	.tick = relaxed_tick,
	.period = relaxed_period,
	.period_ns = RELAXED_PERIOD_NS,
};

#endif
