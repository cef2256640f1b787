/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler remembers: about a pCPU, a task, a vCPU and a VM; and the knobs.
 */
#ifndef COHORT_STATE_H
#define COHORT_STATE_H

#include "kernel.h"
#include "intf.h"

/* Knobs, set by user space before the scheduler is loaded. `cohort run --help` describes each in the same words. */

KNOB u32 nr_cpus = 1;

/* How long a task runs before others of its rank get their turn. */
KNOB u64 slice_ns = 16000000;

/* How long a boosted vCPU runs at most, if its VM's turn has less left. */
KNOB u64 boost_slice_ns = 400000;

/* How much unused virtual time a sleeper may claim when it wakes. */
KNOB u64 lag_ns = 20000000;

/* After waiting this long a task runs next, whatever its rank; ten times this long if its VM is ahead of its share. */
KNOB u64 starve_ns = 100000000;

/* By how much a woken task's virtual time must be behind the runner's to preempt it. */
KNOB u64 wakeup_gran_ns = 1000000;

KNOB u32 placement = PLACEMENT_BALANCE;
KNOB u32 fair = FAIR_VM;
KNOB u32 gang = GANG_OFF;
KNOB u32 boost = 0;

/* A pCPU. Its run queue is the DSQ of the same number. */
struct cpu_ctx {
	u32 online;
	u32 curr_pid;	   /* 0: nobody */
	u32 curr_vm;	   /* as task_ctx.vm */
	u32 boost_pid;	   /* run this waiting vCPU next; 0: none */
	u32 boost_vcpu;	   /* its index in the map vcpus */
	u32 boost_migrate; /* it may come from another pCPU's queue */
	u64 boost_at_ns;   /* when that was asked */
	u64 curr_vtime;	   /* of the runner, as of curr_since_ns, if it is a host task */
	u64 curr_weight;
	u64 curr_since_ns;
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu_ctx);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cohort_neighbours);
} neighbours SEC(".maps");

/* A task. */
struct task_ctx {
	u64 vtime;	/* own virtual run time; orders host tasks, and siblings within their VM */
	u64 charged_ns; /* run time is charged up to here; 0: not running */
	u64 queued_ns;	/* waiting for a pCPU since; 0: not waiting */
	u64 kvm;	/* VM whose vCPU it is; 0: none known */
	u64 vm_generation;
	u32 vm;	    /* 1 + slot in vms of the VM it belongs to; 0: a host task */
	s32 vcpu;   /* vcpu_id; -1: not a vCPU */
	s32 cpu;    /* where it runs or waits; -1: asleep */
	u32 weight; /* of its cgroup and ancestors, 100 = default */
	u32 weight_generation;
	u32 registry_generation;
	bool preempted;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

/* A vCPU, as its siblings see it. Index: slot of its VM * MAX_VCPUS + vcpu_id. */
enum vcpu_state {
	VCPU_ASLEEP = 0,
	VCPU_WAITING = 1,
	VCPU_RUNNING = 2,
};

struct vcpu_ctx {
	u64 kvm_vcpu;	    /* address of the kernel's struct kvm_vcpu */
	u64 since_ns;	    /* in this state since */
	u64 boost_after_ns; /* no further boost on behalf of this vCPU before */
	u64 backoff_ns;
	s32 pid;
	s32 cpu;
	u32 state;
	u32 exit_served; /* see EXIT_SERVED */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS * MAX_VCPUS);
	__type(key, u32);
	__type(value, struct vcpu_ctx);
} vcpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_ctx);
} vms SEC(".maps");

/* How many vCPUs of a VM run or wait on a pCPU. Index: slot * nr_cpus + pCPU; user space sizes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} vm_on_cpu SEC(".maps");

/* struct kvm -> slot in vms. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VMS);
	__type(key, u64);
	__type(value, u32);
} vm_slots SEC(".maps");

/* VMM process -> slot in vms, so that its other threads (I/O, vhost) are scheduled and charged with their VM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} vm_by_tgid SEC(".maps");

/* cgroup -> its own cpu.weight. */
struct {
	__uint(type, BPF_MAP_TYPE_CGRP_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} cgroup_weights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_STATS);
	__type(key, u32);
	__type(value, u64);
} stats SEC(".maps");

/* Bumped when a cgroup's weight changes or a task moves: weights are computed anew on next use. */
VARIABLE u32 weight_generation = 1;

/* Bumped when a VM appears or goes: threads look up anew whether they belong to one. */
VARIABLE u32 registry_generation = 1;

/* The virtual time at which the furthest runner started: what newcomers and sleepers are measured against. */
VARIABLE u64 vclock;

static __always_inline void stat_add(u32 id, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&stats, &id);

	if (v)
		*v += n;
}

static __always_inline void stat_inc(u32 id)
{
	stat_add(id, 1);
}

static __always_inline struct cpu_ctx *cpu_get(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpus, &key);
}

static __always_inline struct task_ctx *task_get(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* The VM that t belongs to, or NULL for a host task. A slot that was freed and taken again does not count. */
static __always_inline struct vm_ctx *vm_get(const struct task_ctx *t)
{
	struct vm_ctx *vm;
	u32 slot;

	if (!t->vm)
		return NULL;
	slot = t->vm - 1;
	vm = bpf_map_lookup_elem(&vms, &slot);
	if (!vm || vm->generation != t->vm_generation)
		return NULL;
	return vm;
}

static __always_inline u32 vcpu_index(u32 vm_slot, s32 vcpu)
{
	return vm_slot * MAX_VCPUS + vcpu;
}

static __always_inline struct vcpu_ctx *vcpu_get(const struct task_ctx *t)
{
	u32 index;

	if (!t->vm || t->vcpu < 0)
		return NULL;
	index = vcpu_index(t->vm - 1, t->vcpu);
	return bpf_map_lookup_elem(&vcpus, &index);
}

#endif
