/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spin boost: a pause-loop exit makes a sibling run.
 *
 * A vCPU that spins in kernel mode waits for a sibling: the lock's holder, or one that has an IPI to answer. KVM notices by pause-loop
 * exits (PLE) and asks the host's scheduler to run a sibling instead (directed yield), but only one that was woken, was preempted in
 * kernel mode or has an interrupt pending, and it takes no for an answer. Five cures, which add up (the first three after the paper on
 * PLE storms, "ple"):
 *
 * candidate  the sibling that KVM offers runs next.
 * any-mode   before KVM chooses, we choose among all waiting siblings: first one that was woken or has an interrupt waiting, then one preempted
 *            in kernel mode, then one preempted in user mode; of several the one that has waited longest. Who waits for an IPI's answer needs the
 *            user-mode one.
 * unfair     the boosted vCPU runs although its VM's turn has not come. Its VM is charged, so it is lent, not given.
 * migrate    a sibling that waits for another pCPU in vain, because who runs there deserves it more, comes to the spinner's, which is free at that
 *            moment. If its turn has come where it waits it stays there: a move costs a cache, and its place.
 * ipi        a sibling that is called by an IPI (a TLB flush, a function) while it has no pCPU runs next, before the caller has spun for it at all. It
 *            needs no pause filter, and no word of the guest's as KVM_HC_SCHED_YIELD does. For hosts without a filter (UNCAUGHT in policies.h).
 *
 * Most exits find KVM offering nobody, and then ops.yield is not called at all; hence the hook on kvm_vcpu_on_spin().
 */
#ifndef COHORT_SPIN_BOOST_H
#define COHORT_SPIN_BOOST_H

#include "sibling.h"

/* Would who runs where the vCPU waits not make room for it? Nobody there: then the vCPU has that pCPU at once. */
static bool boost_is_in_vain(const struct vcpu_ctx *target, s32 there, u64 now)
{
	struct cpu_ctx *c = cpu_get(there);
	struct rank rank, runner;
	struct task_struct *p;
	struct task_ctx *t;
	bool found = false;

	if (!c || !rank_of_runner(c, now, &runner))
		return false;
	p = bpf_task_from_pid(target->pid);
	if (!p)
		return false;
	t = task_get(p);
	if (t) {
		order_rank(t, now, &rank);
		found = wish_is_outranked(&runner, &rank, wish_margin());
	}
	bpf_task_release(p);
	return found;
}

/*
 * Where a waiting vCPU can be boosted: where it waits; if it would ask there in vain, on the spinner's pCPU, if it may come. -1: nowhere. Whoever is asked in vain has lost
 * his turn all the same if somebody else there is a moment behind, and a guest can spin as often as it likes.
 */
static s32 boost_place(s32 spinner_cpu, const struct vcpu_ctx *target, u64 now)
{
	s32 cpu = vcpu_cpu(target);

	if (!(boost & BOOST_MIGRATE) || cpu < 0 || cpu == spinner_cpu || !boost_is_in_vain(target, cpu, now))
		return cpu;
	return vcpu_allowed_on(target, spinner_cpu) ? spinner_cpu : -1;
}

/* Ask that vCPU `index` of a VM runs next. Return the pCPU asked, or -1. */
static s32 boost_ask(s32 spinner_cpu, u32 vm_id, u32 index, const struct vcpu_ctx *target, u64 now)
{
	s32 cpu = boost_place(spinner_cpu, target, now);

	if (cpu < 0)
		return -1;
	if (!wish_leave(cpu, vm_id, index, target, cpu == spinner_cpu ? WISH_MIGRATE : 0, boost_slice_ns, now))
		return -1;
	return cpu;
}

