/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel tells of cgroups: the operations that build the tree (tree.h) and set its limits (gate_quota.h).
 */
#ifndef COHORT_CGROUP_OPS_H
#define COHORT_CGROUP_OPS_H

#include "gate_quota.h"

SEC("struct_ops/cgroup_init")
s32 BPF_PROG(cohort_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	tree_add_cgroup(cgrp, args->weight);
	if (bpf_core_field_exists(args->bw_quota_us))
		quota_set(cgrp, args->bw_period_us, args->bw_quota_us, args->bw_burst_us);
	if (bpf_core_field_exists(args->sched_idle) && args->sched_idle)
		tree_set_idle(cgrp, true);
	return 0;
}

SEC("struct_ops/cgroup_exit")
void BPF_PROG(cohort_cgroup_exit, struct cgroup *cgrp)
{
	quota_drop(cgrp);
	tree_remove_cgroup(cgrp);
}

SEC("struct_ops/cgroup_set_weight")
void BPF_PROG(cohort_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	tree_set_weight(cgrp, weight);
}

SEC("struct_ops/cgroup_set_bandwidth")
void BPF_PROG(cohort_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us)
{
	quota_set(cgrp, period_us, quota_us, burst_us);
}

SEC("struct_ops/cgroup_set_idle")
void BPF_PROG(cohort_cgroup_set_idle, struct cgroup *cgrp, bool idle)
{
	tree_set_idle(cgrp, idle);
}

SEC("struct_ops/cgroup_move")
void BPF_PROG(cohort_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *t = task_get(p);

	if (t)
		t->tree_generation = 0;
}

#endif
