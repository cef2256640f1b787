/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which tasks are vCPUs, and of which VM.
 *
 * A vCPU is recognized when it is queued or starts to run, by KVM's preempt notifier (kernel.h, task_vcpu()); the VM is the kernel's struct
 * kvm it points to. A VM's number is its own until its last vCPU thread exits. vCPU hotplug is threads that come and go. The VMM's other
 * threads belong to the VM too, so that what a guest makes its VMM do is charged to that guest.
 */
#ifndef COHORT_REGISTRY_H
#define COHORT_REGISTRY_H

#include "tally.h"
#include "tree.h"

static __always_inline u32 *vm_on_cpu_get(u32 vm, s32 cpu)
{
	u32 index = vm * nr_cpus + cpu;

	return bpf_map_lookup_elem(&vm_on_cpu, &index);
}

/* As account_place(), of one that changes its place. */
VERIFIED_ONCE account_move(struct task_ctx *t, s32 cpu)
{
	struct vm_ctx *vm;
	u32 *n;
	s32 from;

	if (!t || t->cpu == cpu)
		return 0;
	from = t->cpu;
	t->cpu = cpu;
	if (cpu >= 0)
		t->comes_back = false;
	if (from < 0)
		active_add(t->leaf, 1);
	else if (cpu < 0)
		active_add(t->leaf, -1);
	if (cpu < 0)
		order_sleep(t);
	if (t->vcpu < 0)
		return 0;
	vm = vm_get(t);
	if (!vm)
		return 0;

	if (from >= 0) {
		n = vm_on_cpu_get(t->vm, from);
		if (n)
			atomic_add(n, -1);
	} else {
		atomic_add(&vm->nr_active, 1);
	}
	if (cpu >= 0) {
		n = vm_on_cpu_get(t->vm, cpu);
		if (n)
			atomic_add(n, 1);
	} else {
		atomic_add(&vm->nr_active, -1);
	}
	return 0;
}

/* t now runs or waits on cpu, or (-1) sleeps: keep the counts of its entity, and of where its VM's vCPUs are. */
static __always_inline void account_place(struct task_ctx *t, s32 cpu)
{
	if (t->cpu != cpu)
		account_move(t, cpu);
}

/* How many siblings of t, itself not counted, run or wait on cpu. */
static __always_inline u32 siblings_on(const struct task_ctx *t, s32 cpu)
{
	u32 *n;

	if (!t->vm || t->vcpu < 0)
		return 0;
	n = vm_on_cpu_get(t->vm, cpu);
	if (!n || !*n)
		return 0;
	return t->cpu == cpu ? *n - 1 : *n;
}

/* A long sleep counts as one of so many guard_keep_ns. */
#define SLEPT_MAX 4

VERIFIED_ONCE vcpu_changes_to(struct task_ctx *t, u32 state, s32 cpu, u64 now)
{
	struct vcpu_ctx *v;
	u64 slept_ns;
	u32 from;

	if (!t)
		return 0;
	v = vcpu_get(t);
	if (!v)
		return 0;
	from = v->state;
	/* Who is back from a change of something about it has not slept: it has waited since before then. */
	if (guard_may_keep() && from == VCPU_ASLEEP && state != VCPU_ASLEEP && time_before(v->since_ns, now)) {
		slept_ns = elapsed_ns(now, v->since_ns);
		if (slept_ns > SLEPT_MAX * guard_keep_ns)
			slept_ns = SLEPT_MAX * guard_keep_ns;
		v->slept_ns = (v->slept_ns * 7 + slept_ns) / 8;
	}
	v->cpu = cpu;
	v->since_ns = now;
	v->state = state;
	if (state == VCPU_RUNNING)
		v->woken = 0;
	v->restricted = !t->everywhere;
	if (from != state && gang_hears_of_changes())
		gang_changed(t, from, now);
	return 0;
}

static __always_inline void vcpu_set_state(struct task_ctx *t, u32 state, s32 cpu, u64 now)
{
	if (t->vcpu >= 0)
		vcpu_changes_to(t, state, cpu, now);
}

