/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cohort: a sched_ext scheduler for hosts that run SMP virtual machines with more vCPUs than pCPUs.
 *
 * The operations, each a few steps that name mechanisms; the mechanisms are in the headers, in the order in which they build on each other:
 *
 *   kernel.h     the kernel's types and functions, and what differs between versions
 *   intf.h       limits, knob values and counters, shared with user space
 *   policies.h   the table of policies; policy.h: what each decides
 *   state.h      what is remembered about pCPUs, tasks, vCPUs, VMs and cgroups; the knobs; marks.h: which queues are not empty
 *   tree.h       who competes with whom: cgroups, and the VMs in them
 *   tally.h      what is counted of a VM, for statistics
 *   registry.h   which tasks are vCPUs, of which VM, and where they are
 *   account.h    what a task has run
 *   flat.h       a VM's weight, divided among its vCPUs, a cgroup's among its threads
 *   aside.h      who may not run now, for a while
 *   topology.h   which pCPUs are near one another
 *   placement.h  where a task is queued
 *   runqueue.h   the queues, and who runs next
 *   make_way.h   who goes elsewhere so that another has a turn
 *   turn.h       turns that end on time
 *   wish.h       "run this one next"
 *   sibling.h    for which sibling a spinner waits
 *   sets.h       vCPUs that belong together, as user space says
 *   order_*.h, gang_*.h, spin_*.h, guard_*.h, gate_*.h   the policies; what some of them have in common or are made of: vm_rank.h, flat.h, domains.h, debts.h (orders),
 *                set_turn.h, force.h, strict_seats.h (gangs), traffic.h, shared_pages.h (who communicates)
 *   policy_calls.h   the one place that knows all of them; gang_calls.h is a part of it
 *   grace.h      a pCPU given back to whom it was taken from
 *   keep.h       a pCPU kept for one that sleeps for a moment
 *   runner.h     who has a pCPU: from when, until when
 *   period.h     what they do every so often
 *   wake.h       what comes with a task that becomes runnable
 *   irq.h        interrupts between vCPUs
 *   cgroup_ops.h, pcpu_ops.h, life_ops.h   operations on cgroups and pCPUs; how the scheduler and tasks begin and end
 *
 * Suits: KVM hosts of any VMM, with ordinary tasks beside the VMs. Every choice is made from state in the kernel; user space may stop or
 * die at any moment.
 */
#include "wish.h"
#include "wake.h"
#include "make_way.h"
#include "policy_calls.h"
#include "grace.h"
#include "keep.h"
#include "runner.h"
#include "period.h"
#include "cgroup_ops.h"
#include "pcpu_ops.h"
#include "life_ops.h"
#include "irq.h"

char _license[] SEC("license") = "GPL";

SEC("struct_ops/select_cpu")
s32 BPF_PROG(cohort_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();
	bool idle = false;
	s32 cpu;

	if (t && keep_is_for(p, prev_cpu, now) && scx_bpf_test_and_clear_cpu_idle(prev_cpu)) {
		cpu = prev_cpu;
		idle = true;
	} else {
		/*
		 * Whoever wakes somebody may say that it is about to sleep (SCX_WAKE_SYNC: pipes, sockets, also when a packet arrives in the middle of a
		 * vCPU's turn). The kernel then calls this pCPU idle, which is busy: p would wait in its local queue, where nobody else can get it.
		 */
		cpu = scx_bpf_select_cpu_dfl(p, prev_cpu, wake_flags & ~SCX_WAKE_SYNC, &idle);
	}
	if (!t)
		return cpu;
	identify(p, t);
	/* An idle pCPU has nobody, so no sibling either. */
	if (idle) {
		if (gate_for(t, cpu, now) || (gang_may_refuse() && !gang_begins(t, cpu, now)))
			return cpu;
		arrive(p, t, cpu, now, false);
		account_place(t, cpu);
		stat_inc(STAT_WAKEUPS_IDLE);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, wake_slice(t, cpu, now), 0);
		return cpu;
	}
	cpu = place(p, t, prev_cpu, now, NULL);
	t->placed = cpu + 1;
	return cpu;
}

