/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * pCPUs that come and go: by hotplug, and because a real-time or deadline task takes one.
 */
#ifndef COHORT_PCPU_OPS_H
#define COHORT_PCPU_OPS_H

#include "runqueue.h"

SEC("struct_ops/cpu_online")
void BPF_PROG(cohort_cpu_online, s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (c && !c->online) {
		c->online = 1;
		atomic_add(&nr_online, 1);
		/* Who may run everywhere is another question now. */
		atomic_add(&tree_generation, 1);
	}
}

/*
 * What waits in its queue goes to the local one: the kernel's hotplug pushes it from there to a pCPU that is online, through ops.enqueue. The queue stays marked: who
 * was on the way into it just now, for the pCPU was still online when it was chosen, comes only after this, and others find him there.
 */
SEC("struct_ops/cpu_offline")
void BPF_PROG(cohort_cpu_offline, s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;

	if (c && c->online) {
		c->online = 0;
		c->wish_pid = 0;
		c->makes_way_to = 0;
		c->takes_from = 0;
		c->sent_pid = 0;
		c->curr_pid = 0;
		atomic_add(&nr_online, -1);
		atomic_add(&tree_generation, 1);
	}
	bpf_for_each(scx_dsq, p, cpu, 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	bpf_for_each(scx_dsq, p, OVERDUE_DSQ(cpu), 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	bpf_for_each(scx_dsq, p, ASIDE_DSQ(cpu), 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
	queue_mark(cpu, EVERYWHERE);
}

/*
 * A task of a higher class takes the pCPU: who waits there or was running goes elsewhere if it can. That is asked once until somebody may have come anew,
 * not at each switch between such tasks: the kernel puts who cannot go straight back, an exiting task for one, and ejects a scheduler that asks that again
 * and again (Linux 7.3: SCX_REENQ_MAX_REPEAT).
 */
static void pcpu_taken(s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (!c)
		return;
	c->taken = 1;
	if (c->emptied)
		return;
	c->emptied = 1;
	reenqueue_local();
}

static void pcpu_given_back(s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (c && c->taken)
		c->taken = 0;
}

/*
 * The same from a switch of tasks, for kernels that have done away with ops.cpu_release (6.19 and later warn of it). Those are the ones whose
 * scx_bpf_reenqueue_local() may be called from here.
 */
SEC("tp_btf/sched_switch")
int BPF_PROG(cohort_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	/* Not the kernel's own: its stoppers and interrupt threads are gone at once. */
	bool takes = next->prio < MAX_RT_PRIO && !(next->flags & PF_KTHREAD);
	s32 cpu = bpf_get_smp_processor_id();

	/* Whatever prev is now: it may have lost its priority while it ran. */
	if (takes)
		pcpu_taken(cpu);
	else
		pcpu_given_back(cpu);
	return 0;
}

SEC("struct_ops/cpu_release")
void BPF_PROG(cohort_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	/* Also for the kernel's own, which are gone at once: this is told once, whoever comes after such a thread. */
	pcpu_taken(cpu);
}

SEC("struct_ops/cpu_acquire")
void BPF_PROG(cohort_cpu_acquire, s32 cpu, struct scx_cpu_acquire_args *args)
{
	pcpu_given_back(cpu);
}

#endif
