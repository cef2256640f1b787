/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which sibling a spinning vCPU waits for, as far as the host can tell; and what the ways to serve a pause-loop exit (spin_*.h) have in common:
 * one exit gives the pCPU away once, and a storm of them backs off.
 */
#ifndef COHORT_SIBLING_H
#define COHORT_SIBLING_H

#include "wish.h"

/* Who got its pCPU back in the middle of a pause-loop exit is through with it in this time: what it yields for later is something else. */
#define EXIT_REST_NS 100000ULL

/*
 * vcpu_ctx.exit_served: the vCPU's last pause-loop exit has got a boost of our choice. Counted down whenever the vCPU gets a pCPU: at
 * EXIT_SERVED it has not lost it since; one less, it is back, perhaps still in that exit; 0, that exit is long over.
 */
#define EXIT_SERVED 2

/*
 * A vCPU's next boost may come this much later; twice as much every time that it spins on in the same turn, up to what a boost may last: who
 * waits for several siblings, as in a TLB shootdown, needs one after the other.
 */
#define BOOST_BACKOFF_MIN_NS 50000ULL

/* Return true if the spinner has had its boost and must wait for the next. */
static __always_inline bool boost_backs_off(const struct vcpu_ctx *spinner, u64 now)
{
	return time_before(now, spinner->boost_after_ns);
}

/* It gets one now: the next one later. */
static void boost_charge(struct vcpu_ctx *spinner, u64 now)
{
	if (elapsed_ns(now, spinner->boost_after_ns) > slice_ns)
		spinner->backoff_ns = 0;
	spinner->backoff_ns = spinner->backoff_ns ? spinner->backoff_ns * 2 : BOOST_BACKOFF_MIN_NS;
	if (spinner->backoff_ns > boost_slice_ns)
		spinner->backoff_ns = boost_slice_ns;
	spinner->boost_after_ns = now + spinner->backoff_ns;
}

enum boost_class {
	BOOST_CLASS_NONE,
	BOOST_CLASS_USER, /* preempted in user mode */
	BOOST_CLASS_KERNEL,
	BOOST_CLASS_IRQ, /* has an interrupt to answer, or was woken: KVM wakes a halted vCPU for an event, whether or not that can be read */
};

static __always_inline u32 boost_class_of(const struct vcpu_ctx *v)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)v->kvm_vcpu;

	if (v->state != VCPU_WAITING || !kvm_vcpu)
		return BOOST_CLASS_NONE;
	if (v->woken || vcpu_irq_pending(kvm_vcpu))
		return BOOST_CLASS_IRQ;
	if (vcpu_preempted_in_kernel(kvm_vcpu))
		return BOOST_CLASS_KERNEL;
	return BOOST_CLASS_USER;
}

/*
 * The sibling that should run in place of t, a vCPU of vm: its index in the map vcpus, or -1 if none waits. Within a class the one that has waited longest.
 * *class: why it.
 */
static s32 sibling_to_run(struct task_ctx *t, struct vm_ctx *vm, u32 *class)
{
	u64 best_since = 0;
	struct vcpu_ctx *v;
	s32 i, index, best = -1;
	u32 found;

	*class = BOOST_CLASS_NONE;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		if (i == t->vcpu)
			continue;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v)
			continue;
		found = boost_class_of(v);
		if (found < *class || found == BOOST_CLASS_NONE)
			continue;
		if (found == *class && !time_before(v->since_ns, best_since))
			continue;
		*class = found;
		best_since = v->since_ns;
		best = index;
	}
	if (best < 0) {
		stat_inc(STAT_PLE_NO_SIBLING);
		return -1;
	}
	stat_inc(STAT_BOOST_CHOSEN);
	stat_inc(*class == BOOST_CLASS_IRQ    ? STAT_BOOST_IRQ :
		 *class == BOOST_CLASS_KERNEL ? STAT_BOOST_KERNEL :
						STAT_BOOST_USER);
	return best;
}

/*
 * Does KVM offer v at the same exit, once the program on kvm_vcpu_on_spin() is over? Then a wish left with the spinner's own pCPU is all that it takes: ops.yield finds it
 * (exit_state()). A kick is an interrupt in the middle of that program, a section that forbids migration: the spinner loses its pCPU in there and has to be let out of it
 * first (let_out() in turn.h), by timers, two or three of them for each boost. Of an interrupt that waits KVM knows only where the APIC is virtualized, and not for each.
 */
static __always_inline bool kvm_offers(const struct vcpu_ctx *v)
{
	struct kvm_vcpu *kvm_vcpu = (struct kvm_vcpu *)v->kvm_vcpu;

	return v->woken || (kvm_vcpu && vcpu_preempted_in_kernel(kvm_vcpu));
}

/*
 * vCPU t is at its next exit on cpu without having lost it since it was to give it away: KVM has offered nobody. It passes over one that is in such an exit itself, every
 * other time.
 */
static __always_inline bool last_exit_is_unserved(const struct task_ctx *t, const struct vcpu_ctx *spinner, s32 cpu)
{
	struct cpu_ctx *c = cpu_get(cpu);

	return spinner->exit_served == EXIT_SERVED && c && c->wish_vm == t->vm && wish_is_fresh(c, now_ns());
}

enum exit_state {
	EXIT_OPEN,
	EXIT_GIVES, /* our choice is still to come, and has the pCPU next */
	EXIT_OVER,  /* it has had its turn: the spinner looks first */
};

/*
 * KVM offers a sibling in place of `from`. Has this exit been served by our own choice? Either that is still to come, or the spinner lost its pCPU to it in
 * the middle of the exit and has just got it back: what it waited for may have happened, and KVM has not let it look yet.
 */
static u32 exit_state(struct task_struct *from, struct vcpu_ctx *spinner, const struct cpu_ctx *c, u64 now)
{
	if (!spinner->exit_served)
		return EXIT_OPEN;
	if (wish_is_fresh(c, now)) {
		task_set_slice(from, 0);
		spinner->gave_way = 1;
		return EXIT_GIVES;
	}
	return time_before(now, spinner->since_ns + EXIT_REST_NS) ? EXIT_OVER : EXIT_OPEN;
}

#endif
