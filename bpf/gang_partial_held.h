/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang partial-held: gang partial as the paper's kernel has it ("partial" paper, sections 1 and 5). In its turn a set has a pCPU for each of its vCPUs, for those that
 * sleep as well; there nobody runs. That is what co-scheduling a whole VM costs, and what smaller sets gain. A set of which nobody wants to run has no turn: what it has
 * it gives back when the last of them falls asleep.
 *
 * A turn is a slot long, and the next one is asked for anew: whoever waits on a pCPU that idles for a set, and deserves it more, has it then. To compare with: `partial`
 * leaves no pCPU idle for one that sleeps.
 */
#ifndef COHORT_GANG_PARTIAL_HELD_H
#define COHORT_GANG_PARTIAL_HELD_H

#include "gang_partial.h"

static void held_changed(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now)
{
	u32 place = set_place(t);
	struct set_ctx *set = place ? set_ctx_at(place - 1) : NULL, *own = set_ctx_at(t->vcpu_at);

	partial_changed(t, v, from, now);
	if (!set || !own || v->state != VCPU_ASLEEP || !set_in_turn(set, now))
		return;
	if (from == VCPU_RUNNING)
		claim_hold(own->ran_on, claim_of(place, set->slot));
	set_tell(t, set, TELL_HELD);
}

/* The set of the vCPU at that index of vcpus. */
static __always_inline struct set_ctx *set_of_index(const struct vm_ctx *vm, u32 vm_id, s32 index)
{
	u32 number = index < 0 ? 0 : set_of_vcpu(vm, vm_id, index);

	return number ? set_ctx_at(vcpu_index(vm, number - 1)) : NULL;
}

/* Sets that are to give back what they hold, if nobody of them is awake any more. */
VERIFIED_ONCE held_give_back(u32 vm_id)
{
	struct vm_ctx *vm = vm_at(vm_id);
	struct set_ctx *set, *member;
	struct vcpu_ctx *v;
	s32 i, index;
	u32 place;

	if (!vm)
		return 0;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		set = set_of_index(vm, vm_id, index);
		if (v && set && v->state != VCPU_ASLEEP)
			set->tell &= ~TELL_HELD;
	}
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		set = set_of_index(vm, vm_id, index);
		member = set_ctx_at(index);
		if (!set || !member || !(set->tell & TELL_HELD))
			continue;
		place = vcpu_index(vm, set_of_vcpu(vm, vm_id, index) - 1) + 1;
		claim_drop(member->room, place);
		claim_drop(member->ran_on, place);
		scx_bpf_kick_cpu(member->room < 0 ? member->ran_on : member->room, SCX_KICK_IDLE);
		scx_bpf_kick_cpu(member->ran_on, SCX_KICK_IDLE);
	}
	return 0;
}

static void held_settle(u32 vm_id, u64 now)
{
	held_give_back(vm_id);
	partial_settle(vm_id, now);
}

static const struct gang gang_partial_held = {
	.began = partial_began,
	.begins = partial_begins,
	.changed = held_changed,
	.gate = partial_gate,
	.holds = partial_holds,
	.idles = partial_idles,
	.settle = held_settle,
	.slice = partial_slice,
	.period = partial_period,
	.period_ns = PARTIAL_PERIOD_NS,
};

#endif
