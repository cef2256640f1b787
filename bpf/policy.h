/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a policy decides. The core knows queues, the search through them, and wishes ("run this one next"); it asks here whenever there is something
 * to decide. A policy is one choice from each table of policies.h. The choices are constants when the scheduler is loaded: the verifier drops what is not
 * chosen.
 *
 * Each header defines one `static const struct order order_NAME` (or gang, spin, guard, gate), with functions for what it decides; what it leaves out is
 * as described here. The functions are static. None may sleep, loop without bound, or keep a pointer. Arguments are never NULL.
 */
#ifndef COHORT_POLICY_H
#define COHORT_POLICY_H

#include "marks.h"

/* A task's place in the order. Less is better. */
struct rank {
	u64 own;
	/* Of orders that divide by a tree, beside it: */
	u64 unused_ns; /* paid for turns that are not over: a runner's own, and a VM's other threads' */
	u64 credit_ns; /* it may go before others by so much */
	union {
		u64 behind_ns; /* of a vCPU: how far it is behind its furthest sibling */
		u64 rate;      /* of flat orders: how fast its virtual time moves */
	};
	u16 path[MAX_DEPTH];
	u32 own_turn_us; /* the virtual time that a turn costs it; 0: it has just slept */
};

/* Has one waited too long? */
enum urgency {
	URGENCY_NONE,
	URGENCY_STARVED, /* it goes before everybody who has not */
	URGENCY_OVERDUE, /* ... although it has had more than its share: for a moment only */
};

/* Who deserves the pCPU. `weight` is p->scx.weight, 100 for nice 0. */
struct order {
	/* A VM's threads compete as one, and each cgroup with its tasks: t->leaf is theirs. */
	bool of_vms;

	/* t's place now; *r is zero but for `own`. Left out: its virtual time. */
	void (*rank)(struct task_ctx *t, u64 now, struct rank *r);

	/* The same for the one that runs on c, from what begin() has left there. Left out: curr_vtime. */
	void (*rank_of_runner)(const struct cpu_ctx *c, u64 now, struct rank *r);

	/* Does a deserve the pCPU more than b, by a margin of virtual time? Left out: if its own time is less. */
	bool (*before)(struct rank *a, struct rank *b, u64 margin_ns);

	/* Where in a queue a task comes to wait; those that come first are looked at first. Left out: its virtual time. */
	u64 (*key)(const struct task_ctx *t);

	/* t comes to be queued on cpu, or (not queued) to run there at once; t->cpu is still where it was, -1 if it slept. Left out: nothing. */
	void (*wake)(struct task_ctx *t, s32 cpu, u64 now, bool queued);

	/* t, which ran or waited, sleeps, exits, or is put aside. Left out: nothing. */
	void (*sleep)(struct task_ctx *t);

	/* t, which is about to exit, has left cpu for it; what it ran has been charged. Left out: nothing. */
	void (*exits)(struct task_ctx *t, s32 cpu);

	/*
	 * A turn begins for t on cpu, at t->begins_ns, not longer than slice; by_rank: it was chosen for its rank, not because it was boosted or the pCPU idle.
	 * Left out: nothing.
	 */
	void (*begin)(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank);

	/* t has run for delta_ns. Left out: its virtual time moves on by that, over its weight. */
	void (*charge)(struct task_ctx *t, u64 weight, u64 delta_ns);

	/* A turn is paid for when it begins, until t->paid_until_ns: charge() has nothing to do before t has run for longer. */
	bool pays_ahead;

	/* A pCPU was kept for t for delta_ns: it pays as if it had run. Left out: nothing; a guard that keeps pCPUs needs an order that has this. */
	void (*kept)(struct task_ctx *t, u64 weight, u64 delta_ns);

	/* Its turn is over, once for each begin(); what it ran has been charged. It may begin another at once. Left out: nothing. */
	void (*end)(struct task_ctx *t, u64 weight);

	/* t, of rank `own`, whose turn is over, leaves its pCPU to one of rank `to`, though it could go on: it yields. Left out: nothing. */
	void (*yields)(struct task_ctx *t, struct rank *own, struct rank *to);

