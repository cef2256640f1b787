/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Order sbco: self-boosted co-scheduling (Wang, Wei, Rao, Xu). Nobody is forced to run: siblings that are far apart in their run queues are moved
 * towards each other, so that they get their turns at about the same time.
 *
 * - A pCPU's run queue is flat, ordered by each task's own virtual time. A VM's weight is divided among its vCPUs that run or wait, so that it has its share
 *   however many they are; a cgroup's among its threads.
 * - A vCPU's *ordinate* is how many wait ahead of it in its queue (the paper's algorithm 2). The one that has the pCPU is none of them: CFS takes it out of its
 *   tree. When a pCPU is about to choose, the first in its queue, a, has ordinate 0. If a sibling b waits in another queue at an ordinate of alpha times the length of
 *   a's queue or more, a is passed over this time, and lends virtual time to b: both move to the middle of their queues. What a has given b has received, so
 *   that their VM has its share.
 * - a is moved at once. b is in another pCPU's queue, so b's part is written on that queue's debt list and collected when that pCPU next chooses: nobody ever
 *   touches two queues. Until then both are *dirty* and take part in no other exchange.
 *
 * A task's place is its virtual time, which is charged where it runs, and what it has lent, which anybody may add to.
 */
#ifndef COHORT_ORDER_SBCO_H
#define COHORT_ORDER_SBCO_H

#include "debts.h"
#include "flat.h"
#include "order_vm.h"

/* alpha is a part of this. */
#define SBCO_ALPHA_ONE 65536

/* From what distance on siblings are brought together, as part of the queue's length. */
KNOB u32 sbco_alpha = SBCO_ALPHA_ONE * 2 / 3;

/* The same while it runs: user space writes it into the first element. 0: as the knob says. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} sbco_alpha_now SEC(".maps");

/* What is in task_ctx.order_state. */
enum sbco_state {
	SBCO_LENT,   /* virtual time lent to siblings; below 0: borrowed */
	SBCO_PASSED, /* passed over in the choice that was made then */
};

/* As virtual time: behind everybody. */
#define PASSED_OVER (1ULL << 61)

/* Debts on lists of pCPUs that choose nothing are collected every so often. */
#define SBCO_PERIOD_NS 1000000000ULL

/* Where in a queue t stands. A VMM's thread that is no vCPU may go before others, see borrows_ns(). */
static __always_inline u64 place_of(const struct task_ctx *t)
{
	return t->vtime + t->order_state[SBCO_LENT] - borrows_ns(t);
}

static void sbco_rank(struct task_ctx *t, u64 now, struct rank *r)
{
	struct entity_ctx *leaf = entity_get(t->leaf);

	r->own = place_of(t);
	if (t->order_state[SBCO_PASSED] == now)
		r->own += PASSED_OVER;
	r->rate = rate_of(t->leaf, WEIGHT_DEFAULT);
	if (t->leaf && leaf)
		__builtin_memcpy(r->path, leaf->path, sizeof(r->path));
}

/* It has paid for its whole turn in curr_vtime, see sbco_begin(). */
static void sbco_rank_of_runner(const struct cpu_ctx *c, u64 now, struct rank *r)
{
	struct entity_ctx *leaf = entity_get(c->curr_leaf);

	r->rate = rate_of(c->curr_leaf, c->curr_weight);
	r->own = c->curr_vtime - at_rate(elapsed_ns(c->turn_end_ns, now), r->rate);
	if (c->curr_leaf && leaf)
		__builtin_memcpy(r->path, leaf->path, sizeof(r->path));
}

/* The margin is a time that a runs: in a large VM that is much virtual time. */
static bool sbco_before(struct rank *a, struct rank *b, u64 margin_ns)
{
	return time_before(a->own + at_rate(margin_ns, a->rate), b->own);
}

/* t comes to compete on cpu: it keeps what it is owed within the bound, does not collect for having slept, nor pay for long ago. */
static void sbco_wake(struct task_ctx *t, s32 cpu, u64 now, bool queued)
{
	u64 place = t->vtime + t->order_state[SBCO_LENT], lag, clock;
	bool slept = is_asleep(t), rested;

	flat_tell(t);
	lag = at_rate(lag_ns, rate_of(t->leaf, WEIGHT_DEFAULT));
	rested = slept && elapsed_ns(now, t->waited_ns) > REST_NS;
	clock = clock_near(0, cpu, t->everywhere, lag);
	if (!t->waited_ns)
		t->vtime += clock - place;
	else if (slept && time_before(place, clock - lag))
		t->vtime += clock - lag - place;
	else if (rested && time_before(clock + LAG_APART * lag, place))
		t->vtime += clock + LAG_APART * lag - place;
	if (queued || !t->waited_ns) {
		t->home = cpu;
		t->waited_ns = now;
	}
}

