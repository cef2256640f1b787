/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cohort: a sched_ext scheduler for hosts that run SMP virtual machines with more vCPUs than pCPUs.
 *
 * The operations, each a few steps that name mechanisms; the mechanisms are in the headers, in the order in which they build on each other:
 *
 *   kernel.h     the kernel's types and functions, and what differs between versions
 *   intf.h       limits, knob values and counters, shared with user space
 *   state.h      what is remembered about pCPUs, tasks, vCPUs and VMs; the knobs
 *   registry.h   which tasks are vCPUs, of which VM, and where they are
 *   fair.h       weighted virtual run time, between VMs and within them
 *   placement.h  where a task is queued
 *   runqueue.h   the queues, and who runs next
 *   boost.h      pause-loop exits and directed yields
 *   gang.h       turns that a VM's vCPUs take together
 *
 * Suits: KVM hosts of any VMM, with ordinary tasks beside the VMs. Every choice is made from state in the kernel; user space may stop or
 * die at any moment. Caveat: cgroup bandwidth limits (cpu.max) of sched_ext tasks are not enforced by the kernel.
 */
#include "gang.h"

char _license[] SEC("license") = "GPL";

/* Why the scheduler ended; read by user space after it was ejected. */
VARIABLE s32 exit_kind;
VARIABLE s64 exit_code;
VARIABLE char exit_reason[128];
VARIABLE char exit_msg[1024];

/* A task becomes runnable after sleeping, or for the first time. */
static void activate(struct task_struct *p, struct task_ctx *t)
{
	identify(p, t);
	fair_refresh_weight(p, t);
	if (t->cpu < 0)
		fair_activate(t);
}

SEC("struct_ops/select_cpu")
s32 BPF_PROG(cohort_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *t = task_get(p);
	bool idle = false;
	s32 cpu;

	cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags, &idle);
	if (!t)
		return cpu;
	/* An idle pCPU has nobody, so no sibling either. */
	if (idle) {
		activate(p, t);
		account_place(t, cpu);
		stat_inc(STAT_WAKEUPS_IDLE);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, 0);
		return cpu;
	}
	return place(p, t, prev_cpu, now_ns());
}

/* Make somebody look at p, just queued on cpu: an idle pCPU, or the one whose runner deserves it less. */
static void notify(struct task_struct *p, const struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct rank rank;
	s32 idle;

	if (!c)
		return;
	if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!task_is_pinned(p)) {
		idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0) {
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			return;
		}
	}
	/* Nobody runs: the pCPU is between two tasks, and has chosen, or will look here. */
	if (!c->curr_pid || c->curr_pid == p->pid)
		return;
	rank_of(t, now, &rank);
	if (would_preempt(c, &rank, now)) {
		stat_inc(STAT_PREEMPT_WAKEUP);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
}

