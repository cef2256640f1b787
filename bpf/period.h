/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a policy does every so often (policy.h, period): a timer for the order and one for the gang, set only if they have a period.
 */
#ifndef COHORT_PERIOD_H
#define COHORT_PERIOD_H

#include "policy_calls.h"

static __always_inline u64 order_period_ns(void)
{
#define ASK(name, what) CASE(ORDER_##name, order_##name, period_ns, return order_##name.period_ns)
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE order_period(u64 now)
{
	UNUSED_YET(now);
#define ASK(name, what) CASE(ORDER_##name, order_##name, period, order_##name.period(now))
	switch (order) {
		ORDERS(ASK)
	}
#undef ASK
	return 0;
}

static __always_inline u64 gang_period_ns(void)
{
#define ASK(name, what) CASE(GANG_##name, gang_##name, period_ns, return gang_##name.period_ns)
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

VERIFIED_ONCE gang_period(u64 now)
{
	UNUSED_YET(now);
#define ASK(name, what) CASE(GANG_##name, gang_##name, period, gang_##name.period(now))
	switch (chosen_gang()) {
		GANGS(ASK)
	}
#undef ASK
	return 0;
}

enum period_of {
	PERIOD_ORDER,
	PERIOD_GANG,
	NR_PERIODS,
};

struct period_timer {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, NR_PERIODS);
	__type(key, u32);
	__type(value, struct period_timer);
} period_timers SEC(".maps");

VARIABLE u32 periods_started;

static __always_inline u64 period_ns_of(u32 which)
{
	return which == PERIOD_ORDER ? order_period_ns() : gang_period_ns();
}

static int period_over(void *map, int *key, struct period_timer *timer)
{
	u32 which = *key;
	u64 ns = period_ns_of(which), now = now_ns();

	if (!ns)
		return 0;
	bpf_timer_start(&timer->timer, ns, 0);
	if (which == PERIOD_ORDER)
		order_period(now);
	else
		gang_period(now);
	return 0;
}

static s32 period_init(void)
{
	struct period_timer *timer;
	u32 which;
	s32 i;

	bpf_for(i, 0, NR_PERIODS) {
		which = i;
		timer = bpf_map_lookup_elem(&period_timers, &which);
		if (!timer || !period_ns_of(which))
			continue;
		if (bpf_timer_init(&timer->timer, &period_timers, CLOCK_MONOTONIC))
			return -ENOMEM;
		bpf_timer_set_callback(&timer->timer, period_over);
		bpf_timer_start(&timer->timer, period_ns_of(which), 0);
	}
	return 0;
}

#endif
