/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A set's turn: the slot of time that it is of, and the pCPUs that are found and claimed for its members (gang_partial.h).
 */
#ifndef COHORT_SET_TURN_H
#define COHORT_SET_TURN_H

#include "sets.h"

/* So much before a slot's end a turn belongs to the next one: timers are early, and clocks differ. */
#define SLOT_EARLY_NS 200000ULL

#define CLAIM_SHIFT 20

static __always_inline u64 slot_early_ns(void)
{
	return slice_ns / 4 < SLOT_EARLY_NS ? slice_ns / 4 : SLOT_EARLY_NS;
}

static __always_inline u64 slot_at(u64 now)
{
	return (now + slot_early_ns()) / slice_ns;
}

/* How long the slot still lasts. */
static __always_inline u64 slot_rest_ns(u64 now)
{
	return (slot_at(now) + 1) * slice_ns - now;
}

/* A turn that another pCPU has begun by its own clock may be of a slot yet to come. */
static __always_inline bool set_in_turn(const struct set_ctx *set, u64 now)
{
	return !time_before(set->slot, slot_at(now));
}

static __always_inline u64 claim_of(u32 place, u64 slot)
{
	return slot << CLAIM_SHIFT | place;
}

static __always_inline u32 claim_place(u64 claim)
{
	return claim & ((1 << CLAIM_SHIFT) - 1);
}

static __always_inline bool claim_is_current(u64 claim, u64 now)
{
	return claim && !time_before(claim >> CLAIM_SHIFT, slot_at(now));
}

/* Do members that sleep have pCPUs in their set's turn (gang_partial_held.h)? */
static __always_inline bool sleepers_hold(void)
{
	return chosen_gang() == GANG_partial_held;
}

/* Does a set have this pCPU now: one of its members runs there in its turn, or is about to, or has it asleep? */
static __always_inline bool partial_holds(const struct cpu_ctx *c, u64 now)
{
	u64 claim = READ_ONCE(c->set_claim);

	return claim_is_current(claim, now) && (c->wish_pid || (sleepers_hold() && c->set_held == claim) ||
						(c->curr_pid && c->set_runs == claim_place(claim)));
}

/* Give back what that set holds of a pCPU. */
static __always_inline void claim_drop(s32 cpu, u32 place)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 claim;

	if (!c)
		return;
	claim = READ_ONCE(c->set_claim);
	if (claim && claim_place(claim) == place)
		atomic_cas(&c->set_claim, claim, 0);
}

/* Nobody else may have cpu in that slot, although whom it is for sleeps. */
static __always_inline void claim_hold(s32 cpu, u64 claim)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (!c)
		return;
	atomic_cas(&c->set_claim, 0, claim);
	c->set_held = claim;
}

/* Has a pCPU been taken for that claim already, or does a member of that set run there? */
static __always_inline bool is_claimants(const struct cpu_ctx *c, u64 claim)
{
	return READ_ONCE(c->set_claim) == claim || (c->curr_pid && c->set_runs == claim_place(claim));
}

/* What is known while a set's turn begins: with that the calls do not fit on the stack that 6.18 allows. */
struct gathering {
	u64 claim;
	struct rank chosen; /* of the member that has been chosen */
	struct rank other;  /* of one that it is compared with */
	bool forced;	    /* it has waited for so long that it goes before everybody */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct gathering);
} gatherings SEC(".maps");

static __always_inline struct gathering *gathering_get(void)
{
	u32 only = 0;

	return bpf_map_lookup_elem(&gatherings, &only);
}

/* Of those that wait on cpu so many are asked whether they deserve it more than a set. */
#define WAITERS_ASKED 8

