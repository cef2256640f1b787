/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Aside: out of the run queue because a gate is closed for a task (policy.h, GATE_ASIDE): it would be in the way of the search, and its share
 * goes to others meanwhile.
 */
#ifndef COHORT_ASIDE_H
#define COHORT_ASIDE_H

#include "account.h"

/* The queue of those on cpu that a gate keeps from running. */
#define ASIDE_DSQ(cpu) (0x20000ULL + (cpu))

/* Put aside for so long, a task runs all the same, for a moment: the kernel would eject a scheduler that keeps it for 30 s. */
#define ASIDE_MAX_NS 15000000000ULL

/* Which pCPUs have tasks put aside, as queued_mask. */
VARIABLE u64 aside_mask[MAX_CPUS / 64];

/* The bit of a cgroup in cpu_ctx.aside_of. Those of one that has gone may stay there until all are looked at. */
static __always_inline u64 limit_bit(u32 slot)
{
	return 1ULL << (slot & 63);
}

/* The bits of those cgroups that t is in, with a quota or not: they may have one later. */
static __always_inline u64 limit_bits(struct task_ctx *t)
{
	u32 slot = t->limits;
	struct entity_ctx *e;
	u64 bits = 0;
	s32 i;

	for (i = 0; i < MAX_DEPTH; i++) {
		e = entity_get(slot);
		if (!slot || !e)
			break;
		bits |= limit_bit(slot);
		slot = e->parent;
	}
	return bits;
}

static __always_inline bool has_aside(s32 cpu)
{
	return READ_ONCE(aside_mask[(u32)cpu / 64 % (MAX_CPUS / 64)]) >> ((u32)cpu % 64) & 1;
}

static __always_inline void mark_aside(s32 cpu, bool has)
{
	u64 *word = &aside_mask[(u32)cpu / 64 % (MAX_CPUS / 64)], bit = 1ULL << ((u32)cpu % 64);

	if (has)
		atomic_or(word, bit);
	else
		atomic_and(word, ~bit);
}

/*
 * Does a gate keep t from running on cpu, so that it is to be put aside? The pCPU is marked before the last look: of a gate that opens after that it is told
 * (gate_recheck()), and nobody has to find out that it was open before.
 */
VERIFIED_ONCE goes_aside(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (!t || !c || gate_for(t, cpu, now) != GATE_ASIDE)
		return false;
	atomic_or(&c->aside_of, limit_bits(t));
	mark_aside(cpu, true);
	c->aside_came++;
	return gate_for(t, cpu, now) == GATE_ASIDE;
}

/* A gate keeps t from running: it is out of the way now. */
VERIFIED_ONCE now_aside(struct task_ctx *t, u64 now)
{
	if (!t)
		return 0;
	t->aside = true;
	account_place(t, -1);
	vcpu_set_state(t, VCPU_ASLEEP, -1, now);
	stat_inc(STAT_THROTTLED);
	return 0;
}

/*
 * A gate may have opened, that of the cgroups with these bits: the pCPUs that have put tasks of theirs aside look at them again. Nobody else's turn ends for
 * that: with a hundred cgroups that use up their quotas no turn would last.
 */
VERIFIED_ONCE gate_recheck(u64 bits, u64 kick)
{
	struct cpu_ctx *c;
	s32 i, word;

	bpf_for(word, 0, MAX_CPUS / 64) {
		if (word * 64 >= nr_cpus)
			break;
		if (!READ_ONCE(aside_mask[word & (MAX_CPUS / 64 - 1)]))
			continue;
		bpf_for(i, 0, 64) {
			if (word * 64 + i >= nr_cpus || !has_aside(word * 64 + i))
				continue;
			c = cpu_get(word * 64 + i);
			if (c && READ_ONCE(c->aside_of) & bits)
				scx_bpf_kick_cpu(word * 64 + i, kick);
		}
	}
	return 0;
}

/* Let those that were put aside and may run again compete; and one that has been aside for too long. */
VERIFIED_ONCE recall_aside(s32 cpu, u32 scan, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = 0, came;
	u64 bits = 0;
	s32 idle;

	if (!c || !has_aside(cpu))
		return 0;
	came = READ_ONCE(c->aside_came);
	bpf_for_each(scx_dsq, p, ASIDE_DSQ(cpu), 0) {
		if (seen++ >= scan)
			break;
		t = task_get(p);
		if (!t)
			continue;
		/* Whom a gang keeps waiting waits in the queue: aside it would count as asleep, and no gang would ever let it run. */
		if (gate_for(t, cpu, now) == GATE_ASIDE) {
			bits |= limit_bits(t);
			continue;
		}
		order_wake(t, cpu, now, true);
		t->aside = false;
		account_place(t, cpu);
		vcpu_set_state(t, VCPU_WAITING, cpu, now);
		scx_bpf_dsq_move_set_vtime(BPF_FOR_EACH_ITER, order_key(t));
		scx_bpf_dsq_move_vtime(BPF_FOR_EACH_ITER, p, cpu, 0);
		queue_mark(cpu, t->reach ?: EVERYWHERE);
		/* Whoever has this pCPU may deserve it more, and a pCPU that idles has looked when nobody was here. */
		idle = task_is_pinned(p) ? -1 : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
		if (idle >= 0)
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	}
	/* Somebody is put aside here with this pCPU's run queue locked, which a move of one who was queued elsewhere gives up for a moment. */
	if (seen <= scan && came == READ_ONCE(c->aside_came))
		c->aside_of = bits;
	else
		atomic_or(&c->aside_of, bits);
	if (scx_bpf_dsq_nr_queued(ASIDE_DSQ(cpu)) <= 0)
		mark_aside(cpu, false);
	return 0;
}

#endif