static void sbco_begin(struct task_ctx *t, s32 cpu, u64 slice, u64 weight, bool by_rank)
{
	struct cpu_ctx *c = cpu_get(cpu);
	u64 place = t->vtime + t->order_state[SBCO_LENT];

	if (by_rank)
		clock_follow(0, entity_get(0), cpu, place, t->everywhere);
	if (c)
		c->curr_vtime = place_of(t) + at_rate(slice, rate_of(t->leaf, weight));
}

static void sbco_charge(struct task_ctx *t, u64 weight, u64 delta_ns)
{
	u64 rate = rate_of(t->run_leaf, weight);

	t->vtime += at_rate(delta_ns + helped_of(t, delta_ns), rate);
}

/* Who has been passed by for its place waits for its VM's sake and must be more patient. */
static u32 sbco_urgency(struct task_ctx *t, struct rank *r, s32 cpu, u64 now)
{
	u64 *clock = clock_get(0, cpu);

	if (waited_ns(t, now) <= starve_ns)
		return URGENCY_NONE;
	if ((t->leaf && t->vcpu < 0) || !clock || time_before(*clock + at_rate(lag_ns, r->rate), r->own))
		return is_overdue(t, now) ? URGENCY_OVERDUE : URGENCY_NONE;
	return URGENCY_STARVED;
}

/* Who has a pCPU for itself has all it wants, and may not save for later what it leaves to others. */
static void sbco_tick(struct task_ctx *t, s32 cpu, u64 now)
{
	u64 least, place = t->vtime + t->order_state[SBCO_LENT];

	if (!t->everywhere || queue_is_marked(cpu))
		return;
	least = clock_of(0, cpu, true) - LAG_APART * at_rate(lag_ns, rate_of(t->leaf, WEIGHT_DEFAULT));
	if (time_before(place, least))
		t->vtime += least - place;
}

/* As vtime_yields(). Who is passed over in this choice, and has the pCPU all the same, has no place to go by. */
static void sbco_yields(struct task_ctx *t, struct rank *own, struct rank *to)
{
	u64 lag = at_rate(lag_ns, own->rate);

	if (!time_before(own->own + PASSED_OVER / 2, to->own))
		t->vtime += forfeit(own->own, to->own - lag, lag) - own->own;
}

static u64 sbco_key(const struct task_ctx *t)
{
	return place_of(t);
}

/* How many wait ahead of that thread in cpu's queue; not counted further than `most`. */
VERIFIED_ONCE sbco_ordinate(s32 pid, s32 cpu, u32 most)
{
	struct task_struct *p;
	u32 ahead = 0;

	bpf_for_each(scx_dsq, p, cpu, 0) {
		if (ahead >= most || p->pid == pid)
			break;
		ahead++;
	}
	return ahead;
}

/* From which distance on siblings are brought together by a queue of that length. */
static __always_inline u32 sbco_threshold(u32 length)
{
	u32 key = 0, *now = bpf_map_lookup_elem(&sbco_alpha_now, &key);
	u32 alpha = now && *now ? *now : sbco_alpha;

	return (length * (u64)alpha + SBCO_ALPHA_ONE - 1) / SBCO_ALPHA_ONE ?: 1;
}

/*
 * The first sibling of the VM's vCPU number `self` that waits in another queue than cpu's, at an ordinate of `least` or more, and is not dirty: 1 + its index in
 * the map vcpus, or 0. Who waits in the same queue cannot run together with it however near.
 */
VERIFIED_ONCE sbco_far_sibling(u32 vm_id, s32 self, s32 cpu, u32 least)
{
	struct vm_ctx *vm = vm_at(vm_id);
	struct vcpu_ctx *v;
	s32 i, index, there;

	if (!vm)
		return 0;
	bpf_for(i, 0, MAX_VCPUS) {
		if (i >= vm->vcpu_end)
			break;
		index = vcpu_index(vm, i);
		v = vcpu_at(index);
		if (index < 0 || !v || i == self || v->state != VCPU_WAITING || READ_ONCE(v->dirty))
			continue;
		there = vcpu_cpu(v);
		/* Most queues are too short for anybody to be far back: no need to walk them. */
		if (there < 0 || there == cpu || scx_bpf_dsq_nr_queued(there) <= (s32)least)
			continue;
		if (sbco_ordinate(v->pid, there, least) >= (s32)least)
			return index + 1;
	}
	return 0;
}