/* Give back what a VM holds, and its number. */
VERIFIED_ONCE vm_free(u32 id)
{
	u32 tgid, block, free = 0, *known, *owner;
	struct vm_ctx *vm = vm_at(id);
	u64 kvm;
	s32 i;

	if (!vm)
		return 0;
	tgid = vm->tgid;
	kvm = vm->kvm;
	known = bpf_map_lookup_elem(&vm_slots, &kvm);
	if (known && *known == id)
		bpf_map_delete_elem(&vm_slots, &kvm);
	/* A process with several VMs is known by the last. */
	known = bpf_map_lookup_elem(&vm_by_tgid, &tgid);
	if (known && *known == id)
		bpf_map_delete_elem(&vm_by_tgid, &tgid);
	/* Threads that still refer to the number see another generation from here on. */
	vm->generation++;
	for (i = 0; i < VM_BLOCKS; i++) {
		block = vm->blocks[i];
		vm->blocks[i] = 0;
		if (!block)
			continue;
		block--;
		owner = bpf_map_lookup_elem(&vcpu_blocks, &block);
		if (owner)
			*owner = free;
	}
	entity_free(vm->entity);
	vm->entity = 0;
	vm->kvm = 0;
	atomic_add(&registry_generation, 1);
	return 0;
}

/* A VM's number is taken: none of its vCPUs is anywhere yet. */
VERIFIED_ONCE vm_on_cpu_reset(u32 id)
{
	u32 *n;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		n = vm_on_cpu_get(id, i);
		if (n)
			*n = 0;
	}
	return 0;
}

/* Find or make the number of a VM. Return 0 if there is none left. */
VERIFIED_ONCE vm_number(u64 kvm, u32 tgid)
{
	u32 *known, id = 0, nobody = 0;
	struct vm_ctx *vm;
	s32 i;

	known = bpf_map_lookup_elem(&vm_slots, &kvm);
	if (known) {
		vm = vm_at(*known);
		if (vm && vm->kvm == kvm && vm->tgid == tgid)
			return *known;
		/* Another process' VM, at the address of one whose threads are still there: they may keep their number, the address goes on. */
		bpf_map_delete_elem(&vm_slots, &kvm);
	}

	bpf_for(i, 1, MAX_VMS) {
		vm = vm_at(i);
		if (!vm || vm->kvm || atomic_cas(&vm->kvm, 0, kvm))
			continue;
		id = i;

		/* Nobody else can find the number before it is in vm_slots: all is to be right by then, for vCPUs of a new VM may start at once. */
		vm->generation++;
		vm->tgid = tgid;
		vm->group = 0;
		vm->weight = WEIGHT_DEFAULT;
		vm->nr_vcpus = 0;
		vm->nr_active = 0;
		vm->vcpu_end = 0;
		vm->turn_end_ns = 0;
		__builtin_memset(&vm->counts, 0, sizeof(vm->counts));
		vm_on_cpu_reset(id);
		vm->entity = entity_alloc(kvm, ENTITY_VM);
		if (bpf_map_update_elem(&vm_slots, &kvm, &id, BPF_NOEXIST)) {
			/* They did; the other one's number it is. */
			entity_free(vm->entity);
			vm->entity = 0;
			vm->kvm = 0;
			known = bpf_map_lookup_elem(&vm_slots, &kvm);
			return known ? *known : 0;
		}
		bpf_map_update_elem(&vm_by_tgid, &tgid, &id, BPF_ANY);
		atomic_add(&registry_generation, 1);
		break;
	}
	if (!id)
		return 0;
	vm = bpf_map_lookup_elem(&vms, &nobody);
	if (vm)
		raise_end(&vm->end, id);
	return id;
}

/* Where in the map vcpus the VM's vCPU of that number is to be, or -1 if there is no room. */
VERIFIED_ONCE vcpu_room(u32 id, s32 vcpu)
{
	u32 part = (u32)vcpu / VCPU_BLOCK, block, *owner;
	struct vm_ctx *vm = vm_at(id);
	s32 i;

	if (!vm || part >= VM_BLOCKS)
		return -1;
	if (vm->blocks[part])
		return vcpu_index(vm, vcpu);
	bpf_for(i, 0, MAX_VCPU_BLOCKS) {
		block = i;
		owner = bpf_map_lookup_elem(&vcpu_blocks, &block);
		if (!owner || *owner || atomic_cas(owner, 0, id))
			continue;
		/* Another vCPU of the VM may have been faster: its block it is. */
		if (atomic_cas(&vm->blocks[part], 0, block + 1))
			*owner = 0;
		return vcpu_index(vm, vcpu);
	}
	return -1;
}

