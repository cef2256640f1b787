/* SPDX-License-Identifier: GPL-2.0-only */
/* Where each vCPU is and since when; what the time was spent on when that changes. */
#ifndef PROBE_ACCOUNT_H
#define PROBE_ACCOUNT_H

#include "clock.h"
#include "record.h"

const volatile u32 nr_cpus = 1;
/* A vCPU that has run for so long without a pause-loop exit no longer spins the same spin. */
const volatile u64 chain_gap_ns = 1000000;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_MAX_VMS);
	__type(key, u32);
	__type(value, struct probe_vm);
} probe_vms SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PROBE_MAX_VCPUS);
	__type(key, u32);
	__type(value, struct probe_vcpu);
} probe_vcpus SEC(".maps");

/* Clock words: at least one of the VM's vCPUs runs or waits on the pCPU. At vm * nr_cpus + cpu. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set before loading */
	__type(key, u32);
	__type(value, u64);
} probe_presence SEC(".maps");

#define PLACE(state, cpu) ((u64)(cpu) << PROBE_STATE_BITS | (state))
#define PLACE_STATE(place) ((u32)(place) & ((1U << PROBE_STATE_BITS) - 1))
#define PLACE_CPU(place) ((u32)((place) >> PROBE_STATE_BITS))

/* How often whoever moves a vCPU may be outrun by another who does. There are two at most. */
#define MOVE_TRIES 4

static __always_inline bool is_ready(u32 state)
{
	return state == PROBE_READY_WOKEN || state == PROBE_READY_PREEMPTED;
}

/* On a pCPU's run queue. */
static __always_inline bool is_active(u32 state)
{
	return state == PROBE_RUN || is_ready(state);
}

static __always_inline u64 *presence(u32 vm, u32 cpu)
{
	u32 index = vm * nr_cpus + cpu;

	return cpu < nr_cpus ? bpf_map_lookup_elem(&probe_presence, &index) : NULL;
}

static __always_inline struct probe_vm *vm_of(const struct probe_vcpu *v)
{
	u32 slot;

	if (!v)
		return NULL;
	slot = v->vm;
	return bpf_map_lookup_elem(&probe_vms, &slot);
}

/* v comes to that place, or (not enter) leaves it: what its VM's clocks count there. */
static __always_inline void clocks_count(struct probe_vm *vm, const struct probe_vcpu *v, u64 place, u64 now,
					 bool enter)
{
	u64 *word = is_active(PLACE_STATE(place)) ? presence(v->vm, PLACE_CPU(place)) : NULL;

	if (word)
		clock_change(word, now, enter);
	if (PLACE_STATE(place) == PROBE_RUN)
		clock_change(&vm->ran, now, enter);
}

/* A chain of pause-loop exits is over. */
static __always_inline void chain_end(struct probe_vcpu *v)
{
	u64 n = v->chain;
	u32 bucket = 0;

	if (!n)
		return;
	v->chain = 0;
	if (n > v->ple_chain_max)
		v->ple_chain_max = n;
	bucket += n > 1;
	bucket += n > 2;
	bucket += n > 4;
	bucket += n > 8;
	bucket += n > 16;
	bucket += n > 32;
	bucket += n > 64;
	v->chain_lengths[bucket & (PROBE_CHAIN_BUCKETS - 1)]++;
}

/* A wait is over: v has a pCPU again. */
static __always_inline void wait_end(struct probe_vcpu *v, u32 state, u64 now)
{
	u64 wait = elapsed(v->ready_since_ns, now), pending, count, sent;

	if (wait > v->wait_max_ns)
		v->wait_max_ns = wait;
	if (state == PROBE_READY_WOKEN) {
		v->wakeups++;
		v->wait_wakeup_ns += wait;
	} else if (vcpu_preempted_in_kernel((void *)v->kvm_vcpu)) {
		v->preemptions_kernel++;
		v->wait_kernel_ns += wait;
	}
	if (!v->ipi_pending)
		return;
	pending = atomic_xchg(&v->ipi_pending, 0);
	count = pending >> PROBE_IPI_BITS;
	/* When they were sent, counted from the wait's begin: the sum. */
	sent = pending & ((1ULL << PROBE_IPI_BITS) - 1);
	v->ipis_preempted += count;
	v->ipi_wait_ns += elapsed(sent, count * wait);
}

