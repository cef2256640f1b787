/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the scheduler remembers: about a pCPU, a task, a vCPU, a VM and a cgroup; and the knobs.
 */
#ifndef COHORT_STATE_H
#define COHORT_STATE_H

#include "kernel.h"
#include "intf.h"
#include "policies.h"

/* The choices of each table of policies.h. */
#define ORDER_NUMBER(name, what) ORDER_##name,
enum cohort_order { ORDERS(ORDER_NUMBER) };
#define GANG_NUMBER(name, what) GANG_##name,
enum cohort_gang { GANGS(GANG_NUMBER) };
#define SPIN_NUMBER(name, what) SPIN_##name,
enum cohort_spin { SPINS(SPIN_NUMBER) };
#define GUARD_NUMBER(name, what) GUARD_##name,
enum cohort_guard { GUARDS(GUARD_NUMBER) };

/* Knobs, set by user space before the scheduler is loaded. `cohort run --help` describes each in the same words. */

KNOB u32 nr_cpus = 1;

/* How long a task runs before others of its rank get their turn. */
KNOB u64 slice_ns = 16000000;

/* How long a boosted vCPU runs at most, if its VM's turn has less left. */
KNOB u64 boost_slice_ns = 400000;

/* How much unused virtual time a sleeper may claim when it wakes; a VM as much for each of its vCPUs. */
KNOB u64 lag_ns = 20000000;

/*
 * After waiting this long a task runs next, whatever its rank; STARVE_MAX times this long if it, or what it is a part of, is ahead of its share, or the order
 * has no .urgency. A task of a cgroup that is no vCPU waits for OVERDUE_NS. Who has waited this long is not kept back by order sbco, nor by the gangs
 * procco and cpuco; gang partial then takes pCPUs for its set. Queues are searched as rarely for whom a pCPU overlooks.
 */
KNOB u64 starve_ns = 100000000;

/* By how much a woken task's virtual time must be behind the runner's to preempt it. */
KNOB u64 wakeup_gran_ns = 1000000;

/* How long a vCPU that the guard spares has its pCPU back; at most twice in a row. */
KNOB u64 guard_grace_ns = 1000000;

/* How long a pCPU is kept for a vCPU that sleeps, at most; nor for one that sleeps for longer than that as a rule. */
KNOB u64 guard_keep_ns = 200000;

KNOB u32 placement = PLACEMENT_BALANCE;
KNOB u32 order = ORDER_vm;
KNOB u32 gang = GANG_off;
KNOB u32 spin = SPIN_boost;
KNOB u32 guard = GUARD_off;

/* Kinds of boost (enum cohort_boost), for spin boost. */
KNOB u32 boost = 0;

/* Interrupts between vCPUs are communication, from which sets are found (traffic.h). */
KNOB u32 irqs_are_traffic = 0;
KNOB u32 calls_have_no_end = 0; /* it cannot be seen when KVM has delivered a call */

static __always_inline u32 chosen_gang(void)
{
	return COMPILED_FOR(gang);
}

/* A pCPU. Its run queue is the DSQ of the same number. */
struct cpu_ctx {
	u32 online;
	u32 taken;	 /* by a real-time or deadline task */
	u32 emptied;	 /* since then, and nobody has been chosen */
	u32 curr_pid;	 /* 0: nobody */
	u32 curr_vm;	 /* as task_ctx.vm */
	u32 curr_leaf;	 /* as task_ctx.leaf */
	u32 out_of_turn; /* the runner was not chosen by rank: boosted, starved, or taken because the pCPU was idle */
	u64 curr_vtime;	 /* of the runner, its turn paid */
	u64 curr_weight;
	u64 curr_fresh_until_ns; /* order vm: until then it counts as one that has just slept */
	u64 turn_end_ns;	 /* when the runner's slice ends */
	u32 cut_short;		 /* ... because a gate will close then, whether somebody waits or not */

	/* A wish (wish.h): run this waiting vCPU next. */
	u32 wish_pid;	/* 0: none */
	u32 wish_vcpu;	/* its index in the map vcpus */
	u32 wish_vm;	/* as task_ctx.vm */
	u32 wish_flags; /* enum wish_flags */
	u64 wish_slice_ns;
	u64 wish_at_ns; /* when that was asked */

