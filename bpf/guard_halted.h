/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Guard halted: a vCPU that sleeps for a moment in its turn keeps its pCPU, which idles meanwhile (keep.h).
 *
 * Two vCPUs that wake each other all the time, a server's and its client's, sleep for moments only, as long as both have a pCPU. If the pCPU of the one that
 * halts goes to another VM, it comes back by a preemption and to a cold cache, thousands of times a second; and if it does not come back at once,
 * the other one halts as well. KVM polls at a halt for that reason (halt_poll_ns), but not where somebody else could run. Strict co-scheduling keeps all the
 * pCPUs of a VM's turn ("survey", section 4), however long its vCPUs sleep. Here one is kept only if the vCPU's last sleeps were short, and for no longer than
 * about what losing it would cost; the VM pays for it.
 */
#ifndef COHORT_GUARD_HALTED_H
#define COHORT_GUARD_HALTED_H

/* Of its turn there must be more left than a sleep. */
static u64 halted_keep_ns(const struct vcpu_ctx *v, u64 rest_ns)
{
	if (v->slept_ns > guard_keep_ns || rest_ns < 2 * guard_keep_ns)
		return 0;
	return guard_keep_ns;
}

static const struct guard guard_halted = {
	.keep_ns = halted_keep_ns,
};

#endif
