/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Marks: which pCPUs' queues are not empty, and where those in them may run; so that nobody has to look into each.
 */
#ifndef COHORT_MARKS_H
#define COHORT_MARKS_H

#include "state.h"

/* Which pCPUs' queues are not empty, 64 to a word. A bit may be set for an empty queue, never the other way round for long. */
VARIABLE u64 queued_mask[MAX_CPUS / 64];

#define EVERYWHERE (~0ULL)

/* Does somebody wait in the queue of that pCPU? */
static __always_inline bool queue_is_marked(s32 cpu)
{
	return READ_ONCE(queued_mask[(u32)cpu / 64 % (MAX_CPUS / 64)]) >> ((u32)cpu % 64) & 1;
}

/* Nobody waits anywhere. */
static __always_inline bool no_queue_is_marked(void)
{
	u32 word;

	for (word = 0; word < MAX_CPUS / 64; word++) {
		if (word * 64 >= nr_cpus)
			break;
		if (READ_ONCE(queued_mask[word]))
			return false;
	}
	return true;
}

/* The bit of a pCPU in a task's reach: on hosts of more than 64, one for several of them. */
static __always_inline u64 reach_bit(s32 cpu)
{
	return 1ULL << (nr_cpus > 64 ? (u32)cpu * 64 / nr_cpus & 63 : (u32)cpu & 63);
}

/* May somebody who waits in that queue run on this pCPU? True may be wrong; false is not, but while somebody is just coming, of whom pCPUs are told. */
static __always_inline bool reaches(const struct cpu_ctx *c, s32 cpu)
{
	return c && READ_ONCE(c->reach) & reach_bit(cpu);
}

static __always_inline bool queue_reaches(s32 queue, s32 cpu)
{
	return reaches(cpu_get(queue), cpu);
}

/* Somebody of that reach waits on cpu, of context c. Marked before its reach is: a queue is unmarked the other way round, and no mark is left without. */
static __always_inline void queue_mark_of(struct cpu_ctx *c, s32 cpu, u64 reach)
{
	if (c && ~READ_ONCE(c->came) & reach)
		atomic_or(&c->came, reach);
	if (!queue_is_marked(cpu))
		atomic_or(&queued_mask[(u32)cpu / 64 % (MAX_CPUS / 64)], 1ULL << ((u32)cpu % 64));
	if (c && ~READ_ONCE(c->reach) & reach)
		atomic_or(&c->reach, reach);
}

static __always_inline void queue_mark(s32 cpu, u64 reach)
{
	queue_mark_of(cpu_get(cpu), cpu, reach);
}

/* Of all who wait in that queue this is the reach. Who has come since the last time may not have been inserted yet. */
static __always_inline void queue_renew(struct cpu_ctx *c, u64 reach)
{
	u64 came = READ_ONCE(c->came);

	atomic_and(&c->came, ~came);
	atomic_or(&c->reach, reach | came);
	/* Not a plain store, behind which the look at who comes meanwhile could be brought forward. */
	atomic_and(&c->reach, reach | came);
	atomic_or(&c->reach, READ_ONCE(c->came));
}

static __always_inline void queue_unmark(s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	if (c)
		c->reach = 0;
	atomic_and(&queued_mask[(u32)cpu / 64 % (MAX_CPUS / 64)], ~(1ULL << ((u32)cpu % 64)));
}

#endif