SEC("struct_ops/enqueue")
void BPF_PROG(cohort_enqueue, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();
	struct pick *search = NULL;
	struct cpu_ctx *c;
	struct vcpu_ctx *v;
	bool woken, waited, sent;
	s32 cpu;

	/* Who is nearly gone cannot be found where it waits. */
	if (!t || p->exit_state) {
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	waited = t->comes_back;
	woken = is_asleep(t) && !t->aside;
	identify(p, t);
	v = woken ? vcpu_get(t) : NULL;
	if (v)
		v->woken = 1;
	cpu = scx_bpf_task_cpu(p);

	/* Once it has used a slice it queues like everybody. */
	if (woken && (p->flags & PF_KTHREAD) && p->nr_cpus_allowed == 1 && may_interrupt(cpu, now)) {
		arrive(p, t, cpu, now, false);
		run_kthread(p, t, cpu, enq_flags, now);
		return;
	}
	/* One that may run nowhere else, or whose pCPU was looking for somebody just now, was not asked where it wants to go. */
	if (woken && keep_is_for(p, cpu, now) && !gate_for(t, cpu, now)) {
		arrive(p, t, cpu, now, false);
		account_place(t, cpu);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, slice_ns, enq_flags);
		return;
	}
	if (!t->queued_ns)
		t->queued_ns = now;
	t->aside = may_be_kept_off(t) && !(p->flags & PF_EXITING) && goes_aside(t, cpu, now);
	if (t->aside) {
		t->comes_back = false;
		account_place(t, -1);
		vcpu_set_state(t, VCPU_ASLEEP, -1, now);
		scx_bpf_dsq_insert(p, ASIDE_DSQ(cpu), slice_ns, enq_flags);
		stat_inc(STAT_THROTTLED);
		gang_settle(now);
		return;
	}

	/* Whose turn has ended may be before somebody who runs elsewhere. Whose place was lent to another waits here: he has it back soon. */
	c = cpu_get(cpu);
	if (!woken && !waited && !t->placed && c && !c->out_of_turn) {
		search = new_search(SECOND_SEARCH, cpu, now);
		if (search) {
			order_rank(t, now, &search->rank);
			t->placed = room_for(p, t, search, NULL) + 1;
		}
	}
	c = t->placed ? cpu_get(t->placed - 1) : NULL;
	sent = c && c->online && task_allowed_on(p, t->placed - 1);
	cpu = sent ? t->placed - 1 : place(p, t, cpu, now, search ? &search->rank : NULL);
	t->placed = 0;
	c = cpu_get(cpu);
	if (siblings_on(t, cpu) && vm_get(t)) {
		stat_inc(STAT_STACKED);
		t->untold.stacked++;
	}
	arrive(p, t, cpu, now, true);
	account_place(t, cpu);
	vcpu_set_state(t, VCPU_WAITING, cpu, woken ? now : t->queued_ns);
	queue_insert(p, t, c, cpu, enq_flags);
	/* One that wakes was placed, too, but not for anybody's place. */
	notify(p, t, c, cpu, enq_flags & SCX_ENQ_LAST, sent && !woken, now);
	gang_settle(now);
}

/* Take the best that waits here, if it deserves the pCPU more than the one that could go on. */
VERIFIED_ONCE take_next(s32 cpu, struct pick *best)
{
	if (!best)
		return 0;
	best->pid = 0;
	best->urgency = 0;
	best_waiter(cpu, QUEUE_SCAN, 0, best);
	if (!best->pid || (best->prev_queued && !best->urgency && !order_before(&best->rank, &best->prev, 0)))
		return 0;
	return take(best->pid, cpu, cpu, turn_slice(NULL, best->vm, cpu, best->now));
}

