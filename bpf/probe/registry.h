/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which threads are vCPUs, and of which VM. They are found when they enter KVM_RUN, and those that are inside it when the probe comes by a look at all
 * threads: never under a run queue's lock, where memory must not be asked for.
 */
#ifndef PROBE_REGISTRY_H
#define PROBE_REGISTRY_H

#include "account.h"

struct task_slot {
	u32 vcpu;    /* 1 + its index; 0: none */
	u32 claimed; /* somebody makes a vCPU of it */
	u32 refused; /* it is a vCPU's for which there was no slot */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, s32);
	__type(value, struct task_slot);
} probe_tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROBE_MAX_VMS);
	__type(key, u64); /* struct kvm */
	__type(value, u32);
} probe_vm_slots SEC(".maps");

struct vcpu_name {
	u32 vm;
	u32 vcpu_id;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PROBE_MAX_VCPUS);
	__type(key, struct vcpu_name);
	__type(value, u32);
} probe_vcpu_slots SEC(".maps");

/* Slots that are free again. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, PROBE_MAX_VMS);
	__type(value, u32);
} probe_free_vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, PROBE_MAX_VCPUS);
	__type(value, u32);
} probe_free_vcpus SEC(".maps");

/* So many slots were ever taken: nothing is in those behind, so that nobody has to read them. */
u32 vms_end, vcpus_end;

/* Threads of vCPUs for which there was no slot. */
u64 not_followed;

static const struct probe_vcpu no_vcpu;

/* One that was never taken. */
static __always_inline bool slot_new(u32 *end, u32 max, u32 *slot)
{
	if (READ_ONCE(*end) >= max)
		return false;
	*slot = atomic_add(end, 1);
	if (*slot < max)
		return true;
	/* Others came at the same time and took the last ones. */
	atomic_add(end, -1);
	return false;
}

/* Return true if there is one. Events name slots, so a recording takes new ones as long as there are; a reader is better off with few. */
static __always_inline bool slot_take(void *free, u32 *end, u32 max, u32 *slot)
{
	if (recording)
		return slot_new(end, max, slot) || !bpf_map_pop_elem(free, slot);
	return !bpf_map_pop_elem(free, slot) || slot_new(end, max, slot);
}

static __always_inline struct probe_vcpu *vcpu_at(u32 slot)
{
	return bpf_map_lookup_elem(&probe_vcpus, &slot);
}

/* The vCPU that task p is, or NULL; nobody is one any more when all is over. */
static __always_inline struct probe_vcpu *vcpu_of(struct task_struct *p)
{
	struct task_slot *t = is_over() ? NULL : bpf_task_storage_get(&probe_tasks, p, 0, 0);

	return t && t->vcpu ? vcpu_at(t->vcpu - 1) : NULL;
}

static __noinline int presence_clear(u32 slot)
{
	u64 *word;
	u32 i;

	for (i = 0; i < PROBE_MAX_CPUS; i++) {
		if (i >= nr_cpus)
			break;
		word = presence(slot, i);
		if (word)
			*word = 0;
	}
	return 0;
}

static __noinline int vm_left(u32 slot)
{
	struct probe_vm *vm = bpf_map_lookup_elem(&probe_vms, &slot);
	u64 kvm;

	if (!vm || atomic_add(&vm->nr_vcpus, -1) != 1)
		return 0;
	kvm = vm->kvm;
	bpf_map_delete_elem(&probe_vm_slots, &kvm);
	vm->kvm = 0;
	bpf_map_push_elem(&probe_free_vms, &slot, BPF_ANY);
	return 0;
}

/* Find or make the slot of a VM, with one vCPU more. Return -1 if there is none left. */
static __noinline s32 vm_joined(u64 kvm, u32 tgid)
{
	struct probe_vm *vm;
	u32 *known, slot;

	known = bpf_map_lookup_elem(&probe_vm_slots, &kvm);
	if (known) {
		slot = *known;
	} else {
		if (!slot_take(&probe_free_vms, &vms_end, PROBE_MAX_VMS, &slot))
			return -1;
		vm = bpf_map_lookup_elem(&probe_vms, &slot);
		if (!vm)
			return -1;
		vm->kvm = kvm;
		vm->tgid = tgid;
		vm->generation++;
		vm->nr_vcpus = 0;
		vm->gone_ns = 0;
		vm->ran = 0;
		presence_clear(slot);
		if (bpf_map_update_elem(&probe_vm_slots, &kvm, &slot, BPF_NOEXIST)) {
			/* Two vCPUs of a new VM came at once. */
			vm->kvm = 0;
			bpf_map_push_elem(&probe_free_vms, &slot, BPF_ANY);
			known = bpf_map_lookup_elem(&probe_vm_slots, &kvm);
			if (!known)
				return -1;
			slot = *known;
		}
	}
	vm = bpf_map_lookup_elem(&probe_vms, &slot);
	if (!vm)
		return -1;
	atomic_add(&vm->nr_vcpus, 1);
	return slot;
}

