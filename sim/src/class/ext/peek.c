/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The scheduler, and windows for tests to look at what it remembers. The windows' own structs do not change when the
 * scheduler's do.
 */
#include "cohort.bpf.c"
#include "variables.h"

/* Since the model looked last. */
_Thread_local u64 native_atomics, native_array_lookups;
/* Whose maps the places know that look them up (native.h), and where that executes. */
_Thread_local u64 native_epoch, native_cpu;

void native_enter(u64 epoch, u64 cpu)
{
	native_epoch = epoch;
	native_cpu = cpu;
}

u64 native_take_array_lookups(void)
{
	u64 n = native_array_lookups;

	native_array_lookups = 0;
	return n;
}

u64 native_take_atomics(void)
{
	u64 n = native_atomics;

	native_atomics = 0;
	return n;
}

/* The scheduler's variables while its simulation is not running. */
struct native_image {
#define FIELD(name) typeof(name) name;
	NATIVE_KNOBS(FIELD)
	NATIVE_VARIABLES(FIELD)
#undef FIELD
};

const u32 native_image_size = sizeof(struct native_image);

void native_image_save(struct native_image *to)
{
#define SAVE(name) __builtin_memcpy(&to->name, &name, sizeof(name));
	NATIVE_KNOBS(SAVE)
	NATIVE_VARIABLES(SAVE)
#undef SAVE
}

void native_image_load(const struct native_image *from)
{
#define LOAD(name) __builtin_memcpy(&name, &from->name, sizeof(name));
	NATIVE_KNOBS(LOAD)
	NATIVE_VARIABLES(LOAD)
#undef LOAD
}

/* Where each knob is in the image. */
struct native_knob {
	const char *name;
	u32 offset;
	u32 size;
};

const struct native_knob native_knobs[] = {
#define KNOB_ENTRY(name) { #name, __builtin_offsetof(struct native_image, name), sizeof(name) },
	NATIVE_KNOBS(KNOB_ENTRY)
#undef KNOB_ENTRY
};

const u32 native_knobs_len = sizeof(native_knobs) / sizeof(native_knobs[0]);

#define AT(type, field) __builtin_offsetof(struct type, field)

/* The kernel's structs that the model writes; compared with ffi.rs before anything runs. */
const u64 native_layout[] = {
	AT(task_struct, se.sum_exec_runtime),
	AT(task_struct, flags),
	AT(task_struct, exit_state),
	AT(task_struct, pid),
	AT(task_struct, tgid),
	AT(task_struct, prio),
	AT(task_struct, nr_cpus_allowed),
	AT(task_struct, cpus_ptr),
	AT(task_struct, migration_disabled),
	AT(task_struct, preempt_notifiers),
	AT(task_struct, scx.flags),
	AT(task_struct, scx.weight),
	AT(task_struct, scx.slice),
	sizeof(struct task_struct),
	AT(cgroup, level),
	AT(cgroup, kn),
	AT(cgroup, dom_cgrp),
	sizeof(struct cgroup),
	AT(scx_init_task_args, cgroup),
	AT(scx_exit_task_args, cancelled),
	AT(scx_cgroup_init_args, weight),
	AT(scx_cgroup_init_args, bw_period_us),
	AT(scx_cgroup_init_args, bw_quota_us),
	AT(scx_cgroup_init_args, bw_burst_us),
	AT(scx_cgroup_init_args, sched_idle),
	AT(scx_cpu_release_args, task),
	AT(scx_exit_info, exit_code),
	AT(scx_exit_info, reason),
	AT(scx_exit_info, msg),
	AT(sched_ext_ops, select_cpu),
	AT(sched_ext_ops, enqueue),
	AT(sched_ext_ops, dispatch),
	AT(sched_ext_ops, tick),
	AT(sched_ext_ops, running),
	AT(sched_ext_ops, stopping),
	AT(sched_ext_ops, quiescent),
	AT(sched_ext_ops, disable),
	AT(sched_ext_ops, set_cpumask),
	AT(sched_ext_ops, cpu_acquire),
	AT(sched_ext_ops, cpu_release),
	AT(sched_ext_ops, yield),
	AT(sched_ext_ops, init_task),
	AT(sched_ext_ops, exit_task),
	AT(sched_ext_ops, cgroup_init),
	AT(sched_ext_ops, cgroup_exit),
	AT(sched_ext_ops, cgroup_move),
	AT(sched_ext_ops, cgroup_set_weight),
	AT(sched_ext_ops, cgroup_set_bandwidth),
	AT(sched_ext_ops, cgroup_set_idle),
	AT(sched_ext_ops, cpu_online),
	AT(sched_ext_ops, cpu_offline),
	AT(sched_ext_ops, init),
	AT(sched_ext_ops, exit),
	AT(sched_ext_ops, flags),
	AT(sched_ext_ops, timeout_ms),
	sizeof(struct native_array),
};

