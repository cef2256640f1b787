// SPDX-License-Identifier: GPL-2.0-only
/*
 * The probe of `cohort top`: what every vCPU of this host does and waits for, under any scheduler. It changes nothing.
 *
 * Time comes from the scheduler's tracepoints, which every kernel with BTF has; what KVM does from its tracepoints and functions. User space loads only
 * those programs whose hook the running kernel has, and says which figures are missing.
 *
 * A thread that is no vCPU costs one look into its task storage, which is empty; a switch to or from an idle pCPU also one at the clock.
 */
#include "registry.h"

char _license[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct probe_pcpu);
} probe_pcpus SEC(".maps");

/*
 * The pCPU switches: it may become idle, or be idle no longer. /proc/stat has that only roughly: where the tick goes on, the kernel counts whole ticks as idle, and
 * does not see who ran between two of them.
 */
static __always_inline void pcpu_switched(bool was_idle, bool is_idle, u64 now)
{
	struct probe_pcpu *pcpu;
	u32 zero = 0;

	pcpu = bpf_map_lookup_elem(&probe_pcpus, &zero);
	if (!pcpu)
		return;
	pcpu->switches++;
	/* Of what the first switch ends nothing is known. */
	if (was_idle != is_idle && (is_idle || (pcpu->idle & CLOCK_COUNT)))
		clock_change(&pcpu->idle, now, is_idle);
}

