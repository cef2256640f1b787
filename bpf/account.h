/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a task has run. Counted here, as the kernel counts it; what it costs is the order's to say (policy.h).
 */
#ifndef COHORT_ACCOUNT_H
#define COHORT_ACCOUNT_H

#include "registry.h"

/* After this many times starve_ns a vCPU runs next even if its VM has had far more than its share. */
#define STARVE_MAX 10

/* ... and any other task: its cgroup may have many, who wait for one another. A third of what the kernel's watchdog allows. */
#define OVERDUE_NS 10000000000ULL

/* The least of a turn that is worth a context switch. */
#define TURN_REST_MIN_NS 500000ULL

/*
 * For how long has t waited for a pCPU? One that is taken from it as soon as it has it was none: where turns of several pCPUs end together, another may force
 * somebody onto this one at the moment at which it has chosen.
 */
static __always_inline u64 waited_ns(const struct task_ctx *t, u64 now)
{
	return t->queued_ns ? elapsed_ns(now, t->unserved_ns ?: t->queued_ns) : 0;
}

/* t has a pCPU. */
static __always_inline void service_begins(struct task_ctx *t, u64 now)
{
	if (!t->unserved_ns) {
		t->unserved_ns = t->queued_ns;
		t->unserved_ran_ns = 0;
	}
	t->runs_from_ns = now;
}

/* It sleeps, or is new: it neither runs nor waits, and will not wait again at once. */
static __always_inline bool is_asleep(const struct task_ctx *t)
{
	return t->cpu < 0 && !t->comes_back;
}

/* It gives it away, so that nothing is taken from it. */
static __always_inline void service_is_given_up(struct task_ctx *t)
{
	t->runs_from_ns = 0;
}

/* It has none any more. */
static __always_inline void service_ends(struct task_ctx *t, bool is_taken_away, u64 now)
{
	/* Moments add up: whoever has many runs, though a kernel thread interrupts each. */
	t->unserved_ran_ns += elapsed_ns(now, t->runs_from_ns);
	if (!is_taken_away || t->unserved_ran_ns >= TURN_REST_MIN_NS)
		t->unserved_ns = 0;
}

/* Has t waited so long that it must run, whoever deserves it more? */
static __always_inline bool is_overdue(const struct task_ctx *t, u64 now)
{
	return waited_ns(t, now) > (t->vcpu >= 0 || !t->leaf ? STARVE_MAX * starve_ns : OVERDUE_NS);
}

/* Has t waited for so long that the order may find it too long (policy.h)? Most have not, and it is not asked about those. */
static __always_inline bool may_be_urgent(const struct task_ctx *t, u64 now)
{
	u64 waited = waited_ns(t, now);

	return waited > starve_ns || waited > OVERDUE_NS;
}

static __always_inline u64 scale_by_weight(u64 delta_ns, u64 weight)
{
	return weight == WEIGHT_DEFAULT ? delta_ns : delta_ns * WEIGHT_DEFAULT / (weight ?: 1);
}

/* The time that one of that weight runs for so much virtual time. */
static __always_inline u64 unscale_by_weight(u64 vtime, u64 weight)
{
	return weight == WEIGHT_DEFAULT ? vtime : vtime * weight / WEIGHT_DEFAULT;
}

/* Count what a running task has run since the last time; it goes on or not. */
static void run_charge(const struct task_struct *p, struct task_ctx *t, u64 weight, bool goes_on, u64 now)
{
	u64 delta;

	if (!t->charged_ns)
		return;
	delta = elapsed_ns(run_clock(p), t->charged_ns);
	t->charged_ns += delta;
	if (t->vm) {
		t->untold.runtime_ns += delta;
		tally(t, now);
	}
	if (!order_is_paid(t))
		order_charge(t, weight, delta);
	if (gates_concern(t))
		gate_charge(t, delta, goes_on, now);
}

/* From now on it runs, for the entities that it is part of now. */
static void run_start(const struct task_struct *p, struct task_ctx *t, u64 now)
{
	struct entity_ctx *leaf = entity_at(t->leaf);

	__builtin_memset(t->run_path, 0, sizeof(t->run_path));
	t->run_leaf = t->leaf;
	if (leaf) {
		__builtin_memcpy(t->run_path, leaf->path, sizeof(t->run_path));
		atomic_add(&leaf->nr_running, 1);
	}
	t->charged_ns = run_clock(p);
}

/* It runs no more. weight: what it was until now. */
static void run_stop(const struct task_struct *p, struct task_ctx *t, u64 weight, u64 now)
{
	struct entity_ctx *leaf;

	if (!t->charged_ns)
		return;
	run_charge(p, t, weight, false, now);
	if (t->has_turn)
		order_end(t, weight);
	leaf = entity_at(t->run_leaf);
	if (leaf)
		atomic_add(&leaf->nr_running, -1);
	t->charged_ns = 0;
}

#endif
