/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How tasks, and the scheduler itself, begin and end.
 */
#ifndef COHORT_LIFE_OPS_H
#define COHORT_LIFE_OPS_H

#include "runqueue.h"
#include "turn.h"
#include "period.h"

/* Why the scheduler ended; read by user space after it was ejected. */
VARIABLE s32 exit_kind;
VARIABLE s64 exit_code;
VARIABLE char exit_reason[128];
VARIABLE char exit_msg[1024];

SEC("struct_ops/init_task")
s32 BPF_PROG(cohort_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->vcpu = -1;
	t->cpu = -1;
	t->home = -1;
	/* Not in init: what a timer calls is verified as a part of the program that sets it, and init may sleep. */
	if (!atomic_cas(&periods_started, 0, 1))
		return period_init();
	return 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(cohort_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task_get(p);

	if (t)
		vm_leave(t, p->pid);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(cohort_init)
{
	const struct cpumask *online;
	struct entity_ctx *root;
	struct vm_ctx *nobody;
	struct cpu_ctx *c;
	u32 zero = 0;
	s32 i, err;

	online = scx_bpf_get_online_cpumask();
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		c = cpu_get(i);
		if (c && bpf_cpumask_test_cpu(i, online)) {
			c->online = 1;
			nr_online++;
		}
	}
	scx_bpf_put_cpumask(online);
	slice_us = slice_ns / 1000;
	/* One pCPU writes it, and once: so it is the sum of all. */
	stat_add(NR_STATS, LAYOUT_NUMBER);
	/* So far number 0 is all there is in these tables. */
	nobody = bpf_map_lookup_elem(&vms, &zero);
	root = entity_get(0);
	if (nobody)
		raise_end(&nobody->end, 0);
	if (root)
		raise_end(&root->end, 0);
	bpf_for(i, 0, MAX_CPUS * 3) {
		if (i >= nr_cpus * 3)
			break;
		err = scx_bpf_create_dsq(i < nr_cpus	 ? i :
					 i < nr_cpus * 2 ? OVERDUE_DSQ(i - nr_cpus) :
							   ASIDE_DSQ(i - nr_cpus * 2),
					 -1);
		if (err)
			return err;
	}
	return turn_init();
}

SEC("struct_ops/exit")
void BPF_PROG(cohort_exit, struct scx_exit_info *info)
{
	exit_code = info->exit_code;
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_msg, sizeof(exit_msg), info->msg);
	exit_kind = info->kind;
}

#endif