SEC("struct_ops/enqueue")
void BPF_PROG(cohort_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();
	struct vm_ctx *vm;
	bool woken;
	s32 cpu;

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	woken = t->cpu < 0;
	activate(p, t);

	/* A pinned kernel thread that wakes does a little work for the kernel; once it has used a slice it queues like everybody. */
	if (woken && (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1) {
		account_place(t, scx_bpf_task_cpu(p));
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
		return;
	}

	cpu = scx_bpf_task_cpu(p);
	cpu = place(p, t, cpu, now);
	vm = vm_get(t);
	if (vm && siblings_on(t, cpu)) {
		stat_inc(STAT_STACKED);
		__sync_fetch_and_add(&vm->stacked, 1);
	}
	account_place(t, cpu);
	if (!t->queued_ns)
		t->queued_ns = now;
	vcpu_set_state(t, VCPU_WAITING, cpu, t->queued_ns);
	queue_insert(p, t, cpu, enq_flags, now);
	notify(p, t, cpu, now);
}

SEC("struct_ops/dispatch")
void BPF_PROG(cohort_dispatch, s32 cpu, struct task_struct *prev)
{
	struct pick best = { .cpu = cpu, .now = now_ns() };
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_ctx *t = NULL;

	if (!c)
		return;
	if (prev && task_is_queued(prev)) {
		t = task_get(prev);
		if (t) {
			fair_charge(prev, t, best.now);
			best.leaving_vm = t->vm;
			best.prev_queued = true;
			rank_of(t, best.now, &best.prev);
		}
	}
	if (boost_redeem(c, &best))
		return;

	best_waiter(cpu, QUEUE_SCAN, 0, &best, 0);
	best_waiter(cpu, TAIL_SCAN, 0, &best, SCX_DSQ_ITER_REV);
	if (prev && t && !best.starved && (!best.pid || !rank_before(&best.rank, &best.prev, 0))) {
		best.rank = best.prev;
		best.pid = prev->pid;
		best.queue = -1;
	}
	if (!best.starved)
		best_remote_waiter(slice_ns, &best);

	if (prev && best.pid && best.queue < 0) {
		task_set_slice(prev, turn_slice(best.leaving_vm, best.now));
		if (t) {
			fair_advance_clock(t);
			gang_start(t, cpu, best.now);
		}
		return;
	}
	if (best.pid && take(best.pid, best.queue, cpu, turn_slice(best.rank.vm, best.now))) {
		if (best.starved)
			stat_inc(STAT_STARVED);
		if (best.queue != cpu)
			stat_inc(t ? STAT_PULLS : STAT_STEALS);
		return;
	}
	if (!t)
		take_any(cpu);
}

/* p has this pCPU from now on. */
static void start_running(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct vm_ctx *vm;

	if (!c)
		return;
	identify(p, t);
	account_place(t, cpu);
	gang_start(t, cpu, now);
	fair_start(t, now);
	vcpu_set_state(t, VCPU_RUNNING, cpu, now);

	vm = vm_get(t);
	c->curr_vm = t->vm;
	c->curr_vtime = t->vtime;
	c->curr_weight = own_weight(p, t, vm);
	c->curr_since_ns = now;
	c->curr_pid = p->pid;
}

SEC("struct_ops/running")
void BPF_PROG(cohort_running, struct task_struct *p)
{
	struct task_ctx *t = task_get(p);
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u64 now = now_ns();

	if (!t)
		return;
	start_running(p, t, scx_bpf_task_cpu(p), now);
	stat_inc(STAT_SWITCHES);
	vm = vm_get(t);
	if (vm && t->vcpu >= 0) {
		__sync_fetch_and_add(&vm->switches, 1);
		if (t->queued_ns)
			__sync_fetch_and_add(&vm->wait_ns, now - t->queued_ns);
		v = vcpu_get(t);
		/* KVM's word is still that of the switch in which the vCPU lost its pCPU: kvm_sched_in() comes later. */
		if (v && v->exit_served)
			v->exit_served--;
		if (t->preempted && v && vcpu_preempted_in_kernel((struct kvm_vcpu *)v->kvm_vcpu))
			__sync_fetch_and_add(&vm->preempted_in_kernel, 1);
	}
	t->queued_ns = 0;
	t->preempted = false;
}

SEC("struct_ops/stopping")
void BPF_PROG(cohort_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *t = task_get(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct cpu_ctx *c = cpu_get(cpu);
	u64 now = now_ns();

	if (c)
		c->curr_pid = 0;
	if (!t)
		return;
	fair_stop(p, t, now);
	if (runnable) {
		t->queued_ns = now;
		t->preempted = true;
	}
}

SEC("struct_ops/tick")
void BPF_PROG(cohort_tick, struct task_struct *p)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();

	if (!t)
		return;
	fair_charge(p, t, now);
	fair_refresh_weight(p, t);
	/* A thread that became a vCPU, or its VMM's VM, while it ran, and that nobody competes with, passes here only. */
	if (identity_is_stale(p, t)) {
		fair_stop(p, t, now);
		start_running(p, t, scx_bpf_task_cpu(p), now);
	}
}

SEC("struct_ops/quiescent")
void BPF_PROG(cohort_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *t = task_get(p);

	if (!t)
		return;
	account_place(t, -1);
	vcpu_set_state(t, VCPU_ASLEEP, -1, now_ns());
	t->queued_ns = 0;
}

SEC("struct_ops/yield")
bool BPF_PROG(cohort_yield, struct task_struct *from, struct task_struct *to)
{
	if (!to) {
		task_set_slice(from, 0);
		return false;
	}
	return boost_offered(from, to, now_ns());
}

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(cohort_on_spin, struct kvm_vcpu *vcpu, bool in_kernel)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t = task_get(p);

	if (t)
		boost_on_spin(t, scx_bpf_task_cpu(p), in_kernel);
	return 0;
}

