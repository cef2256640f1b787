/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order task: as order vm, but a VM is nothing: its threads are tasks of their cgroup. What schedulers that know nothing of VMs do, to compare with.
 */
#ifndef COHORT_ORDER_TASK_H
#define COHORT_ORDER_TASK_H

#include "order_vm.h"

static const struct order order_task = {
	.rank = vtime_rank,
	.rank_of_runner = vtime_rank_of_runner,
	.before = vtime_before,
	.key = vtime_key,
	.wake = vtime_wake,
	.exits = vtime_exits,
	.begin = vtime_begin,
	.charge = vtime_charge,
	.pays_ahead = true,
	.kept = vtime_kept,
	.end = vtime_end,
	.yields = vtime_yields,
	.urgency = vtime_urgency,
	.tick = vtime_tick,
};

#endif
