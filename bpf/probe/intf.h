/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the probe shares with user space. Times are nanoseconds, counters grow from when the vCPU was first seen.
 */
#ifndef PROBE_INTF_H
#define PROBE_INTF_H

enum probe_limits {
	PROBE_MAX_VMS = 1024,
	PROBE_MAX_VCPUS = 16384, /* of all VMs */
	PROBE_MAX_CPUS = 4096,
	PROBE_COUNT_BITS = 12, /* of a clock word */
	PROBE_IPI_BITS = 48,   /* of ipi_pending: a time; above it a count */
	PROBE_STATE_BITS = 8,  /* of place */
	PROBE_CHAIN_BUCKETS = 8,
	PROBE_NO_VCPU = 65535, /* of an event: nobody that the probe follows */
};

enum probe_state {
	PROBE_UNKNOWN = 0, /* found, nothing seen of it yet */
	PROBE_RUN = 1,
	PROBE_READY_WOKEN = 2,
	PROBE_READY_PREEMPTED = 3,
	PROBE_HALTED = 4,  /* in kvm_vcpu_block() */
	PROBE_BLOCKED = 5, /* asleep in the VMM, or waiting for a page */
	PROBE_GONE = 6,	   /* its thread has exited, or serves another vCPU */
};

/* What an event of a recording is; `cohort record`. */
enum probe_kind {
	EVENT_RUN = 1,	     /* got pCPU cpu; a: was preempted in the guest's kernel before */
	EVENT_PREEMPTED = 2, /* lost it, and could go on */
	EVENT_WOKEN = 3,     /* waits for pCPU cpu */
	EVENT_HALTED = 4,    /* b: us that KVM has polled since the last halt */
	EVENT_BLOCKED = 5,
	EVENT_MOVED = 6,	  /* waits for pCPU cpu instead */
	EVENT_GONE = 7,		  /* the slot is free */
	EVENT_JOINED = 8,	  /* the slot's new owner: cpu is the VM's slot, b the vCPU's number */
	EVENT_PLE = 9,		  /* a: in the guest's kernel */
	EVENT_YIELD = 10,	  /* KVM asked for a directed yield to vCPU b; a: granted */
	EVENT_IPI = 11,		  /* an interrupt for its sibling b; a: vector */
	EVENT_HYPERCALL = 12,	  /* a: number */
	EVENT_TLB_HYPERCALL = 13, /* Hyper-V's */
	EVENT_TLB_DEFERRED = 14,  /* it runs again, and does what was put off; b: its own number */
};

/* One event of a recording, as it is in the ring buffer and in the file. */
struct probe_event {
	u64 time_ns;
	u16 cpu;
	u16 vcpu; /* its slot */
	u8 kind;
	u8 a;
	u16 b;
};

/*
 * A clock word tells for how long at least one of many was there, without a lock: the time in the upper bits, in the lowest how many are there now. With
 * none, the upper bits are the sum S of all the time so far; with some, they are S - T, where T is when the first came. All modulo 2^52.
 */

struct probe_vm {
	u64 kvm; /* 0: free */
	u32 tgid;
	u32 generation;
	u64 nr_vcpus;
	u64 gone_ns; /* run and ready time of vCPUs that are no more */
	u64 ran;     /* clock word: at least one vCPU has a pCPU */
};

/*
 * What is on one vCPU. Who changes the state writes seq_begin first and seq_end last; a copy made from low to high addresses, as the kernel makes it, is
 * whole if both are the same.
 */
struct probe_vcpu {
	u64 seq_end;
	u64 kvm_vcpu;
	u32 vm;
	u32 generation; /* of the VM's slot */
	u32 vcpu_id;
	u32 tid; /* 0: free */
	u64 slot;
	u64 place;    /* the state, and above PROBE_STATE_BITS the pCPU */
	u64 since_ns; /* in this place */
	u64 ready_since_ns;
	u64 ran_mark; /* its VM's clock when it became ready */

	u64 run_ns;
	u64 ready_ns;
	u64 halted_ns;
	u64 blocked_ns;
	u64 costop_ns;
	u64 switches;
	u64 migrations;
	u64 wakeups; /* waits after a wakeup that have ended, and their sum */
	u64 wait_wakeup_ns;
	u64 preemptions;
	u64 preemptions_kernel; /* waits after a preemption in the guest's kernel that have ended, and their sum */
	u64 wait_kernel_ns;
	u64 wait_max_ns;
	u64 halts;
	u64 halt_polled_ns;
	u64 kvm_polled_ns; /* what KVM had polled for it so far, when that was looked at last */

	u64 ple;
	u64 ple_kernel;
	u64 ple_chains;
	u64 ple_chain_max;
	u64 chain;				/* exits of the chain that goes on */
	u64 chain_run_ns;			/* the vCPU's run time at the last of them */
	u64 chain_lengths[PROBE_CHAIN_BUCKETS]; /* chains that ended with 1, 2, 3-4, 5-8, ... exits */
	u64 yields_asked;
	u64 yields_granted;
	u64 ipis_sent;
	u64 ipis_preempted; /* sent to it by a sibling while it was preempted */
	u64 ipi_wait_ns;
	u64 ipi_pending;
	u64 tlb_hypercalls;
	u64 tlb_deferred; /* flushes that waited for a preempted vCPU to run again, instead of the sender for it */
	u64 kicks;
	u64 seq_begin;
};

/* What is on one pCPU. Only it writes. */
struct probe_pcpu {
	u64 switches; /* of all threads */
	u64 idle;     /* clock word: nobody has it; known from the first switch on */
};

/* What a vCPU's guest is told, by its CPUID. */
struct probe_told {
	u32 tgid;
	u32 features;	    /* KVM's: bits KVM_FEATURE_... */
	u32 hyper_v;	    /* 1: it is told of Hyper-V, too */
	u32 hv_recommended; /* bits HV_X64_..._RECOMMENDED */
	u32 hv_spins;	    /* of a lock before it calls; all ones: it never does */
};

#endif