const u32 native_layout_len = sizeof(native_layout) / sizeof(native_layout[0]);
const u32 native_max_vms = MAX_VMS;
const u32 native_max_entities = MAX_ENTITIES;

/* KVM's structs as the model writes them, whatever else they may hold. */
const u32 native_vcpu_size = sizeof(struct vcpu_vmx);
/* With the page of its registers. */
const u32 native_apic_size = sizeof(struct kvm_lapic) + 4096;

struct hlist_node *poke_vcpu(struct kvm_vcpu *v, void *kvm, s32 id, struct kvm_lapic *apic)
{
	v->kvm = kvm;
	v->vcpu_id = id;
	v->arch.apic = apic;
	apic->regs = apic + 1;
	return &v->preempt_notifier.link;
}

void poke_preempted(struct kvm_vcpu *v, bool preempted, bool in_kernel)
{
	v->preempted = preempted;
	v->arch.preempted_in_kernel = in_kernel;
}

/* An APIC in hardware has the interrupt posted, or in its page: here the one or the other by the vCPU's number. */
void poke_apic(struct kvm_vcpu *v, bool irq_pending, bool apicv_active)
{
	struct kvm_lapic *apic = v->arch.apic;
	bool posted = v->vcpu_id % 2;
	u32 *irr = apic->regs + APIC_IRR + (u32)v->vcpu_id % APIC_WORDS * APIC_WORD_BYTES;

	apic->irr_pending = irq_pending || apicv_active;
	apic->apicv_active = apicv_active;
	((struct vcpu_vmx *)v)->vt.pi_desc.control = irq_pending && apicv_active && posted;
	*irr = irq_pending && apicv_active && !posted ? 1U << 31 : 0;
}

/* The program on tp_btf/sched_switch, if the scheduler has one: any switch, to and from the idle task and higher classes too. */
int cohort_sched_switch(bool preempt, struct task_struct *prev, struct task_struct *next) __attribute__((weak));

void (*native_on_switch(void))(bool, struct task_struct *, struct task_struct *)
{
	return (void (*)(bool, struct task_struct *, struct task_struct *))cohort_sched_switch;
}

void poke_neighbours(u32 cpu, const struct cohort_neighbours *value)
{
	struct cohort_neighbours *to = bpf_map_lookup_elem(&neighbours, &cpu);

	if (to)
		*to = *value;
}

const u32 native_neighbours_size = sizeof(struct cohort_neighbours);

/* The windows count VMs and entities as the scheduler does, from 1. */
struct peek_vm {
	u64 kvm;
	u64 generation;
	u64 vtime;
	u64 runtime_ns;
	u64 wait_ns;
	u64 switches;
	u64 boosts;
	u64 stacked;
	u64 preempted_in_kernel;
	u64 ple;
	u32 entity;
	u32 weight;
	u32 nr_vcpus;
	u32 nr_active;
	u32 nr_running;
	u32 end;
};

