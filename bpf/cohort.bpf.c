/* SPDX-License-Identifier: GPL-2.0-only */
#include "kernel.h"
#include "intf.h"

char _license[] SEC("license") = "GPL";

const volatile u32 nr_cpus = 1;
const volatile u64 slice_ns = 4000000;
const volatile u64 boost_slice_ns = 1000000;
const volatile u64 lag_ns = 20000000;
const volatile u64 starve_ns = 100000000;
const volatile u64 wakeup_gran_ns = 1000000;
const volatile u32 placement = PLACEMENT_BALANCE;
const volatile u32 fair = FAIR_VM;
const volatile u32 gang = GANG_OFF;
const volatile u32 boost = 0;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_ctx);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_STATS);
	__type(key, u32);
	__type(value, u64);
} stats SEC(".maps");

/* Why the scheduler ended; read by user space after it was ejected. */
s32 exit_kind;
s64 exit_code;
char exit_reason[128];
char exit_msg[1024];

SEC("struct_ops.s/init")
s32 BPF_PROG(cohort_init)
{
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

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(cohort_on_spin, struct kvm_vcpu *vcpu, bool in_kernel)
{
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops cohort_ops = {
	.init = (void *)cohort_init,
	.exit = (void *)cohort_exit,
	.timeout_ms = 10000,
	.name = "cohort",
};