/* The thread of v exits, or serves another vCPU from now on. */
static __always_inline void vcpu_left(struct task_slot *t, u64 now)
{
	u32 slot = atomic_xchg(&t->vcpu, 0), *known;
	struct probe_vcpu *v;
	struct vcpu_name name;
	struct probe_vm *vm;

	if (!slot)
		return;
	slot--;
	v = vcpu_at(slot);
	if (!v)
		return;
	vcpu_moves(v, PROBE_GONE, 0, now);
	name.vm = v->vm;
	name.vcpu_id = v->vcpu_id;
	vm = bpf_map_lookup_elem(&probe_vms, &name.vm);
	if (vm)
		atomic_add(&vm->gone_ns, v->run_ns + v->ready_ns);
	known = bpf_map_lookup_elem(&probe_vcpu_slots, &name);
	if (known && *known == slot)
		bpf_map_delete_elem(&probe_vcpu_slots, &name);
	v->tid = 0;
	bpf_map_push_elem(&probe_free_vcpus, &slot, BPF_ANY);
	vm_left(name.vm);
}

/* There is no slot for the thread's vCPU. It comes again with each KVM_RUN, and is counted once. */
static __always_inline void vcpu_refused(struct task_slot *t)
{
	if (!atomic_xchg(&t->refused, 1))
		atomic_add(&not_followed, 1);
}

/* There is one now, or the thread has exited. */
static __always_inline void vcpu_not_refused(struct task_slot *t)
{
	if (atomic_xchg(&t->refused, 0))
		atomic_add(&not_followed, -1);
}

/* The thread exits. */
static __always_inline void vcpu_gone(struct task_slot *t)
{
	vcpu_not_refused(t);
	vcpu_left(t, bpf_ktime_get_ns());
}

/* Is the thread known as that vCPU's? */
static __always_inline bool vcpu_is_known(struct task_slot *t, struct kvm_vcpu *kvm_vcpu)
{
	struct probe_vcpu *v = t->vcpu ? vcpu_at(t->vcpu - 1) : NULL;

	return v && v->kvm_vcpu == (u64)kvm_vcpu;
}

/* Thread p serves vCPU kvm_vcpu: it has a slot from now on, if there is one. */
static __always_inline struct probe_vcpu *vcpu_joins(struct task_slot *t, struct task_struct *p,
						     struct kvm_vcpu *kvm_vcpu)
{
	u64 now = bpf_ktime_get_ns();
	struct vcpu_name name;
	struct probe_vcpu *v;
	struct probe_vm *vm;
	u32 slot;
	s32 room;

	if (vcpu_is_known(t, kvm_vcpu))
		return NULL;
	vcpu_left(t, now);
	room = vm_joined((u64)BPF_CORE_READ(kvm_vcpu, kvm), BPF_CORE_READ(p, tgid));
	if (room < 0) {
		vcpu_refused(t);
		return NULL;
	}
	name.vm = room;
	name.vcpu_id = BPF_CORE_READ(kvm_vcpu, vcpu_id);
	vm = bpf_map_lookup_elem(&probe_vms, &name.vm);
	if (!vm)
		return NULL;
	if (!slot_take(&probe_free_vcpus, &vcpus_end, PROBE_MAX_VCPUS, &slot)) {
		vm_left(name.vm);
		vcpu_refused(t);
		return NULL;
	}
	v = vcpu_at(slot);
	if (!v)
		return NULL;
	vcpu_not_refused(t);
	bpf_map_update_elem(&probe_vcpus, &slot, &no_vcpu, BPF_ANY);
	v->kvm_vcpu = (u64)kvm_vcpu;
	v->vm = name.vm;
	v->generation = vm->generation;
	v->vcpu_id = name.vcpu_id;
	/* If it waits, it has not for longer, as far as is known. */
	v->since_ns = v->ready_since_ns = now;
	v->ran_mark = clock_read(READ_ONCE(vm->ran), now);
	v->tid = BPF_CORE_READ(p, pid);
	v->slot = slot;
	/* What was polled before is neither counted nor an event's. */
	v->kvm_polled_ns = vcpu_halt_polled_ns(kvm_vcpu);
	record(EVENT_JOINED, v, now, name.vm, 0, name.vcpu_id);
	bpf_map_update_elem(&probe_vcpu_slots, &name, &slot, BPF_ANY);
	/* From here on switches change its place. */
	atomic_xchg(&t->vcpu, slot + 1);
	return v;
}

/*
 * Thread p serves vCPU kvm_vcpu. Return what is known of that from now on, if it was not before: who calls looks where it is then, and says so (vcpu_begins()).
 * A thread may enter KVM_RUN while it is found there by the look at all threads: one of the two is enough.
 */
static __always_inline struct probe_vcpu *vcpu_found(struct task_struct *p, struct kvm_vcpu *kvm_vcpu)
{
	struct probe_vcpu *v;
	struct task_slot *t;

	t = is_over() ? NULL : bpf_task_storage_get(&probe_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t || vcpu_is_known(t, kvm_vcpu) || atomic_cas(&t->claimed, 0, 1))
		return NULL;
	v = vcpu_joins(t, p, kvm_vcpu);
	WRITE_ONCE(t->claimed, 0);
	/* It has exited meanwhile (probe_exit), or was about to. */
	if (BPF_CORE_READ(p, flags) & PF_EXITING) {
		vcpu_gone(t);
		return NULL;
	}
	return v;
}

#endif