void peek_vm(u32 number, struct peek_vm *to)
{
	struct vm_ctx *vm = bpf_map_lookup_elem(&vms, &number);
	struct entity_ctx *e = entity_get(vm->entity);

	to->kvm = vm->kvm;
	to->generation = vm->generation;
	to->vtime = e->vtime;
	to->runtime_ns = vm->counts.runtime_ns;
	to->wait_ns = vm->counts.wait_ns;
	to->switches = vm->counts.switches;
	to->boosts = vm->counts.boosts;
	to->stacked = vm->counts.stacked;
	to->preempted_in_kernel = vm->counts.preempted_in_kernel;
	to->ple = vm->counts.ple;
	to->entity = vm->entity;
	to->weight = vm->weight;
	to->nr_vcpus = vm->nr_vcpus;
	to->nr_active = vm->nr_active;
	to->nr_running = e->nr_running;
	to->end = vm->end;
}

/* Add what one of its tasks has not told it yet. */
void peek_untold(struct task_struct *p, u32 number, struct peek_vm *to)
{
	struct task_ctx *t = task_get(p);

	/* A dead task has none. */
	if (!t || t->vm != number || !vm_get(t))
		return;
	to->runtime_ns += t->untold.runtime_ns;
	to->wait_ns += t->untold.wait_ns;
	to->switches += t->untold.switches;
	to->stacked += t->untold.stacked;
	to->preempted_in_kernel += t->untold.preempted_in_kernel;
	to->ple += t->untold.ple;
}

/* As user space writes it into the map, at the vCPU's place. */
void poke_set(u32 number, s32 vcpu, u64 entry)
{
	struct vm_ctx *vm = vm_at(number);
	u32 index = vm ? vcpu_index(vm, vcpu) : -1;
	u64 *to = bpf_map_lookup_elem(&set_of, &index);

	if (to)
		*to = entry;
}

/* Its entry as it is. */
u64 peek_set(u32 number, s32 vcpu)
{
	struct vm_ctx *vm = vm_at(number);
	u32 index = vm ? vcpu_index(vm, vcpu) : -1;
	u64 *entry = bpf_map_lookup_elem(&set_of, &index);

	return entry ? *entry : 0;
}

/* What two of a VM's vCPUs have told each other; x is the lower. */
u64 peek_traffic(u32 number, u32 x, u32 y)
{
	u32 pair = number << 16 | x << 8 | y;
	struct vm_ctx *vm = vm_at(number);
	struct traffic *known = bpf_map_lookup_elem(&traffic, &pair);

	return vm && known && known->generation == vm->generation ? known->events : 0;
}

int native_on_fault(struct kvm_vcpu *vcpu, u64 gfn, bool in_slot)
{
	struct kvm_page_fault fault = { .gfn = gfn, .goal_level = 1, .slot = in_slot ? (void *)vcpu : NULL };

	return cohort_on_fault(vcpu, &fault);
}

struct peek_entity {
	u64 id;
	u64 vtime;
	u64 nr_periods;
	u64 nr_throttled;
	u64 throttled_ns;
	s64 budget_ns;
	u64 turns;
	u32 kind;
	u32 parent;
	u32 depth;
	u32 weight;
	s32 nr_active;
	u32 nr_running;
	u32 end;
};

void peek_entity(u32 slot, struct peek_entity *to)
{
	struct entity_ctx *e = entity_get(slot);

	to->id = e->id;
	to->vtime = e->vtime;
	to->nr_periods = e->nr_periods;
	to->nr_throttled = e->nr_throttled;
	to->throttled_ns = e->throttled_ns;
	to->budget_ns = e->budget_ns;
	to->turns = e->turns;
	to->kind = e->kind;
	to->parent = e->parent;
	to->depth = e->depth;
	to->weight = e->weight;
	to->nr_active = e->nr_active;
	to->nr_running = e->nr_running;
	to->end = e->end;
}

u32 peek_vm_on_cpu(u32 number, s32 cpu)
{
	u32 *n = vm_on_cpu_get(number, cpu);

	return n ? *n : 0;
}

struct peek_task {
	u64 vtime;
	u64 queued_ns;
	u64 backoff_ns; /* of a vCPU */
	u64 kvm_vcpu;
	u32 vm; /* 0: none */
	s32 vcpu;
	s32 cpu;
	u32 restricted; /* of a vCPU: some pCPUs are forbidden to it */
	u32 leaf;
	u32 run_leaf;
	u16 run_path[MAX_DEPTH];
};