/* t, thread pid, is no longer part of its VM: it exits, or turned out to be another VM's. */
VERIFIED_ONCE vm_leave(struct task_ctx *t, s32 pid)
{
	struct vcpu_ctx *v;
	struct vm_ctx *vm;

	if (!t)
		return 0;
	vm = vm_get(t);
	tally_end(t);
	if (vm && t->vcpu >= 0) {
		account_place(t, -1);
		v = vcpu_get(t);
		/* The vCPU may have been taken over by a new thread already. */
		if (v && v->pid == pid) {
			v->state = VCPU_ASLEEP;
			v->kvm_vcpu = 0;
			/* Last: whoever runs it may take it then (vcpu_claim_back()). */
			atomic_cas(&v->pid, pid, 0);
		}
		if (atomic_add(&vm->nr_vcpus, -1) == 1)
			vm_free(t->vm);
	}
	account_place(t, -1);
	t->vm = 0;
	t->vcpu = -1;
	t->kvm = 0;
	t->kvm_vcpu = 0;
	t->tree_generation = 0;
	return 0;
}

/* Make t vCPU number id of VM kvm. */
static void vcpu_join(struct task_struct *p, struct task_ctx *t, struct kvm_vcpu *kvm_vcpu, u64 kvm, s32 id)
{
	s32 cpu = t->cpu, index;
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u32 number;

	vm_leave(t, p->pid);
	/* Remember even what has no room, so that it is counted once, and tried again when a VM has gone. */
	t->kvm = kvm;
	t->kvm_vcpu = (u64)kvm_vcpu;
	t->registry_generation = registry_generation;
	number = id >= 0 && id < MAX_VCPUS ? vm_number(kvm, p->tgid) : 0;
	vm = vm_at(number);
	if (!vm) {
		stat_inc(STAT_REGISTRY_FULL);
		account_place(t, cpu);
		return;
	}
	index = vcpu_room(number, id);
	v = vcpu_at(index);
	if (index < 0 || !v) {
		stat_inc(STAT_REGISTRY_FULL);
		account_place(t, cpu);
		return;
	}

	t->vm = number;
	t->vm_generation = vm->generation;
	t->vcpu = id;
	t->vcpu_at = index;
	t->waited_ns = 0;
	/* Before anybody is told whose vCPU it is: a thread that set it up leaves then, and may not be the VM's last. */
	atomic_add(&vm->nr_vcpus, 1);
	v->kvm_vcpu = (u64)kvm_vcpu;
	v->pid = p->pid;
	v->boost_after_ns = 0;
	v->backoff_ns = 0;
	v->calls = 0;
	v->exit_served = 0;
	v->preferred = 0;
	v->gave_way = 0;
	v->in_grace = 0;
	v->graces = 0;
	v->slept_ns = 0;
	v->dirty = 0;
	raise_end(&vm->vcpu_end, id);
	stat_inc(STAT_VCPUS_FOUND);
	/* Its entity, before it counts there. */
	leaf_refresh(p, t);
	account_place(t, cpu);
}

/* A thread of a VMM that is not a vCPU belongs to the VM as well. */
static void vmm_thread_join(struct task_struct *p, struct task_ctx *t)
{
	struct vm_ctx *vm;
	u32 tgid = p->tgid;
	u32 *known;

	t->registry_generation = registry_generation;
	known = bpf_map_lookup_elem(&vm_by_tgid, &tgid);
	vm = known ? vm_at(*known) : NULL;
	if (vm && t->vm == *known && t->vm_generation == vm->generation)
		return;
	tally_end(t);
	if (!vm) {
		if (t->vm)
			t->tree_generation = 0;
		t->vm = 0;
		return;
	}
	t->vm = *known;
	t->vm_generation = vm->generation;
	t->tree_generation = 0;
}

/*
 * Does another thread run the vCPU that t was found as? A VMM sets its vCPUs up by ioctls, in which KVM's notifier is on the list of the thread that makes them
 * as it is in KVM_RUN; in many VMMs that is the main thread.
 */
