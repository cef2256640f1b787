/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Seats of gang strict: which vCPU may run on which pCPU. A VM has a seat for each of its vCPUs that does not sleep, or none at all; who has no seat does
 * not run. Seats are given by one pCPU at a time, who holds the lock; whoever finds it held leaves what there is to do to the next period.
 *
 * `next_*` of a pCPU is whose seat it is to be; strict_commit() makes that so on all pCPUs, then kicks those where something has changed.
 */
#ifndef COHORT_STRICT_SEATS_H
#define COHORT_STRICT_SEATS_H

#include "wish.h"

/* A pCPU's. */
struct strict_seat {
	u32 vm;	  /* whose it is: as task_ctx.vm; 0: nobody's, and host tasks may run */
	u32 vcpu; /* ... and its index in the map vcpus */
	u32 next_vm;
	u32 next_vcpu;
	u32 changed;
	/* The best of the tasks here that are no vCPUs, as it was when the turns were given. */
	u32 host;
	u32 host_urgency;
	u64 host_since_ns;
	struct rank host_rank;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct strict_seat);
} strict_seats SEC(".maps");

/* Beside the vm_ctx. User space leaves it small where the policy is not chosen. */
struct strict_vm {
	u32 on;	      /* it has its seats */
	u32 asked;    /* for the turns that are being given, it has had its chance */
	u32 wide;     /* it has more vCPUs than there are pCPUs for them: any part of it may run */
	u32 first;    /* the vCPU that chooses its seat first, of a wide one */
	u32 unseated; /* the first that found none in the last round; and how many did */
	u32 missing;
	u32 runnable;
	u32 urgency;
	u64 since_ns; /* a vCPU of it waits since; 0: it runs */
	struct rank rank;
	/* Of the VM that all this is about: another one may have had the number. */
	u32 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct strict_vm);
} strict_vms SEC(".maps");

/* By index in the map vcpus: 1 + the pCPU where its seat is, or is to be; 0: it has none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPU_BLOCKS *VCPU_BLOCK);
	__type(key, u32);
	__type(value, u32);
} strict_seat_of SEC(".maps");

VARIABLE u32 strict_lock;

/* 1 + the highest VM's number that was seen. */
VARIABLE u32 strict_vm_end;

/* When all turns end, and when somebody last looked. */
VARIABLE u64 strict_end_ns;
VARIABLE u64 strict_looked_ns;

static __always_inline struct strict_seat *strict_seat_at(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&strict_seats, &key);
}

static __always_inline struct strict_vm *strict_vm_at(u32 vm)
{
	return bpf_map_lookup_elem(&strict_vms, &vm);
}

/* The VM of that number is of this generation: what was found of one that had the number before does not hold for it. */
static __always_inline void strict_meet(struct strict_vm *s, u32 generation)
{
	if (s->generation == generation)
		return;
	s->generation = generation;
	s->on = 0;
	s->wide = 0;
	s->first = 0;
}

static __always_inline u32 *strict_seat_of_vcpu(u32 index)
{
	return bpf_map_lookup_elem(&strict_seat_of, &index);
}

/* Which pCPUs there are for whom. */
enum strict_how {
	STRICT_IDLE,  /* in the middle of others' turns: those where nobody runs, or whose VM is being stopped */
	STRICT_RANK,  /* those where no host task deserves it more: all turns are given anew */
	STRICT_EMPTY, /* all, to see whether the VM could ever have its seats */
};

/* Of two that want a turn, with these ranks: has a been waiting for too long, or does it deserve it more? */
static __always_inline bool strict_before(struct rank *a, u64 urgency_since_a, struct rank *b, u64 urgency_since_b)
{
	/* 0: not urgent; else since when it waits. */
	if (!urgency_since_a != !urgency_since_b)
		return urgency_since_a != 0;
	if (urgency_since_a)
		return time_before(urgency_since_a, urgency_since_b);
	return order_before(a, b, 0);
}

static __always_inline u64 strict_urgent_since(const struct strict_vm *s)
{
	return s->urgency ? s->since_ns : 0;
}

/* May that VM have a seat on cpu? */
static __always_inline bool strict_is_free(s32 cpu, struct strict_vm *s, u32 how)
{
	struct strict_seat *seat = strict_seat_at(cpu);
	struct cpu_ctx *c = cpu_get(cpu);

	if (!seat || !c || !c->online || c->taken || seat->next_vm)
		return false;
	if (how == STRICT_EMPTY)
		return true;
	if (how == STRICT_IDLE)
		return seat->vm || !c->curr_pid;
	return !seat->host || strict_before(&s->rank, strict_urgent_since(s), &seat->host_rank,
					    seat->host_urgency ? seat->host_since_ns : 0);
}

/* Give the VM's vCPU at `index` that seat. */
static __always_inline bool strict_sit(s32 cpu, u32 vm_id, u32 index)
{
	struct strict_seat *seat = strict_seat_at(cpu);
	u32 *seat_of = strict_seat_of_vcpu(index);

	if (!seat || !seat_of)
		return false;
	seat->next_vm = vm_id;
	seat->next_vcpu = index;
	*seat_of = cpu + 1;
	return true;
}

