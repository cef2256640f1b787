/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler and its user space share: limits, knobs' values, counters. Plain C, included by both.
 */
#ifndef COHORT_INTF_H
#define COHORT_INTF_H

enum cohort_limits {
	MAX_CPUS = 1024,
	/* A VM or vCPU beyond these is scheduled as ordinary host tasks, fairly, and counted in STAT_REGISTRY_FULL. */
	MAX_VMS = 4096,	 /* number 0 is nobody's */
	MAX_VCPUS = 256, /* of one VM */
	/* vCPUs of all VMs, in blocks that VMs take as they need them. */
	VCPU_BLOCK = 16,
	MAX_VCPU_BLOCKS = 4096,
	VM_BLOCKS = 16, /* MAX_VCPUS / VCPU_BLOCK */
	/* VMs and cgroups. What is beyond this, or nested deeper, competes as part of its parent. */
	MAX_ENTITIES = 8192,
	MAX_CGROUPS = 65536, /* of which is known whose part they are */
	MAX_DEPTH = 8,
};

/* --placement */
enum cohort_placement {
	PLACEMENT_ANY = 0,
	PLACEMENT_BALANCE = 1,
};

/* --boost: bits that add up */
enum cohort_boost {
	BOOST_CANDIDATE = 1,
	BOOST_ANY_MODE = 2,
	BOOST_UNFAIR = 4,
	BOOST_MIGRATE = 8,
	BOOST_IPI = 16,
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
	STAT_LET_OUT,	      /* ends of a turn put off because the runner was in a section that forbids migration */
	STAT_RESUMED,	      /* turns that went on after a kernel thread, or a vCPU's grace, had the pCPU */
	STAT_THROTTLED,	      /* tasks put aside because a cgroup had used up its quota */
	STAT_PLE,	      /* pause-loop exits */
	STAT_PLE_KERNEL,      /* of these, taken in kernel mode */
	STAT_PLE_NO_SIBLING,  /* of these, with no sibling waiting for a pCPU: nothing to boost */
	STAT_PLE_BACKOFF,     /* of these, ignored because the vCPU was boosted for a moment ago */
	STAT_BOOST_OFFERED,   /* directed yields that KVM asked for (ops.yield with a target) */
	STAT_BOOST_CHOSEN,    /* siblings chosen by us at an exit (any-mode) */
	STAT_BOOST_IRQ,	      /* of the chosen: an interrupt was waiting, or just woken */
	STAT_BOOST_KERNEL,    /* of the chosen: preempted in kernel mode */
	STAT_BOOST_USER,      /* of the chosen: preempted in user mode; longest wait */
	STAT_BOOST_CALLED,    /* siblings without a pCPU that were called by an IPI (ipi) */
	STAT_BOOST_GRANTED,   /* boosts that put the sibling on a pCPU */
	STAT_BOOST_MIGRATED,  /* of these, after a move from another pCPU's queue */
	STAT_BOOST_PREEMPTED, /* other pCPUs told to look whether a boosted sibling goes before their runner */
	STAT_BOOST_MISSED,    /* boosts whose sibling had run, slept or left meanwhile */
	STAT_GANG_STARTS,     /* pCPUs asked to join a VM's turn */
	STAT_GRACE_GIVEN,     /* vCPUs preempted in kernel mode that were to have their pCPU back at once */
	STAT_GRACE_TAKEN,     /* of these, that got it */
	STAT_KEPT,	      /* vCPUs that went to sleep whose pCPUs were kept for them */
	STAT_KEPT_IN_TIME,    /* of these, that woke in time */
	STAT_KEPT_US,	      /* how long pCPUs were kept, all together */
	STAT_PREFER_KEPT, /* exits of a vCPU that still waits for the sibling that it stood back for before (spin prefer) */
	STAT_PREFER_REVERSE, /* requests refused because the sibling has just stood back for the one that asks */
	STAT_GANG_REFUSED,   /* turns of a set that could not begin: not all of its members had room */
	STAT_GANG_STOPS,     /* vCPUs that could have gone on, stopped for their siblings' sake */
	STAT_VCPUS_FOUND,
	STAT_REGISTRY_FULL,    /* VMs, vCPUs or cgroups beyond what there is room for, and quotas without a timer */
	STAT_SBCO_BALANCED,    /* vCPUs passed over for a sibling far back in another queue (order sbco) */
	STAT_DEADLINES_MISSED, /* order sedf: periods that ended before their slice was used up */
	NR_STATS,
};

