/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel, as far as the scheduler needs it.
 *
 * Everything that depends on the kernel, and on which one, is here: the fields read (a minimal set, relocated by CO-RE against the running
 * kernel's BTF, so no generated vmlinux.h), the sched_ext functions called, and what changed between versions. The policy files contain
 * none of it. A build with COHORT_NATIVE finds in native.h what libbpf's headers are to the kernel build, and the same policy runs in an
 * ordinary process.
 */
#ifndef COHORT_KERNEL_H
#define COHORT_KERNEL_H

typedef unsigned char u8;
typedef signed char s8;
typedef unsigned short u16;
typedef short s16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;
typedef u8 __u8;
typedef u16 __u16;
typedef u32 __u32;
typedef u64 __u64;
typedef s8 __s8;
typedef s16 __s16;
typedef s32 __s32;
typedef s64 __s64;
typedef u16 __be16;
typedef u32 __be32;
typedef u32 __wsum;
typedef u16 __sum16;

/* For two words that are changed as one. */
typedef u64 __attribute__((may_alias)) aliasing_u64;

/* Values that have been the same since 6.12; the one that moved (SCX_ENQ_HEAD) is not used. */
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_DSQ_LOCAL_ON 0xC000000000000000ULL
#define SCX_ENQ_WAKEUP (1ULL << 0)
#define SCX_ENQ_PREEMPT (1ULL << 32)
#define SCX_ENQ_REENQ (1ULL << 40) /* to ops.enqueue: from scx_bpf_reenqueue_local() */
#define SCX_ENQ_LAST (1ULL << 41)  /* ... nobody else can run here */
#define SCX_DEQ_SLEEP (1ULL << 0)
#define SCX_WAKE_SYNC (1ULL << 4)
#define SCX_KICK_ANY 0ULL /* no flag of the kernel's: it looks again, whatever it does */
#define SCX_KICK_IDLE (1ULL << 0)
#define SCX_KICK_PREEMPT (1ULL << 1)
#define SCX_PICK_IDLE_CORE (1ULL << 0)
#define SCX_OPS_ENQ_LAST (1ULL << 1)
#define SCX_OPS_ENQ_EXITING (1ULL << 2)
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ULL << 4)
#define SCX_TASK_QUEUED (1U << 0)
#define SCX_DSQ_ITER_REV (1ULL << 16)
#define SCX_SLICE_INF (~0ULL)
#define PF_EXITING 0x00000004
#define PF_KTHREAD 0x00200000
#define MAX_RT_PRIO 100
#define ENOMEM 12
#define EBUSY 16
#define CLOCK_MONOTONIC 1

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))

#ifdef COHORT_NATIVE
#include "native.h"
#else

#include "kernel_types.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

/* What user space sets before loading, and what the scheduler changes itself. Natively each thread has its own, so they need marks. */
#define KNOB const volatile
#define VARIABLE

/* Each object of the kernel's build is compiled for one value of that knob, because Linux 6.18 counts stack and calls of what its verifier drops as well. */
#define COMPILED_FOR(knob) ONLY_##knob
#endif

/* sched_ext: queues and the move of a task from one to another. */
s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) __ksym;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags) __ksym;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
/* The first in a queue, without a lock: may be another one already, or NULL although somebody waits. Since 6.19. */
struct task_struct *scx_bpf_dsq_peek(u64 dsq_id) __ksym __weak;
/* To a queue in order of virtual time: the one set just before for this move, or the one the task had. A queue takes one kind of task at a time. */
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id, u64 enq_flags) __ksym;
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it__iter, u64 vtime) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

/* sched_ext: pCPUs. */
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle) __ksym;
s32 scx_bpf_pick_idle_cpu(const cpumask_t *allowed, u64 flags) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
const struct cpumask *scx_bpf_get_online_cpumask(void) __ksym;
void scx_bpf_put_cpumask(const struct cpumask *mask) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;

/* The idle mask itself, not a copy: bits come and go while one looks. */
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *mask) __ksym;

/*
 * What waits in this pCPU's local queue goes through ops.enqueue again, with SCX_ENQ_REENQ. Until 6.18 in ops.cpu_release alone, and at once.
 * The form without a result exists since 6.19: from anywhere (tracing programs too), and done when the run queue's lock is given up.
 * 7.3 ejects a scheduler that keeps sending one task round without its running.
 */
