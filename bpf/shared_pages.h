/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who of a VM's vCPUs works on the same memory as another one (gang partial-auto): SPCD, "partial" paper, section 2.2. Two vCPUs that fault on the same page,
 * one soon after the other, have told each other something.
 *
 * KVM's table is one for all vCPUs of a VM, so a page faults once. User space makes it fault again: it has KVM drop what it has mapped, a part of the
 * VM's memory at a time (host/src/sets/rearm.rs). The memory itself stays where it is. What the host maps by 2 MiB is one page here too.
 */
#ifndef COHORT_SHARED_PAGES_H
#define COHORT_SHARED_PAGES_H

#include "traffic.h"

/* A table that forgets: a page takes the place of another one. A power of two. */
#define PAGES 65536

/* Who has touched a page last, if that was longer ago, has told nobody anything: the page has new contents by now. */
#define TOUCH_WINDOW_NS 2000000000ULL

struct touch {
	u64 page;
	u64 at_ns;
	u32 generation; /* of the VM */
	s32 vcpu;
};

/* User space sizes it. Two pCPUs may write an entry at once: at worst an event is lost, or is another pair's. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PAGES);
	__type(key, u32);
	__type(value, struct touch);
} touches SEC(".maps");

/* By VM: faults so far, from which user space tells how much memory it may take at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VMS);
	__type(key, u32);
	__type(value, u64);
} faults SEC(".maps");

/* vCPU t has touched that page of its VM, and it was not there. */
static void page_touched(const struct task_ctx *t, u64 gfn)
{
	u64 page = gfn << 16 | t->vm, now = now_ns(), *count;
	struct vm_ctx *vm = vm_get(t);
	struct touch *last;
	u32 at, vm_id = t->vm;

	if (!vm || t->vcpu < 0)
		return;
	count = bpf_map_lookup_elem(&faults, &vm_id);
	if (count)
		atomic_add(count, 1);
	/* Fibonacci hashing: neighbours are far apart. */
	at = page * 11400714819323198485ULL >> 48;
	last = bpf_map_lookup_elem(&touches, &at);
	if (!last)
		return;
	if (last->page == page && last->generation == vm->generation && elapsed_ns(now, last->at_ns) < TOUCH_WINDOW_NS)
		traffic_add(t, last->vcpu);
	last->page = page;
	last->at_ns = now;
	last->generation = vm->generation;
	last->vcpu = t->vcpu;
}

/* KVM has mapped a page that a vCPU has touched, and by then knows how large it is. What is in no slot is a device. */
SEC("fexit/kvm_tdp_mmu_map")
int BPF_PROG(cohort_on_fault, struct kvm_vcpu *vcpu, struct kvm_page_fault *fault)
{
	struct task_ctx *t = task_get(bpf_get_current_task_btf());
	u32 level = 1;

	if (!t || t->vcpu < 0 || !BPF_CORE_READ(fault, slot))
		return 0;
	if (bpf_core_field_exists(fault->goal_level))
		level = BPF_CORE_READ(fault, goal_level);
	/* Each level has 512 of the one below. */
	page_touched(t, BPF_CORE_READ(fault, gfn) >> 9 * ((level - 1) & 3) << 9 * ((level - 1) & 3));
	return 0;
}

#endif