void peek_task(struct task_struct *p, struct peek_task *to)
{
	struct task_ctx *t = task_get(p);
	struct vcpu_ctx *v;

	/* A dead task has none. */
	if (!t)
		return;
	v = vcpu_get(t);
	to->vtime = t->vtime;
	to->queued_ns = t->queued_ns;
	to->backoff_ns = v ? v->backoff_ns : 0;
	to->kvm_vcpu = v ? v->kvm_vcpu : 0;
	to->vm = vm_get(t) ? t->vm : 0;
	to->vcpu = t->vcpu;
	to->cpu = t->cpu;
	to->restricted = v ? v->restricted : 0;
	to->leaf = t->leaf;
	to->run_leaf = t->run_leaf;
	__builtin_memcpy(to->run_path, t->run_path, sizeof(to->run_path));
}

/* A task as order sbco has it. */
struct peek_sbco {
	u64 place;
	s64 lent;
	u64 owed; /* by debt lists */
	u32 ordinate;
	u32 dirty;
};

void peek_sbco(struct task_struct *p, struct peek_sbco *to)
{
	struct task_ctx *t = task_get(p);
	struct sbco_cpu *list;
	struct vcpu_ctx *v;
	u32 cpu, i;

	if (!t)
		return;
	v = vcpu_get(t);
	to->place = place_of(t);
	to->lent = t->order_state[SBCO_LENT];
	to->ordinate = t->queued_ns && t->cpu >= 0 ? sbco_ordinate(p->pid, t->cpu, ~0) : 0;
	to->dirty = v && v->dirty;
	for (cpu = 0; v && cpu < nr_cpus; cpu++) {
		list = bpf_map_lookup_elem(&sbco_cpus, &cpu);
		for (i = 0; i < DEBTS; i++)
			if (list->debts[i].state == DEBT_OWED && list->debts[i].to_pid == p->pid)
				to->owed += list->debts[i].amount;
	}
}

void poke_vtime(struct task_struct *p, u64 vtime)
{
	struct task_ctx *t = task_get(p);

	if (t)
		t->vtime = vtime;
}

bool peek_taken(u32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	return c && c->taken;
}

/* That pCPU has found nobody in its queue, just before somebody came. */
void poke_unmark(u32 cpu)
{
	queue_unmark(cpu);
}

/* Who waits first in one queue was on the way into the other all the time. */
void poke_late(u32 from, u32 to)
{
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, from, 0) {
		scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, to, 0);
		break;
	}
}

void poke_sbco_alpha(u32 alpha)
{
	u32 key = 0, *now = bpf_map_lookup_elem(&sbco_alpha_now, &key);

	*now = alpha;
}

u64 native_percpu_sum(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, u32 key);

/* All counters, by their numbers. */
void peek_stats(u64 *to)
{
	u32 id;

	for (id = 0; id < NR_STATS; id++)
		to[id] = native_percpu_sum(__native_map(&stats), id);
}

/* So many cgroups have a quota, as the scheduler counts them. */
u32 peek_quotas(void)
{
	return nr_quotas;
}

/* Why the scheduler has ended, as user space reads it. */
struct peek_exit {
	s32 kind;
	char reason[128];
	char msg[1024];
};

void peek_exit(struct peek_exit *to)
{
	to->kind = exit_kind;
	bpf_probe_read_kernel_str(to->reason, sizeof(to->reason), exit_reason);
	bpf_probe_read_kernel_str(to->msg, sizeof(to->msg), exit_msg);
}

/* The tasks that all domains count as runnable. */
u32 peek_domain_tasks(void)
{
	struct domain *d;
	u32 slot, n = 0;

	for (slot = 0; slot < entity_get(0)->end; slot++) {
		d = domain_get(slot);
		if (d)
			n += domain_tasks(d->runnable);
	}
	return n;
}