/* prev, t, has another turn on the pCPU of c. */
static void go_on(struct task_struct *prev, struct task_ctx *t, struct cpu_ctx *c, struct pick *best, enum fate fate)
{
	u64 slice = best->rest_ns ?: slice_to_go_on(t, turn_slice(t, best->leaving_vm, best->cpu, best->now));

	t->placed = 0;
	if (fate == GOES_ON_FOR_NOW && slice > STARVED_SLICE_NS)
		slice = STARVED_SLICE_NS;
	slice = cut_short(prev, t, c, slice);
	task_set_slice(prev, slice);
	c->turn_end_ns = best->now + slice;
	c->sent_pid = 0;
	gang_began(t, best->cpu, best->now);
	t->begins_ns = best->now;
	order_begin(t, best->cpu, slice, prev->scx.weight, true);
	if (queue_is_marked(best->cpu) || c->cut_short)
		turn_watch(c, best->cpu, best->now);
}

SEC("struct_ops/dispatch")
void BPF_PROG(cohort_dispatch, s32 cpu, struct task_struct *prev)
{
	struct pick *best = new_search(FIRST_SEARCH, cpu, now_ns());
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_ctx *t = NULL;
	enum fate fate;
	bool steps_back = false;
	u64 slice;

	if (!c || !best || let_out(prev, c, cpu, best->now))
		return;
	if (guard_may_keep() && keep_holds(cpu, prev && task_is_queued(prev), best->now))
		return;
	interruption_ends(c, best->now);
	c->out_of_turn = 0;
	c->emptied = 0;
	if (prev && task_is_queued(prev)) {
		t = task_get(prev);
		if (t) {
			run_charge(prev, t, prev->scx.weight, true, best->now);
			if (gate_of(prev, t, cpu, best->now))
				t = NULL;
			else
				order_end(t, prev->scx.weight);
		}
		if (t) {
			steps_back = t->steps_back;
			t->steps_back = false;
			note_prev(t, c, best);
		}
	}
	order_before_pick(cpu, best->now);
	recall(c, cpu, SEARCH_MAX, best->now);
	gang_settle(best->now);
	if (c->wish_pid && wish_redeem(best, c))
		return;
	if (queue_has_some(cpu)) {
		search_overdue(c, cpu, SEARCH_MAX, best->now);
		if (take_overdue(c, cpu) || resume(c, cpu, best->now))
			return;
		best_waiter(cpu, QUEUE_SCAN, 0, best);
		ask_a_third(prev, t, best);
		if (!best->waiting && scx_bpf_dsq_nr_queued(cpu) <= 0 && !has_overdue(c, cpu)) {
			queue_unmark(cpu);
			/* Somebody may have come in between. */
			if (scx_bpf_dsq_nr_queued(cpu) > 0)
				queue_mark(cpu, EVERYWHERE);
		}
	}
	c->crowded = best->waiting > QUEUE_SCAN;
	fate = fate_of(prev, t, c, best, steps_back);
	if (fate == LEAVES)
		t = NULL;
	if (fate >= GOES_ON) {
		best->rank = best->prev;
		best->pid = prev->pid;
		best->vm = best->leaving_vm;
		best->queue = NO_QUEUE;
	}
	look_for_sent(c, best);
	if (!best->urgency)
		look_around(PULL_MARGIN * slice_ns, c, best);

	if (best->pid && best->queue != NO_QUEUE) {
		/* Whom only the limit on waiting puts before one that deserves the pCPU more, and could go on, has it for a moment. */
		if (best->urgency == URGENCY_OVERDUE)
			slice = overdue_slice();
		else if (best->urgency && t && order_before(&best->prev, &best->rank, 0))
			slice = STARVED_SLICE_NS;
		else
			slice = slice_in_place(best, turn_slice_of(best->pid, t, best->vm, cpu, best->now));
		if (take(best->pid, best->queue, cpu, slice)) {
			if (best->urgency)
				stat_inc(STAT_STARVED);
			if (best->queue != cpu)
				stat_inc(t ? STAT_PULLS : STAT_STEALS);
			if (steps_back && t)
				order_yields(t, &best->prev, &best->rank);
			c->out_of_turn = best->urgency || steps_back || (best->queue != cpu && !t);
			return;
		}
		/* Its gang may have refused it: then the next best. */
		if (gang_may_refuse() && take_next(cpu, best))
			return;
	}
	/* A move gives up this pCPU's lock for a moment. Who was put here meanwhile, to run at once, would wait for a turn of prev's, or of another's. */
	if (scx_bpf_dsq_nr_queued(SCX_DSQ_LOCAL) > 0)
		return;
	if (t && gang_may_refuse() && !gang_begins(t, cpu, best->now))
		t = NULL;
	if (t) {
		go_on(prev, t, c, best, fate);
		return;
	}
	c->out_of_turn = 1;
	gang_idles(cpu, best->now);
	if (!take_any(cpu, best->now))
		ask_for_runner(cpu);
}