SEC("struct_ops/init_task")
s32 BPF_PROG(cohort_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->vtime = vclock;
	t->vcpu = -1;
	t->cpu = -1;
	t->weight = WEIGHT_DEFAULT;
	return 0;
}

SEC("struct_ops/exit_task")
void BPF_PROG(cohort_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task_get(p);

	if (t)
		vm_leave(t, p->pid);
}

SEC("struct_ops/cgroup_init")
s32 BPF_PROG(cohort_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	u32 *weight = bpf_cgrp_storage_get(&cgroup_weights, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!weight)
		return -ENOMEM;
	*weight = args->weight;
	return 0;
}

SEC("struct_ops/cgroup_set_weight")
void BPF_PROG(cohort_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u32 *own = bpf_cgrp_storage_get(&cgroup_weights, cgrp, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (own)
		*own = weight;
	__sync_fetch_and_add(&weight_generation, 1);
}

SEC("struct_ops/cgroup_move")
void BPF_PROG(cohort_cgroup_move, struct task_struct *p, struct cgroup *from, struct cgroup *to)
{
	struct task_ctx *t = task_get(p);

	if (t)
		t->weight_generation = 0;
}

SEC("struct_ops/cpu_online")
void BPF_PROG(cohort_cpu_online, s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (c)
		c->online = 1;
}

/* What waits in its queue goes to the local one: the kernel's hotplug pushes it from there to a pCPU that is online, through ops.enqueue. */
SEC("struct_ops/cpu_offline")
void BPF_PROG(cohort_cpu_offline, s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;

	if (c) {
		c->online = 0;
		c->boost_pid = 0;
		c->curr_pid = 0;
	}
	bpf_for_each(scx_dsq, p, cpu, 0)
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, SCX_DSQ_LOCAL_ON | cpu, 0);
}

SEC("struct_ops.s/init")
s32 BPF_PROG(cohort_init)
{
	const struct cpumask *online;
	struct cpu_ctx *c;
	s32 i, err;

	online = scx_bpf_get_online_cpumask();
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		c = cpu_get(i);
		if (c)
			c->online = bpf_cpumask_test_cpu(i, online);
	}
	scx_bpf_put_cpumask(online);
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		err = scx_bpf_create_dsq(i, -1);
		if (err)
			return err;
	}
	return 0;
}

SEC("struct_ops/exit")
void BPF_PROG(cohort_exit, struct scx_exit_info *info)
{
	exit_code = info->exit_code;
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_msg, sizeof(exit_msg), info->msg);
	exit_kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops cohort_ops = {
	.select_cpu = (void *)cohort_select_cpu,
	.enqueue = (void *)cohort_enqueue,
	.dispatch = (void *)cohort_dispatch,
	.tick = (void *)cohort_tick,
	.running = (void *)cohort_running,
	.stopping = (void *)cohort_stopping,
	.quiescent = (void *)cohort_quiescent,
	.yield = (void *)cohort_yield,
	.init_task = (void *)cohort_init_task,
	.exit_task = (void *)cohort_exit_task,
	.cgroup_init = (void *)cohort_cgroup_init,
	.cgroup_set_weight = (void *)cohort_cgroup_set_weight,
	.cgroup_move = (void *)cohort_cgroup_move,
	.cpu_online = (void *)cohort_cpu_online,
	.cpu_offline = (void *)cohort_cpu_offline,
	.init = (void *)cohort_init,
	.exit = (void *)cohort_exit,
	.timeout_ms = 10000,
	.name = "cohort",
};
