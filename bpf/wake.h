/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What comes with a task that becomes runnable: its virtual time is brought near, and somebody is to look at it.
 */
#ifndef COHORT_WAKE_H
#define COHORT_WAKE_H

#include "runqueue.h"
#include "turn.h"

/* A task is about to be queued on cpu, or to run there at once. */
static void arrive(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	if (t->cpu < 0 || !t->waited_ns)
		order_wake(t, cpu, now, queued);
}

/* How many idle pCPUs are tried that may be kept for others. */
#define KEPT_TRIES 4

/*
 * t comes to wait for a pCPU that is kept: would it preempt the vCPU, or does it belong to the same VM? Then it is kept no longer. A function of its own, as
 * takes_place_of_runner(): the ranks are not to lie on the stack of all that follows an enqueue.
 */
static __noinline void keep_challenge(struct task_ctx *t, struct cpu_ctx *c, u64 now)
{
	struct rank rank, kept;

	order_rank(t, now, &rank);
	order_rank_of_runner(c, now, &kept);
	if ((t->vm && t->vm == c->curr_vm) || order_before(&rank, &kept, wakeup_gran_ns))
		c->kept_until_ns = now;
}

/*
 * p comes to wait here. Where it comes from another pCPU, whose turn it had, nobody holds this one's lock: its runner may leave it between our look and the
 * insertion, and it idles then, for it has looked in vain. So its timer looks again (turn_over()); where no turn goes on it is kicked, which takes effect after
 * the insertion. And so it is, wherever p comes from, where a turn is over and nothing has said so yet, because nobody waited. Not by SCX_KICK_IDLE: the kernel
 * forgets that at once where somebody runs, though he may be about to leave.
 */
static __always_inline void tell_of_newcomer(struct task_struct *p, s32 cpu, struct cpu_ctx *c, u64 now)
{
	bool stranger = cpu != scx_bpf_task_cpu(p);

	if (c->curr_pid && time_before(now, c->turn_end_ns)) {
		if (stranger)
			turn_watch(c, cpu, now);
	} else if (c->curr_pid ? !turn_is_watched(cpu, now) : stranger) {
		scx_bpf_kick_cpu(cpu, SCX_KICK_ANY);
	}
}

/*
 * Does p, which waits for cpu from now on, have it instead of who runs there? sent: it is to have that place.
 */
static __noinline bool takes_place_of_runner(struct task_struct *p, struct task_ctx *t, s32 cpu, bool sent, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct rank rank;

	if (!c)
		return false;
	order_rank(t, now, &rank);
	sent = sent && has_place_of_runner(c, &rank, now);
	if (!sent && !would_preempt(c, &rank, now))
		return false;
	if (sent) {
		c->sent_pid = p->pid;
		c->sent_ns = now;
	}
	stat_inc(STAT_PREEMPT_WAKEUP);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	return true;
}

/*
 * Make somebody look at p, which is about to be queued on cpu, whose context is c: an idle pCPU, or the one whose runner deserves it less. last: nobody else
 * can run there (SCX_ENQ_LAST). sent: it is to have the runner's place.
 */
