/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel, as far as the probe reads it: the fields used, relocated by CO-RE to where the running kernel has them. The scheduler has a set of its
 * own: the probe runs beside any scheduler, on kernels without sched_ext too, and must not change with it.
 *
 * What is asked for with bpf_core_field_exists() of struct kvm_vcpu is in FIELDS of host/src/probe/hooks.rs as well, which says what is lost without it.
 */
#ifndef PROBE_KERNEL_H
#define PROBE_KERNEL_H

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s8 __s8;
typedef s16 __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
typedef u16 __sum16;

typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_QUEUE = 22,
	BPF_MAP_TYPE_RINGBUF = 27,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_RB_NO_WAKEUP = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct hlist_node {
	struct hlist_node *next;
};

struct hlist_head {
	struct hlist_node *first;
};

struct preempt_notifier {
	struct hlist_node link;
};

struct thread_info {
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	u32 __state;
	s32 on_cpu;
	u32 flags;
	s32 pid;
	s32 tgid;
	struct hlist_head preempt_notifiers;
};

/* Before 5.16. */
struct task_struct___cpu_outside {
	u32 cpu;
};

struct kvm;

/* Inside kvm_vcpu_arch they have no names; CO-RE goes by those of the fields. */
struct kvm_pv_cpuid {
	u32 features; /* eax of KVM's CPUID leaf; since 5.10 */
};

struct kvm_hv_cpuid_cache {
	u32 enlightenments_eax;
	u32 enlightenments_ebx;
};

struct kvm_vcpu_hv {
	struct kvm_hv_cpuid_cache cpuid_cache;
};

struct kvm_vcpu_arch {
	bool preempted_in_kernel;
	struct kvm_pv_cpuid pv_cpuid;
	bool hyperv_enabled;
	struct kvm_vcpu_hv *hyperv;
};

struct kvm_vcpu_stat_generic {
	u64 halt_poll_success_ns;
	u64 halt_poll_fail_ns;
	u64 blocking; /* inside kvm_vcpu_block() */
};

struct kvm_vcpu_stat {
	struct kvm_vcpu_stat_generic generic;
};

struct kvm_vcpu {
	struct kvm *kvm;
	s32 vcpu_id;
	struct preempt_notifier preempt_notifier;
	bool preempted;
	struct kvm_vcpu_arch arch;
	struct kvm_vcpu_stat stat;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define PF_EXITING 0x00000004
#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
#define barrier() asm volatile("" ::: "memory")
#define atomic_add(ptr, n) __sync_fetch_and_add((ptr), (n))
#define atomic_xchg(ptr, value) __sync_lock_test_and_set((ptr), (value))
#define atomic_cas(ptr, expected, value) __sync_val_compare_and_swap((ptr), (expected), (value))

/* The pCPU that p runs or waits on, or was on last. */
static __always_inline u32 task_cpu(struct task_struct *p)
{
	struct task_struct___cpu_outside *old = (void *)p;

	if (bpf_core_field_exists(p->thread_info.cpu))
		return BPF_CORE_READ(p, thread_info.cpu);
	if (bpf_core_field_exists(old->cpu))
		return BPF_CORE_READ(old, cpu);
	return 0;
}

/*
 * The vCPU that task p is inside KVM_RUN for, or NULL: it has KVM's preempt notifier on its list, and that notifier sits inside struct kvm_vcpu.
 */
static __always_inline struct kvm_vcpu *task_vcpu(struct task_struct *p)
{
	struct hlist_node *node;
	void *notifier;

	if (!bpf_core_type_exists(struct kvm_vcpu) || !bpf_core_field_exists(p->preempt_notifiers))
		return NULL;
	node = BPF_CORE_READ(p, preempt_notifiers.first);
	if (!node)
		return NULL;
	notifier = (void *)node - bpf_core_field_offset(struct preempt_notifier, link);
	return notifier - bpf_core_field_offset(struct kvm_vcpu, preempt_notifier);
}

/*
 * Was the vCPU preempted in its guest's kernel? To be asked when it gets a pCPU again: KVM writes the answer after sched_switch of the switch in which
 * the vCPU loses its pCPU, and forgets it after that of the one in which it gets one.
 */
static __always_inline bool vcpu_preempted_in_kernel(struct kvm_vcpu *v)
{
	if (!bpf_core_field_exists(v->preempted) || !bpf_core_field_exists(v->arch.preempted_in_kernel))
		return false;
	return BPF_CORE_READ(v, preempted) && BPF_CORE_READ(v, arch.preempted_in_kernel);
}

/* Is the vCPU halted, rather than its thread asleep in the VMM? Where the kernel does not tell, every sleep is taken for a halt. */
static __always_inline bool vcpu_is_halted(struct kvm_vcpu *v)
{
	if (!bpf_core_field_exists(v->stat.generic.blocking))
		return true;
	return BPF_CORE_READ(v, stat.generic.blocking);
}

/* Time that KVM polled before the vCPU's thread slept, all of it so far. */
static __always_inline u64 vcpu_halt_polled_ns(struct kvm_vcpu *v)
{
	if (!bpf_core_field_exists(v->stat.generic.halt_poll_success_ns) ||
	    !bpf_core_field_exists(v->stat.generic.halt_poll_fail_ns))
		return 0;
	return BPF_CORE_READ(v, stat.generic.halt_poll_success_ns) + BPF_CORE_READ(v, stat.generic.halt_poll_fail_ns);
}

#endif