/* Make the pCPU asked look at its wish at once, as yield_to() does for the fair class: whether its runner loses its turn is decided there. */
static void boost_kick(s32 cpu, s32 spinner_cpu)
{
	if (cpu < 0)
		return;
	if (cpu != spinner_cpu)
		stat_inc(STAT_BOOST_PREEMPTED);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/* vCPU t spins on spinner_cpu: choose the sibling that should run in its place and ask for it. */
static void boost_any_mode(struct task_ctx *t, struct vm_ctx *vm, struct vcpu_ctx *spinner, s32 spinner_cpu, u64 now)
{
	struct vcpu_ctx *v;
	s32 cpu, best;
	u32 class;

	/* First: in a storm this is all that an exit costs. */
	if (boost_backs_off(spinner, now)) {
		stat_inc(STAT_PLE_BACKOFF);
		return;
	}
	best = sibling_to_run(t, vm, &class);
	v = vcpu_at(best);
	if (best < 0 || !v)
		return;
	cpu = boost_ask(spinner_cpu, t->vm, best, v, now);
	/* In vain: KVM's choice may be another. */
	if (cpu < 0)
		return;
	boost_charge(spinner, now);
	spinner->exit_served = EXIT_SERVED;
	if (cpu == spinner_cpu) {
		if (kvm_offers(v))
			return;
		spinner->gave_way = 1;
	}
	boost_kick(cpu, spinner_cpu);
}

/* A pause-loop exit of the current task, t, on cpu. */
static void boost_on_spin(struct task_ctx *t, s32 cpu, bool in_kernel)
{
	struct vm_ctx *vm = vm_get(t);
	struct vcpu_ctx *spinner = vcpu_get(t);

	if (!vm || !spinner)
		return;
	if (in_kernel && last_exit_is_unserved(t, spinner, cpu)) {
		spinner->gave_way = 1;
		boost_kick(cpu, cpu);
		return;
	}
	spinner->exit_served = 0;
	if (!(boost & BOOST_ANY_MODE))
		return;
	/* One that spins in user mode waits for nothing that a boost could give. */
	if (!in_kernel)
		return;
	boost_any_mode(t, vm, spinner, cpu, now_ns());
}

/* KVM asks that `to` runs instead of `from`. Return true if it will. */
static bool boost_offered(struct task_struct *from, struct task_struct *to, u64 now)
{
	struct task_ctx *f = task_get(from), *t = task_get(to);
	struct vcpu_ctx *spinner, *target;
	s32 cpu = scx_bpf_task_cpu(from), asked;
	struct cpu_ctx *c = cpu_get(cpu);

	if (!f || !t || !c || !f->vm || f->vm != t->vm)
		return false;
	spinner = vcpu_get(f);
	if (!spinner)
		return false;
	switch (exit_state(from, spinner, c, now)) {
	case EXIT_GIVES:
		return true;
	case EXIT_OVER:
		return false;
	}
	if (!(boost & BOOST_CANDIDATE))
		return false;
	target = vcpu_get(t);
	if (!target || target->state != VCPU_WAITING)
		return false;
	if (boost_backs_off(spinner, now)) {
		stat_inc(STAT_PLE_BACKOFF);
		return false;
	}
	asked = boost_ask(cpu, t->vm, t->vcpu_at, target, now);
	if (asked < 0)
		return false;
	boost_charge(spinner, now);
	if (asked != cpu)
		boost_kick(asked, cpu);
	task_set_slice(from, 0);
	spinner->gave_way = 1;
	return true;
}

/*
 * A call by IPI of a sibling that has no pCPU: to spin for it would be all that the caller can do. A call is answered in microseconds, so it does not get
 * the rest of its VM's turn. A pCPU whose runner deserves it more is not asked: a guest may call as often as it likes. A call of several that wait for one
 * pCPU leaves that the last one's wish.
 */
static void boost_on_call(struct task_ctx *t, s32 cpu, s32 to)
{
	struct vm_ctx *vm = vm_get(t);
	struct vcpu_ctx *caller = vcpu_get(t), *called;
	u64 now = now_ns();
	s32 index, asked;

	if (!(boost & BOOST_IPI))
		return;
	if (!vm || !caller || to < 0 || to >= MAX_VCPUS || to >= vm->vcpu_end)
		return;
	index = vcpu_index(vm, to);
	called = vcpu_at(index);
	/* One that sleeps is woken by KVM, and its claim is a sleeper's. */
	if (index < 0 || !called || called->state != VCPU_WAITING)
		return;
	stat_inc(STAT_BOOST_CALLED);
	asked = boost_place(cpu, called, now);
	/* With boost migrate boost_place() has asked. */
	if (asked < 0 || (asked != cpu && !(boost & BOOST_MIGRATE) && boost_is_in_vain(called, asked, now)))
		return;
	if (!wish_leave(asked, t->vm, index, called, WISH_BRIEF | (asked == cpu ? WISH_MIGRATE : 0), boost_slice_ns,
			now))
		return;
	if (asked == cpu)
		caller->gave_way = 1;
	boost_kick(asked, cpu);
}

static const struct spin spin_boost = {
	.on_spin = boost_on_spin,
	.offered = boost_offered,
	.called = boost_on_call,
};

#endif
