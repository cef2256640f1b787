/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts between the vCPUs of a VM: who communicates with whom (traffic.h), and who is waited for (spin.called).
 */
#ifndef COHORT_IRQ_H
#define COHORT_IRQ_H

#include "policy_calls.h"
#include "traffic.h"

/* A vCPU calls those that its word `calls` has bits for; any others are called one by one. */
#define CALLS_MAX 64

/*
 * Vcpu t, on that pCPU, calls another. KVM is about to give that one the interrupt, and others after it. Who would run before that would find nothing to answer: in a
 * kernel that can be preempted there the caller may lose its pCPU to it in the middle of all that. So it is noted until KVM has done.
 */
static __always_inline void call_begins(struct task_ctx *t, s32 cpu, u32 to)
{
	struct vcpu_ctx *v = vcpu_get(t), *called;
	struct vm_ctx *vm = vm_get(t);
	s32 index;

	if (!v || !vm || to >= MAX_VCPUS)
		return;
	/*
	 * One that sleeps is woken by KVM now, and its claim is a sleeper's. Wake-ups come by this interrupt, too: since Linux 6.0 a guest leaves those for a
	 * vCPU that idles to that one.
	 */
	index = vcpu_index(vm, to);
	called = vcpu_at(index);
	if (index < 0 || !called || called->state == VCPU_ASLEEP)
		return;
	if (calls_have_no_end || to >= CALLS_MAX)
		spin_called(t, cpu, to);
	else
		v->calls |= 1ULL << to;
}

/* KVM has given all that the current vCPU sends their interrupt. */
static void calls_end(void)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t = task_get(p);
	struct vcpu_ctx *v;
	u64 calls;
	s32 to;

	if (!t || t->vcpu < 0)
		return;
	v = vcpu_get(t);
	if (!v || !v->calls)
		return;
	calls = v->calls;
	v->calls = 0;
	bpf_for(to, 0, CALLS_MAX) {
		if (calls >> to & 1)
			spin_called(t, scx_bpf_task_cpu(p), to);
	}
}

/*
 * KVM gives that vCPU's APIC an interrupt. The tracepoint is on the way of all of them; of KVM's functions that are on it some callers have copies of their
 * own. It does not say of which VM: of the current vCPU's, unless a doorbell that it rings is another VM's interrupt (ivshmem), or a device's
 * interrupt comes while it runs. Such a number counts where the VM has that vCPU.
 */
SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(cohort_on_irq, u32 to, u16 mode, u16 trigger, u8 vector)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t;

	/* Most are timers'. */
	if (!irqs_are_traffic && !vector_is_call(vector))
		return 0;
	t = task_get(p);
	/* A vCPU's own timer is a message to itself. */
	if (!t || t->vcpu < 0)
		return 0;
	if (irqs_are_traffic)
		traffic_add(t, to);
	if (vector_is_call(vector))
		call_begins(t, scx_bpf_task_cpu(p), to);
	return 0;
}

/* By the interrupt command register; some kernels have a shorter way for x2APIC's, which does not come by here. */
SEC("fexit/kvm_apic_send_ipi")
int BPF_PROG(cohort_on_ipi_sent)
{
	calls_end();
	return 0;
}

SEC("fexit/kvm_x2apic_icr_write_fast")
int BPF_PROG(cohort_on_fast_ipi_sent)
{
	calls_end();
	return 0;
}

/* By hypercall. */
SEC("fexit/kvm_pv_send_ipi")
int BPF_PROG(cohort_on_pv_ipi_sent)
{
	calls_end();
	return 0;
}

#endif
