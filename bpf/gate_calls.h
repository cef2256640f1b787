/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the core asks of gates (policy.h), passed on to all, and whether a gang keeps a vCPU off: a part of policy_calls.h, which includes it.
 */
#ifndef COHORT_GATE_CALLS_H
#define COHORT_GATE_CALLS_H

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

#endif