/*
 * v, which nobody has moved yet, is in that place as far as its finder can see, who holds no run queue. Unless a switch was told of it in between: that one knows
 * better. What the place adds to clocks is added before anybody can see v there: whoever moves it on at once would take back what is not counted yet, and the VM's
 * clock would run for ever. All of its vCPUs' ready time was co-stop then. (A switch that is under way at this moment may have been missed: then it is wrong until
 * the next one.)
 */
static __noinline int vcpu_begins(struct probe_vcpu *v, u32 state, u32 cpu, u64 now)
{
	struct probe_vm *vm = vm_of(v);
	u64 place = PLACE(state, cpu);

	if (!v || !vm)
		return 0;
	clocks_count(vm, v, place, now, true);
	if (!atomic_cas(&v->place, 0, place))
		record_state(v, PROBE_UNKNOWN, state, cpu, now);
	else
		clocks_count(vm, v, place, now, false);
	return 0;
}

/*
 * v is in another place from now on. Each change of a place but the first is told by somebody who holds the task's run queue. The finder may tell of that one at the
 * same moment, so what is left is taken from the exchange and not read before: no clock can count a vCPU twice. Gone is the last: a thread that has another vCPU now
 * may be in a switch that knows it as this one, and nobody would take back what clocks count for that.
 */
static __noinline int vcpu_moves(struct probe_vcpu *v, u32 state, u32 cpu, u64 now)
{
	struct probe_vm *vm = vm_of(v);
	u32 before, cpu_before, i;
	u64 place, time, polled_ns, *word;

	if (!v || !vm)
		return 0;
	WRITE_ONCE(v->seq_begin, v->seq_begin + 1);
	barrier();
	for (i = 0; i < MOVE_TRIES; i++) {
		place = READ_ONCE(v->place);
		if (PLACE_STATE(place) == PROBE_GONE || atomic_cas(&v->place, place, PLACE(state, cpu)) == place)
			break;
	}
	if (i == MOVE_TRIES)
		place = atomic_xchg(&v->place, PLACE(state, cpu));
	if (PLACE_STATE(place) == PROBE_GONE) {
		WRITE_ONCE(v->seq_end, v->seq_begin);
		return 0;
	}
	before = PLACE_STATE(place);
	cpu_before = PLACE_CPU(place);
	time = elapsed(v->since_ns, now);
	v->since_ns = now;
	record_state(v, before, state, cpu, now);

	if (is_active(before) && !(is_active(state) && cpu_before == cpu)) {
		word = presence(v->vm, cpu_before);
		if (word)
			clock_change(word, now, false);
	}
	if (is_active(state) && !(is_active(before) && cpu_before == cpu)) {
		word = presence(v->vm, cpu);
		if (word)
			clock_change(word, now, true);
	}

	if (state == PROBE_RUN)
		clock_change(&vm->ran, now, true);
	if (before == PROBE_RUN) {
		v->run_ns += time;
		clock_change(&vm->ran, now, false);
	} else if (is_ready(before)) {
		v->ready_ns += time;
		if (!is_ready(state)) {
			v->costop_ns += clock_since(v->ran_mark, clock_read(READ_ONCE(vm->ran), now));
			if (state == PROBE_RUN)
				wait_end(v, before, now);
		}
	} else if (before == PROBE_HALTED) {
		v->halted_ns += time;
	} else if (before == PROBE_BLOCKED) {
		v->blocked_ns += time;
	}

	if (is_ready(state)) {
		if (!is_ready(before)) {
			v->ran_mark = clock_read(READ_ONCE(vm->ran), now);
			v->ready_since_ns = now;
		}
	} else if (state == PROBE_HALTED) {
		v->halts++;
		polled_ns = vcpu_halt_polled_ns((void *)v->kvm_vcpu);
		v->halt_polled_ns += elapsed(v->kvm_polled_ns, polled_ns);
		v->kvm_polled_ns = polled_ns;
		chain_end(v);
	}
	barrier();
	WRITE_ONCE(v->seq_end, v->seq_begin);
	return 0;
}

#endif
