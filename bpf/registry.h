/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which tasks are vCPUs, and of which VM.
 *
 * A vCPU is recognized when it is queued or starts to run, by KVM's preempt notifier (kernel.h, task_vcpu()); the VM is the kernel's struct
 * kvm it points to. A VM's slot lives until its last vCPU thread exits. vCPU hotplug is threads that come and go. The VMM's other
 * threads belong to the VM too, so that what a guest makes its VMM do is charged to that guest.
 */
#ifndef COHORT_REGISTRY_H
#define COHORT_REGISTRY_H

#include "state.h"

static __always_inline u32 *vm_on_cpu_get(u32 vm_slot, s32 cpu)
{
	u32 index = vm_slot * nr_cpus + cpu;

	return bpf_map_lookup_elem(&vm_on_cpu, &index);
}

/* t now runs or waits on cpu, or (-1) sleeps: keep the VM's counts of where its vCPUs are. */
static void account_place(struct task_ctx *t, s32 cpu)
{
	struct vm_ctx *vm;
	s32 from = t->cpu;
	u32 *n;

	if (from == cpu)
		return;
	t->cpu = cpu;
	vm = vm_get(t);
	if (!vm || t->vcpu < 0)
		return;

	if (from >= 0) {
		n = vm_on_cpu_get(t->vm - 1, from);
		if (n)
			__sync_fetch_and_add(n, -1);
	} else {
		__sync_fetch_and_add(&vm->nr_active, 1);
	}
	if (cpu >= 0) {
		n = vm_on_cpu_get(t->vm - 1, cpu);
		if (n)
			__sync_fetch_and_add(n, 1);
	} else {
		__sync_fetch_and_add(&vm->nr_active, -1);
	}
}

/* How many siblings of t, itself not counted, run or wait on cpu. */
static __always_inline u32 siblings_on(const struct task_ctx *t, s32 cpu)
{
	u32 *n;

	if (!t->vm || t->vcpu < 0)
		return 0;
	n = vm_on_cpu_get(t->vm - 1, cpu);
	if (!n || !*n)
		return 0;
	return t->cpu == cpu ? *n - 1 : *n;
}

static __always_inline void vcpu_set_state(const struct task_ctx *t, u32 state, s32 cpu, u64 now)
{
	struct vcpu_ctx *v = vcpu_get(t);

	if (!v)
		return;
	v->cpu = cpu;
	v->since_ns = now;
	v->state = state;
}

/* Find or make the slot of a VM. Return MAX_VMS if there is none left. */
static u32 vm_slot(u64 kvm, u32 tgid)
{
	struct vm_ctx *vm;
	u32 *known, slot;
	s32 i;

	known = bpf_map_lookup_elem(&vm_slots, &kvm);
	if (known)
		return *known;

	bpf_for(i, 0, MAX_VMS) {
		slot = i;
		vm = bpf_map_lookup_elem(&vms, &slot);
		if (!vm || vm->kvm || __sync_val_compare_and_swap(&vm->kvm, 0, kvm))
			continue;

		/* Nobody else can find the slot before it is in vm_slots. */
		vm->generation++;
		vm->tgid = tgid;
		vm->weight = 100;
		vm->nr_vcpus = 0;
		vm->nr_active = 0;
		vm->nr_running = 0;
		vm->run_start_sum = 0;
		vm->vcpu_end = 0;
		vm->vtime = vclock;
		vm->sibling_clock = vclock;
		vm->turn_end_ns = 0;
		vm->runtime_ns = 0;
		vm->wait_ns = 0;
		vm->switches = 0;
		vm->ple = 0;
		vm->boosts = 0;
		vm->stacked = 0;
		vm->preempted_in_kernel = 0;
		if (bpf_map_update_elem(&vm_slots, &kvm, &slot, BPF_NOEXIST)) {
			/* Two vCPUs of a new VM started at once; the other one's slot it is. */
			vm->kvm = 0;
			known = bpf_map_lookup_elem(&vm_slots, &kvm);
			return known ? *known : MAX_VMS;
		}
		bpf_map_update_elem(&vm_by_tgid, &tgid, &slot, BPF_ANY);
		__sync_fetch_and_add(&registry_generation, 1);
		return slot;
	}
	return MAX_VMS;
}

