/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang partial: sets of a VM's vCPUs run together, each set independent of the others ("partial" paper). Which vCPUs are a set is said by user space (sets.h); a vCPU in
 * none runs for itself, as everybody does without a gang.
 *
 * Time is cut into slots, one slice long, the same for all pCPUs. A set runs in a slot if each of its members that want to run has a pCPU in it: then they start
 * together, and all turns end with the slot. So the pCPUs of all sets come free at the same moments, and a large set does not wait for ever for small ones that end at
 * different times. A set that finds no room waits for the next slot; smaller ones, of whatever VM, may fill what is left.
 *
 * Virtual time decides as ever: the pCPU that chooses a member asks whether its set can run (partial_begins). That takes pCPUs that are idle, or whose runner
 * deserves them less and is no set's in its turn. It marks them (cpu_ctx.set_claim) and leaves a wish with each.
 *
 * Members that sleep hold no pCPU. One that wakes in its set's turn joins it where there is room for it. A member that wants to run alone, the others
 * asleep, needs no turn. Neither does a set that has not enough pCPUs at all, nor a member that has waited for STARVE_MAX * starve_ns: they run each for itself.
 */
#ifndef COHORT_GANG_PARTIAL_H
#define COHORT_GANG_PARTIAL_H

#include "set_turn.h"

/* How long a set that cannot run together is not asked again. */
#define UNFIT_NS 1000000000ULL

/* How often somebody looks at waiting vCPUs that an idle pCPU has passed over, should all else have missed them. */
#define PARTIAL_PERIOD_NS 20000000ULL

static u32 partial_gate(struct task_ctx *t, s32 cpu, u64 now)
{
	u32 place = set_place(t);
	struct set_ctx *set;

	if (!place)
		return GATE_OPEN;
	set = set_ctx_at(place - 1);
	if (!set || set_in_turn(set, now) || set->refused_slot != slot_at(now) || set->refused_room != set_room ||
	    time_before(now, set->free_until_ns) || is_overdue(t, now))
		return GATE_OPEN;
	return GATE_WAIT;
}

/* Begin the turn of t's set, if there is room for all. Return true if t may run on cpu. */
static __always_inline bool set_begin(struct task_ctx *t, struct cpu_ctx *c, struct set_ctx *set, u32 place, s32 cpu,
				      u64 now)
{
	struct vm_ctx *vm = vm_get(t);
	u64 claim = claim_of(place, slot_at(now));
	struct gathering *g = gathering_get();
	u32 found, number;
	bool begun;

	if (!vm || !g)
		return true;
	/* Whoever tries at the same time does it for t too. */
	if (atomic_cas(&set->begins, 0, 1))
		return false;
	c->set_claim = claim;
	g->claim = claim;
	order_rank(t, now, &g->chosen);
	number = set_of_vcpu(vm, t->vm, t->vcpu_at);
	found = set_gather(t, number, g, now);
	if (found & SET_NO_ROOM && set_is_too_large(t, number, place))
		found |= SET_UNFIT;
	begun = found == SET_OTHERS;
	if (begun)
		set->slot = slot_at(now);
	if (found & SET_UNFIT) {
		set->free_until_ns = now + UNFIT_NS;
	} else if (found & SET_NO_ROOM) {
		set->refused_slot = slot_at(now);
		set->refused_room = set_room;
		stat_inc(STAT_GANG_REFUSED);
	}
	set_settle(t, claim, begun, now);
	/* Undecided: whoever decides sees that this pCPU has. */
	if (!begun && found != (SET_OTHERS | SET_CONTESTED))
		claim_drop(cpu, place);
	set->begins = 0;
	return found & SET_UNFIT || !(found & SET_NO_ROOM);
}

