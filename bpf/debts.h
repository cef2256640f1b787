/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What vCPUs have been lent and not yet received (order_sbco.h): a short list for each pCPU, written by others and collected by itself.
 */
#ifndef COHORT_DEBTS_H
#define COHORT_DEBTS_H

#include "state.h"

/* What b has yet to receive. */
struct sbco_debt {
	u32 state; /* enum debt_state */
	u32 to;	   /* b: index in the map vcpus */
	u32 from;  /* a */
	s32 to_pid;
	s32 from_pid;
	u64 amount; /* virtual time */
};

enum debt_state {
	DEBT_FREE,
	DEBT_BUSY, /* somebody writes or collects it */
	DEBT_OWED,
};

/* Owed at one time to those that wait on one pCPU. Where there is no room siblings stay apart this time. */
#define DEBTS 8

struct sbco_cpu {
	u32 nr_debts;
	struct sbco_debt debts[DEBTS];
} __attribute__((aligned(64)));

/* Debt lists, by pCPU; user space sizes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct sbco_cpu);
} sbco_cpus SEC(".maps");

#endif
