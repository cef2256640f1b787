/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A pCPU shared by siblings for good: all others are other VMs', who are due all of them, and the sibling that has none waits in one of their queues in vain. What
 * one vCPU has more than another of its VM is no share. Where a pause filter tells who waits for whom, boosts let them change places. Where nothing but a guest's
 * call does (ipi), most of what they wait for is no call: a thread that was woken on the other vCPU, a lock in user space. So they have the pCPU in short turns.
 */
#ifndef COHORT_SHARED_PCPU_H
#define COHORT_SHARED_PCPU_H

#include "tree.h"

/* By this part of the usual margin must a sibling that waits elsewhere deserve the pCPU more than the one that goes on there. */
#define SIBLING_PARTS 48

/* So many of their turns are as long as another's. */
#define SHARED_PARTS 4

/* Is a guest's call all that says that one vCPU waits for another? */
static __always_inline bool only_calls_tell(void)
{
	return spin == SPIN_boost && boost & BOOST_IPI;
}

/* By how much must t deserve a pCPU more than one of that VM that goes on there? margin_ns: anybody else. */
static __always_inline u64 margin_beside(const struct task_ctx *t, u32 vm, u64 margin_ns)
{
	return only_calls_tell() && t->vcpu >= 0 && t->vm == vm ? margin_ns / SIBLING_PARTS : margin_ns;
}

/* The turn of one whose sibling waits in vain meanwhile. */
static __always_inline u64 slice_shared(u64 slice)
{
	return only_calls_tell() && slice > slice_ns / SHARED_PARTS ? slice_ns / SHARED_PARTS : slice;
}

/* The turn of t, which goes on: a sibling that has no pCPU by now waits in vain. */
static __always_inline u64 slice_to_go_on(const struct task_ctx *t, u64 slice)
{
	const struct entity_ctx *e = only_calls_tell() && t->vm ? entity_get(t->leaf) : NULL;

	return e && e->kind == ENTITY_VM && e->nr_active > e->nr_running ? slice_shared(slice) : slice;
}

#endif
