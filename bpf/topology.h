/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which pCPUs are near one another: SMT siblings, a last-level cache, a node. User space reads it and fills the map `neighbours`.
 *
 * A decision looks at a bounded number of pCPUs, the nearest first. On hosts with more pCPUs than a pCPU has neighbours, those far away come from
 * the kernel's own search for an idle one, and by what they pull themselves.
 */
#ifndef COHORT_TOPOLOGY_H
#define COHORT_TOPOLOGY_H

#include "state.h"

#define NEIGHBOURS 64

static __always_inline struct cohort_neighbours *neighbours_of(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&neighbours, &key);
}

/* The i-th nearest other pCPU, or -1. */
static __always_inline s32 neighbour(const struct cohort_neighbours *near, u32 i)
{
	if (i >= near->n || i >= NEIGHBOURS)
		return -1;
	return near->cpu[i];
}

/* How much more must be gained by going to the i-th neighbour, in steps: another core, another cache, another node. */
static __always_inline u32 distance(const struct cohort_neighbours *near, u32 i)
{
	return (i >= near->core_end) + (i >= near->llc_end) + (i >= near->node_end);
}

#endif
