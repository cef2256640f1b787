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

static __always_inline void give_back(s32 cpu, u32 place)
{
	if (cpu < 0)
		return;
	claim_drop(cpu, place);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
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
		place = set_place_of(vm, vm_id, index);
		set = place ? set_ctx_at(place - 1) : NULL;
		if (v && set && v->state != VCPU_ASLEEP)
			set->tell &= ~TELL_HELD;
	}
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		place = set_place_of(vm, vm_id, index);
		set = place ? set_ctx_at(place - 1) : NULL;
		member = set_ctx_at(index);
		if (!set || !member || !(set->tell & TELL_HELD))
			continue;
		/* Read once, as in member_settle(). */
		give_back(READ_ONCE(member->room), place);
		give_back(READ_ONCE(member->ran_on), place);
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
