/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The least that a sched_ext scheduler can be, in the classic shape: one queue in order of weighted virtual run time, an idle pCPU at once. What the framework
 * itself costs, so that what ours costs beyond it can be told.
 */
#include "kernel.h"

char _license[] SEC("license") = "GPL";

#define SHARED_DSQ 0
#define SLICE_NS 16000000ULL

static u64 vtime_now;

struct local {
	u64 started_ns;
	u64 vtime;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct local);
} locals SEC(".maps");

SEC("struct_ops/minimal_select_cpu")
s32 BPF_PROG(minimal_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	bool idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);

	if (idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

SEC("struct_ops/minimal_enqueue")
void BPF_PROG(minimal_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct local *l = bpf_task_storage_get(&locals, p, 0, 0);

	if (!l) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, enq_flags);
		return;
	}
	if (time_before(l->vtime, vtime_now - SLICE_NS))
		l->vtime = vtime_now - SLICE_NS;
	scx_bpf_dsq_insert_vtime(p, SHARED_DSQ, SLICE_NS, l->vtime, enq_flags);
}

SEC("struct_ops/minimal_dispatch")
void BPF_PROG(minimal_dispatch, s32 cpu, struct task_struct *prev)
{
	scx_bpf_dsq_move_to_local(SHARED_DSQ);
}

SEC("struct_ops/minimal_running")
void BPF_PROG(minimal_running, struct task_struct *p)
{
	struct local *l = bpf_task_storage_get(&locals, p, 0, 0);

	if (!l)
		return;
	l->started_ns = now_ns();
	if (time_before(vtime_now, l->vtime))
		vtime_now = l->vtime;
}

SEC("struct_ops/minimal_stopping")
void BPF_PROG(minimal_stopping, struct task_struct *p, bool runnable)
{
	struct local *l = bpf_task_storage_get(&locals, p, 0, 0);

	if (l)
		l->vtime += (now_ns() - l->started_ns) * 100 / p->scx.weight;
}

SEC("struct_ops/minimal_init_task")
s32 BPF_PROG(minimal_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct local *l = bpf_task_storage_get(&locals, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!l)
		return -ENOMEM;
	l->vtime = vtime_now;
	return 0;
}

SEC("struct_ops.s/minimal_init")
s32 BPF_PROG(minimal_init)
{
	return scx_bpf_create_dsq(SHARED_DSQ, -1);
}

SEC(".struct_ops.link")
struct sched_ext_ops minimal_ops = {
	.select_cpu = (void *)minimal_select_cpu,
	.enqueue = (void *)minimal_enqueue,
	.dispatch = (void *)minimal_dispatch,
	.running = (void *)minimal_running,
	.stopping = (void *)minimal_stopping,
	.init_task = (void *)minimal_init_task,
	.init = (void *)minimal_init,
	.name = "minimal",
};