	/* How long the turn of t is that begins on cpu now. Left out: slice_ns, less where many wait. */
	u64 (*slice)(const struct task_ctx *t, s32 cpu);

	/*
	 * Has waiting t, of that rank, waited too long? Only one that has waited longer than starve_ns or OVERDUE_NS can have; of others it need not be asked.
	 * Left out: overdue, as is_overdue() says.
	 */
	u32 (*urgency)(struct task_ctx *t, struct rank *r, s32 cpu, u64 now);

	/* cpu is about to choose who runs next. Left out: nothing. */
	void (*before_pick)(s32 cpu, u64 now);

	/* t runs on cpu, and the kernel's clock has ticked. Left out: nothing. */
	void (*tick)(struct task_ctx *t, s32 cpu, u64 now);

	/* Called every period_ns, on any pCPU. Left out, or 0: never. */
	void (*period)(u64 now);
	u64 period_ns;
};

/* Which vCPUs run together. */
struct gang {
	bool of_vms; /* makes no sense with an order that knows no VMs */

	/* t has been given cpu, or goes on there. */
	void (*began)(struct task_ctx *t, s32 cpu, u64 now);

	/*
	 * t has been chosen to run on cpu, for its rank or a wish. Return false if it may not: then somebody else is chosen. What the gang does for t's
	 * siblings it does here, before t runs. Left out: true.
	 */
	bool (*begins)(struct task_ctx *t, s32 cpu, u64 now);

	/* May the runner of c not be preempted for rank? Left out: it may. */
	bool (*holds)(const struct cpu_ctx *c, u64 now);

	/* cpu has found nobody to run; it is about to look once more, everywhere. */
	void (*idles)(s32 cpu, u64 now);

	/*
	 * A vCPU's state has changed, to v->state: it waits, runs or sleeps. Called from so deep inside that the verifier of 6.18 allows no function to be called
	 * from here that is not inlined: settle_later() puts off what is more than a note.
	 */
	void (*changed)(struct task_ctx *t, struct vcpu_ctx *v, u32 from, u64 now);

	/* May t run on cpu now? As gate.ask. */
	u32 (*gate)(struct task_ctx *t, s32 cpu, u64 now);

	/* t runs on cpu, and the kernel's clock has ticked. Left out: nothing. */
	void (*tick)(struct task_ctx *t, s32 cpu, u64 now);

	/* At the end of an operation: what changed() has put off for that VM. */
	void (*settle)(u32 vm, u64 now);

	/* How long a turn of that VM (as task_ctx.vm) is; 0: as the order says. With begins(), also of one that wakes on an idle pCPU. */
	u64 (*slice)(u32 vm, s32 cpu, u64 now);

	void (*period)(u64 now);
	u64 period_ns;
};

/* What a pause-loop exit does. */
struct spin {
	/* The current task, a vCPU, has left its guest because it spins. */
	void (*on_spin)(struct task_ctx *t, s32 cpu, bool in_kernel);

	/* KVM asks that `to` runs instead of `from`, the current task. Return true if it will. Left out: false. */
	bool (*offered)(struct task_struct *from, struct task_struct *to, u64 now);

	/* t, the current task, is a vCPU that calls vCPU `to` of its VM by an IPI, and as a rule waits for the answer. */
	void (*called)(struct task_ctx *t, s32 cpu, s32 to);
};

/* Who may not lose its pCPU now. */
struct guard {
	/*
	 * vCPU t has just lost cpu although it could go on; KVM has put it, so that vcpu_preempted_in_kernel() tells of this time. How long it may have it back
	 * at once; 0: it queues like everybody. v->graces is how often it had that in a row, v->gave_way whether it gave the pCPU away itself.
	 */
	u64 (*grace_ns)(struct task_ctx *t, struct vcpu_ctx *v, s32 cpu, u64 now);

	/*
	 * The vCPU goes to sleep, with so much of its turn left. How long its pCPU is to be kept for it, idle; 0: it is not. v->slept_ns says how long it sleeps as
	 * a rule.
	 */
	u64 (*keep_ns)(const struct vcpu_ctx *v, u64 rest_ns);
};