/* t, thread pid, is no longer part of its VM: it exits, or turned out to be another VM's. */
static void vm_leave(struct task_ctx *t, s32 pid)
{
	struct vm_ctx *vm = vm_get(t);
	struct vcpu_ctx *v;
	u32 tgid, *slot;
	u64 kvm;

	if (vm && t->vcpu >= 0) {
		account_place(t, -1);
		v = vcpu_get(t);
		/* The vCPU may have been taken over by a new thread already. */
		if (v && v->pid == pid) {
			v->state = VCPU_ASLEEP;
			v->pid = 0;
			v->kvm_vcpu = 0;
		}
		if (__sync_fetch_and_add(&vm->nr_vcpus, -1) == 1) {
			kvm = vm->kvm;
			tgid = vm->tgid;
			bpf_map_delete_elem(&vm_slots, &kvm);
			/* A process with several VMs is known by the last. */
			slot = bpf_map_lookup_elem(&vm_by_tgid, &tgid);
			if (slot && *slot == t->vm - 1)
				bpf_map_delete_elem(&vm_by_tgid, &tgid);
			/* Threads that still refer to the slot see another generation from here on. */
			vm->generation++;
			vm->kvm = 0;
			__sync_fetch_and_add(&registry_generation, 1);
		}
	}
	t->vm = 0;
	t->vcpu = -1;
	t->kvm = 0;
	t->cpu = -1;
}

/* Make t vCPU number id of VM kvm. */
static void vcpu_join(struct task_struct *p, struct task_ctx *t, struct kvm_vcpu *kvm_vcpu, u64 kvm, s32 id)
{
	s32 cpu = t->cpu;
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u32 slot, index;

	vm_leave(t, p->pid);
	/* Remember even what has no room, so that it is counted once. */
	t->kvm = kvm;
	if (id < 0 || id >= MAX_VCPUS) {
		stat_inc(STAT_REGISTRY_FULL);
		return;
	}
	slot = vm_slot(kvm, p->tgid);
	if (slot >= MAX_VMS) {
		stat_inc(STAT_REGISTRY_FULL);
		return;
	}
	vm = bpf_map_lookup_elem(&vms, &slot);
	index = vcpu_index(slot, id);
	v = bpf_map_lookup_elem(&vcpus, &index);
	if (!vm || !v)
		return;

	t->vm = slot + 1;
	t->vm_generation = vm->generation;
	t->vcpu = id;
	if (fair == FAIR_VM)
		t->vtime = vm->sibling_clock;
	t->weight_generation = 0;
	v->kvm_vcpu = (u64)kvm_vcpu;
	v->pid = p->pid;
	v->boost_after_ns = 0;
	v->backoff_ns = 0;
	v->exit_served = 0;
	__sync_fetch_and_add(&vm->nr_vcpus, 1);
	if (vm->vcpu_end < id + 1)
		vm->vcpu_end = id + 1;
	stat_inc(STAT_VCPUS_FOUND);
	account_place(t, cpu);
}

/* A thread of a VMM that is not a vCPU belongs to the VM as well. */
static void vmm_thread_join(struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm;
	u32 tgid = p->tgid;
	u32 *slot;

	t->registry_generation = registry_generation;
	slot = bpf_map_lookup_elem(&vm_by_tgid, &tgid);
	if (!slot) {
		if (t->vm) {
			t->vm = 0;
			if (fair == FAIR_VM)
				t->vtime = vclock;
		}
		return;
	}
	vm = bpf_map_lookup_elem(&vms, slot);
	if (!vm || (t->vm == *slot + 1 && t->vm_generation == vm->generation))
		return;
	t->vm = *slot + 1;
	t->vm_generation = vm->generation;
	if (fair == FAIR_VM)
		t->vtime = vm->sibling_clock;
}

/* Would identify() change anything? */
static __always_inline bool identity_is_stale(struct task_struct *p, const struct task_ctx *t)
{
	struct kvm_vcpu *v;

	if (p->flags & PF_KTHREAD)
		return false;
	v = task_vcpu(p);
	return v ? vcpu_kvm(v) != t->kvm : t->vcpu < 0 && t->registry_generation != registry_generation;
}

/* Bring t's membership up to date; cheap when nothing changed. Not while t's run time is being charged to a VM. */
static void identify(struct task_struct *p, struct task_ctx *t)
{
	struct kvm_vcpu *v;
	u64 kvm;

	if (p->flags & PF_KTHREAD)
		return;
	v = task_vcpu(p);
	if (v) {
		kvm = vcpu_kvm(v);
		if (kvm && kvm != t->kvm)
			vcpu_join(p, t, v, kvm, vcpu_id(v));
	} else if (t->vcpu < 0 && t->registry_generation != registry_generation) {
		vmm_thread_join(p, t);
	}
}

#endif
