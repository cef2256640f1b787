/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the core asks of a gang, passed on to the one that was chosen, and of gates (policy.h), passed on to all: a part of policy_calls.h, which includes it.
 */
#ifndef COHORT_GANG_CALLS_H
#define COHORT_GANG_CALLS_H

VERIFIED_ONCE gang_began(struct task_ctx *t, s32 cpu, u64 now)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	if (!t)
		return 0;
#define ASK(name, what) CASE(GANG_##name, gang_##name, began, gang_##name.began(t, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline bool gang_may_refuse(void)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, begins, return true)
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline bool gang_begins_here(struct task_ctx *t, s32 cpu, u64 now)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, begins, return gang_##name.begins(t, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return true;
}

VERIFIED_ONCE gang_begins(struct task_ctx *t, s32 cpu, u64 now)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	return !t || gang_begins_here(t, cpu, now);
}

/* The same for the thread of that pid. */
VERIFIED_ONCE gang_lets(s32 pid, s32 cpu)
{
	struct task_struct *p;
	struct task_ctx *t;
	bool lets;

	UNUSED_YET(cpu);
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_get(p);
	lets = t && gang_begins_here(t, cpu, now_ns());
	bpf_task_release(p);
	return lets;
}

static __always_inline bool gang_holds(const struct cpu_ctx *c, u64 now)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, holds, return gang_##name.holds(c, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline void gang_idles(s32 cpu, u64 now)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, idles, gang_##name.idles(cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
}

static __always_inline bool gang_hears_of_changes(void)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, changed, return true)
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline bool gang_settles(void)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, settle, return true)
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return false;
}

static __always_inline bool gang_has_gate(void)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, gate, return true)
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return false;
}

/* Called after every change of a vCPU's state, if the gang hears of changes. */
VERIFIED_ONCE gang_changed(struct task_ctx *t, u32 from, u64 now)
{
	struct vcpu_ctx *v;

	UNUSED_YET(t);
	UNUSED_YET(from);
	UNUSED_YET(now);
	if (!t || !gang_hears_of_changes())
		return 0;
	v = vcpu_get(t);
	if (!v)
		return 0;
#define ASK(name, what) CASE(GANG_##name, gang_##name, changed, gang_##name.changed(t, v, from, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

/* As gang_settle(), of a gang that has something to settle. */
VERIFIED_ONCE gang_settle_noted(u64 now)
{
	struct cpu_ctx *c;
	u32 vm;

	UNUSED_YET(now);
	c = cpu_get(bpf_get_smp_processor_id());
	if (!c || !c->settle_vm)
		return 0;
	vm = c->settle_vm;
	c->settle_vm = 0;
#define ASK(name, what) CASE(GANG_##name, gang_##name, settle, gang_##name.settle(vm, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

/* The end of an operation: what the last change of a vCPU's state on this pCPU leaves to do. */
static __always_inline void gang_settle(u64 now)
{
	if (gang_settles())
		gang_settle_noted(now);
}

VERIFIED_ONCE gang_tick_of(struct task_ctx *t, s32 cpu, u64 now)
{
	UNUSED_YET(t);
	UNUSED_YET(cpu);
	UNUSED_YET(now);
	if (!t)
		return 0;
#define ASK(name, what) CASE(GANG_##name, gang_##name, tick, gang_##name.tick(t, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline void gang_tick(struct task_ctx *t, s32 cpu, u64 now)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, tick, gang_tick_of(t, cpu, now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
}

static __always_inline bool gates_concern(const struct task_ctx *t)
{
#define ASK(name, what)                                       \
	if (!gate_##name.concerns || gate_##name.concerns(t)) \
		return true;
	GATES(ASK)
#undef ASK
	return false;
}

VERIFIED_ONCE gate_charge(struct task_ctx *t, u64 delta_ns, bool goes_on, u64 now)
{
	UNUSED_YET(t);
	UNUSED_YET(delta_ns);
	UNUSED_YET(goes_on);
	UNUSED_YET(now);
	if (!t)
		return 0;
#define ASK(name, what)         \
	if (gate_##name.charge) \
		gate_##name.charge(t, delta_ns, goes_on, now);
	GATES(ASK)
#undef ASK
	return 0;
}

VERIFIED_ONCE_U64 gate_lasts_ns(struct task_ctx *t)
{
	u64 least = 0, lasts;

	UNUSED_YET(t);
	if (!t)
		return 0;
#define ASK(name, what)                                             \
	lasts = gate_##name.lasts_ns ? gate_##name.lasts_ns(t) : 0; \
	if (lasts && (!least || lasts < least))                     \
		least = lasts;
	GATES(ASK)
#undef ASK
	return least;
}

#endif
