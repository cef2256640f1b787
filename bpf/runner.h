/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who has a pCPU: from when, until when, and that neither happens while something about him changes.
 */
#ifndef COHORT_RUNNER_H
#define COHORT_RUNNER_H

#include "wake.h"
#include "keep.h"

/* A turn of p begins on that pCPU: how much of its slice there is before a gate closes. What the kernel's own threads do is not cut. */
static __always_inline u64 cut_short(const struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, u64 slice)
{
	u64 lasts = gates_concern(t) ? gate_lasts_ns(t) : 0;

	c->cut_short = lasts && lasts < slice && !(p->flags & (PF_KTHREAD | PF_EXITING));
	return c->cut_short ? lasts : slice;
}

/* p has this pCPU from now on. */
static void start_running(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 slice = p->scx.slice;

	if (!c)
		return;
	/* Of a real-time task that becomes an ordinary one and goes on no switch tells. */
	if (c->taken)
		c->taken = 0;
	if (guard_may_keep() && c->kept_pid) {
		/* Its slice is that only after this operation (kernel.h). */
		slice = keep_cut(p, c, slice, now);
		task_set_slice(p, slice);
		keep_end(cpu, now);
	}
	identify(p, t);
	/* Also who became part of another entity while it ran, and goes on without ever having been queued as such. */
	arrive(p, t, cpu, now, false);
	account_place(t, cpu);
	gang_began(t, cpu, now);
	run_start(p, t, now);
	c->curr_vtime = t->vtime;
	c->sent_pid = 0;
	slice = cut_short(p, t, c, slice);
	t->begins_ns = now;
	order_begin(t, cpu, slice, p->scx.weight, !c->out_of_turn);
	vcpu_set_state(t, VCPU_RUNNING, cpu, now);

	c->curr_vm = t->vm;
	c->curr_leaf = t->leaf;
	c->curr_weight = p->scx.weight;
	c->turn_end_ns = now + slice;
	c->curr_pid = p->pid;
	if (c->resume_pid == (u32)p->pid)
		c->resume_pid = 0;
	if (!(p->flags & PF_KTHREAD))
		interruption_ends(c, now);
	if (queue_is_marked(cpu) || c->wish_pid || c->cut_short)
		turn_watch(c, cpu, now);
}

/*
 * Something about a runner has changed, and it goes on: what counts is what it is now. Its affinity is that of one pCPU, for the kernel, if it has to make
 * room in a section that forbids migration, and its own once it is out of there: every spinner that gives its pCPU away in a BPF program passes here twice.
 */
static bool goes_on_changed(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c;
	bool is_runner;

	if (!t->charged_ns)
		return false;
	c = cpu_get(cpu);
	is_runner = c && c->curr_pid == (u32)p->pid && t->cpu == cpu && !t->queued_ns;
	if (is_runner && c->curr_weight == p->scx.weight && !identity_is_stale(p, t))
		return true;
	run_stop(p, t, is_runner ? c->curr_weight : p->scx.weight, now);
	/* One that ran on while its pCPU went offline begins anew. */
	if (!is_runner)
		return false;
	start_running(p, t, cpu, now);
	gang_settle(now);
	return true;
}

/* p has the pCPU of c no longer; waits: it wants one. */
static void stop_running(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, bool waits, u64 now)
{
	u64 weight = p->scx.weight;
	bool early = false;

	if (c) {
		if (c->curr_pid == (u32)p->pid)
			weight = c->curr_weight;
		early = time_before(now, c->turn_end_ns);
		c->curr_pid = 0;
		c->turn_end_ns = 0;
	}
	run_stop(p, t, weight, now);
	if (!waits && p->flags & PF_EXITING)
		order_exits(t, scx_bpf_task_cpu(p));
	service_ends(t, waits && early, now);
}

/*
 * t neither runs nor waits any more. If something about it changes while it waits it comes back at once, and has waited since it began to: the kernel's watchdog
 * says so too. Otherwise whoever sets affinities every so often would keep it from ever being overdue.
 */
static __always_inline void leave(struct task_ctx *t, bool comes_back, u64 now)
{
	struct vcpu_ctx *v;

	t->comes_back = comes_back && t->cpu >= 0;
	account_place(t, -1);
	vcpu_set_state(t, VCPU_ASLEEP, -1, now);
	if (!comes_back) {
		v = guard_gives_grace() ? vcpu_get(t) : NULL;
		if (v)
			v->in_grace = v->graces = 0;
		t->queued_ns = 0;
		t->unserved_ns = 0;
	}
	t->placed = 0;
	t->aside = false;
	gang_settle(now);
}

#endif
