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

/* May p, t, not run on cpu now? Who exits may: what it holds is others' to wait for. */
static __always_inline u32 gate_of(const struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	return p->flags & PF_EXITING ? GATE_OPEN : gate_for(t, cpu, now);
}

/*
 * Does a gate keep t from running on cpu, so that it is to be put aside? The pCPU is marked before the last look: of a gate that opens after that it is told
 * (gate_recheck()), and nobody has to find out that it was open before.
 */
VERIFIED_ONCE goes_aside(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c;

	if (!t || gate_for(t, cpu, now) != GATE_ASIDE)
		return false;
	c = cpu_get(cpu);
	if (!c)
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
 * Nobody of ours has that pCPU, and it does not idle: it is between two tasks, or a real-time task has it for as long as that likes, and who is aside there would be
 * recalled by nobody. So another is asked to look there when it next chooses: this one if it can, or the next that can. (On kernels before 6.19 no operation
 * tells that an idle pCPU was taken.)
 */
VERIFIED_ONCE tell_another(s32 cpu, s32 here)
{
	struct cpu_ctx *c;
	s32 i, at = here;

	bpf_for(i, 0, nr_cpus) {
		c = cpu_get(at);
		if (at != cpu && c && c->online && !c->taken) {
			c->aside_asked = 1;
			scx_bpf_kick_cpu(at, SCX_KICK_IDLE);
			break;
		}
		at = at + 1 < nr_cpus ? at + 1 : 0;
	}
	return 0;
}

/*
 * A gate may have opened, that of the cgroups with these bits: the pCPUs that have put tasks of theirs aside look at them again. Nobody else's turn ends for
 * that: with a hundred cgroups that use up their quotas no turn would last.
 */
VERIFIED_ONCE gate_recheck(u64 bits, u64 kick)
{
	s32 i, word, here = bpf_get_smp_processor_id();
	struct cpu_ctx *c;

	bpf_for(word, 0, MAX_CPUS / 64) {
		if (word * 64 >= nr_cpus)
			break;
		if (!READ_ONCE(aside_mask[word & (MAX_CPUS / 64 - 1)]))
			continue;
		bpf_for(i, 0, 64) {
			if (word * 64 + i >= nr_cpus || !has_aside(word * 64 + i))
				continue;
			c = cpu_get(word * 64 + i);
			if (!c || !(READ_ONCE(c->aside_of) & bits))
				continue;
			c->aside_look = 1;
			if (!c->curr_pid && scx_bpf_test_and_clear_cpu_idle(word * 64 + i)) {
				scx_bpf_kick_cpu(word * 64 + i, SCX_KICK_IDLE);
				continue;
			}
			scx_bpf_kick_cpu(word * 64 + i, kick);
			if (!c->curr_pid) {
				c->aside_opens = 1;
				tell_another(word * 64 + i, here);
			}
		}
	}
	return 0;
}

/*
 * Let those that were put aside and may run again compete; and one that has been aside for too long. here: on that pCPU, which is told when a gate opens. Until
 * then they are in nobody's way; what tells of no gate, that somebody has been aside for too long, is asked now and then.
 */
VERIFIED_ONCE recall_aside(s32 cpu, u32 scan, bool here, u64 now)
{
	struct cpu_ctx *c = has_aside(cpu) ? cpu_get(cpu) : NULL;
	struct task_struct *p;
	struct task_ctx *t;
	u32 seen = 0, came, queued;
	u64 bits = 0;
	s32 idle;

	if (!c)
		return 0;
	if (here && !READ_ONCE(c->aside_look) && !c->aside_rest && elapsed_ns(now, c->aside_looked_ns) < starve_ns)
		return 0;
	/* One at a time: the counts of where a task is are right if one moves it. */
	if (atomic_cas(&c->aside_busy, 0, 1))
		return 0;
	queued = scx_bpf_dsq_nr_queued(ASIDE_DSQ(cpu));
	/* Before the first gate is asked, or the word of one that opens meanwhile were lost. */
	if (here && (atomic_cas(&c->aside_look, 1, 0) || !c->aside_rest))
		c->aside_rest = queued;
	c->aside_looked_ns = now;
	c->aside_opens = 0;
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
			/* Of more than are looked at the next ones have their turn next time. Whoever is moved is newer than this walk, which does not meet it again. */
			if (queued > scan)
				scx_bpf_dsq_move(BPF_FOR_EACH_ITER, p, ASIDE_DSQ(cpu), 0);
			continue;
		}
		order_wake(t, cpu, now, true);
		t->aside = false;
		/* Its own quota kept it from running, no other task: it begins to wait now. Whom it has kept for too long is let in for that. */
		if (elapsed_ns(now, t->queued_ns) <= ASIDE_MAX_NS) {
			t->unserved_ns = now;
			t->unserved_ran_ns = 0;
		}
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
	if (here && seen <= scan && came == READ_ONCE(c->aside_came))
		c->aside_of = bits;
	else
		atomic_or(&c->aside_of, bits);
	if (here)
		c->aside_rest = seen > scan && c->aside_rest > scan ? c->aside_rest - scan : 0;
	else if (seen > scan)
		c->aside_look = 1;
	/* The others, where nobody else would make it look: the kernel drops that where somebody runs from now on. */
	if (here && c->aside_rest)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	/* From elsewhere nobody knows whether another is on the way there. */
	if (here && scx_bpf_dsq_nr_queued(ASIDE_DSQ(cpu)) <= 0)
		mark_aside(cpu, false);
	c->aside_busy = 0;
	return 0;
}

/* The dispatch of the pCPU of c: tasks of other pCPUs may run again, and nobody can look there (tell_another()). */
VERIFIED_ONCE recall_elsewhere(struct cpu_ctx *c, u32 scan, u64 now)
{
	struct cpu_ctx *other;
	s32 i;

	if (!c || !c->aside_asked)
		return 0;
	c->aside_asked = 0;
	bpf_for(i, 0, nr_cpus) {
		other = cpu_get(i);
		if (other && other->aside_opens)
			recall_aside(i, scan, false, now);
	}
	return 0;
}

/* The dispatch of cpu, whose context is c: whoever is aside and may run again competes, here and where nobody can look. */
static __always_inline void recall(struct cpu_ctx *c, s32 cpu, u32 scan, u64 now)
{
	if (has_aside(cpu))
		recall_aside(cpu, scan, true, now);
	if (c->aside_asked)
		recall_elsewhere(c, scan, now);
}

#endif