u32 scx_bpf_reenqueue_local___v1(void) __ksym __weak;
void scx_bpf_reenqueue_local___v2___compat(void) __ksym __weak;

/* sched_ext: since 6.19; plain writes to p->scx before. */
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

/* Since 6.14; a clock read once per scheduling event. Monotonic on one pCPU; between two of them nothing is promised. */
u64 scx_bpf_now(void) __ksym __weak;

/* Only with CONFIG_EXT_GROUP_SCHED. */
struct cgroup *scx_bpf_task_cgroup(struct task_struct *p) __ksym __weak;

/* sched_ext: the end of the scheduler, with a reason. */
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 data_len) __ksym;

/* The kernel at large. */
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;
struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level) __ksym;
void bpf_cgroup_release(struct cgroup *cgrp) __ksym;
void bpf_rcu_read_lock(void) __ksym;
void bpf_rcu_read_unlock(void) __ksym;

/*
 * Timers: a struct bpf_timer in the value of an array map, and `static int cb(void *map, int *key, struct value *v)`.
 *
 * - bpf_timer_init() and bpf_timer_set_callback() in ops.init: the first allocates, and since 7.1 the callback may call what the operation that
 *   sets it may call (before, what any code without a run queue's lock may). Set there it may do what ops.init may without sleeping: scx_bpf_dsq_move() and its kin, kicks, slices; no dsq_insert, no
 *   dsq_move_to_local. No run queue is locked while it runs, and it is no task's business: scx_bpf_task_cgroup() is refused.
 * - bpf_timer_start() anywhere, BPF_F_TIMER_CPU_PIN to have it on the pCPU that starts it; a timer that is set already is set anew. With
 *   interrupts off (all operations that hold a run queue's lock) 7.x puts that off to an interrupt of its own on the same pCPU: one allocation
 *   that may fail, and some 1 us. So start few, and never depend on one alone: callbacks run as softirqs, 60 to 110 us late in the emulated lab, and
 *   by milliseconds when ksoftirqd has to run them, a task that is scheduled like any other.
 * - bpf_timer_cancel() not with a run queue locked: 7.x refuses (-EOPNOTSUPP); 6.18 waits for a callback that may wait for that lock. Let it
 *   fire, and find nothing to do.
 */
#define TIMER_HERE BPF_F_TIMER_CPU_PIN

/*
 * Atomic operations on shared memory, in one place so that the native build can count them: each is a cache line that travels. The BPF object
 * is built with -mcpu=v3 (host/build.rs), which has all of these; the result of atomic_add() and its kin is the old value, and costs nothing
 * where it is not used.
 */
#ifndef COHORT_NATIVE
#define atomic_add(ptr, n) __sync_fetch_and_add((ptr), (n))
#define atomic_and(ptr, bits) __sync_fetch_and_and((ptr), (bits))
#define atomic_or(ptr, bits) __sync_fetch_and_or((ptr), (bits))
#define atomic_xchg(ptr, value) __sync_lock_test_and_set((ptr), (value))
#define atomic_cas(ptr, expected, value) __sync_val_compare_and_swap((ptr), (expected), (value))
#endif

/* The iterator of the bpf_for_each() around it. */
#define BPF_FOR_EACH_ITER (&___it)

/* Time in ns, monotonic. */
static __always_inline u64 now_ns(void)
{
	if (bpf_ksym_exists(scx_bpf_now))
		return scx_bpf_now();
	return bpf_ktime_get_ns();
}

/*
 * What p has run, by the count of the kernel (cpu.stat): that leaves no gap between two tasks for what the kernel does itself, while a time read
 * when one starts or stops leaves out the choice of the next one. With thousands of switches a second that is a share worth having. Never 0.
 */
static __always_inline u64 run_clock(const struct task_struct *p)
{
	return p->se.sum_exec_runtime + 1;
}

/* Where there is only the older form: from ops.cpu_release alone. A tracing program that calls it is not loaded there. */
static __always_inline void reenqueue_local(void)
{
	if (bpf_ksym_exists(scx_bpf_reenqueue_local___v2___compat))
		scx_bpf_reenqueue_local___v2___compat();
	else if (bpf_ksym_exists(scx_bpf_reenqueue_local___v1))
		scx_bpf_reenqueue_local___v1();
}