	/* Whose turn a kernel thread interrupted, and when that turn ends. */
	u32 resume_pid;
	u32 overdue_last; /* the last choice was an overdue task */
	u32 has_overdue;  /* somebody may be in its queue of the overdue (runqueue.h) */
	u32 crowded;	  /* more wait in its queue than a choice looks at, as the last one has found */
	u64 resume_end_ns;
	u32 interrupted;    /* kernel threads are at work that woke here, and nobody has been chosen since */
	u64 interrupted_ns; /* ... since */
	u64 interrupts_ns;  /* so long they have had it at once, together, of the window that began then: */
	u64 interrupts_since_ns;
	u32 lets_out;	     /* so often has the end of the present turn been put off */
	u64 searched_ns;     /* the whole queue was last looked through */
	u64 swept_ns;	     /* idle, it last looked at all queues, whoever waits there */
	u64 asks_a_third_ns; /* when it may next look for one who makes way (make_way.h) */
	u64 reach; /* where those in its queue may run, bits of reach_bit(); of one that has left until it is empty, or looked through */
	u64 came;	/* ... of those who have come since it was looked through */
	u64 aside_of;	/* whose quotas keep tasks aside here, see aside.h */
	u32 aside_came; /* how many were put aside: written with the run queue locked */
	u32 aside_busy; /* they are being looked at */
	u32 aside_look; /* a gate may have opened for them since they were */
	u32 aside_rest; /* so many have not been looked at since one may have */
	u64 aside_looked_ns;
	u32 aside_opens;      /* a gate may have opened for them, and nobody of ours is here to look */
	u32 aside_asked;      /* to look at those of other pCPUs for which that is so */
	u64 looked_around_ns; /* busy, it last looked at others' queues */
	u32 rotation;	      /* of the far pCPUs to look at */
	u32 settle_vm;	      /* for which the gang has something to do at the end of this operation; 0: none */
	u32 makes_way_to;     /* the runner is asked to go to that pCPU, minus one; 0: it is not */
	u32 makes_way_pid;
	u32 takes_from;	 /* somebody in the queue of that pCPU, minus one, is to run here instead; 0: nobody */
	u64 asked_ns;	 /* when it was told either */
	u64 sends_on_ns; /* when somebody may next be sent to another pCPU from here */
	u32 sent_pid;	 /* who comes to have the runner's place at once; 0: nobody, or the choice is made */
	u64 sent_ns;	 /* ... since */

	/* It idles for a vCPU that sleeps (keep.h). */
	u32 kept_pid;	   /* 0: for nobody */
	u32 kept_vcpu;	   /* its index in the map vcpus */
	u64 kept_ns;	   /* since */
	u64 kept_until_ns; /* ... and until then at most */
	u64 kept_turn_ns;  /* the end of the turn that goes on if it wakes in time */

	/* Gang partial: the set that has it, and in which slot; and the set that the runner is of. */
	u32 set_runs;
	u64 set_claim;
	u64 set_held; /* ... if this is the same: for a member that sleeps */
} __attribute__((aligned(64)));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cpu_ctx);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct cohort_neighbours);
} neighbours SEC(".maps");

