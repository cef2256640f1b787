/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Gang partial-auto: gang partial, with sets that user space finds in who communicates with whom (traffic.h, shared_pages.h).
 */
#ifndef COHORT_GANG_PARTIAL_AUTO_H
#define COHORT_GANG_PARTIAL_AUTO_H

#include "gang_partial.h"
#include "shared_pages.h"

static const struct gang gang_partial_auto = {
	.began = partial_began,
	.begins = partial_begins,
	.changed = partial_changed,
	.gate = partial_gate,
	.holds = partial_holds,
	.idles = partial_idles,
	.settle = partial_settle,
	.slice = partial_slice,
	.period = partial_period,
	.period_ns = PARTIAL_PERIOD_NS,
};

#endif
