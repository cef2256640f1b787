/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Interrupts between the vCPUs of a VM: who communicates with whom (traffic.h), and who is waited for (spin.called).
 */
#ifndef COHORT_IRQ_H
#define COHORT_IRQ_H

#include "policy_calls.h"
#include "traffic.h"

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

	/* Most are timers' and wake-ups'. */
	if (!irqs_are_traffic && !vector_is_call(vector))
		return 0;
	t = task_get(p);
	/* A vCPU's own timer is a message to itself. */
	if (!t || t->vcpu < 0)
		return 0;
	if (irqs_are_traffic)
		traffic_add(t, to);
	if (vector_is_call(vector))
		spin_called(t, scx_bpf_task_cpu(p), to);
	return 0;
}

#endif
