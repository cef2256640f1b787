/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sets of vCPUs that belong together, for gang partial: which vCPU is in which, as user space says, while the scheduler runs.
 *
 * A vCPU's entry is at its index in the map vcpus; it is read and written at once. It names the VM that it is meant for, and that VM's generation, so that what was
 * said of a VM that is gone, or of a block that another VM has by now, counts for nothing. A set is known by 1 + the number of its first vCPU: where that one
 * is in vcpus, the set's own state is in the map sets.
 */
#ifndef COHORT_SETS_H
#define COHORT_SETS_H

#include "wish.h"

/* generation << 32 | VM << 16 | set; 0: in none. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_VCPU_BLOCKS *VCPU_BLOCK);
	__type(key, u32);
	__type(value, u64);
} set_of SEC(".maps");

enum set_tell {
	TELL_WAITING = 1, /* the pCPUs on which its members wait, if they are idle */
	TELL_RUNNING = 2, /* those on which its members run */
	TELL_HELD = 4,	  /* those that it has for members that sleep, if all of them do */
};

struct set_ctx {
	/* Of the set that has its first vCPU here. */
	u64 slot;	   /* of its last turn */
	u64 refused_slot;  /* in this slot there was no room for all of its members ... */
	u64 refused_room;  /* ... when set_room was this */
	u64 stopped_slot;  /* in this slot its members were told to stop */
	u64 free_until_ns; /* its members have not enough pCPUs to run together: each runs for itself */
	u32 begins;	   /* somebody tries to begin its turn */
	u32 tell;	   /* enum set_tell: whom to tell, at the end of this operation, to choose anew */
	u32 wanting;	   /* members that want to run, when that was last counted */

	/* Of the vCPU here. */
	s32 ran_on;
	s32 room;     /* the pCPU found for it ... */
	u64 room_for; /* ... for this claim */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_VCPU_BLOCKS *VCPU_BLOCK);
	__type(key, u32);
	__type(value, struct set_ctx);
} sets SEC(".maps");

/* Changes whenever a pCPU may have become free for a set. */
VARIABLE u64 set_room = 1;

static __always_inline struct set_ctx *set_ctx_at(u32 index)
{
	return bpf_map_lookup_elem(&sets, &index);
}

/* The set of the vCPU at that index of vcpus, 1 + its first vCPU; 0: it is in none. */
static __always_inline u32 set_of_vcpu(const struct vm_ctx *vm, u32 vm_id, u32 index)
{
	u64 *entry = bpf_map_lookup_elem(&set_of, &index);
	u64 value = entry ? READ_ONCE(*entry) : 0;

	if (!value || (u32)(value >> 32) != vm->generation || (value >> 16 & 0xffff) != vm_id)
		return 0;
	return value & 0xffff;
}

/* Where the state of that vCPU's set is, 1 + its index in sets; 0: it is in none. */
static __always_inline u32 set_place_of(struct vm_ctx *vm, u32 vm_id, s32 index)
{
	u32 set = index < 0 ? 0 : set_of_vcpu(vm, vm_id, index);

	return set ? (u32)(vcpu_index(vm, set - 1) + 1) : 0;
}

/* The same of t's. */
static __always_inline u32 set_place(const struct task_ctx *t)
{
	struct vm_ctx *vm;

	if (t->vcpu < 0)
		return 0;
	vm = vm_get(t);
	return vm ? set_place_of(vm, t->vm, t->vcpu_at) : 0;
}

#endif