/* Does somebody who waits on cpu, which idles, and is not of the set deserve it more than the one that has been chosen, or has waited for too long? */
VERIFIED_ONCE waiter_objects(s32 cpu, struct gathering *g, u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = 0;

	if (!g)
		return 0;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (seen++ >= WAITERS_ASKED)
			break;
		t = task_get(p);
		if (!t || set_place(t) == claim_place(g->claim))
			continue;
		/* Or the compiler keeps on the stack where both ranks are. */
		asm volatile("" : "+r"(g));
		order_rank(t, now, &g->other);
		if (is_overdue(t, now) || order_before(&g->other, &g->chosen, 0))
			return 1;
	}
	return 0;
}

/* Take cpu for the claim, if whoever has it deserves it less than the one that has been chosen. */
static __always_inline bool claim_take(s32 cpu, struct gathering *g, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 old;

	if (!c || !c->online || c->taken)
		return false;
	old = READ_ONCE(c->set_claim);
	if (claim_is_current(old, now) || is_claimants(c, g->claim))
		return false;
	/* As would_preempt(), with one call less: the verifier counts them. */
	if (c->curr_pid && !g->forced) {
		order_rank_of_runner(c, now, &g->other);
		if (!order_before(&g->chosen, &g->other, wakeup_gran_ns))
			return false;
	}
	/* Who waits in vain where a member sleeps is not asked otherwise: that pCPU chooses nobody. */
	if (sleepers_hold() && !c->curr_pid && queue_is_marked(cpu) && waiter_objects(cpu, g, now))
		return false;
	return atomic_cas(&c->set_claim, old, g->claim) == old;
}

/* What room_find() found, if it was no pCPU. */
#define ROOM_NOT_NOW -1
#define ROOM_NEVER -2

/* Find a pCPU for that vCPU, which waits or sleeps, and take it for the claim: where it waits or last ran, or near. */
static __always_inline s32 room_find(struct vcpu_ctx *v, s32 home, struct gathering *g, u64 now)
{
	struct cohort_neighbours *near;
	s32 i, cpu, result = ROOM_NEVER;
	struct cpu_ctx *c;
	u32 at;

	if (home < 0)
		return ROOM_NOT_NOW;
	near = neighbours_of(home);
	if (!near)
		return ROOM_NOT_NOW;
	bpf_for(i, 0, NEIGHBOURS + 1) {
		at = i - 1;
		/* Or the compiler checks the bounds of i, and the verifier misses those of what is looked up. */
		asm volatile("" : "+r"(at));
		cpu = i ? neighbour(near, at) : home;
		if (cpu < 0)
			break;
		c = cpu_get(cpu);
		if (!c || !c->online || is_claimants(c, g->claim) || !vcpu_allowed_on(v, cpu))
			continue;
		result = ROOM_NOT_NOW;
		if (claim_take(cpu, g, now))
			return cpu;
	}
	return result;
}

/* What an attempt to begin a set's turn has found, of one member or of all: bits. */
enum set_found {
	SET_OTHERS = 1,	   /* somebody else of it wants to run, or is to have a pCPU asleep */
	SET_CONTESTED = 2, /* another pCPU is yet to choose between a member that runs there and those that wait */
	SET_NO_ROOM = 4,
	SET_UNFIT = 8, /* there are not enough pCPUs for it, whoever has them */
};

/* The index in vcpus of vCPU i if it is another of t's set that is to have a pCPU, or -1. */
VERIFIED_ONCE set_member(struct task_ctx *t, s32 i, u32 number)
{
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	s32 index;

	if (!t)
		return -1;
	vm = vm_get(t);
	if (!vm)
		return -1;
	index = vcpu_index(vm, i);
	v = vcpu_at(index);
	if (index < 0 || !v || index == t->vcpu_at || set_of_vcpu(vm, t->vm, index) != number)
		return -1;
	if (v->state == VCPU_ASLEEP && !(sleepers_hold() && v->pid))
		return -1;
	return index;
}

