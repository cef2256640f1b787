/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The end of a turn. The kernel looks at a task's slice when it ticks, which is every 4 ms on most kernels and every millisecond at best: a boost of 0.4 ms
 * would last up to ten times as long. A timer per pCPU ends turns on time.
 *
 * It is set for the end of the present turn only if it is not set for an earlier moment; when it fires too early it is set anew. So tasks that come and
 * go in quick succession cost nothing, and a pCPU on which nobody waits is left alone, unless a gate closes for its runner then.
 */
#ifndef COHORT_TURN_H
#define COHORT_TURN_H

#include "account.h"
#include "marks.h"

/* Not worth another timer. */
#define TURN_EARLY_NS 20000ULL

struct turn_timer {
	struct bpf_timer timer;
	u64 set_for_ns; /* 0: not set */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct turn_timer);
} turn_timers SEC(".maps");

/* cpu is kept, and looks who runs next when that ends. Return false if nothing would make it. */
VERIFIED_ONCE keep_watch(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_get(cpu);
	struct turn_timer *timer;
	u32 key = cpu;
	u64 end;

	timer = bpf_map_lookup_elem(&turn_timers, &key);
	if (!c || !timer)
		return 0;
	end = c->kept_until_ns;
	if (!time_before(now, end))
		return 0;
	timer->set_for_ns = end;
	if (!bpf_timer_start(&timer->timer, end - now, 0))
		return 1;
	timer->set_for_ns = 0;
	return 0;
}

/* Will it fire, be it a little late? */
static __always_inline bool timer_is_set(const struct turn_timer *timer, u64 now)
{
	return timer->set_for_ns && !time_before(timer->set_for_ns + slice_ns, now);
}

/* Have the turn of that pCPU, whose context is c, end on time. */
VERIFIED_ONCE turn_watch(struct cpu_ctx *c, s32 cpu, u64 now)
{
	struct turn_timer *timer;
	u32 key = cpu;
	u64 end;

	if (!c)
		return 0;
	end = c->turn_end_ns;
	if (!end || !time_before(now, end))
		return 0;
	timer = bpf_map_lookup_elem(&turn_timers, &key);
	if (!timer)
		return 0;
	if (timer_is_set(timer, now) && !time_before(end, timer->set_for_ns))
		return 0;
	timer->set_for_ns = end;
	/* Memory may be short. The next one that looks tries again. */
	if (bpf_timer_start(&timer->timer, end - now, 0))
		timer->set_for_ns = 0;
	/* From another pCPU, while this one came to be kept. */
	if (c->kept_pid)
		keep_watch(cpu, now);
	return 0;
}

/* Does cpu look by itself when its turn ends? */
VERIFIED_ONCE turn_is_watched(s32 cpu, u64 now)
{
	struct turn_timer *timer;
	u32 key = cpu;

	timer = bpf_map_lookup_elem(&turn_timers, &key);
	return timer && timer_is_set(timer, now);
}

static int turn_over(void *map, int *key, struct turn_timer *timer)
{
	struct cpu_ctx *c = cpu_get(*key);
	u64 now = now_ns();

	timer->set_for_ns = 0;
	/* It is kept; or it idles or is about to, and who came from another pCPU may have been inserted after its last look. */
	if (c && (c->kept_pid || (!c->curr_pid && scx_bpf_dsq_nr_queued(*key) > 0))) {
		scx_bpf_kick_cpu(*key, SCX_KICK_IDLE);
		return 0;
	}
	if (!c || !c->curr_pid || !(queue_is_marked(*key) || c->wish_pid || c->cut_short))
		return 0;
	if (time_before(now + TURN_EARLY_NS, c->turn_end_ns))
		turn_watch(c, *key, now);
	else
		scx_bpf_kick_cpu(*key, SCX_KICK_PREEMPT);
	return 0;
}

/*
 * What is left of the turn of cpu's runner, who has been stopped to look at those that were put aside here. Where tasks of a cgroup begin one after the other, and
 * its quota is used up in each period of a millisecond, turns would else last for a millisecond. 0: too little, or nobody has to look.
 */
static __always_inline u64 rest_of_turn_ns(const struct cpu_ctx *c, u64 now)
{
	if (!READ_ONCE(c->aside_look) || !time_before(now + TURN_REST_MIN_NS, c->turn_end_ns))
		return 0;
	return c->turn_end_ns - now;
}

/* For so long a runner goes on to leave a section that forbids migration, a BPF program in most cases; if that was not enough, for twice as long. */
#define LET_OUT_NS 10000ULL

/* ... so often at most: for 1.3 ms. */
#define LET_OUT_MAX 7

/*
 * A runner stopped in a section that forbids migration could be queued for this pCPU alone, and a boost could bring it nowhere else: behind somebody who deserves
 * the pCPU more it would keep all who wait for it waiting. So it leaves the section first. That is the rule and no accident where it gives its pCPU away in
 * a BPF program, as a spinner does.
 */
static __always_inline bool let_out(struct task_struct *prev, struct cpu_ctx *c, s32 cpu, u64 now)
{
	u64 slice;

	if (!prev || !task_is_queued(prev) || !task_is_in_section(prev) || c->lets_out >= LET_OUT_MAX) {
		c->lets_out = 0;
		return false;
	}
	slice = LET_OUT_NS << c->lets_out++;
	stat_inc(STAT_LET_OUT);
	task_set_slice(prev, slice);
	c->turn_end_ns = now + slice;
	turn_watch(c, cpu, now);
	return true;
}

static s32 turn_init(void)
{
	struct turn_timer *timer;
	u32 key;
	s32 i;

	bpf_for(i, 0, MAX_CPUS) {
		if (i >= nr_cpus)
			break;
		key = i;
		timer = bpf_map_lookup_elem(&turn_timers, &key);
		if (!timer || bpf_timer_init(&timer->timer, &turn_timers, CLOCK_MONOTONIC))
			return -ENOMEM;
		bpf_timer_set_callback(&timer->timer, turn_over);
	}
	return 0;
}

#endif
