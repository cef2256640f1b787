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

#include "sets.h"

/* So much before a slot's end a turn belongs to the next one: timers are early, and clocks differ. */
#define SLOT_EARLY_NS 200000ULL

/* How long a set that cannot run together is not asked again. */
#define UNFIT_NS 1000000000ULL

/* How often somebody looks at waiting vCPUs that an idle pCPU has passed over, should all else have missed them. */
#define PARTIAL_PERIOD_NS 20000000ULL

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

/* Does a set have this pCPU now: one of its members runs there in its turn, or is about to? */
static __always_inline bool partial_holds(const struct cpu_ctx *c, u64 now)
{
	u64 claim = READ_ONCE(c->set_claim);

	return claim_is_current(claim, now) && (c->wish_pid || (c->curr_pid && c->set_runs == claim_place(claim)));
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

/* Has a pCPU been taken for that claim already, or does a member of that set run there? */
static __always_inline bool is_claimants(const struct cpu_ctx *c, u64 claim)
{
	return READ_ONCE(c->set_claim) == claim || (c->curr_pid && c->set_runs == claim_place(claim));
}

/* Ranks, while a set's turn begins: with these the calls do not fit on the stack that 6.18 allows. */
enum set_rank {
	RANK_OF_CHOSEN, /* the member that has been chosen */
	RANK_OF_RUNNER, /* whom it would preempt */
	NR_SET_RANKS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_SET_RANKS);
	__type(key, u32);
	__type(value, struct rank);
} set_ranks SEC(".maps");

static __always_inline struct rank *set_rank_get(u32 which)
{
	return bpf_map_lookup_elem(&set_ranks, &which);
}

/* Take cpu for a claim, if whoever has it deserves it less than that rank. */
static __always_inline bool claim_take(s32 cpu, u64 claim, struct rank *rank, bool forced, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct rank *runner;
	u64 old;

	if (!c || !c->online || c->taken)
		return false;
	old = READ_ONCE(c->set_claim);
	if (claim_is_current(old, now) || is_claimants(c, claim))
		return false;
	/* As would_preempt(), with one call less: the verifier counts them. */
	if (c->curr_pid && !forced) {
		runner = set_rank_get(RANK_OF_RUNNER);
		if (!runner)
			return false;
		order_rank_of_runner(c, now, runner);
		if (!order_before(rank, runner, wakeup_gran_ns))
			return false;
	}
	return atomic_cas(&c->set_claim, old, claim) == old;
}

/* What room_find() found, if it was no pCPU. */
#define ROOM_NOT_NOW -1
#define ROOM_NEVER -2

/* Find a pCPU for the waiting vCPU at that index, and take it for the claim: where it waits, or near. */
static __always_inline s32 room_find(u32 index, u64 claim, struct rank *rank, bool forced, u64 now)
{
	struct vcpu_ctx *v = vcpu_at(index);
	struct cohort_neighbours *near;
	s32 i, home, cpu, result = ROOM_NEVER;
	struct cpu_ctx *c;
	u32 at;

	if (!v)
		return ROOM_NEVER;
	home = vcpu_cpu(v);
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
		if (!c || !c->online || is_claimants(c, claim) || !vcpu_allowed_on(v, cpu))
			continue;
		result = ROOM_NOT_NOW;
		if (claim_take(cpu, claim, rank, forced, now))
			return cpu;
	}
	return result;
}

/* What an attempt to begin a set's turn has found, of one member or of all: bits. */
enum set_found {
	SET_OTHERS = 1,	   /* somebody else of it wants to run */
	SET_CONTESTED = 2, /* another pCPU is yet to choose between a member that runs there and those that wait */
	SET_NO_ROOM = 4,
	SET_UNFIT = 8, /* there are not enough pCPUs for it, whoever has them */
};

/* The index in vcpus of vCPU i if it is another of t's set that does not sleep, or -1. */
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
	if (index < 0 || !v || index == t->vcpu_at || v->state == VCPU_ASLEEP ||
	    set_of_vcpu(vm, t->vm, index) != number)
		return -1;
	return index;
}