/* Look for a pCPU for the member at that index. */
static __always_inline u32 member_gather(u32 index, struct gathering *g, u64 now)
{
	struct set_ctx *member = set_ctx_at(index);
	struct vcpu_ctx *v = vcpu_at(index);
	struct cpu_ctx *c;
	s32 cpu;

	if (!member || !v)
		return 0;
	member->room = -1;
	member->room_for = g->claim;
	if (v->state != VCPU_RUNNING) {
		cpu = v->state == VCPU_ASLEEP ? member->ran_on : vcpu_cpu(v);
		cpu = room_find(v, cpu, g, now);
		member->room = cpu;
		return SET_OTHERS | (cpu == ROOM_NEVER ? SET_UNFIT : cpu < 0 ? SET_NO_ROOM : 0);
	}
	cpu = vcpu_cpu(v);
	c = cpu_get(cpu);
	if (cpu < 0 || !c)
		return SET_OTHERS;
	/* It may have become a member while it ran. */
	member->ran_on = cpu;
	if (READ_ONCE(c->set_claim) == g->claim)
		return SET_OTHERS;
	/* Who waits there may deserve it more: it is for that pCPU to say, when its own slot ends. */
	if (queue_is_marked(cpu))
		return SET_OTHERS | SET_CONTESTED;
	if (!claim_is_current(READ_ONCE(c->set_claim), now))
		c->set_claim = g->claim;
	return SET_OTHERS;
}

/* Look for a pCPU for every member that wants to run; t, the one that has been chosen, has one. */
VERIFIED_ONCE set_gather(struct task_ctx *t, u32 number, struct gathering *g, u64 now)
{
	struct vm_ctx *vm;
	u32 found = 0;
	s32 i, index;

	if (!t || !g)
		return SET_NO_ROOM;
	vm = vm_get(t);
	if (!vm)
		return SET_NO_ROOM;
	g->forced = waited_ns(t, now) > starve_ns;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end || found & (SET_NO_ROOM | SET_UNFIT))
			break;
		index = set_member(t, i, number);
		if (index >= 0)
			found |= member_gather(index, g, now);
	}
	return found;
}

/* Does a set want more pCPUs than there are? */
VERIFIED_ONCE set_is_too_large(struct task_ctx *t, u32 number, u32 place)
{
	struct set_ctx *set = set_ctx_at(place - 1);
	struct vm_ctx *vm;
	s32 i;

	if (!t || !set)
		return 0;
	vm = vm_get(t);
	if (!vm)
		return 0;
	set->wanting = 1;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		if (set_member(t, i, number) >= 0)
			set->wanting++;
	}
	return set->wanting > nr_online;
}

/* Read once more: another set, which the member may be part of by now, looks for room as well. */
static __always_inline void room_is_taken(const struct set_ctx *member)
{
	s32 room = READ_ONCE(member->room);

	if (room >= 0)
		scx_bpf_kick_cpu(room, SCX_KICK_PREEMPT);
}

/* Give the member at that index the pCPU found for it, or (not begun) give back what was taken. */
VERIFIED_ONCE member_settle(u32 vm_id, u32 index, u64 claim, bool begun, u64 now)
{
	struct set_ctx *member = set_ctx_at(index);
	struct vcpu_ctx *v = vcpu_at(index);

	if (!v || !member || member->room_for != claim)
		return 0;
	member->room_for = 0;
	if (member->room < 0)
		return 0;
	if (!begun) {
		claim_drop(member->room, claim_place(claim));
		return 0;
	}
	if (sleepers_hold() && v->state == VCPU_ASLEEP) {
		claim_hold(member->room, claim);
		room_is_taken(member);
		return 0;
	}
	stat_inc(STAT_GANG_STARTS);
	wish_leave(member->room, vm_id, index, v, WISH_MIGRATE | WISH_FORCED, slot_rest_ns(now), now);
	room_is_taken(member);
	return 0;
}

VERIFIED_ONCE set_settle(struct task_ctx *t, u64 claim, bool begun, u64 now)
{
	struct vm_ctx *vm;
	s32 i, index;

	if (!t)
		return 0;
	vm = vm_get(t);
	if (!vm)
		return 0;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		if (index >= 0)
			member_settle(t->vm, index, claim, begun, now);
	}
	return 0;
}

#endif
