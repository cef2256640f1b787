/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Forcing a VM's waiting vCPUs onto pCPUs, one each, whoever runs there: what gangs procco and cpuco do.
 *
 * For a turn of a slice other VMs' vCPUs do not get those pCPUs back, nor that of the one that leads, while somebody of the VM runs there. Otherwise the
 * vCPUs that were thrown out, whose VM has had less by now, would throw out the leader at once, and so on for ever.
 */
#ifndef COHORT_FORCE_H
#define COHORT_FORCE_H

#include "wish.h"

/* Whose turn a pCPU has, and until when. */
struct force_turn {
	u64 end_ns;
	u32 vm;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct force_turn);
} force_turns SEC(".maps");

static __always_inline void force_hold(s32 cpu, u32 vm_id, u64 end_ns)
{
	u32 key = cpu;
	struct force_turn *turn = bpf_map_lookup_elem(&force_turns, &key);

	if (!turn)
		return;
	turn->vm = vm_id;
	turn->end_ns = end_ns;
}

/* While a VM has its turn on cpu, no other VM's vCPU may have it, until it has waited for too long. */
static u32 force_gate(struct task_ctx *t, s32 cpu, u64 now)
{
	u32 key = cpu;
	struct force_turn *turn = bpf_map_lookup_elem(&force_turns, &key);
	struct cpu_ctx *c = cpu_get(cpu);

	if (t->vcpu < 0 || !turn || !c || !turn->vm || turn->vm == t->vm || !c->curr_pid || c->curr_vm != turn->vm)
		return GATE_OPEN;
	if (waited_ns(t, now) > starve_ns)
		return GATE_OPEN;
	return time_before(now, turn->end_ns) ? GATE_WAIT : GATE_OPEN;
}

/* Make pCPU `there` run the VM's vCPU v, at `index` in the map vcpus, next, until then. */
static void force_one(s32 there, u32 vm_id, u32 index, const struct vcpu_ctx *v, u64 end_ns, u64 now)
{
	if (!wish_leave(there, vm_id, index, v, WISH_FORCED | WISH_MIGRATE, end_ns - now, now))
		return;
	force_hold(there, vm_id, end_ns);
	stat_inc(STAT_GANG_STARTS);
	scx_bpf_kick_cpu(there, SCX_KICK_PREEMPT);
}

/* Does nobody of the VM run on that pCPU, and has nobody been forced there at this moment? */
static __always_inline bool force_may(s32 there, u32 vm_id, u64 now)
{
	struct cpu_ctx *c = cpu_get(there);

	return c && c->online && !c->taken && !(c->curr_pid && c->curr_vm == vm_id) &&
	       !(c->wish_pid && c->wish_at_ns == now);
}

/* The pCPU for v, not `but`: where it waits, or the nearest to that; -1: there is none. */
VERIFIED_ONCE force_where(u32 index, u32 vm_id, s32 but, u64 now)
{
	struct vcpu_ctx *v = vcpu_at(index);
	s32 i, from, there;

	if (!v)
		return -1;
	from = vcpu_cpu(v);
	if (from < 0)
		return -1;
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		there = from + i < nr_cpus ? from + i : from + i - nr_cpus;
		if (there != but && force_may(there, vm_id, now) && vcpu_allowed_on(v, there))
			return there;
	}
	return -1;
}

/*
 * A vCPU of the VM has cpu, until then: all siblings that wait are forced onto others, and those that run go on. leader: that vCPU's number, for at this
 * moment it still counts as one that waits; -1: it runs.
 */
VERIFIED_ONCE force_siblings(u32 vm_id, s32 leader, s32 cpu, u64 end_ns, u64 now)
{
	struct vm_ctx *vm = vm_at(vm_id);
	struct vcpu_ctx *v;
	s32 i, index, there;

	if (!vm || !time_before(now, end_ns))
		return 0;
	force_hold(cpu, vm_id, end_ns);
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		if (i == leader)
			continue;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v || v->state == VCPU_ASLEEP)
			continue;
		if (v->state == VCPU_RUNNING) {
			force_hold(vcpu_cpu(v), vm_id, end_ns);
			continue;
		}
		there = force_where(index, vm_id, cpu, now);
		if (there >= 0)
			force_one(there, vm_id, index, v, end_ns, now);
	}
	return 0;
}

#endif