SEC("struct_ops/running")
void BPF_PROG(cohort_running, struct task_struct *p)
{
	struct task_ctx *t = task_get(p);
	s32 cpu = scx_bpf_task_cpu(p);
	struct vcpu_ctx *v;
	struct vm_ctx *vm;
	u64 now = now_ns();

	if (!t || goes_on_changed(p, t, cpu, now))
		return;
	start_running(p, t, cpu, now);
	stat_inc(STAT_SWITCHES);
	vm = vm_get(t);
	if (vm && t->vcpu >= 0) {
		t->untold.switches++;
		if (t->queued_ns)
			t->untold.wait_ns += elapsed_ns(now, t->queued_ns);
		v = vcpu_at(t->vcpu_at);
		/* KVM's word is still that of the switch in which the vCPU lost its pCPU: kvm_sched_in() comes later. */
		if (v && v->exit_served)
			v->exit_served--;
		if (v)
			v->gave_way = 0;
		if (t->preempted && v && vcpu_preempted_in_kernel((struct kvm_vcpu *)v->kvm_vcpu))
			t->untold.preempted_in_kernel++;
	}
	service_begins(t, now);
	t->queued_ns = 0;
	t->placed = 0;
	t->preempted = false;
	t->steps_back = false;
	t->aside = false;
	gang_settle(now);
}

SEC("struct_ops/stopping")
void BPF_PROG(cohort_stopping, struct task_struct *p, bool runnable)
{
	/* Of one that leaves its run queue cohort_quiescent() hears next, and why. */
	struct task_ctx *t = runnable ? task_get(p) : NULL;
	u64 now;

	if (!t)
		return;
	now = now_ns();
	stop_running(p, t, cpu_get(scx_bpf_task_cpu(p)), true, now);
	t->queued_ns = now;
	t->preempted = true;
}

SEC("struct_ops/tick")
void BPF_PROG(cohort_tick, struct task_struct *p)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();
	s32 cpu;

	if (!t)
		return;
	cpu = scx_bpf_task_cpu(p);
	run_charge(p, t, p->scx.weight, true, now);
	gang_tick(t, cpu, now);
	if (gate_of(p, t, cpu, now))
		task_set_slice(p, 0);
	order_tick(t, cpu, now);
	vcpu_claim_back(p, t);
	/* A thread that became a vCPU, or its VMM's VM, while it ran, and that nobody competes with, passes here only. */
	if (identity_is_stale(p, t)) {
		run_stop(p, t, p->scx.weight, now);
		start_running(p, t, cpu, now);
	}
}

SEC("struct_ops/quiescent")
void BPF_PROG(cohort_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();
	struct cpu_ctx *c;

	if (!t)
		return;
	if (t->charged_ns) {
		/* Something about the runner is about to change, and it goes on. */
		if (!(deq_flags & SCX_DEQ_SLEEP))
			return;
		c = cpu_get(scx_bpf_task_cpu(p));
		if (c)
			keep_begin(p, t, c, now);
		stop_running(p, t, c, false, now);
	}
	leave(t, !(deq_flags & SCX_DEQ_SLEEP), now);
}