static __always_inline bool vcpu_is_anothers(const struct task_struct *p, const struct task_ctx *t)
{
	struct vcpu_ctx *v = t->vcpu >= 0 ? vcpu_get(t) : NULL;

	return v && v->pid && v->pid != p->pid;
}

/*
 * t runs a vCPU that another thread is known for: that one was found in an ioctl of it, as of a VMM that reads the state of a VM that is paused. Whoever has KVM's
 * notifier now is the vCPU. Asked at ticks only.
 */
static __always_inline void vcpu_claim_back(struct task_struct *p, struct task_ctx *t)
{
	struct vcpu_ctx *v = t->vcpu >= 0 ? vcpu_get(t) : NULL;
	struct kvm_vcpu *own = v && v->pid != p->pid ? task_vcpu(p) : NULL;

	if (!own)
		return;
	/* That one has left it already. Joined anew, a VM of one vCPU would be another VM. */
	if ((u64)own == t->kvm_vcpu && !atomic_cas(&v->pid, 0, p->pid)) {
		v->kvm_vcpu = (u64)own;
		vcpu_set_state(t, VCPU_RUNNING, scx_bpf_task_cpu(p), now_ns());
	} else {
		t->kvm_vcpu = 0;
	}
}

/* May a VM that had no room have some now? Or was its number freed before t was counted as one of its vCPUs? */
static __always_inline bool registry_retries(struct task_ctx *t)
{
	u32 generation = READ_ONCE(registry_generation);

	if (t->registry_generation == generation)
		return false;
	if (!vm_get(t))
		return true;
	/* It has its place; asked again when a VM comes or goes. Of who is no vCPU the number tells something else (vmm_thread_join()). */
	if (t->vcpu >= 0)
		t->registry_generation = generation;
	return false;
}

/*
 * Whose vCPU v is, which p, t, runs as. KVM's memory is read by a call each time; a thread that has not run since that was done last is that of the same VM,
 * for it is the thread itself that leaves KVM_RUN, and comes back with another VM's vCPU at the same place.
 */
static __always_inline u64 kvm_of(const struct task_struct *p, struct task_ctx *t, struct kvm_vcpu *v)
{
	u64 ran = run_clock(p), kvm;

	if ((u64)v == t->kvm_vcpu && ran == t->kvm_read_at)
		return t->kvm;
	kvm = vcpu_kvm(v);
	t->kvm_read_at = (u64)v == t->kvm_vcpu && kvm == t->kvm ? ran : 0;
	return kvm;
}

/* Would identify() change anything? */
static __always_inline bool identity_is_stale(struct task_struct *p, struct task_ctx *t)
{
	struct kvm_vcpu *v;

	if (t->tree_generation != tree_generation)
		return true;
	if (p->flags & PF_KTHREAD)
		return false;
	v = task_vcpu(p);
	if (v)
		return (u64)v != t->kvm_vcpu || kvm_of(p, t, v) != t->kvm || registry_retries(t);
	if (t->vcpu >= 0)
		return vcpu_is_anothers(p, t);
	return t->registry_generation != registry_generation;
}

/* Bring t's membership up to date; cheap when nothing changed. Not while t's run time is being charged. */
static void identify(struct task_struct *p, struct task_ctx *t)
{
	struct kvm_vcpu *v;
	s32 cpu = t->cpu;
	u64 kvm;

	if (!(p->flags & PF_KTHREAD)) {
		v = task_vcpu(p);
		if (v) {
			kvm = kvm_of(p, t, v);
			if (kvm && ((u64)v != t->kvm_vcpu || kvm != t->kvm || registry_retries(t)))
				vcpu_join(p, t, v, kvm, vcpu_id(v));
		} else if (vcpu_is_anothers(p, t)) {
			vm_leave(t, p->pid);
			vmm_thread_join(p, t);
			leaf_refresh(p, t);
			account_place(t, cpu);
		} else if (t->vcpu < 0 && t->registry_generation != registry_generation) {
			vmm_thread_join(p, t);
		}
	}
	if (t->tree_generation != tree_generation)
		leaf_refresh(p, t);
}

#endif
