/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who of a VM's vCPUs tells another one something: the matrix of communication from which user space finds sets (gang partial_auto).
 *
 * What is counted here are interrupts from one vCPU to another: a wake-up of a guest task on another vCPU, a call of a function there, a TLB flush. They pass KVM,
 * which delivers them; where hardware delivers them by itself (AVIC, IPI virtualization) only those for a halted vCPU do. What two vCPUs tell each other
 * by shared memory alone, spinning, shared_pages.h sees.
 */
#ifndef COHORT_TRAFFIC_H
#define COHORT_TRAFFIC_H

#include "registry.h"

struct traffic {
	u64 events;
	u32 generation; /* of the VM */
	u32 unused;
};

/* VM << 16 | lower vCPU << 8 | higher vCPU. A pair beyond these counts for nothing. User space sizes it, and takes out the pairs of VMs that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, u32);
	__type(value, struct traffic);
} traffic SEC(".maps");

/* vCPU t has told vCPU `to` of its VM something. */
static void traffic_add(const struct task_ctx *t, s32 to)
{
	struct vm_ctx *vm = vm_get(t);
	struct traffic *known, first = {};
	u32 pair, low, high;

	if (!vm || t->vcpu < 0 || to < 0 || to >= MAX_VCPUS || to >= vm->vcpu_end || to == t->vcpu)
		return;
	low = t->vcpu < to ? t->vcpu : to;
	high = t->vcpu < to ? to : t->vcpu;
	pair = t->vm << 16 | low << 8 | high;
	known = bpf_map_lookup_elem(&traffic, &pair);
	if (!known) {
		first.events = 1;
		first.generation = vm->generation;
		bpf_map_update_elem(&traffic, &pair, &first, BPF_NOEXIST);
		return;
	}
	if (known->generation != vm->generation) {
		/* Of a VM that is gone. */
		known->generation = vm->generation;
		known->events = 0;
	}
	atomic_add(&known->events, 1);
}

#endif
