/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is counted of a VM, for statistics alone: no decision reads it.
 *
 * A task counts on its own, and tells its VM now and then: a VM's vCPUs may switch on all pCPUs at once, thousands of times a second each, and would
 * pass one cache line round for every switch. A count is late by TELL_NS of the task's own activity at most; none is lost, for who leaves tells first.
 */
#ifndef COHORT_TALLY_H
#define COHORT_TALLY_H

#include "state.h"

/* A tenth of a second is the shortest interval at which people look. */
#define TELL_NS 20000000ULL

/*
 * Nothing else counts t's meanwhile: the lock of its run queue is held, or t is off its queue and about to wake, with its pi_lock held. But an exit
 * of a spinning guest is counted without either, and this may interrupt the counting.
 */
static __always_inline void tally_tell(struct task_ctx *t, struct vm_ctx *vm)
{
	struct vm_counts *own = &t->untold, *all = &vm->counts;
	u64 ple = own->ple;

	if (own->runtime_ns)
		atomic_add(&all->runtime_ns, own->runtime_ns);
	if (own->wait_ns)
		atomic_add(&all->wait_ns, own->wait_ns);
	if (own->switches)
		atomic_add(&all->switches, own->switches);
	if (own->stacked)
		atomic_add(&all->stacked, own->stacked);
	if (own->preempted_in_kernel)
		atomic_add(&all->preempted_in_kernel, own->preempted_in_kernel);
	own->runtime_ns = 0;
	own->wait_ns = 0;
	own->switches = 0;
	own->stacked = 0;
	own->preempted_in_kernel = 0;
	if (ple) {
		atomic_add(&all->ple, ple);
		atomic_add(&own->ple, -ple);
	}
}

/* t is about to be no part of its VM any more; a VM that is gone, its number with it, is told nothing. */
static __always_inline void tally_end(struct task_ctx *t)
{
	struct vm_ctx *vm = vm_get(t);

	if (vm)
		tally_tell(t, vm);
	else
		__builtin_memset(&t->untold, 0, sizeof(t->untold));
}

/* Tell if that is due, and its VM is still there. */
static __always_inline void tally(struct task_ctx *t, u64 now)
{
	struct vm_ctx *vm = elapsed_ns(now, t->told_ns) < TELL_NS ? NULL : vm_get(t);

	if (!vm)
		return;
	t->told_ns = now;
	tally_tell(t, vm);
}

#endif