/* p is another class's: a runner too, of which no end was told. */
SEC("struct_ops/disable")
void BPF_PROG(cohort_disable, struct task_struct *p)
{
	struct task_ctx *t = task_get(p);
	u64 now = now_ns();

	if (!t)
		return;
	if (t->charged_ns) {
		stop_running(p, t, cpu_get(scx_bpf_task_cpu(p)), false, now);
		leave(t, false, now);
	}
	/* It does not come back from where it waited. */
	t->comes_back = false;
	t->queued_ns = 0;
	t->unserved_ns = 0;
}

/* Where p may run is asked for at every choice, this is not. A section that forbids migration narrows the mask for a while, and not this number. */
SEC("struct_ops/set_cpumask")
void BPF_PROG(cohort_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
	struct task_ctx *t = task_get(p);
	struct vcpu_ctx *v;

	if (!t)
		return;
	task_may_run_on(p, t, mask);
	v = vcpu_get(t);
	if (v)
		v->restricted = !t->everywhere;
}

SEC("struct_ops/yield")
bool BPF_PROG(cohort_yield, struct task_struct *from, struct task_struct *to)
{
	struct task_ctx *t = task_get(from);

	if (t)
		service_is_given_up(t);
	/* sched_yield(): the best of those that wait there goes first, once, even if it deserves the pCPU less. */
	if (!to) {
		if (t)
			t->steps_back = true;
		task_set_slice(from, 0);
		return false;
	}
	stat_inc(STAT_BOOST_OFFERED);
	return spin_offered(from, to, now_ns());
}

SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(cohort_on_spin, struct kvm_vcpu *vcpu, bool in_kernel)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct task_ctx *t = task_get(p);
	struct vm_ctx *vm = t ? vm_get(t) : NULL;

	if (!vm || t->vcpu < 0)
		return 0;
	stat_inc(STAT_PLE);
	if (in_kernel)
		stat_inc(STAT_PLE_KERNEL);
	atomic_add(&t->untold.ple, 1);
	service_is_given_up(t);
	spin_on_spin(t, scx_bpf_task_cpu(p), in_kernel);
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops cohort_ops = {
	.select_cpu = (void *)cohort_select_cpu,
	.enqueue = (void *)cohort_enqueue,
	.dispatch = (void *)cohort_dispatch,
	.tick = (void *)cohort_tick,
	.running = (void *)cohort_running,
	.stopping = (void *)cohort_stopping,
	.quiescent = (void *)cohort_quiescent,
	.disable = (void *)cohort_disable,
	.set_cpumask = (void *)cohort_set_cpumask,
	.cpu_acquire = (void *)cohort_cpu_acquire,
	.cpu_release = (void *)cohort_cpu_release,
	.yield = (void *)cohort_yield,
	.init_task = (void *)cohort_init_task,
	.exit_task = (void *)cohort_exit_task,
	.cgroup_init = (void *)cohort_cgroup_init,
	.cgroup_exit = (void *)cohort_cgroup_exit,
	.cgroup_set_bandwidth = (void *)cohort_cgroup_set_bandwidth,
	.cgroup_set_idle = (void *)cohort_cgroup_set_idle,
	.cgroup_set_weight = (void *)cohort_cgroup_set_weight,
	.cgroup_move = (void *)cohort_cgroup_move,
	.cpu_online = (void *)cohort_cpu_online,
	.cpu_offline = (void *)cohort_cpu_offline,
	.init = (void *)cohort_init,
	.exit = (void *)cohort_exit,
	/*
	 * ops.enqueue also for those that may not migrate now. The kernel would put them where they stay, for which it takes everybody whom
	 * ops.cpu_release puts back too: that program runs as that task, with migration disabled. And for those that exit: two of them that tear down what is large
	 * would have the pCPU in turn, by the kernel's word, and nobody else.
	 */
	.flags = SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_MIGRATION_DISABLED | SCX_OPS_ENQ_EXITING,
	.timeout_ms = 30000,
	.name = "cohort",
};