/* What is counted of a VM; see tally.h. */
struct vm_counts {
	unsigned long long runtime_ns; /* CPU time of its vCPUs and its VMM's other threads */
	unsigned long long wait_ns;    /* time its vCPUs were runnable and not running */
	unsigned long long switches;
	unsigned long long ple;
	unsigned long long boosts; /* granted */
	unsigned long long stacked;
	unsigned long long preempted_in_kernel;
};

/* One VM, as user space sees it: an element of the map `vms`, in use while kvm is not 0. */
struct vm_ctx {
	unsigned long long kvm; /* identity: address of the kernel's struct kvm */
	unsigned int generation;
	int tgid;		 /* the VMM's process */
	unsigned int weight;	 /* of the cgroup that it is in */
	unsigned int group;	 /* that cgroup, by its number in `entities`; 0: the root, or none is known */
	unsigned int nr_vcpus;	 /* known vCPU threads */
	unsigned int vcpu_end;	 /* 1 + highest vcpu_id seen */
	unsigned int entity;	 /* as which it competes */
	unsigned int blocks[16]; /* 1 + block of the map `vcpus` for each VCPU_BLOCK of vcpu_ids; 0: none yet */

	/* What changes all the time has lines of its own. */
	unsigned long long turn_end_ns __attribute__((aligned(64))); /* gang aligned: when its present turn ends */
	unsigned int nr_active;					     /* vCPUs that run or wait for a pCPU */
	unsigned int end; /* of number 0, which is nobody's: 1 + the highest number ever taken; 0: not told */

	struct vm_counts counts __attribute__((aligned(64)));
} __attribute__((aligned(64)));

enum cohort_entity_kind {
	ENTITY_NONE = 0,
	ENTITY_GROUP = 1,
	ENTITY_VM = 2,
};

/*
 * What competes for CPU time: a cgroup, or a VM within its cgroup. An element of the map `entities`; number 0 is the root cgroup.
 */
struct entity_ctx {
	unsigned long long id; /* of the cgroup, or address of the struct kvm */
	unsigned int generation;
	unsigned int kind;
	unsigned int depth;	/* 1: below the root */
	unsigned short path[8]; /* from below the root down to itself */
	unsigned int weight;
	unsigned int inv_weight; /* virtual time per time, see scale_by_weight() */
	unsigned int idle;	 /* cpu.idle */
	unsigned int end;	 /* as vm_ctx.end */

	/* What changes all the time has lines of its own. */
	unsigned long long vtime __attribute__((aligned(64))); /* virtual run time, ns at weight 100 */
	unsigned long long turns;			       /* the turns that it has paid for, see turns_rest_ns() */
	unsigned long long child_clock;			       /* how far the furthest of its tasks has come */
	unsigned long long waited_ns;			       /* last had to wait for a pCPU */
	unsigned long long served_ns;			       /* last had a turn, and not for having waited too long */
	unsigned long long bound_ns;			       /* a pinned thread of it last kept others waiting */
	int home;					       /* the pCPU for which it last waited */
	int nr_running;					       /* its tasks that run */
	unsigned int parent;				       /* with the next one a word, see active_add() */
	int nr_active; /* its tasks and child entities that run or wait for a pCPU */

	/* How far those children have come that may run everywhere. */
	unsigned long long free_clock __attribute__((aligned(64)));

	/* cpu.max */
	unsigned long long quota_ns __attribute__((aligned(64))); /* per period; 0: no limit */
	unsigned long long period_ns;
	unsigned long long burst_ns;
	long long budget_ns;	      /* left of this period; below 0: overdrawn, to be repaid */
	unsigned long long uncharged; /* what runs and is not charged yet, see uncharged_ns() */
	unsigned long long used_ns;   /* in all, while it had a quota */
	unsigned long long used_at_refill_ns;
	unsigned long long nr_periods;
	unsigned long long nr_throttled;
	unsigned long long throttled_ns;
	unsigned long long throttled_since_ns; /* 0: not throttled */
	unsigned long long period_end_ns;      /* by the timers' clock */
	unsigned int timer_on;
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

/*
 * --stats counters that are not per VM live in the per-pCPU array `stats`, indexed by enum cohort_stat. Behind them is LAYOUT_NUMBER, which host/build/headers.rs
 * makes of the text of this file: so nobody reads a scheduler of another version, and takes one field or counter for another.
 */

#endif