/*
 * How much longer p may run if it is on a pCPU. p->scx.slice need not say so at once: the kernel writes it down only, of one that is not on the pCPU whose
 * lock is held, and in ops.running of one that is about to be (seen on 7.3).
 */
static __always_inline void task_set_slice(struct task_struct *p, u64 slice_ns)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, slice_ns);
	else
		p->scx.slice = slice_ns;
}

static __always_inline bool task_is_queued(const struct task_struct *p)
{
	return p->scx.flags & SCX_TASK_QUEUED;
}

/*
 * Return true if p must stay where it is. A BPF program runs with migration disabled, so that a count of 1 says nothing about the current
 * task (the one that was running and is being put back, in ops.enqueue).
 */
static __always_inline bool task_is_pinned(const struct task_struct *p)
{
	if (p->nr_cpus_allowed == 1 || p->migration_disabled > 1)
		return true;
	return p->migration_disabled == 1 && p->pid != bpf_get_current_task_btf()->pid;
}

/* In ops.dispatch: is the one that gives up its pCPU in the middle of a section that forbids migration, as a BPF program is? */
static __always_inline bool task_is_in_section(const struct task_struct *p)
{
	return p->nr_cpus_allowed > 1 && p->migration_disabled > 1;
}

/* Return true if p may run on cpu now: affinity, and not in the middle of a section that forbids migration. */
static __always_inline bool task_allowed_on(const struct task_struct *p, s32 cpu)
{
	if (task_is_pinned(p))
		return scx_bpf_task_cpu(p) == cpu;
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/*
 * The vCPU that task p is running as, or NULL: a thread inside KVM_RUN has KVM's preempt notifier on its list, and that notifier sits
 * inside struct kvm_vcpu. Works for every VMM and needs no thread names.
 * KVM is the only user of preempt notifiers in mainline.
 */
static __always_inline struct kvm_vcpu *task_vcpu(struct task_struct *p)
{
	struct hlist_node *node;
	void *notifier;

	if (!bpf_core_type_exists(struct kvm_vcpu) || !bpf_core_field_exists(p->preempt_notifiers))
		return NULL;
	node = p->preempt_notifiers.first;
	if (!node)
		return NULL;
	notifier = (void *)node - bpf_core_field_offset(struct preempt_notifier, link);
	return notifier - bpf_core_field_offset(struct kvm_vcpu, preempt_notifier);
}

static __always_inline u64 vcpu_kvm(struct kvm_vcpu *v)
{
	return (u64)BPF_CORE_READ(v, kvm);
}

static __always_inline s32 vcpu_id(struct kvm_vcpu *v)
{
	return BPF_CORE_READ(v, vcpu_id);
}

/*
 * Has the vCPU lost its pCPU by being preempted, in kernel mode? Asked while it waits, or when it gets a pCPU again.
 *
 * KVM's kvm_arch_vcpu_put() writes arch.preempted_in_kernel for a preempted vCPU only. Of one that blocked since, or that was preempted
 * outside KVM_RUN, the bit tells an older story; vcpu->preempted tells which, and kvm_vcpu_on_spin() asks for it first.
 *
 * In a switch, __schedule() comes to ops.stopping and ops.enqueue of the task that leaves, ops.running of the next, kvm_sched_out() of
 * the former (prepare_task_switch()), which sets vcpu->preempted and then the bit, and kvm_sched_in() of the latter
 * (finish_task_switch()), which clears vcpu->preempted. So ops.running still finds how the vCPU lost its last pCPU; ops.stopping and
 * ops.enqueue do not find yet how it loses this one. A sibling on another pCPU that looks in the middle takes it for not preempted or,
 * for a moment, for what it was last time, as kvm_vcpu_on_spin() does.
 *
 * Where one of the fields is missing nothing is known of the other's age: false, so that the longest wait decides.
 */
static __always_inline bool vcpu_preempted_in_kernel(struct kvm_vcpu *v)
{
	if (!bpf_core_field_exists(v->preempted) || !bpf_core_field_exists(v->arch.preempted_in_kernel))
		return false;
	return BPF_CORE_READ(v, preempted) && BPF_CORE_READ(v, arch.preempted_in_kernel);
}

/* Linux' CALL_FUNCTION_SINGLE_VECTOR and CALL_FUNCTION_VECTOR (asm/irq_vectors.h): the caller waits for the answer, as for a TLB flush, or leaves a wake-up. */
#define VECTOR_CALL_SINGLE 0xfb
#define VECTOR_CALL 0xfc

/* Does a Linux guest call a function on another vCPU by that interrupt? */
static __always_inline bool vector_is_call(u8 vector)
{
	return vector == VECTOR_CALL_SINGLE || vector == VECTOR_CALL;
}

/* Where an APIC's page has its requested interrupts: a word of 32 vectors every 16 bytes. */
#define APIC_IRR 0x200
#define APIC_WORD_BYTES 0x10
#define APIC_WORDS 8

/* Is an interrupt waiting in an APIC that is virtualized in hardware? KVM posts it (Intel), and it moves to the APIC's page; AMD has it there at once. */
static __always_inline bool vcpu_irq_posted(struct kvm_vcpu *v, struct kvm_lapic *apic)
{
	struct vcpu_vmx *vmx = (struct vcpu_vmx *)v;
	void *regs;
	u32 irr;
	s32 i;

	if (bpf_core_type_exists(struct vcpu_vmx) && bpf_core_field_exists(vmx->vt.pi_desc.control) &&
	    BPF_CORE_READ(vmx, vt.pi_desc.control) & 1)
		return true;
	regs = BPF_CORE_READ(apic, regs);
	for (i = 0; regs && i < APIC_WORDS; i++) {
		if (!bpf_probe_read_kernel(&irr, sizeof(irr), regs + APIC_IRR + i * APIC_WORD_BYTES) && irr)
			return true;
	}
	return false;
}

/*
 * May an interrupt be waiting for the vCPU? In the emulated APIC by KVM's own hint: may be set without one, is never clear with one. With an APIC
 * virtualized in hardware that is always set and says nothing.
 */
static __always_inline bool vcpu_irq_pending(struct kvm_vcpu *v)
{
	struct kvm_lapic *apic;

	if (!bpf_core_type_exists(struct kvm_lapic))
		return false;
	apic = BPF_CORE_READ(v, arch.apic);
	if (!apic)
		return false;
	if (bpf_core_field_exists(apic->apicv_active) && BPF_CORE_READ(apic, apicv_active))
		return vcpu_irq_posted(v, apic);
	return BPF_CORE_READ(apic, irr_pending);
}

/* The id of the cgroup that a threaded one's processes are in; 0: of a kernel that does not say. */
static __always_inline u64 cgroup_domain_id(struct cgroup *cgrp)
{
	struct kernfs_node *kn;
	struct cgroup *domain;

	if (!bpf_core_field_exists(cgrp->dom_cgrp))
		return 0;
	domain = BPF_CORE_READ(cgrp, dom_cgrp);
	kn = BPF_CORE_READ(domain, kn);
	return BPF_CORE_READ(kn, id);
}

#define scx_error(fmt, args...)                                                                \
	({                                                                                     \
		static char ___fmt[] = fmt;                                                    \
		unsigned long long ___args[] = { 0, ##args };                                  \
		scx_bpf_error_bstr(___fmt, ___args + 1, sizeof(___args) - sizeof(___args[0])); \
	})

/*
 * A function that the verifier checks once, by itself, instead of once for each state in which it is called: returns an int, and what its
 * arguments point to may be NULL.
 */
#define VERIFIED_ONCE __attribute__((noinline)) int
/* In such a function: an argument that no policy looks at. The compiler would leave it out where the function is called, and the verifier miss it. */
#define UNUSED_YET(argument) asm volatile("" ::"r"(argument))
#define VERIFIED_ONCE_U64 __attribute__((noinline)) u64

/*
 * `value`, of which the verifier no longer knows that it is one of a few: what follows is checked once, and not for each of them. `any`: a number that it does
 * not know.
 */
#ifndef COHORT_NATIVE
#define FORGOTTEN(value, any)                                                           \
	({                                                                              \
		u64 ___value = (value);                                                 \
		asm volatile("%0 += %1; %0 -= %1" : "+&r"(___value) : "r"((u64)(any))); \
		___value;                                                               \
	})
#else
#define FORGOTTEN(value, any) ((u64)(value))
#endif

/* Is time or virtual time a before b? Both wrap. */
static __always_inline bool time_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

#endif