/* Look for a pCPU for the member at that index. */
VERIFIED_ONCE member_gather(u32 index, u64 claim, struct rank *rank, bool forced, u64 now)
{
	struct set_ctx *member = set_ctx_at(index);
	struct vcpu_ctx *v = vcpu_at(index);
	struct cpu_ctx *c;
	s32 cpu;

	if (!member || !v || !rank)
		return 0;
	member->room = -1;
	member->room_for = claim;
	if (v->state == VCPU_WAITING) {
		cpu = room_find(index, claim, rank, forced, now);
		member->room = cpu;
		return SET_OTHERS | (cpu == ROOM_NEVER ? SET_UNFIT : cpu < 0 ? SET_NO_ROOM : 0);
	}
	cpu = vcpu_cpu(v);
	c = cpu_get(cpu);
	if (cpu < 0 || !c || READ_ONCE(c->set_claim) == claim)
		return SET_OTHERS;
	/* Who waits there may deserve it more: it is for that pCPU to say, when its own slot ends. */
	if (queue_is_marked(cpu))
		return SET_OTHERS | SET_CONTESTED;
	if (!claim_is_current(READ_ONCE(c->set_claim), now))
		c->set_claim = claim;
	return SET_OTHERS;
}

/* Look for a pCPU for every member that wants to run; t has one. */
VERIFIED_ONCE set_gather(struct task_ctx *t, u32 number, u64 claim, struct rank *rank, u64 now)
{
	struct vm_ctx *vm;
	u32 found = 0;
	bool forced;
	s32 i, index;

	if (!t || !rank)
		return SET_NO_ROOM;
	vm = vm_get(t);
	if (!vm)
		return SET_NO_ROOM;
	forced = t->queued_ns && elapsed_ns(now, t->queued_ns) > starve_ns;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end || found & (SET_NO_ROOM | SET_UNFIT))
			break;
		index = set_member(t, i, number);
		if (index >= 0)
			found |= member_gather(index, claim, rank, forced, now);
	}
	return found;
}

/* Does a set want to run more vCPUs than there are pCPUs? */
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
	stat_inc(STAT_GANG_STARTS);
	wish_leave(member->room, vm_id, index, v, WISH_MIGRATE | WISH_FORCED, slot_rest_ns(now), now);
	scx_bpf_kick_cpu(member->room, SCX_KICK_PREEMPT);
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

/* Begin the turn of t's set, if there is room for all. Return true if t may run on cpu. */
static __always_inline bool set_begin(struct task_ctx *t, struct cpu_ctx *c, struct set_ctx *set, u32 place, s32 cpu, u64 now)
{
	struct vm_ctx *vm = vm_get(t);
	u64 claim = claim_of(place, slot_at(now));
	struct rank *rank = set_rank_get(RANK_OF_CHOSEN);
	u32 found, number;
	bool begun;

	if (!vm || !rank)
		return true;
	/* Whoever tries at the same time does it for t too. */
	if (atomic_cas(&set->begins, 0, 1))
		return false;
	c->set_claim = claim;
	order_rank(t, now, rank);
	number = set_of_vcpu(vm, t->vm, t->vcpu_at);
	found = set_gather(t, number, claim, rank, now);
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
	/* Another set has it until the slot ends. */
	if (partial_holds(c, now) && claim_place(c->set_claim) != place)
		return false;
	set = place ? set_ctx_at(place - 1) : NULL;
	if (!set || time_before(now, set->free_until_ns) || is_overdue(t, now))
		return true;
	/* Nor does it help its set to take a sibling's place: that one goes on, and t gets another pCPU. */
	v = vcpu_get(t);
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

/* The set of t is not in its turn: tell its members' pCPUs that wait (or run) there to choose anew. */
VERIFIED_ONCE set_kick(struct task_ctx *t, u32 state, u64 flags)
{
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u32 number;
	s32 i, index, cpu;

	if (!t)
		return 0;
	vm = vm_get(t);
	if (!vm)
		return 0;
	number = set_of_vcpu(vm, t->vm, t->vcpu_at);
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = set_member(t, i, number);
		v = vcpu_at(index);
		if (index < 0 || !v || v->state != state)
			continue;
		cpu = vcpu_cpu(v);
		if (cpu >= 0)
			scx_bpf_kick_cpu(cpu, flags);
	}
	return 0;
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
			set_kick(t, VCPU_WAITING, SCX_KICK_IDLE);
	} else if (from == VCPU_RUNNING && !set_in_turn(set, now) && set->stopped_slot != slot_at(now)) {
		/* All stop together: who runs on looks whether all can. */
		set->stopped_slot = slot_at(now);
		set_kick(t, VCPU_RUNNING, SCX_KICK_PREEMPT);
	}
}

/* All turns of VMs end with the slot. */
static u64 partial_slice(u32 vm, s32 cpu, u64 now)
{
	return vm ? slot_rest_ns(now) : 0;
}

/* The runner t gives up cpu: it sleeps. */
static void partial_left(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u32 place = set_place(t);

	if (c)
		c->set_runs = 0;
	if (place)
		claim_drop(cpu, place);
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
	.left = partial_left,
	.slice = partial_slice,
	.period = partial_period,
	.period_ns = PARTIAL_PERIOD_NS,
};

#endif