/* Let that vCPU's thread lend (or, below 0, receive) virtual time, wherever it is. Return false if it is gone. */
VERIFIED_ONCE sbco_lend(s32 pid, u32 vcpu, s64 amount)
{
	struct vcpu_ctx *v = vcpu_at(vcpu);
	struct task_struct *p;
	struct task_ctx *t;
	bool done = false;

	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_get(p);
	if (v && t && v->pid == pid && t->vcpu_at == vcpu) {
		atomic_add(&t->order_state[SBCO_LENT], amount);
		done = true;
	}
	bpf_task_release(p);
	return done;
}

/* If that vCPU waits in cpu's queue, put it where it stands now. */
VERIFIED_ONCE sbco_move(s32 pid, u32 vcpu, s32 cpu)
{
	struct vcpu_ctx *v = vcpu_at(vcpu);
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	struct task_ctx *t;

	if (!v || v->state != VCPU_WAITING || v->cpu != cpu)
		return 0;
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_get(p);
	if (t) {
		if (!bpf_iter_scx_dsq_new(&it, cpu, 0)) {
			scx_bpf_dsq_move_set_vtime(&it, place_of(t));
			scx_bpf_dsq_move_vtime(&it, p, cpu, 0);
		}
		bpf_iter_scx_dsq_destroy(&it);
	}
	bpf_task_release(p);
	return 0;
}

static __always_inline void sbco_clean(u32 vcpu, s32 pid)
{
	struct vcpu_ctx *v = vcpu_at(vcpu);

	if (v && v->pid == pid)
		v->dirty = 0;
}

static __always_inline void sbco_collect_on(s32 cpu, bool move)
{
	u32 key = cpu;
	struct sbco_cpu *s = bpf_map_lookup_elem(&sbco_cpus, &key);
	struct sbco_debt *d;
	s32 i;

	if (!s || !READ_ONCE(s->nr_debts))
		return;
	bpf_for(i, 0, DEBTS) {
		d = &s->debts[i & (DEBTS - 1)];
		if (atomic_cas(&d->state, DEBT_OWED, DEBT_BUSY) != DEBT_OWED)
			continue;
		if (sbco_lend(d->to_pid, d->to, -(s64)d->amount) && move)
			sbco_move(d->to_pid, d->to, cpu);
		sbco_clean(d->to, d->to_pid);
		sbco_clean(d->from, d->from_pid);
		atomic_add(&s->nr_debts, -1);
		d->state = DEBT_FREE;
	}
}

/* Pay what is owed to those in cpu's queue. Who has left it receives it where it is. */
VERIFIED_ONCE sbco_collect(s32 cpu)
{
	sbco_collect_on(cpu, true);
	return 0;
}

/* The same from a timer, which on older kernels may not look at queues: nobody waits there. */
VERIFIED_ONCE sbco_collect_idle(s32 cpu)
{
	sbco_collect_on(cpu, false);
	return 0;
}

/* Write on the debt list of the pCPU where vCPU `to` waits that it is owed so much by `from`. Return false if there is no room. */
VERIFIED_ONCE sbco_owe(u32 to, u32 from, u64 amount)
{
	struct vcpu_ctx *b = vcpu_at(to), *a = vcpu_at(from);
	struct sbco_debt *d;
	struct sbco_cpu *s;
	u32 key;
	s32 i;

	if (!a || !b || b->cpu < 0)
		return 0;
	key = b->cpu;
	s = bpf_map_lookup_elem(&sbco_cpus, &key);
	if (!s)
		return 0;
	bpf_for(i, 0, DEBTS) {
		d = &s->debts[i & (DEBTS - 1)];
		if (atomic_cas(&d->state, DEBT_FREE, DEBT_BUSY) != DEBT_FREE)
			continue;
		d->to = to;
		d->to_pid = b->pid;
		d->from = from;
		d->from_pid = a->pid;
		d->amount = amount;
		a->dirty = 1;
		b->dirty = 1;
		atomic_add(&s->nr_debts, 1);
		atomic_xchg(&d->state, DEBT_OWED);
		return 1;
	}
	return 0;
}

