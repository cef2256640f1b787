// SPDX-License-Identifier: GPL-2.0-only
/*
 * What guests are told of KVM and of Hyper-V, for `cohort audit`: what KVM keeps of a vCPU's CPUID. One look at all threads; nothing stays in the kernel.
 *
 * Only a vCPU inside KVM_RUN is seen. Halted ones are; of a guest that is busy in its VMM another vCPU may be.
 */
#include "kernel.h"
#include "intf.h"

char _license[] SEC("license") = "GPL";

/* Does this kernel keep all of it? One that lacks a part (before 5.14) tells nothing, but for those built without Hyper-V, which have no such guest. */
static __always_inline bool is_kept(struct kvm_vcpu *vcpu, struct kvm_vcpu_hv *hv)
{
	if (!bpf_core_field_exists(vcpu->arch.pv_cpuid.features))
		return false;
	return !bpf_core_field_exists(vcpu->arch.hyperv) || (bpf_core_field_exists(vcpu->arch.hyperv_enabled) &&
							     bpf_core_field_exists(hv->cpuid_cache.enlightenments_eax));
}

static __always_inline void read_hyper_v(struct kvm_vcpu *vcpu, struct probe_told *told)
{
	struct kvm_vcpu_hv *hv;

	if (!bpf_core_field_exists(vcpu->arch.hyperv) || !BPF_CORE_READ(vcpu, arch.hyperv_enabled))
		return;
	hv = BPF_CORE_READ(vcpu, arch.hyperv);
	if (!hv)
		return;
	told->hyper_v = 1;
	told->hv_recommended = BPF_CORE_READ(hv, cpuid_cache.enlightenments_eax);
	told->hv_spins = BPF_CORE_READ(hv, cpuid_cache.enlightenments_ebx);
}

SEC("iter/task")
int probe_told_guests(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct probe_told told = {};
	struct kvm_vcpu *vcpu;

	if (!task)
		return 0;
	vcpu = task_vcpu(task);
	if (!vcpu || !is_kept(vcpu, NULL))
		return 0;
	told.tgid = task->tgid;
	told.features = BPF_CORE_READ(vcpu, arch.pv_cpuid.features);
	read_hyper_v(vcpu, &told);
	bpf_seq_write(ctx->meta->seq, &told, sizeof(told));
	return 0;
}
