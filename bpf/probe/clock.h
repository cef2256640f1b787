/* SPDX-License-Identifier: GPL-2.0-only */
/* Clock words (intf.h): for how long was at least one of many there? */
#ifndef PROBE_CLOCK_H
#define PROBE_CLOCK_H

#include "kernel.h"
#include "intf.h"

#define CLOCK_COUNT ((1ULL << PROBE_COUNT_BITS) - 1)
#define CLOCK_TIME (~0ULL >> PROBE_COUNT_BITS)
/* As often as this at most somebody else is faster. */
#define CLOCK_TRIES 64

/* How often a clock word could not be changed: it counts one too many or too few from then on. */
u64 clock_failures;

/* From one instant to a later one; 0 if it is none: the pCPUs' clocks may differ a little. */
static __always_inline u64 elapsed(u64 from, u64 to)
{
	return (s64)(to - from) < 0 ? 0 : to - from;
}

static __always_inline u64 clock_read(u64 word, u64 now)
{
	u64 time = word >> PROBE_COUNT_BITS;

	return ((word & CLOCK_COUNT) ? time + now : time) & CLOCK_TIME;
}

/* From one reading to a later one. */
static __always_inline u64 clock_since(u64 mark, u64 reading)
{
	u64 time = (reading - mark) & CLOCK_TIME;

	return time > CLOCK_TIME / 2 ? 0 : time;
}

static __always_inline void clock_change(u64 *word, u64 now, bool enter)
{
	u64 before, after;
	s32 i;

	for (i = 0; i < CLOCK_TRIES; i++) {
		before = READ_ONCE(*word);
		if (enter) {
			after = before + 1;
			if (!(before & CLOCK_COUNT))
				after -= now << PROBE_COUNT_BITS;
		} else {
			if (!(before & CLOCK_COUNT))
				break;
			after = before - 1;
			if (!(after & CLOCK_COUNT))
				after += now << PROBE_COUNT_BITS;
		}
		if (atomic_cas(word, before, after) == before)
			return;
	}
	atomic_add(&clock_failures, 1);
}

#endif