/* One has lent so much in all (or has borrowed it; below 0: the reverse). How much may it lend (or borrow) now, so that it is no more than `most`? */
static __always_inline u64 sbco_room(s64 already, u64 most)
{
	if (already <= 0)
		return most;
	return (u64)already < most ? most - (u64)already : 0;
}

/*
 * What a, which has lent so much before, is to lend so that b comes to the middle of its queue: half of what b is ahead of those that run there. 0: b is not ahead.
 *
 * In all a vCPU has lent or borrowed about a turn's worth at most, by which it can be brought to any place among its equals. It counts for good, also if the vCPU was
 * placed anew since. Without a bound loans add up, by chance, to what one queue owes another: then a VM that sleeps now and then, and competes in both, finds too
 * many ahead of it in the one and cannot use what the other leaves.
 */
VERIFIED_ONCE_U64 sbco_amount(u32 to, s64 lent)
{
	struct vcpu_ctx *b = vcpu_at(to);
	struct task_struct *p;
	struct task_ctx *t;
	u64 ahead = 0, *clock, most, room;

	if (!b)
		return 0;
	p = bpf_task_from_pid(b->pid);
	if (!p)
		return 0;
	t = task_get(p);
	clock = clock_get(0, vcpu_cpu(b));
	if (t && clock) {
		ahead = elapsed_ns(place_of(t), *clock) / 2;
		most = at_rate(slice_ns, rate_of(t->leaf, WEIGHT_DEFAULT));
		room = sbco_room(lent, most);
		if (ahead > room)
			ahead = room;
		room = sbco_room(-(s64)t->order_state[SBCO_LENT], most);
		if (ahead > room)
			ahead = room;
	}
	bpf_task_release(p);
	return ahead;
}

/* The first in cpu's queue, of that VM, is passed over now if a sibling is far back in another queue; they exchange virtual time. */
VERIFIED_ONCE sbco_balance(s32 pid, s32 cpu, u32 length, u64 now)
{
	struct task_struct *p;
	struct task_ctx *t;
	u32 vm = 0, self = 0;
	s32 vcpu = -1, b;
	u64 amount;

	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_get(p);
	/* Who has waited for long is not made to wait longer. */
	if (t && vm_get(t) && t->queued_ns && waited_ns(t, now) <= starve_ns) {
		vm = t->vm;
		self = t->vcpu_at;
		vcpu = t->vcpu;
	}
	b = vcpu < 0 ? 0 : sbco_far_sibling(vm, vcpu, cpu, sbco_threshold(length));
	amount = b && t ? sbco_amount(b - 1, t->order_state[SBCO_LENT]) : 0;
	if (t && amount && sbco_owe(b - 1, self, amount)) {
		t->order_state[SBCO_PASSED] = now;
		sbco_lend(pid, self, amount);
		sbco_move(pid, self, cpu);
		stat_inc(STAT_SBCO_BALANCED);
	}
	bpf_task_release(p);
	return 0;
}

static void sbco_before_pick(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct task_struct *p;
	struct vcpu_ctx *v;
	struct task_ctx *t;
	s32 pid = 0, length;

	sbco_collect(cpu);
	if (!c || !queue_is_marked(cpu))
		return;
	/* Without one that waits too, or could go on, there is no successor. */
	length = scx_bpf_dsq_nr_queued(cpu) + !!c->curr_pid;
	if (length < 2)
		return;
	bpf_for_each(scx_dsq, p, cpu, 0) {
		t = task_get(p);
		v = t ? vcpu_get(t) : NULL;
		if (v && !v->dirty)
			pid = p->pid;
		break;
	}
	if (pid)
		sbco_balance(pid, cpu, length, now);
}

/* A pCPU that is idle or offline chooses nothing. */
static void sbco_period(u64 now)
{
	struct cpu_ctx *c;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		c = cpu_get(i);
		if (c && !c->curr_pid)
			sbco_collect_idle(i);
	}
}

static const struct order order_sbco = {
	.of_vms = true,
	.rank = sbco_rank,
	.rank_of_runner = sbco_rank_of_runner,
	.before = sbco_before,
	.key = sbco_key,
	.wake = sbco_wake,
	.begin = sbco_begin,
	.charge = sbco_charge,
	.yields = sbco_yields,
	.urgency = sbco_urgency,
	.before_pick = sbco_before_pick,
	.tick = sbco_tick,
	.period = sbco_period,
	.period_ns = SBCO_PERIOD_NS,
};

#endif