/*
 * May one run now? Asked on every path that gives a pCPU, but for pinned kernel threads that wake, for what they do is the kernel's, and short; for those that
 * exit; for those overdue in a long queue; and for those that have waited for ASIDE_MAX_NS.
 */
enum gate_answer {
	GATE_OPEN,
	GATE_WAIT,  /* no; it keeps its place in the queue, and is passed over */
	GATE_ASIDE, /* no, and not soon: it does not even wait, until gate_recheck() says that something has changed */
};

struct gate {
	u32 (*ask)(struct task_ctx *t, s32 cpu, u64 now);

	/*
	 * Can this gate be closed for t, as things are? Of others it need be neither asked nor told, so ask() and the rest must do nothing for them. It may
	 * change only while t does not run, or what began with lasts_ns() would have no end. Left out: it can.
	 */
	bool (*concerns)(const struct task_ctx *t);

	/* t has run for delta_ns, and goes on or not. */
	void (*charge)(struct task_ctx *t, u64 delta_ns, bool goes_on, u64 now);

	/* A turn of t begins, or another one at once: after how long will the gate close for it? 0: not before something else happens. Left out: 0. */
	u64 (*lasts_ns)(struct task_ctx *t);
};

/* Does the order that was chosen know VMs? */
static __always_inline bool order_is_of_vms(void);

/* Does the gang that was chosen have begins()? */
static __always_inline bool gang_may_refuse(void);

/* Does the guard that was chosen keep pCPUs? */
static __always_inline bool guard_may_keep(void);

/* Does the gang that was chosen have changed()? gate()? */
static __always_inline bool gang_hears_of_changes(void);
static __always_inline bool gang_has_gate(void);

static __always_inline bool gang_holds(const struct cpu_ctx *c, u64 now);

/* Can a gate be closed for t, as things are? */
static __always_inline bool gates_concern(const struct task_ctx *t);

/* ... or does its gang keep vCPUs from running? */
static __always_inline bool may_be_kept_off(const struct task_ctx *t)
{
	return gang_has_gate() || gates_concern(t);
}

static __always_inline u32 gate_for(struct task_ctx *t, s32 cpu, u64 now);
static __always_inline void order_sleep(struct task_ctx *t);

/* Has t paid for what it has run, so that charge() has nothing to do? */
static __always_inline bool order_is_paid(const struct task_ctx *t);

/* The choices, as the core asks for them; policy_calls.h passes each on to the policy that was chosen. */
VERIFIED_ONCE order_rank(struct task_ctx *t, u64 now, struct rank *r);
VERIFIED_ONCE order_rank_of_runner(struct cpu_ctx *c, u64 now, struct rank *r);
VERIFIED_ONCE order_before(struct rank *a, struct rank *b, u64 margin_ns);
VERIFIED_ONCE_U64 order_key(struct task_ctx *t);
VERIFIED_ONCE order_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued);
VERIFIED_ONCE order_exits(struct task_ctx *t, s32 cpu);
VERIFIED_ONCE order_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank);
VERIFIED_ONCE order_charge(struct task_ctx *t, u64 weight, u64 delta_ns);
VERIFIED_ONCE order_kept(struct task_ctx *t, u64 weight, u64 delta_ns);
VERIFIED_ONCE order_end(struct task_ctx *t, u64 weight);
VERIFIED_ONCE order_yields(struct task_ctx *t, struct rank *own, struct rank *to);
VERIFIED_ONCE_U64 order_slice(struct task_ctx *t, s32 cpu);
VERIFIED_ONCE order_urgency(struct task_ctx *t, struct rank *r, s32 cpu, u64 now);
VERIFIED_ONCE order_tick(struct task_ctx *t, s32 cpu, u64 now);
VERIFIED_ONCE gang_began(struct task_ctx *t, s32 cpu, u64 now);
VERIFIED_ONCE gang_begins(struct task_ctx *t, s32 cpu, u64 now);
VERIFIED_ONCE gang_lets(s32 pid, s32 cpu);
VERIFIED_ONCE gang_changed(struct task_ctx *t, u32 from, u64 now);
VERIFIED_ONCE gate_charge(struct task_ctx *t, u64 delta_ns, bool goes_on, u64 now);

#endif
