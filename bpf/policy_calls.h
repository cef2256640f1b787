/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the core asks (policy.h), passed on to the policy that was chosen. The headers come from the tables of policies.h: policy_headers.h, which the
 * build writes, includes order_NAME.h for every order, and so on.
 *
 * Each question is a switch over a constant: `if (order_NAME.hook)` is folded by the compiler, for the structs are constant, and the cases that were not
 * chosen are dropped by the verifier.
 */
#ifndef COHORT_POLICY_CALLS_H
#define COHORT_POLICY_CALLS_H

#include "policy.h"

/* Those that decide nothing have no header. */
static const struct gang gang_off;
static const struct spin spin_off;
static const struct guard guard_off;

#include "policy_headers.h"

#define CASE(number, policy, hook, call) \
	case number:                     \
		if (policy.hook)         \
			call;            \
		break;

static __always_inline bool order_is_of_vms(void)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, of_vms, return true)
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return false;
}

VERIFIED_ONCE order_rank(struct task_ctx *t, u64 now, struct rank *r)
{
	UNUSED_YET(t);
	UNUSED_YET(now);
	UNUSED_YET(r);
	if (!t || !r)
		return 0;
	__builtin_memset(r, 0, sizeof(*r));
	r->own = t->vtime;
#define ASK(name, what) CASE(ORDER_##name, order_##name, rank, order_##name.rank(t, now, r))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_rank_of_runner(struct cpu_ctx *c, u64 now, struct rank *r)
{
	UNUSED_YET(c);
	UNUSED_YET(now);
	UNUSED_YET(r);
	if (!c || !r)
		return 0;
	__builtin_memset(r, 0, sizeof(*r));
	r->own = c->curr_vtime;
#define ASK(name, what) CASE(ORDER_##name, order_##name, rank_of_runner, order_##name.rank_of_runner(c, now, r))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	bool result;

	UNUSED_YET(a);
	UNUSED_YET(b);
	UNUSED_YET(margin_ns);
	if (!a || !b)
		return 0;
	result = time_before(a->own + margin_ns, b->own);
#define ASK(name, what) CASE(ORDER_##name, order_##name, before, result = order_##name.before(a, b, margin_ns))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return result;
}

VERIFIED_ONCE_U64 order_key(struct task_ctx *t)
{
	u64 result;

	UNUSED_YET(t);
	if (!t)
		return 0;
	result = t->vtime;
#define ASK(name, what) CASE(ORDER_##name, order_##name, key, result = order_##name.key(t))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return result;
}

VERIFIED_ONCE order_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	UNUSED_YET(queued);
	if (!t)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, wake, order_##name.wake(t, cpu, now, queued))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_sleep_of(struct task_ctx *t)
{
	UNUSED_YET(t);
	if (!t)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, sleep, order_##name.sleep(t))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline void order_sleep(struct task_ctx *t)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, sleep, order_sleep_of(t))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
}

VERIFIED_ONCE order_exits(struct task_ctx *t, s32 cpu)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	if (!t)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, exits, order_##name.exits(t, cpu))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(slice);
	UNUSED_YET(weight);
	UNUSED_YET(by_rank);
	if (!t)
		return 0;
	t->has_turn = true;
#define ASK(name, what) CASE(ORDER_##name, order_##name, begin, order_##name.begin(t, cpu, slice, weight, by_rank))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_charge(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	UNUSED_YET(t);
	UNUSED_YET(weight);
	UNUSED_YET(delta_ns);
	if (!t)
		return 0;
#define ASK(name, what)                                                \
	case ORDER_##name:                                             \
		if (order_##name.charge)                               \
			order_##name.charge(t, weight, delta_ns);      \
		else                                                   \
			t->vtime += scale_by_weight(delta_ns, weight); \
		break;
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline bool order_is_paid(const struct task_ctx *t)
{
	bool ahead = false;

#define ASK(name, what) CASE(ORDER_##name, order_##name, pays_ahead, ahead = true)
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return ahead && !time_before(t->paid_until_ns, t->charged_ns);
}

VERIFIED_ONCE order_kept(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	UNUSED_YET(t);
	UNUSED_YET(weight);
	UNUSED_YET(delta_ns);
	if (!t)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, kept, order_##name.kept(t, weight, delta_ns))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_end(struct task_ctx *t, u64 weight)
{
	UNUSED_YET(t);
	UNUSED_YET(weight);
	if (!t || !t->has_turn)
		return 0;
	t->has_turn = false;
#define ASK(name, what) CASE(ORDER_##name, order_##name, end, order_##name.end(t, weight))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_yields(struct task_ctx *t, struct rank *own, struct rank *to)
{
	UNUSED_YET(t);
	UNUSED_YET(own);
	UNUSED_YET(to);
	if (!t || !own || !to)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, yields, order_##name.yields(t, own, to))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE_U64 order_slice(struct task_ctx *t, s32 cpu)
{
	u64 result;

	UNUSED_YET(t);
	UNUSED_YET(cpu);
	result = slice_for(cpu);
	/* Whoever had the pCPU sleeps. */
	if (!t)
		return result;
#define ASK(name, what) CASE(ORDER_##name, order_##name, slice, result = order_##name.slice(t, cpu))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return result;
}

/* The same for one that comes to an idle pCPU. Left out: slice_ns. */
static __always_inline u64 order_slice_alone(struct task_ctx *t, s32 cpu)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, slice, return order_##name.slice(t, cpu))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return slice_ns;
}

VERIFIED_ONCE order_urgency(struct task_ctx *t, struct rank *r, s32 cpu, u64 now)
{
	u32 result;

	UNUSED_YET(t);
	UNUSED_YET(r);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	if (!t || !r)
		return 0;
	result = is_overdue(t, now) ? URGENCY_OVERDUE : URGENCY_NONE;
#define ASK(name, what) CASE(ORDER_##name, order_##name, urgency, result = order_##name.urgency(t, r, cpu, now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return result;
}

VERIFIED_ONCE order_before_pick_on(s32 cpu, u64 now)
{
	UNUSED_YET(cpu);
	UNUSED_YET(now);
#define ASK(name, what) CASE(ORDER_##name, order_##name, before_pick, order_##name.before_pick(cpu, now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline void order_before_pick(s32 cpu, u64 now)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, before_pick, order_before_pick_on(cpu, now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
}

VERIFIED_ONCE order_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	if (!t)
		return 0;
#define ASK(name, what) CASE(ORDER_##name, order_##name, tick, order_##name.tick(t, cpu, now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

#include "gang_calls.h"

/* How long the turn of t, of that VM, is that begins on cpu now. */
VERIFIED_ONCE_U64 turn_slice(struct task_ctx *t, u32 vm, s32 cpu, u64 now)
{
	u64 slice = 0;

	UNUSED_YET(t);
	UNUSED_YET(vm);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
#define ASK(name, what) CASE(GANG_##name, gang_##name, slice, slice = gang_##name.slice(vm, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return slice ?: order_slice(t, cpu);
}

/* How long one runs that wakes on an idle pCPU. */
static __always_inline u64 wake_slice(struct task_ctx *t, s32 cpu, u64 now)
{
	return gang_may_refuse() ? turn_slice(t, t->vm, cpu, now) : order_slice_alone(t, cpu);
}

/* The turn of the waiting thread of that pid. */
VERIFIED_ONCE_U64 turn_slice_of_pid(s32 pid, u32 vm, s32 cpu, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	u64 slice;

	if (!p)
		return slice_ns;
	slice = turn_slice(task_get(p), vm, cpu, now);
	bpf_task_release(p);
	return slice;
}

/* The same, if the order looks at whose turn it is. t is the one that leaves, or NULL. */
static __always_inline u64 turn_slice_of(s32 pid, struct task_ctx *t, u32 vm, s32 cpu, u64 now)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, slice, return turn_slice_of_pid(pid, vm, cpu, now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return turn_slice(t, vm, cpu, now);
}

VERIFIED_ONCE gates_ask(struct task_ctx *t, s32 cpu, u64 now)
{
	u32 answer = GATE_OPEN;

	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	if (!t || (t->queued_ns && elapsed_ns(now, t->queued_ns) > ASIDE_MAX_NS))
		return GATE_OPEN;
#define ASK(name, what) \
	if (!answer)    \
		answer = gate_##name.ask(t, cpu, now);
	GATES(ASK)
#undef ASK
	if (answer)
		return answer;
#define ASK(name, what) CASE(GANG_##name, gang_##name, gate, answer = gang_##name.gate(t, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return answer;
}

static __always_inline u32 gate_for(struct task_ctx *t, s32 cpu, u64 now)
{
	return may_be_kept_off(t) ? gates_ask(t, cpu, now) : GATE_OPEN;
}

static __always_inline void spin_on_spin(struct task_ctx *t, s32 cpu, bool in_kernel)
{
#define ASK(name, what) CASE(SPIN_##name, spin_##name, on_spin, spin_##name.on_spin(t, cpu, in_kernel))
	switch (spin) {
		SPINS(ASK)
	}
#undef ASK
}

static __always_inline bool spin_offered(struct task_struct *from, struct task_struct *to, u64 now)
{
#define ASK(name, what) CASE(SPIN_##name, spin_##name, offered, return spin_##name.offered(from, to, now))
	switch (spin) {
		SPINS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline void spin_called(struct task_ctx *t, s32 cpu, s32 to)
{
#define ASK(name, what) CASE(SPIN_##name, spin_##name, called, spin_##name.called(t, cpu, to))
	switch (spin) {
		SPINS(ASK)
	}
#undef ASK
}

static __always_inline u64 guard_grace_for(struct task_ctx *t, struct vcpu_ctx *v, s32 cpu, u64 now)
{
#define ASK(name, what) CASE(GUARD_##name, guard_##name, grace_ns, return guard_##name.grace_ns(t, v, cpu, now))
	switch (guard) {
		GUARDS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline bool guard_gives_grace(void)
{
#define ASK(name, what) CASE(GUARD_##name, guard_##name, grace_ns, return true)
	switch (guard) {
		GUARDS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline bool guard_may_keep(void)
{
#define ASK(name, what) CASE(GUARD_##name, guard_##name, keep_ns, return true)
	switch (guard) {
		GUARDS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline u64 guard_keep_for(const struct vcpu_ctx *v, u64 rest_ns)
{
#define ASK(name, what) CASE(GUARD_##name, guard_##name, keep_ns, return guard_##name.keep_ns(v, rest_ns))
	switch (guard) {
		GUARDS(ASK)
	}
#undef ASK
	return 0;
}

#endif