/* A task. */
struct task_ctx {
	u64 vtime;	     /* own virtual run time; orders the tasks of one entity */
	u64 charged_ns;	     /* of its run time, see run_clock(), so much is counted; 0: not running */
	u64 paid_until_ns;   /* ... and virtual time is charged for so much */
	u64 turn;	     /* what this turn adds to entity_ctx.turns */
	u64 runs_since;	     /* what it adds to entity_ctx.uncharged of those whose quotas it is under */
	u64 queued_ns;	     /* waiting for a pCPU since; 0: not waiting */
	u64 unserved_ns;     /* ... or since then, but for moments; 0: no pCPU was taken from it so soon */
	u64 unserved_ran_ns; /* ... which are so long all together */
	u64 runs_from_ns;    /* it got its pCPU; 0: it gives it away */
	u64 begins_ns;	     /* its present turn began */
	u64 waited_ns;	     /* last had to wait for a pCPU */
	u64 kvm;	     /* VM whose vCPU it is; 0: none known */
	u64 kvm_vcpu;	     /* ... and the vCPU: addresses may be used again, rarely both */
	u64 kvm_read_at;     /* ... run_clock() when KVM last said that the one is the other's; 0: ask */
	u32 leaf;	     /* the entity that it is part of; 0: the root cgroup */
	u32 vm;		     /* number in vms of the VM it belongs to; 0: a host task */
	u32 vm_generation;
	s32 vcpu;    /* vcpu_id; -1: not a vCPU */
	u32 vcpu_at; /* its index in the map vcpus */
	s32 cpu;     /* where it runs or waits; -1: asleep, or put aside */
	s32 home;    /* the pCPU for which it last waited */
	u32 limits;  /* the innermost cgroup that it is in; 0: the root, or no cgroup has ever had a quota */
	u32 tree_generation;
	u32 registry_generation;
	s32 placed;		 /* 1 + the pCPU where it is to be queued next: chosen before; 0: none */
	u32 run_leaf;		 /* the entity of its present turn */
	u16 run_path[MAX_DEPTH]; /* the entities that its present turn is charged to */
	bool everywhere;	 /* no pCPU is forbidden */
	u64 reach;		 /* where it may run: bits of reach_bit(); 0: not known */
	bool has_turn;		 /* a turn has begun and is not over */
	bool preempted;
	bool steps_back; /* it leaves its pCPU to the best of those that wait there, once */
	bool aside;	 /* out of the queues until a gate opens */
	bool comes_back; /* it waited, something about it has changed, and it is to be queued again: it has not slept */
	u64 order_state[4]; /* the order's own; 0 when the task is new */
	u64 told_ns;	    /* its VM was last told of what follows, see tally.h */
	struct vm_counts untold;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_ctx);
} tasks SEC(".maps");

/* A vCPU, as its siblings see it. Index: block * VCPU_BLOCK + vcpu_id % VCPU_BLOCK. */
enum vcpu_state {
	VCPU_ASLEEP = 0,
	VCPU_WAITING = 1,
	VCPU_RUNNING = 2,
};

struct vcpu_ctx {
	u64 kvm_vcpu;	    /* address of the kernel's struct kvm_vcpu */
	u64 since_ns;	    /* in this state since */
	u64 boost_after_ns; /* no further boost on behalf of this vCPU before */
	u64 backoff_ns;
	s32 pid;
	s32 cpu;
	u32 state;
	u64 calls;	  /* that KVM is delivering: bit n is its VM's vCPU n */
	u32 exit_served;  /* see EXIT_SERVED */
	u32 restricted;	  /* some pCPUs are forbidden */
	u32 woken;	  /* has slept, and not run since */
	u32 preferred;	  /* spin prefer: 1 + index of the sibling that it stands back for; 0: none yet */
	u64 preferred_ns; /* ... when it last did */
	u32 gave_way;	  /* at a pause-loop exit, for a sibling: it does not get its pCPU back before the others */
	u32 in_grace;	  /* its present turn is a grace (grace.h) */
	u32 graces;	  /* given in a row */
	u64 slept_ns;	  /* how long it sleeps as a rule: a moving average, only with a guard that asks for it */
	u32 dirty;	  /* order sbco: its place is being changed */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPU_BLOCKS *VCPU_BLOCK);
	__type(key, u32);
	__type(value, struct vcpu_ctx);
} vcpus SEC(".maps");

/* The VM that holds a block of vcpus; 0: nobody. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPU_BLOCKS);
	__type(key, u32);
	__type(value, u32);
} vcpu_blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, struct vm_ctx);
} vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, struct entity_ctx);
} entities SEC(".maps");

/* How many vCPUs of a VM run or wait on a pCPU. Index: VM * nr_cpus + pCPU; user space sizes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} vm_on_cpu SEC(".maps");

/* How far the virtual time of an entity's children has come on a pCPU. Index: entity * nr_cpus + pCPU; user space sizes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_ENTITIES);
	__type(key, u32);
	__type(value, u64);
} clocks SEC(".maps");

/* struct kvm -> number in vms. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VMS);
	__type(key, u64);
	__type(value, u32);
} vm_slots SEC(".maps");

/* VMM process -> number in vms, so that its other threads (I/O, vhost) are scheduled and charged with their VM. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u32);
} vm_by_tgid SEC(".maps");

/* cgroup's id -> number in entities: its own, or where there was none left that of its parent. So there may be more of these. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, u64);
	__type(value, u32);
} cgroup_slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, NR_STATS + 1); /* the last one is no counter, see LAYOUT_NUMBER */
	__type(key, u32);
	__type(value, u64);
} stats SEC(".maps");