/* Find a seat for the VM's vCPU at `index`: where it is, or (anywhere) on another pCPU. Return false if there is none. */
static __always_inline bool strict_find_seat(u32 vm_id, u32 index, u32 how, bool anywhere)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	struct vcpu_ctx *v = vcpu_at(index);
	struct cpu_ctx *c;
	s32 i, cpu, own;

	if (!s || !v)
		return false;
	own = vcpu_cpu(v);
	if (own < 0)
		own = 0;
	c = cpu_get(own);
	/* It may have become a vCPU while it ran. */
	if (vcpu_allowed_on(v, own) &&
	    (strict_is_free(own, s, how) ||
	     (how == STRICT_IDLE && c && c->curr_pid == (u32)v->pid && strict_is_free(own, s, STRICT_EMPTY))))
		return strict_sit(own, vm_id, index);
	if (!anywhere)
		return false;
	bpf_for(i, 1, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		cpu = own + i < nr_cpus ? own + i : own + i - nr_cpus;
		if (strict_is_free(cpu, s, how) && vcpu_allowed_on(v, cpu))
			return strict_sit(cpu, vm_id, index);
	}
	return false;
}

/* Take back what the VM was to have, all of it or (new only) what it has not got yet. */
VERIFIED_ONCE strict_stand_up(u32 vm_id, bool new_only)
{
	struct strict_seat *seat;
	u32 *seat_of;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		seat = strict_seat_at(i);
		if (!seat || seat->next_vm != vm_id)
			continue;
		if (new_only && seat->vm == vm_id && seat->vcpu == seat->next_vcpu)
			continue;
		seat_of = strict_seat_of_vcpu(seat->next_vcpu);
		if (seat_of && *seat_of == (u32)i + 1)
			*seat_of = 0;
		seat->next_vm = 0;
	}
	return 0;
}

/* Is the VM to have a seat at all? A wide one may go without, and then it waits. */
VERIFIED_ONCE strict_is_seated(u32 vm_id)
{
	struct strict_seat *seat;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		seat = strict_seat_at(i);
		if (seat && seat->next_vm == vm_id)
			return 1;
	}
	return 0;
}

/* Which vCPUs a round of strict_seat_all() is about; those that can go to few pCPUs choose first, then nobody is moved without need. */
enum strict_round {
	STRICT_RESTRICTED,
	STRICT_STAYS,
	STRICT_REST,
};

/* In that round, find a seat for the VM's vCPU of that number, if it does not sleep and has none. Return 1 if it still has none. */
VERIFIED_ONCE strict_seat_one(u32 vm_id, u32 id, u32 how, u32 round)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	struct vcpu_ctx *v;
	u32 *seat_of;
	s32 index;

	if (!s || !vm)
		return 0;
	index = vcpu_index(vm, id);
	v = vcpu_at(index);
	seat_of = strict_seat_of_vcpu(index);
	if (index < 0 || !v || !seat_of || v->state == VCPU_ASLEEP || *seat_of)
		return 0;
	/* In a wide one those choose first who went without the last time. */
	if (round != STRICT_REST && !s->wide && !!v->restricted != (round == STRICT_RESTRICTED))
		return 1;
	return !strict_find_seat(vm_id, index, how, s->wide || round != STRICT_STAYS);
}

/* One round. Return how many of the VM's vCPUs that do not sleep still have no seat. */
VERIFIED_ONCE strict_seat_round(u32 vm_id, u32 how, u32 round)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	struct vm_ctx *vm = vm_at(vm_id);
	u32 id, first;
	s32 i;

	if (!s || !vm)
		return 0;
	/* Not in a register: the verifier would tell all its values apart. */
	s->missing = 0;
	first = s->wide ? s->first : 0;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		id = first + i < vm->vcpu_end ? first + i : first + i - vm->vcpu_end;
		if (!strict_seat_one(vm_id, id, how, round))
			continue;
		if (!s->missing)
			s->unseated = id;
		s->missing++;
	}
	return s->missing;
}

/* Find seats for those of the VM's vCPUs that do not sleep and have none. Return how many still have none. */
static __always_inline u32 strict_seat_all(u32 vm_id, u32 how)
{
	struct strict_vm *s = strict_vm_at(vm_id);
	u32 missing;

	if (!s)
		return 0;
	missing = strict_seat_round(vm_id, how, STRICT_RESTRICTED);
	if (missing)
		missing = strict_seat_round(vm_id, how, STRICT_STAYS);
	if (missing)
		missing = strict_seat_round(vm_id, how, STRICT_REST);
	if (missing && s->wide && how != STRICT_IDLE)
		s->first = s->unseated;
	return missing;
}

/* Make whose seats are to be theirs theirs, and those pCPUs look where something has changed. */
VERIFIED_ONCE strict_commit(u64 now)
{
	struct strict_seat *seat;
	struct vcpu_ctx *v;
	struct cpu_ctx *c;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		seat = strict_seat_at(i);
		if (!seat)
			break;
		seat->changed = seat->vm != seat->next_vm || (seat->next_vm && seat->vcpu != seat->next_vcpu);
		if (seat->changed && seat->vm)
			stat_inc(STAT_GANG_STOPS);
		seat->vcpu = seat->next_vcpu;
		seat->vm = seat->next_vm;
	}
	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		seat = strict_seat_at(i);
		c = cpu_get(i);
		if (!seat || !c)
			break;
		v = seat->vm ? vcpu_at(seat->vcpu) : NULL;
		if (!seat->changed) {
			/* Whoever should sit there does not: unless a kernel thread has the pCPU for a moment, what it was told was lost. */
			if (!v || v->state != VCPU_WAITING || (v->pid && c->resume_pid == (u32)v->pid))
				continue;
			if (!time_before(v->since_ns + STRICT_PERIOD_NS, now))
				continue;
		}
		if (v) {
			stat_inc(STAT_GANG_STARTS);
			wish_leave(i, seat->vm, seat->vcpu, v, WISH_FORCED | WISH_MIGRATE | WISH_BY_RANK,
				   elapsed_ns(strict_end_ns, now) + STRICT_GRACE_NS, now);
		}
		scx_bpf_kick_cpu(i, SCX_KICK_PREEMPT);
	}
	return 0;
}

#endif
