/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The policies there are. A line of one of these tables, and a header named after it, is all that a new one needs: the header is compiled in, `cohort run`,
 * the lab and the simulator offer the name. What each may decide is in policy.h; docs/policies.md has an example.
 *
 * The first column is the name on the command line, with - where this has _, and what the header's file and struct are called: X(vm, ...) under ORDERS is
 * `--order vm`, order_vm in order_vm.h. What comes first in a table has number 0.
 */
#ifndef COHORT_POLICIES_H
#define COHORT_POLICIES_H

/* --order: who deserves the pCPU */
#define ORDERS(X)                                                                        \
	X(vm, "CPU time is shared by VMs and host tasks, and within a VM by its vCPUs")  \
	X(task, "CPU time is shared by threads: a VM with more vCPUs gets more")         \
	X(credit, "Xen's credit scheduler: VMs are given credit by weight, and burn it") \
	X(sedf, "Xen's simple earliest deadline first: a slice of each period by weight")

/* --gang: which vCPUs run at the same time */
#define GANGS(X)                               \
	X(off, "Each pCPU chooses for itself") \
	X(aligned, "When a VM's turn starts, its waiting vCPUs are started on other pCPUs as well")

/* --spin: what a pause-loop exit does */
#define SPINS(X)                                                       \
	X(off, "Nothing")                                              \
	X(boost, "A sibling runs next; --boost says which, and where") \
	X(yield, "The vCPU yields, as in Xen: whoever waits for its pCPU goes first")

/* --guard: who may not lose its pCPU now */
#define GUARDS(X) X(off, "Nobody is spared")

/* Who may not run now, whatever its rank. All of these are asked. */
#define GATES(X) X(quota, "cpu.max of cgroups")

/*
 * --policy: X(name, placement, order, gang, spin, boost, guard, what it is). The first is the default.
 */
#define PRESETS(X)                                                                                     \
	X(cohort, balance, vm, off, boost, candidate + any_mode + unfair + migrate, off,               \
	  "Everything that keeps a VM's vCPUs moving together: balance, fair between VMs, all boosts") \
	X(balance, balance, task, off, off, off, off,                                                  \
	  "Siblings on different pCPUs, nothing else: virtual run time per task")                      \
	X(vtime, any, task, off, off, off, off, "Weighted fair queueing per task, to compare with")    \
	X(credit, any, credit, off, yield, off, off, "Xen's credit scheduler, to compare with")        \
	X(sedf, any, sedf, off, yield, off, off, "Xen's simple earliest deadline first, to compare with")

#endif
