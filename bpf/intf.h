/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler and its user space share: limits, knobs' values, counters. Plain C, included by both.
 */
#ifndef COHORT_INTF_H
#define COHORT_INTF_H

enum cohort_limits {
	MAX_CPUS = 1024,
	/* A VM or vCPU beyond these is scheduled as ordinary host tasks, fairly, and counted in STAT_REGISTRY_FULL. */
	MAX_VMS = 512,
	MAX_VCPUS = 256, /* of one VM */
};

/* --placement */
enum cohort_placement {
	PLACEMENT_ANY = 0,
	PLACEMENT_BALANCE = 1,
};

/* --fair: between whom virtual run time is kept equal */
enum cohort_fair {
	FAIR_TASK = 0,
	FAIR_VM = 1,
};

/* --gang */
enum cohort_gang {
	GANG_OFF = 0,
	GANG_ALIGNED = 1,
};

/* --boost: bits that add up */
enum cohort_boost {
	BOOST_CANDIDATE = 1,
	BOOST_ANY_MODE = 2,
	BOOST_UNFAIR = 4,
	BOOST_MIGRATE = 8,
};

/*
 * Counters, cumulative. Those of a VM are a subset of the totals' meaning, kept per VM in struct vm_ctx. The names are what
 * `cohort run --json` prints, in lower case without STAT_.
 */
enum cohort_stat {
	STAT_SWITCHES,	      /* tasks put on a pCPU */
	STAT_WAKEUPS_IDLE,    /* woken straight onto an idle pCPU */
	STAT_PREEMPT_WAKEUP,  /* runners preempted by a woken or queued task whose virtual time is behind theirs */
	STAT_PULLS,	      /* tasks taken from another pCPU's queue for fairness */
	STAT_STEALS,	      /* tasks taken from another pCPU's queue by an idle pCPU */
	STAT_STACKED,	      /* vCPUs queued where a sibling runs or waits */
	STAT_STARVED,	      /* tasks run because they had waited for the starvation limit */
	STAT_PLE,	      /* pause-loop exits */
	STAT_PLE_KERNEL,      /* of these, taken in kernel mode */
	STAT_PLE_NO_SIBLING,  /* of these, with no sibling waiting for a pCPU: nothing to boost */
	STAT_PLE_BACKOFF,     /* of these, ignored because the vCPU was boosted for a moment ago */
	STAT_BOOST_OFFERED,   /* directed yields that KVM asked for (ops.yield with a target) */
	STAT_BOOST_CHOSEN,    /* siblings chosen by us at an exit (any-mode) */
	STAT_BOOST_IRQ,	      /* of the chosen: an interrupt was waiting for it */
	STAT_BOOST_KERNEL,    /* of the chosen: preempted in kernel mode */
	STAT_BOOST_USER,      /* of the chosen: preempted in user mode, or woken; longest wait */
	STAT_BOOST_GRANTED,   /* boosts that put the sibling on a pCPU */
	STAT_BOOST_MIGRATED,  /* of these, after a move from another pCPU's queue */
	STAT_BOOST_PREEMPTED, /* of these, by preempting another VM's vCPU or task (unfair) */
	STAT_BOOST_MISSED,    /* boosts whose sibling had run, slept or left meanwhile */
	STAT_GANG_STARTS,     /* pCPUs asked to join a VM's turn */
	STAT_VCPUS_FOUND,
	STAT_REGISTRY_FULL, /* vCPUs or VMs beyond MAX_VMS or MAX_VCPUS */
	NR_STATS,
};

/* One VM, as user space sees it: a slot of the map `vms`, in use while kvm is not 0. */
struct vm_ctx {
	unsigned long long kvm; /* identity: address of the kernel's struct kvm */
	unsigned long long generation;
	int tgid; /* the VMM's process */
	unsigned int weight;
	unsigned int nr_vcpus;		  /* known vCPU threads */
	unsigned int nr_active;		  /* of these, running or waiting for a pCPU */
	unsigned int vcpu_end;		  /* 1 + highest vcpu_id seen */
	unsigned int nr_running;	  /* threads of the VM on a pCPU now, its VMM's included */
	unsigned long long vtime;	  /* virtual run time, ns at weight 100 */
	unsigned long long sibling_clock; /* furthest vCPU's own virtual run time */
	unsigned long long run_start_sum; /* sum over its running threads of the time up to which each is charged */
	unsigned long long turn_end_ns;	  /* gang aligned: when the VM's present turn ends */
	unsigned long long runtime_ns;	  /* CPU time of the VM's vCPUs and its VMM's other threads */
	unsigned long long wait_ns;	  /* time its vCPUs were runnable and not running */
	unsigned long long switches;
	unsigned long long ple;
	unsigned long long boosts; /* granted */
	unsigned long long stacked;
	unsigned long long preempted_in_kernel;
} __attribute__((aligned(64)));

/*
 * Which pCPUs are near one, nearest first: in `cpu` its SMT siblings are at indices below core_end, then up to llc_end those of its last-level
 * cache, up to node_end those of its node, then others. Each class begins with the next higher number and goes round, so that different pCPUs
 * do not all look at the same one first. On large hosts a part: see topology/. Filled by user space, before the scheduler starts.
 */
struct cohort_neighbours {
	unsigned short n; /* entries of cpu in use */
	unsigned short core_end;
	unsigned short llc_end;
	unsigned short node_end;
	unsigned short cpu[64];
};

/* --stats counters that are not per VM live in the per-pCPU array `stats`, indexed by enum cohort_stat. */

#endif
