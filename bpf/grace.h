/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Grace: a vCPU that has lost its pCPU although it could go on has it back first, if the guard says so (policy.h), for as long as that says. It is asked when KVM
 * has put the vCPU, for only then is known in which mode the guest was: the next one has the pCPU already, and is interrupted. Its turn goes on afterwards.
 */
#ifndef COHORT_GRACE_H
#define COHORT_GRACE_H

#include "policy_calls.h"

/* The current task, t, a vCPU, has just lost cpu, or sleeps; KVM has put it. */
VERIFIED_ONCE grace_ask(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct vcpu_ctx *v;
	u64 grace_ns, rest_ns;

	if (!t || !c)
		return 0;
	v = vcpu_get(t);
	if (!v)
		return 0;
	/* It only leaves KVM_RUN, as for a device, or for whoever has its pCPU for a moment: its turn is not over, nor is its grace. */
	if (v->state == VCPU_RUNNING || (v->state == VCPU_WAITING && c->resume_pid == v->pid))
		return 0;
	if (!v->in_grace)
		v->graces = 0;
	v->in_grace = 0;
	/* Nobody to take it from, one who is gone at once, or the vCPU has a place elsewhere. A real-time task is not known here. */
	if (v->state != VCPU_WAITING || vcpu_cpu(v) != cpu || !c->curr_pid)
		return 0;
	grace_ns = guard_grace_for(t, v, cpu, now);
	if (!grace_ns)
		return 0;
	v->graces++;
	stat_inc(STAT_GRACE_GIVEN);
	wish_leave(cpu, t->vm, t->vcpu_at, v, WISH_FORCED | WISH_GRACE, grace_ns, now);
	/* A boost is shorter than what is resumed otherwise. */
	rest_ns = elapsed_ns(c->turn_end_ns, now);
	if (rest_ns < TURN_REST_MIN_NS * 3 / 2)
		rest_ns = TURN_REST_MIN_NS * 3 / 2;
	c->resume_pid = c->curr_pid;
	c->resume_end_ns = now + grace_ns + rest_ns;
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return 0;
}

/* When KVM puts a vCPU: its thread is switched out, or leaves KVM_RUN. The run queue is locked in the former. */
SEC("fexit/kvm_arch_vcpu_put")
int BPF_PROG(cohort_vcpu_put, struct kvm_vcpu *vcpu)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t = task_get(p);

	if (t && t->vcpu >= 0)
		grace_ask(t, scx_bpf_task_cpu(p), now_ns());
	return 0;
}

#endif