/* Bumped when all tasks are to look up their places anew: a pCPU has come or gone, or the first quota is there. */
VARIABLE u32 tree_generation = 1;

/* Bumped when a VM appears or goes: threads look up anew whether they belong to one. */
VARIABLE u32 registry_generation = 1;

/* Quotas that are set; while there are none, nobody asks for them. */
VARIABLE u32 nr_quotas;

/* There has been one: from then on tasks know whose quotas they are under. */
VARIABLE u32 quotas_known;

VARIABLE u32 nr_online;

/* slice_ns, in us: divided once, for it is wanted whenever somebody is ranked. */
VARIABLE u32 slice_us;

static __always_inline void stat_add(u32 id, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&stats, &id);

	if (v)
		*v += n;
}

static __always_inline void stat_inc(u32 id)
{
	stat_add(id, 1);
}

/*
 * Time since then. Each pCPU reads its own clock, and nobody promises an order between them: what another pCPU wrote may be later than now.
 */
static __always_inline u64 elapsed_ns(u64 now, u64 then)
{
	return (s64)(now - then) > 0 ? now - then : 0;
}

/* A wish (wish.h) older than this is stale: what it was for is over. */
#define WISH_STALE_NS 8000000ULL

/* Has somebody said who is to run next on that pCPU? */
static __always_inline bool wish_is_fresh(const struct cpu_ctx *c, u64 now)
{
	return c->wish_pid && !time_before(c->wish_at_ns + WISH_STALE_NS, now);
}

static __always_inline struct cpu_ctx *cpu_get(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpus, &key);
}

static __always_inline struct task_ctx *task_get(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

static __always_inline struct entity_ctx *entity_get(u32 slot)
{
	return bpf_map_lookup_elem(&entities, &slot);
}

/* The same, of those below the root: a path ends with 0. */
static __always_inline struct entity_ctx *entity_at(u32 slot)
{
	return slot ? entity_get(slot) : NULL;
}

static __always_inline u64 *clock_get(u32 entity, s32 cpu)
{
	u32 index = entity * nr_cpus + cpu;

	return bpf_map_lookup_elem(&clocks, &index);
}

static __always_inline struct vm_ctx *vm_at(u32 vm)
{
	return vm ? bpf_map_lookup_elem(&vms, &vm) : NULL;
}

/*
 * Number is taken in the table whose number 0 has this end: user space need not read it any further. Who is outrun by another pCPU tries again,
 * and each is outrun once at most by each.
 */
static __always_inline void raise_end(u32 *end, u32 number)
{
	u32 old;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		old = READ_ONCE(*end);
		if (old > number || atomic_cas(end, old, number + 1) == old)
			break;
	}
}

/* The VM that t belongs to, or NULL for a host task. A slot that was freed and taken again does not count. */
static __always_inline struct vm_ctx *vm_get(const struct task_ctx *t)
{
	struct vm_ctx *vm = vm_at(t->vm);

	return vm && vm->generation == t->vm_generation ? vm : NULL;
}

/* Where the vCPU of that number is in the map vcpus, or -1. */
static __always_inline s32 vcpu_index(const struct vm_ctx *vm, s32 vcpu)
{
	u32 part = (u32)vcpu / VCPU_BLOCK;
	u32 block;

	if (part >= VM_BLOCKS)
		return -1;
	block = vm->blocks[part];
	return block ? (s32)((block - 1) * VCPU_BLOCK + (u32)vcpu % VCPU_BLOCK) : -1;
}

static __always_inline struct vcpu_ctx *vcpu_at(u32 index)
{
	return bpf_map_lookup_elem(&vcpus, &index);
}

static __always_inline struct vcpu_ctx *vcpu_get(const struct task_ctx *t)
{
	if (t->vcpu < 0 || !vm_get(t))
		return NULL;
	return vcpu_at(t->vcpu_at);
}

/* At the end of this operation the gang has something to do for that VM (policy.h, settle). One note per pCPU: the last counts, and a period finds the rest. */
static __always_inline void settle_later(u32 vm)
{
	struct cpu_ctx *c = cpu_get(bpf_get_smp_processor_id());

	if (c)
		c->settle_vm = vm;
}

#endif