static __always_inline void notify(struct task_struct *p, struct task_ctx *t, struct cpu_ctx *c, s32 cpu, bool last,
				   bool sent, u64 now)
{
	struct cpu_ctx *other;
	s32 idle, i;

	if (!c)
		return;
	if (scx_bpf_test_and_clear_cpu_idle(cpu)) {
		if (guard_may_keep() && c->kept_pid)
			keep_challenge(t, c, now);
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!task_is_pinned(p)) {
		for (i = 0; i < KEPT_TRIES; i++) {
			idle = scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
			if (idle < 0)
				break;
			scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			other = guard_may_keep() ? cpu_get(idle) : NULL;
			/* One that is kept looks later. */
			if (!other || !other->kept_pid) {
				tell_of_newcomer(p, cpu, c, now);
				return;
			}
		}
	}
	/*
	 * Nobody runs: that pCPU is between two tasks. If it has chosen already, and found nobody, it idles from now on, whatever is queued; it is told to look
	 * once more, when p is there. This pCPU, if it is the one, has chosen another, unless p is the last. Not by SCX_KICK_IDLE, unless its lock is held:
	 * while a real-time task runs there the kernel forgets that at once, although p comes into the queue only when this operation is over.
	 */
	if (!c->curr_pid) {
		if (last || cpu != (s32)bpf_get_smp_processor_id())
			scx_bpf_kick_cpu(cpu, cpu == scx_bpf_task_cpu(p) ? SCX_KICK_IDLE : SCX_KICK_ANY);
		return;
	}
	if (c->curr_pid == p->pid)
		return;
	if (takes_place_of_runner(p, t, cpu, sent, now))
		return;
	turn_watch(c, cpu, now);
	tell_of_newcomer(p, cpu, c, now);
}

/* Kernel threads have been at work that woke here; somebody else runs now, or is chosen. */
static __always_inline void interruption_ends(struct cpu_ctx *c, u64 now)
{
	if (c->interrupted)
		c->interrupts_ns += elapsed_ns(now, c->interrupted_ns);
	c->interrupted = 0;
}

/* Kernel threads that wake have a pCPU at once for half of so many turns. */
#define INTERRUPTS_WINDOW 2

/*
 * May a kernel thread that wakes have this pCPU at once? Each has a little work to do, as a rule; but those that wake while another is at work follow one another,
 * and nobody else is chosen. When they have had as much as all others together they queue like everybody, for a while.
 */
VERIFIED_ONCE may_interrupt(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 spent;

	if (!c)
		return 1;
	if (elapsed_ns(now, c->interrupts_since_ns) > INTERRUPTS_WINDOW * slice_ns) {
		c->interrupts_since_ns = c->interrupted_ns = now;
		c->interrupts_ns = 0;
	}
	spent = c->interrupts_ns + (c->interrupted ? elapsed_ns(now, c->interrupted_ns) : 0);
	return spent < INTERRUPTS_WINDOW * slice_ns / 2;
}

/*
 * A pinned kernel thread that wakes does a little work for the kernel, at once; whoever it interrupts goes on after it. One that finds another at work comes
 * after that one, or else the first would have the rest of the turn that it has interrupted.
 */
static void run_kthread(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 enq_flags, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);

	account_place(t, cpu);
	if (c && c->interrupted) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	if (c) {
		c->interrupted = 1;
		c->interrupted_ns = now;
		if (c->curr_pid && c->curr_pid != c->resume_pid) {
			c->resume_pid = c->curr_pid;
			c->resume_end_ns = c->turn_end_ns;
		}
	}
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags | SCX_ENQ_PREEMPT);
}

/* Does a gate keep the thread of that pid from running here now? */
static bool gate_is_closed(s32 pid, s32 cpu, u64 now)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct task_ctx *t;
	bool closed;

	if (!p)
		return false;
	t = task_get(p);
	closed = t && gate_for(t, cpu, now);
	bpf_task_release(p);
	return closed;
}

/* Whose turn a kernel thread has interrupted here goes on, if there is enough of it left. */
VERIFIED_ONCE resume_now(struct cpu_ctx *c, s32 cpu, u64 now)
{
	s32 pid;

	if (!c || !c->resume_pid)
		return 0;
	pid = c->resume_pid;
	c->resume_pid = 0;
	if (!time_before(now + TURN_REST_MIN_NS, c->resume_end_ns) || gate_is_closed(pid, cpu, now))
		return 0;
	if (!take(pid, cpu, cpu, c->resume_end_ns - now))
		return 0;
	stat_inc(STAT_RESUMED);
	return 1;
}

static __always_inline bool resume(struct cpu_ctx *c, s32 cpu, u64 now)
{
	return c->resume_pid && resume_now(c, cpu, now);
}

#endif