/* t is to run on cpu, for its rank. */
static __always_inline bool partial_begins(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u32 place = set_place(t);
	struct set_ctx *set;
	struct vcpu_ctx *v;

	if (!c)
		return true;
	v = vcpu_get(t);
	/* Sets have changed since t began here: what it was in holds this pCPU no longer. */
	if (v && c->set_runs && c->set_runs != place && c->curr_pid == (u32)v->pid) {
		claim_drop(cpu, c->set_runs);
		c->set_runs = 0;
	}
	/* Another set has it until the slot ends. */
	if (partial_holds(c, now) && claim_place(c->set_claim) != place)
		return false;
	set = place ? set_ctx_at(place - 1) : NULL;
	if (!set || time_before(now, set->free_until_ns) || is_overdue(t, now))
		return true;
	/* Nor does it help its set to take a sibling's place: that one goes on, and t gets another pCPU. */
	if (v && c->curr_pid && c->set_runs == place && c->curr_pid != (u32)v->pid)
		return false;
	return set_in_turn(set, now) || set_begin(t, c, set, place, cpu, now);
}

/* Whoever runs on cpu from now on, in its set's turn or not. */
static void partial_began(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u32 place = set_place(t);
	struct set_ctx *set, *own;

	if (!c)
		return;
	c->set_runs = 0;
	own = t->vcpu >= 0 ? set_ctx_at(t->vcpu_at) : NULL;
	set = place ? set_ctx_at(place - 1) : NULL;
	if (!set || !own)
		return;
	own->ran_on = cpu;
	c->set_runs = place;
	if (set_in_turn(set, now))
		c->set_claim = claim_of(place, set->slot);
}

/* The set of t is not in its turn: its members are to choose anew. */
static __always_inline void set_tell(const struct task_ctx *t, struct set_ctx *set, u32 whom)
{
	set->tell |= whom;
	settle_later(t->vm);
}

static void partial_changed(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now)
{
	u32 place = set_place(t);
	struct set_ctx *set = place ? set_ctx_at(place - 1) : NULL, *own = set_ctx_at(t->vcpu_at);

	if (!set || !own)
		return;
	if (from == VCPU_RUNNING)
		claim_drop(own->ran_on, place);
	if (v->state == VCPU_ASLEEP) {
		/* Its pCPU is free for others, and its set needs one less. */
		atomic_add(&set_room, 1);
		if (!set_in_turn(set, now) && set->refused_slot == slot_at(now))
			set_tell(t, set, TELL_WAITING);
	} else if (from == VCPU_RUNNING && !set_in_turn(set, now) && set->stopped_slot != slot_at(now)) {
		/* All stop together: who runs on looks whether all can. */
		set->stopped_slot = slot_at(now);
		set_tell(t, set, TELL_RUNNING);
	}
}

/* Whom changed() wants told. A set that is told in between, on another pCPU, has it done here or by the next period. */
static void partial_settle(u32 vm_id, u64 now)
{
	struct vm_ctx *vm = vm_at(vm_id);
	struct set_ctx *set;
	struct vcpu_ctx *v;
	s32 i, index, cpu;
	u32 place;

	if (!vm)
		return;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v)
			continue;
		place = set_place_of(vm, vm_id, index);
		set = place ? set_ctx_at(place - 1) : NULL;
		cpu = vcpu_cpu(v);
		if (!set || cpu < 0)
			continue;
		if (set->tell & TELL_WAITING && v->state == VCPU_WAITING)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		if (set->tell & TELL_RUNNING && v->state == VCPU_RUNNING)
			scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		set = set_ctx_at(vcpu_index(vm, i));
		if (set)
			set->tell = 0;
	}
}

/* All turns of VMs end with the slot. */
static u64 partial_slice(u32 vm, s32 cpu, u64 now)
{
	return vm ? slot_rest_ns(now) : 0;
}

/* cpu has nothing to do: sets that were refused may fit now. */
static void partial_idles(s32 cpu, u64 now)
{
	atomic_add(&set_room, 1);
}

/* Let idle pCPUs look at what waits in their queues. */
static void partial_period(u64 now)
{
	struct cpu_ctx *c;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		if (!queue_is_marked(i))
			continue;
		c = cpu_get(i);
		if (c && c->online && !c->curr_pid)
			scx_bpf_kick_cpu(i, SCX_KICK_IDLE);
	}
}

static const struct gang gang_partial = {
	.began = partial_began,
	.begins = partial_begins,
	.changed = partial_changed,
	.gate = partial_gate,
	.holds = partial_holds,
	.idles = partial_idles,
	.settle = partial_settle,
	.slice = partial_slice,
	.period = partial_period,
	.period_ns = PARTIAL_PERIOD_NS,
};

#endif
