/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Spin prefer: a spinning vCPU stands back for the sibling that it waits for, and goes on doing so while it is needed. After Wanpeng Li's series "semantics-aware
 * vCPU scheduling" (2025), which was proposed for KVM and the fair class and is to be compared with.
 *
 * A boost lends a sibling a moment, and then all is as before. Here the spinner pays: its virtual time is put behind the sibling's (deboost), so that it is the sibling
 * that deserves the pCPU of the two until it has had that much more. Their VM's time is not touched, so nobody else loses or gains.
 *
 * kept       a spinner that spins on asks for the same sibling again as long as that is needed, not for the next one in turn.
 * debounced  if that sibling has just asked for the spinner, they wait for each other, or for a third: the reverse pair is refused for a moment.
 * relaxed    before KVM chooses, we choose: who has an interrupt pending (the receiver of an IPI), who was preempted in kernel mode, anybody.
 */
#ifndef COHORT_SPIN_PREFER_H
#define COHORT_SPIN_PREFER_H

#include "order_sbco.h"
#include "sibling.h"

/* A spinner that has had its pCPU for so long without another exit does something else by now: its preference is over. */
#define PREFER_KEEP_NS 2000000ULL

/* For so long the one preferred may not prefer its spinner. */
#define PREFER_DEBOUNCE_NS 600000ULL

/* By how many times boost_slice_ns the spinner stands back if one task waits; less where more do. */
#define PREFER_TIMES 6

/*
 * Does the spinner, in the loop in which it has preferred v, still need it? v waits, and has not run since; or it has, and still has something to do that a
 * sibling may wait for: it was preempted in kernel mode, or has an interrupt pending.
 */
static bool prefer_is_needed(const struct vcpu_ctx *spinner, const struct vcpu_ctx *v, u64 now)
{
	u64 looked_ns = spinner->preferred_ns;
	u32 class = boost_class_of(v);

	if (class == BOOST_CLASS_NONE)
		return false;
	/* It has run since it asked, or since it got its pCPU back. */
	if (time_before(looked_ns, spinner->since_ns))
		looked_ns = spinner->since_ns;
	if (elapsed_ns(now, looked_ns) > PREFER_KEEP_NS)
		return false;
	return class != BOOST_CLASS_USER || !time_before(spinner->preferred_ns, v->since_ns);
}

/* Put t, which runs on cpu, behind the virtual time of that sibling, and return by how much. */
static u64 prefer_deboost(struct task_ctx *t, s32 pid, s32 cpu, u64 now)
{
	u32 waiting = queue_is_marked(cpu) ? scx_bpf_dsq_nr_queued(cpu) : 0;
	u64 by_ns = boost_slice_ns * PREFER_TIMES / (waiting ?: 1), least;
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;
	struct task_ctx *other;
	struct rank own;

	if (by_ns < boost_slice_ns)
		by_ns = boost_slice_ns;
	if (by_ns > slice_ns)
		by_ns = slice_ns;
	p = bpf_task_from_pid(pid);
	if (!p)
		return by_ns;
	other = task_get(p);
	if (c && other && other->leaf == t->leaf) {
		/* Without what it has paid for and will not use. */
		order_rank_of_runner(c, now, &own);
		/* In a flat order its virtual time moves at a rate of its own, and it may have lent some. */
		least = order == ORDER_sbco ? place_of(other) + at_rate(by_ns, own.rate) : other->vtime + by_ns;
		if (time_before(own.own, least)) {
			c->curr_vtime += least - own.own;
			t->vtime += least - own.own;
		}
	}
	bpf_task_release(p);
	return by_ns;
}

/* Let vCPU `index` of t's VM run before t, which spins on cpu. Return where it is to run, or -1. */
static s32 prefer(struct task_ctx *t, struct vcpu_ctx *spinner, u32 index, s32 cpu, u64 now)
{
	struct vcpu_ctx *v = vcpu_at(index);
	u64 by_ns;
	s32 there;

	if (!v || v->state != VCPU_WAITING)
		return -1;
	if (v->preferred == t->vcpu_at + 1 && elapsed_ns(now, v->preferred_ns) < PREFER_DEBOUNCE_NS) {
		stat_inc(STAT_PREFER_REVERSE);
		return -1;
	}
	there = vcpu_cpu(v);
	if (there < 0)
		return -1;
	boost_charge(spinner, now);
	spinner->preferred = index + 1;
	spinner->preferred_ns = now;
	/* For one that waits elsewhere it need not stand back: they do not compete. What runs there is decided by rank, as ever, so it is a whole turn. */
	by_ns = there == cpu ? prefer_deboost(t, v->pid, cpu, now) : slice_ns;
	if (!wish_leave(there, t->vm, index, v, 0, by_ns, now))
		return -1;
	return there;
}

static void prefer_on_spin(struct task_ctx *t, s32 cpu, bool in_kernel)
{
	struct vm_ctx *vm = vm_get(t);
	struct vcpu_ctx *spinner = vcpu_get(t), *v;
	u64 now = now_ns();
	s32 there, index;
	u32 class;

	if (!vm || !spinner)
		return;
	if (in_kernel && last_exit_is_unserved(t, spinner, cpu)) {
		spinner->gave_way = 1;
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
		return;
	}
	spinner->exit_served = 0;
	/* One that spins in user mode waits for nothing that the host can tell. */
	if (!in_kernel)
		return;
	if (boost_backs_off(spinner, now)) {
		stat_inc(STAT_PLE_BACKOFF);
		return;
	}
	index = (s32)spinner->preferred - 1;
	v = vcpu_at(index);
	if (index >= 0 && v && prefer_is_needed(spinner, v, now)) {
		stat_inc(STAT_PREFER_KEPT);
	} else {
		index = sibling_to_run(t, vm, &class);
		v = vcpu_at(index);
	}
	if (index < 0)
		return;
	there = prefer(t, spinner, index, cpu, now);
	if (there < 0)
		return;
	spinner->exit_served = EXIT_SERVED;
	if (there == cpu) {
		if (v && kvm_offers(v))
			return;
		spinner->gave_way = 1;
	}
	scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
}

/* KVM asks that `to` runs instead of `from`. */
static bool prefer_offered(struct task_struct *from, struct task_struct *to, u64 now)
{
	struct task_ctx *f = task_get(from), *t = task_get(to);
	s32 cpu = scx_bpf_task_cpu(from), there;
	struct cpu_ctx *c = cpu_get(cpu);
	struct vcpu_ctx *spinner;

	if (!f || !t || !c || !f->vm || f->vm != t->vm || t->vcpu < 0)
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
	if (boost_backs_off(spinner, now)) {
		stat_inc(STAT_PLE_BACKOFF);
		return false;
	}
	there = prefer(f, spinner, t->vcpu_at, cpu, now);
	if (there < 0)
		return false;
	if (there != cpu)
		scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
	task_set_slice(from, 0);
	spinner->gave_way = 1;
	return true;
}

static const struct spin spin_prefer = {
	.on_spin = prefer_on_spin,
	.offered = prefer_offered,
};

#endif