/* One instant for all: what one leaves the other takes. Between two threads that nobody follows it is not asked for. */
static __always_inline void switched(bool preempt, struct task_struct *prev, struct task_struct *next, u64 prev_state)
{
	bool was_idle = !prev->pid, is_idle = !next->pid;
	u32 cpu = bpf_get_smp_processor_id(), state;
	struct probe_vcpu *from, *to;
	u64 now;

	if (is_over())
		return;
	from = vcpu_of(prev);
	to = vcpu_of(next);
	now = from || to || was_idle != is_idle ? bpf_ktime_get_ns() : 0;
	pcpu_switched(was_idle, is_idle, now);
	if (from) {
		if (preempt || !prev_state) {
			state = PROBE_READY_PREEMPTED;
			from->preemptions++;
		} else {
			state = vcpu_is_halted((void *)from->kvm_vcpu) ? PROBE_HALTED : PROBE_BLOCKED;
		}
		vcpu_moves(from, state, cpu, now);
	}
	if (to) {
		to->switches++;
		vcpu_moves(to, PROBE_RUN, cpu, now);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(probe_switch, bool preempt, struct task_struct *prev, struct task_struct *next, u32 prev_state)
{
	switched(preempt, prev, next, prev_state);
	return 0;
}

/* Before 5.18 the tracepoint does not say the state; the task's own may have changed already, if it is being woken at this moment. */
SEC("tp_btf/sched_switch")
int BPF_PROG(probe_switch_stateless, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	switched(preempt, prev, next, BPF_CORE_READ(prev, __state));
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(probe_wakeup, struct task_struct *p)
{
	struct probe_vcpu *v = vcpu_of(p);

	/* Who was woken before it slept has never left its pCPU. */
	if (v && !is_active(PLACE_STATE(v->place)))
		vcpu_moves(v, PROBE_READY_WOKEN, task_cpu(p), bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(probe_migrate, struct task_struct *p, s32 cpu)
{
	struct probe_vcpu *v = vcpu_of(p);
	u32 state;

	if (!v)
		return 0;
	v->migrations++;
	state = PLACE_STATE(v->place);
	if (is_ready(state))
		vcpu_moves(v, state, cpu, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(probe_exit, struct task_struct *p)
{
	struct task_slot *t = is_over() ? NULL : bpf_task_storage_get(&probe_tasks, p, 0, 0);

	if (t)
		vcpu_gone(t);
	return 0;
}

SEC("fentry/kvm_arch_vcpu_ioctl_run")
int BPF_PROG(probe_enter, struct kvm_vcpu *vcpu)
{
	struct probe_vcpu *v = vcpu_found(bpf_get_current_task_btf(), vcpu);

	if (v)
		vcpu_begins(v, PROBE_RUN, bpf_get_smp_processor_id(), bpf_ktime_get_ns());
	return 0;
}

/* Who is inside KVM_RUN already. */
SEC("iter/task")
int probe_find(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct kvm_vcpu *vcpu;
	struct probe_vcpu *v;
	u32 state;

	if (!task)
		return 0;
	vcpu = task_vcpu(task);
	if (!vcpu)
		return 0;
	v = vcpu_found(task, vcpu);
	if (!v)
		return 0;
	/* Its type is not the same in all kernels. */
	if (BPF_CORE_READ_BITFIELD(task, on_cpu))
		state = PROBE_RUN;
	else if (!task->__state)
		state = PROBE_READY_WOKEN;
	else
		state = vcpu_is_halted(vcpu) ? PROBE_HALTED : PROBE_BLOCKED;
	vcpu_begins(v, state, task_cpu(task), bpf_ktime_get_ns());
	return 0;
}

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(probe_spin, struct kvm_vcpu *me, bool in_kernel)
{
	struct probe_vcpu *v = vcpu_of(bpf_get_current_task_btf());
	u64 now, run;

	if (!v)
		return 0;
	v->ple++;
	if (in_kernel)
		v->ple_kernel++;
	now = bpf_ktime_get_ns();
	record(EVENT_PLE, v, now, bpf_get_smp_processor_id(), in_kernel, 0);
	run = v->run_ns + elapsed(v->since_ns, now);
	if (v->chain && elapsed(v->chain_run_ns, run) > chain_gap_ns)
		chain_end(v);
	if (!v->chain)
		v->ple_chains++;
	v->chain++;
	v->chain_run_ns = run;
	return 0;
}

/* KVM is its only caller. */
SEC("fexit/yield_to")
int BPF_PROG(probe_yield_to, struct task_struct *p, bool preempt, s32 result)
{
	struct probe_vcpu *v = vcpu_of(bpf_get_current_task_btf()), *to;

	if (!v)
		return 0;
	v->yields_asked++;
	if (result > 0)
		v->yields_granted++;
	if (recording) {
		to = vcpu_of(p);
		record(EVENT_YIELD, v, bpf_ktime_get_ns(), bpf_get_smp_processor_id(), result > 0,
		       to ? to->slot : PROBE_NO_VCPU);
	}
	return 0;
}

/* An interrupt reaches a vCPU's APIC. One that a sibling's thread brings is that sibling's. */
SEC("tp_btf/kvm_apic_accept_irq")
int BPF_PROG(probe_irq, u32 vcpu_id, s32 delivery, s32 trigger, s32 vector)
{
	struct probe_vcpu *from = vcpu_of(bpf_get_current_task_btf()), *to;
	struct vcpu_name name;
	u64 sent;
	u32 *slot;

	if (!from || from->vcpu_id == vcpu_id)
		return 0;
	from->ipis_sent++;
	name.vm = from->vm;
	name.vcpu_id = vcpu_id;
	slot = bpf_map_lookup_elem(&probe_vcpu_slots, &name);
	to = slot ? vcpu_at(*slot) : NULL;
	if (recording)
		record(EVENT_IPI, from, bpf_ktime_get_ns(), bpf_get_smp_processor_id(), vector,
		       to ? to->slot : PROBE_NO_VCPU);
	if (!to || PLACE_STATE(READ_ONCE(to->place)) != PROBE_READY_PREEMPTED)
		return 0;
	sent = elapsed(READ_ONCE(to->ready_since_ns), bpf_ktime_get_ns());
	if (sent >> (PROBE_IPI_BITS - 8))
		return 0;
	atomic_add(&to->ipi_pending, (1ULL << PROBE_IPI_BITS) + sent);
	return 0;
}

static __always_inline int count_hyperv_flush(void)
{
	struct probe_vcpu *v = vcpu_of(bpf_get_current_task_btf());

	if (!v)
		return 0;
	v->tlb_hypercalls++;
	if (recording)
		record(EVENT_TLB_HYPERCALL, v, bpf_ktime_get_ns(), bpf_get_smp_processor_id(), 0, 0);
	return 0;
}

SEC("tp_btf/kvm_hv_flush_tlb")
int BPF_PROG(probe_hv_flush)
{
	return count_hyperv_flush();
}

SEC("tp_btf/kvm_hv_flush_tlb_ex")
int BPF_PROG(probe_hv_flush_ex)
{
	return count_hyperv_flush();
}

SEC("tp_btf/kvm_pv_tlb_flush")
int BPF_PROG(probe_pv_flush, u32 vcpu_id, bool needed)
{
	struct probe_vcpu *v = needed ? vcpu_of(bpf_get_current_task_btf()) : NULL;

	if (!v)
		return 0;
	v->tlb_deferred++;
	if (recording)
		record(EVENT_TLB_DEFERRED, v, bpf_ktime_get_ns(), bpf_get_smp_processor_id(), 0, vcpu_id);
	return 0;
}

#define KVM_HC_KICK_CPU 5

SEC("tp_btf/kvm_hypercall")
int BPF_PROG(probe_hypercall, u64 number)
{
	struct probe_vcpu *v = recording || number == KVM_HC_KICK_CPU ? vcpu_of(bpf_get_current_task_btf()) : NULL;

	if (!v)
		return 0;
	if (number == KVM_HC_KICK_CPU)
		v->kicks++;
	if (recording)
		record(EVENT_HYPERCALL, v, bpf_ktime_get_ns(), bpf_get_smp_processor_id(), number, 0);
	return 0;
}
