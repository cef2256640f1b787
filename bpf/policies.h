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
#define ORDERS(X)                                                                                                   \
	X(vm, "CPU time is shared by VMs and host tasks, and within a VM by its vCPUs")                             \
	X(task, "CPU time is shared by threads: a VM with more vCPUs gets more")                                    \
	X(sbco,                                                                                                     \
	  "Self-boosted co-scheduling: as vm, and siblings far apart in their queues are moved towards each other") \
	X(credit, "Xen's credit scheduler: VMs are given credit by weight, and burn it")                            \
	X(sedf, "Xen's simple earliest deadline first: a slice of each period by weight")

/* --gang: which vCPUs run at the same time */
#define GANGS(X)                                                                                    \
	X(off, "Each pCPU chooses for itself")                                                      \
	X(aligned, "When a VM's turn starts, its waiting vCPUs are started on other pCPUs as well") \
	X(partial, "Sets of a VM's vCPUs run together, independent of one another")                 \
	X(partial_auto, "The same, with sets found in who communicates with whom")                  \
	X(partial_held, "As partial, and a set has pCPUs for its vCPUs that sleep too")             \
	X(strict, "All of a VM's vCPUs that are not idle run, or none")                             \
	X(relaxed, "A vCPU that is ahead of its slowest sibling by too much waits for it")          \
	X(procco, "When vCPU 0 of a VM runs, its siblings are forced onto other pCPUs")             \
	X(cpuco, "pCPU 0 decides which VM runs on all of them")

/* --spin: what a pause-loop exit does */
#define SPINS(X)                                                                            \
	X(off, "Nothing")                                                                   \
	X(boost, "A sibling runs next; --boost says which, and where")                      \
	X(prefer, "It stands back for the sibling that it waits for, while that is needed") \
	X(yield, "The vCPU yields, as in Xen: whoever waits for its pCPU goes first")

/* --guard: who may not lose its pCPU now */
#define GUARDS(X)                                                                                      \
	X(off, "Nobody is spared")                                                                     \
	X(kernel_mode, "A vCPU preempted in the guest's kernel has its pCPU back first, for a moment") \
	X(halted, "A vCPU that sleeps for a moment keeps its pCPU, which idles meanwhile")

/* Who may not run now, whatever its rank. All of these are asked. */
#define GATES(X) X(quota, "cpu.max of cgroups")

/*
 * --policy: X(name, placement, order, gang, spin, boost, guard, what it is). The first is the default.
 */
#define PRESETS(X)                                                                                               \
	X(cohort, balance, vm, aligned, boost, candidate + any_mode + migrate, off,                              \
	  "A VM's vCPUs move together: apart from one another, fair between VMs, turns at the same time")        \
	X(balance, balance, task, off, off, off, off,                                                            \
	  "Siblings on different pCPUs, nothing else: virtual run time per task")                                \
	X(vtime, any, task, off, off, off, off, "Weighted fair queueing per task, to compare with")              \
	X(ple_candidate, any, task, off, boost, candidate, off,                                                  \
	  "KVM's choice at a pause-loop exit is honoured, as far as fairness between threads allows")            \
	X(ple_any, any, task, off, boost, candidate + any_mode, off,                                             \
	  "The same, and vCPUs in user mode may be chosen too")                                                  \
	X(ple_unfair, any, task, off, boost, candidate + unfair, off,                                            \
	  "KVM's choice is honoured even if it is not its turn")                                                 \
	X(ple_any_unfair, any, task, off, boost, candidate + any_mode + unfair, off,                             \
	  "Both cures of the paper on pause-loop exits together")                                                \
	X(ple_prefer, any, task, off, prefer, off, off,                                                          \
	  "A spinner stands back for the sibling that it waits for, while that is needed")                       \
	X(sbco, balance, sbco, off, off, off, off,                                                               \
	  "Self-boosted co-scheduling: siblings take their turns at about the same time, nobody forced")         \
	X(partial, balance, vm, partial, off, off, off,                                                          \
	  "Partial co-scheduling: sets of vCPUs that are given (--sets) run together")                           \
	X(partial_auto, balance, vm, partial_auto, off, off, off,                                                \
	  "The same, with sets that are found in who communicates with whom")                                    \
	X(strict, balance, vm, strict, off, off, off, "Strict co-scheduling, as in ESX 2")                       \
	X(relaxed, balance, vm, relaxed, off, off, off, "Relaxed co-scheduling, as in ESX 4")                    \
	X(procco, balance, vm, procco, off, off, off, "Co-scheduling led by vCPU 0 of each VM, to compare with") \
	X(cpuco, balance, vm, cpuco, off, off, off, "Co-scheduling led by pCPU 0, to compare with")              \
	X(credit, any, credit, off, yield, off, off, "Xen's credit scheduler, to compare with")                  \
	X(sedf, any, sedf, off, yield, off, off, "Xen's simple earliest deadline first, to compare with")

/*
 * What a preset boosts besides on a host whose KVM catches no vCPU that spins: X(name, boost, why). Nested hosts often have no pause-loop exits.
 */
#define UNCAUGHT(X) X(cohort, ipi, "who is waited for is known from nothing but the guest's call")

/*
 * What goes together: X(what, needs, why). Whoever offers policies refuses the rest, with the reason. `--flag`: that flag is given. `--axis a|b`: it has one of these in the end,
 * by its flag or by the preset; `other than` a|b: none of these. `given` before it: by its flag. `of-vms`: those whose headers say .of_vms = true.
 */
#define NEEDS(X)                                                                                                     \
	X("--gang of-vms", "--order of-vms", "tasks that are scheduled each for itself have no turn together")       \
	X("--spin boost", "--boost other than off", "the kinds of boost say who runs")                               \
	X("--boost other than off", "--spin boost", "they are its kinds")                                            \
	X("--spin prefer", "--order other than credit|sedf",                                                         \
	  "there no virtual time says who goes first, and nobody can stand back by it")                              \
	X("--order sbco", "--placement balance", "siblings in one queue cannot be brought together")                 \
	X("given --gang partial|partial-held", "--sets", "without, nobody is in a set")                              \
	X("--sets", "--gang partial|partial-held", "no other is told sets")                                          \
	X("--split", "--gang partial-auto", "no other looks for sets")                                               \
	X("--traffic", "--gang partial-auto", "no other looks for sets")                                             \
	X("--faults-per-s", "--traffic faults|both", "interrupts need no faults")                                    \
	X("--sbco-alpha", "--order sbco", "no other has an alpha")                                                   \
	X("--skew-us", "--gang relaxed", "no other looks at how far one is ahead")                                   \
	X("--guard-keep-us", "--guard halted", "no pCPU is kept")                                                    \
	X("--guard halted", "--order vm|task", "no other charges for a pCPU that is kept")                           \
	X("--guard halted", "--gang off|aligned", "the others decide themselves for whom a pCPU idles")              \
	X("--guard-grace-us", "--guard kernel-mode", "nobody is spared")                                             \
	X("--boost-slice-us", "--spin boost|prefer or --gang aligned", "nothing else lends a part of a turn")        \
	X("--slice-us", "--order other than credit or --gang other than off or --spin boost or --placement balance", \
	  "turns are Xen's")                                                                                         \
	X("--lag-us", "--order other than credit|sedf or --boost unfair",                                            \
	  "there no sleeper has a claim by virtual time")                                                            \
	X("--wakeup-gran-us", "--order other than credit or --gang strict|partial|partial-auto|partial-held",        \
	  "classes say who goes before whom")

#endif
