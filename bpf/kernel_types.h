/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel types that the scheduler reads, written by hand: only the fields used, relocated by CO-RE to where the running kernel has
 * them. Part of kernel.h; include that one.
 */
#ifndef COHORT_KERNEL_TYPES_H
#define COHORT_KERNEL_TYPES_H

typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_TASK_STORAGE = 29,
	BPF_MAP_TYPE_CGRP_STORAGE = 32,
};
enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
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

typedef struct cpumask {
} cpumask_t;

struct kernfs_node {
	u64 id;
};

struct cgroup {
	s32 level;
	struct kernfs_node *kn;
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
};

struct task_struct {
	u32 flags;
	s32 pid;
	s32 tgid;
	s32 nr_cpus_allowed;
	const cpumask_t *cpus_ptr;
	u16 migration_disabled;
	struct hlist_head preempt_notifiers;
	struct sched_ext_entity scx;
};

struct kvm;

struct kvm_lapic {
	bool apicv_active;
	bool irr_pending;
};

struct kvm_vcpu_arch {
	bool preempted_in_kernel;
	struct kvm_lapic *apic;
};

struct kvm_vcpu {
	struct kvm *kvm;
	s32 vcpu_id;
	struct preempt_notifier preempt_notifier;
	bool preempted;
	struct kvm_vcpu_arch arch;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
};

struct scx_cgroup_init_args {
	u32 weight;
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

#pragma clang attribute pop

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 __opaque[1];
} __attribute__((aligned(8)));

/* The operations implemented; libbpf finds each in the kernel's own struct by name. */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

#endif
