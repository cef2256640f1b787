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
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1,
	BPF_F_TIMER_ABS = 1,
	BPF_F_TIMER_CPU_PIN = 2,
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
	struct cgroup *dom_cgrp; /* itself; of a threaded one the nearest ancestor that is not */
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
};

/* How long it has run: up to now, in all operations that are about the task which runs or has just run. */
struct sched_entity {
	u64 sum_exec_runtime;
};

struct task_struct {
	struct sched_entity se;
	u32 flags;
	s32 exit_state; /* not 0: it is gone but for its last switch, and may be found by its pid no more */
	s32 pid;
	s32 tgid;
	s32 prio; /* below MAX_RT_PRIO: real-time or deadline, the kernel's stopper included */
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
	void *regs;
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

struct kvm_memory_slot;

/* What KVM does about a vCPU's access to memory that its tables do not have. */
struct kvm_page_fault {
	u64 gfn;
	u8 goal_level;		      /* 1: mapped by 4 KiB, 2: by 2 MiB */
	struct kvm_memory_slot *slot; /* NULL: no memory is there */
};

/* Of kvm_intel: the vCPU comes first. The low bit of `control`: interrupts have been posted that the vCPU has not taken. */
struct pi_desc {
	u64 control;
};

struct vcpu_vt {
	struct pi_desc pi_desc;
};

struct vcpu_vmx {
	struct kvm_vcpu vcpu;
	struct vcpu_vt vt;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
};

/* The bandwidth since 6.17, in us; a quota of NO_QUOTA: no limit. The last field since 7.3: ask whether it exists. */
#define NO_QUOTA (~0ULL)
struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
	u64 bw_burst_us;
	bool sched_idle;
};

struct scx_cpu_acquire_args {
};

struct scx_cpu_release_args {
	struct task_struct *task; /* of the higher class */
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

#pragma clang attribute pop

/* The verifier knows it by its name and size. */
struct bpf_timer {
	u64 __opaque[2];
} __attribute__((aligned(8)));

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

struct bpf_iter_num {
	u64 __opaque[1];
} __attribute__((aligned(8)));

/*
 * The operations implemented; libbpf finds each in the kernel's own struct by name. One that the running kernel's struct has not must be
 * set to NULL before loading: cgroup_set_bandwidth before 6.17, cgroup_set_idle before 6.19.
 *
 * cpu_acquire and cpu_release say that a higher class takes the pCPU and gives it back. Both lab kernels call them, from the same places: release
 * at the switch from a sched_ext task to one of a higher class (not when that one finds the pCPU idle), after ops.stopping and, if its slice
 * is used up, ops.enqueue; acquire before the next ops.dispatch(), or what stands for one. Since 6.19 they are deprecated: the kernel logs a
 * warning at every load that has one of them, and wants a tracing program on sched_switch instead, which then may call
 * scx_bpf_reenqueue_local(); tried on 7.3: what waits is in ops.enqueue before the higher task gets any further. That program runs after ops.running
 * of the next task, so it says that the pCPU is back only after the ops.dispatch() in which it is chosen.
 * Neither tells of a task that becomes a real-time one while it runs (sched_setscheduler() on itself): that is an ops.disable(), with nobody after it.
 *
 * If something about a task changes, its affinity say, the kernel takes it off its run queue and puts it back: ops.quiescent() without SCX_DEQ_SLEEP, and
 * of a runner ops.stopping() before it and ops.running() after, though it has its pCPU all the time. Two such changes nobody asks for: a runner that has to
 * make room in a section that forbids migration gets an affinity of one pCPU (migrate_disable_switch()), and its own back at the end of that section. The
 * first comes before ops.dispatch() on 7.3, even if the runner then goes on; on 6.12 only when it has lost its pCPU, and waits.
 */
struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *p, s32 prev_cpu, u64 wake_flags);
	void (*enqueue)(struct task_struct *p, u64 enq_flags);
	void (*dispatch)(s32 cpu, struct task_struct *prev);
	void (*tick)(struct task_struct *p);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*quiescent)(struct task_struct *p, u64 deq_flags);
	void (*disable)(struct task_struct *p);
	void (*set_cpumask)(struct task_struct *p, const struct cpumask *mask);
	void (*cpu_acquire)(s32 cpu, struct scx_cpu_acquire_args *args);
	void (*cpu_release)(s32 cpu, struct scx_cpu_release_args *args);
	bool (*yield)(struct task_struct *from, struct task_struct *to);
	s32 (*init_task)(struct task_struct *p, struct scx_init_task_args *args);
	void (*exit_task)(struct task_struct *p, struct scx_exit_task_args *args);
	s32 (*cgroup_init)(struct cgroup *cgrp, struct scx_cgroup_init_args *args);
	void (*cgroup_exit)(struct cgroup *cgrp);
	void (*cgroup_move)(struct task_struct *p, struct cgroup *from, struct cgroup *to);
	void (*cgroup_set_weight)(struct cgroup *cgrp, u32 weight);
	void (*cgroup_set_bandwidth)(struct cgroup *cgrp, u64 period_us, u64 quota_us, u64 burst_us);
	void (*cgroup_set_idle)(struct cgroup *cgrp, bool idle);
	void (*cpu_online)(s32 cpu);
	void (*cpu_offline)(s32 cpu);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	u64 flags;
	u32 timeout_ms;
	char name[128];
};

#endif
