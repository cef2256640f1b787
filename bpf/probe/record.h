/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every event on its way to `cohort record`. Without a recorder the verifier drops all of it.
 *
 * One ring buffer for all pCPUs: its lock is held for the time of a reservation, and its order is nearly that of time. User space looks at it now and then:
 * to wake it from inside the scheduler would be another event for each event.
 */
#ifndef PROBE_RECORD_H
#define PROBE_RECORD_H

#include "clock.h"

const volatile bool recording;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096); /* set before loading */
} probe_events SEC(".maps");

/* Events for which there was no room. */
u64 events_dropped;

/*
 * The recording has ended. User space says so, and at that moment all programs of all pCPUs are as if they were gone: to detach them one by one lasts, and meanwhile
 * some would count what others do not see any more.
 */
u32 over;

static __always_inline bool is_over(void)
{
	return recording && READ_ONCE(over);
}

static __always_inline void record(u32 kind, struct probe_vcpu *v, u64 now, u32 cpu, u32 a, u32 b)
{
	struct probe_event *event;

	if (!recording)
		return;
	event = bpf_ringbuf_reserve(&probe_events, sizeof(*event), 0);
	if (!event) {
		atomic_add(&events_dropped, 1);
		return;
	}
	event->time_ns = now;
	event->cpu = cpu;
	event->vcpu = v->slot;
	event->kind = kind;
	event->a = a;
	event->b = b;
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* The vCPU's thread is in another state, or waits elsewhere. */
static __always_inline void record_state(struct probe_vcpu *v, u32 before, u32 state, u32 cpu, u64 now)
{
	u32 kind = EVENT_GONE, a = 0;
	u64 b = 0;

	if (!recording)
		return;
	if (state == PROBE_RUN) {
		kind = EVENT_RUN;
		a = before == PROBE_READY_PREEMPTED && vcpu_preempted_in_kernel((void *)v->kvm_vcpu);
	} else if (before == state) {
		kind = EVENT_MOVED;
	} else if (state == PROBE_READY_PREEMPTED) {
		kind = EVENT_PREEMPTED;
	} else if (state == PROBE_READY_WOKEN) {
		kind = EVENT_WOKEN;
	} else if (state == PROBE_HALTED) {
		kind = EVENT_HALTED;
		b = elapsed(v->kvm_polled_ns, vcpu_halt_polled_ns((void *)v->kvm_vcpu)) / 1000;
		if (b > 65535)
			b = 65535;
	} else if (state == PROBE_BLOCKED) {
		kind = EVENT_BLOCKED;
	}
	record(kind, v, now, cpu, a, b);
}

#endif
