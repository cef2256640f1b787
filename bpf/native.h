/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What libbpf's headers are to the kernel's build, for an ordinary process: kernel.h includes this with COHORT_NATIVE.
 * The functions that kernel.h declares are supplied by the simulator's ext class.
 */
#ifndef COHORT_NATIVE_H
#define COHORT_NATIVE_H

/* Its clang pragma is about CO-RE; without it the structs are what a process needs: plain. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#ifdef __clang__
#pragma clang diagnostic ignored "-Wunknown-attributes"
#endif
#include "kernel_types.h"
#pragma GCC diagnostic pop

/* Nobody reads this scheduler from outside. */
#define LAYOUT_NUMBER 0

#define SEC(name)
#define __ksym
#define __weak
#define __noinline __attribute__((noinline))
#define __always_inline inline __attribute__((always_inline))
#define BPF_PROG(name, args...) name(args)
#define bpf_ksym_exists(symbol) 1

/* One set per thread; each simulation brings its own and takes it away again. What is not marked so does not build. */
#define KNOB _Thread_local
#define VARIABLE _Thread_local

/* Every value of that knob is compiled in. */
#define COMPILED_FOR(knob) (knob)

/* Maps are declared as for libbpf: a struct of pointers, from whose types every size can be had back. */
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __native_uint(map, name) (sizeof(*(map)->name) / sizeof(int))
#define __native_map(map) \
	(map), __native_uint(map, type), sizeof(*(map)->key), sizeof(*(map)->value), __native_uint(map, max_entries)

void *native_map_lookup(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key);
long native_map_update(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key,
		       const void *value, u64 flags);
long native_map_delete(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key);
void *native_task_storage(const void *map, struct task_struct *owner, u32 value_size, u64 flags);
void *native_cgrp_storage(const void *map, struct cgroup *owner, u32 value_size, u64 flags);

/*
 * An array map as this place in the source knows it: of the simulation that has the thread. Looked up without a call, as in the kernel, whose verifier writes it
 * in line: a decision has a hundred look-ups.
 */
struct native_array {
	u64 epoch; /* of the simulation */
	char *memory;
	u64 stride;
	u64 copy; /* bytes of a pCPU's own values; 0: all share them */
	u64 entries;
};

/* Of the simulation that has this thread; the pCPU that executes, and look-ups since the model looked last. */
extern _Thread_local u64 native_epoch, native_cpu, native_array_lookups;

void native_array_find(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries,
		       struct native_array *array);

static inline void *native_array_at(const struct native_array *array, u32 key)
{
	native_array_lookups++;
	return key < array->entries ? array->memory + native_cpu * array->copy + key * array->stride : 0;
}

#define __native_is_hash(map) (__native_uint(map, type) == BPF_MAP_TYPE_HASH)
#define bpf_map_lookup_elem(map, k)                                                 \
	({                                                                          \
		static _Thread_local struct native_array ___array;                  \
		u32 ___key;                                                         \
		__builtin_memcpy(&___key, (k), sizeof(___key));                     \
		if (!__native_is_hash(map) && ___array.epoch != native_epoch)       \
			native_array_find(__native_map(map), &___array);            \
		__native_is_hash(map) ? native_map_lookup(__native_map(map), (k)) : \
					native_array_at(&___array, ___key);         \
	})
#define bpf_map_update_elem(map, k, from, flags) native_map_update(__native_map(map), (k), (from), (flags))
#define bpf_map_delete_elem(map, k) native_map_delete(__native_map(map), (k))
#define bpf_task_storage_get(map, task, from, flags) native_task_storage((map), (task), sizeof(*(map)->value), (flags))
#define bpf_cgrp_storage_get(map, cgrp, from, flags) native_cgrp_storage((map), (cgrp), sizeof(*(map)->value), (flags))

/* As libbpf's: behind its end, i has the last value that it had within. */
#define bpf_for(i, start, end) for (s64 ___at = (start); ___at < (end) && ((i) = ___at, (void)(i), 1); ___at++)
#define bpf_for_each(type, cursor, args...)                                                    \
	for (struct bpf_iter_##type ___it __attribute__((cleanup(bpf_iter_##type##_destroy))), \
	     *___p = (bpf_iter_##type##_new(&___it, args), &___it);                            \
	     ((cursor) = bpf_iter_##type##_next(___p));)

/* CO-RE: every field is where the compiler put it. */
#define bpf_core_type_exists(type) 1
#define bpf_core_field_exists(field) 1
#define bpf_core_field_offset(type, field) __builtin_offsetof(type, field)
/* Reads that may fail, and then give zero. */
#define BPF_CORE_READ(from, field)                  \
	({                                          \
		typeof((from)->field) ___value = 0; \
		if (from)                           \
			___value = (from)->field;   \
		___value;                           \
	})

u64 bpf_ktime_get_ns(void);
u32 bpf_get_prandom_u32(void);
u32 bpf_get_smp_processor_id(void);
struct task_struct *bpf_get_current_task_btf(void);

/* A map is known by the address of its definition. */
long native_timer_init(struct bpf_timer *timer, const void *map, u64 flags);
long native_timer_set_callback(struct bpf_timer *timer, void *callback);
#define bpf_timer_init(timer, map, flags) native_timer_init((timer), (map), (flags))
#define bpf_timer_set_callback(timer, callback) native_timer_set_callback((timer), (void *)(callback))
long bpf_timer_start(struct bpf_timer *timer, u64 nsecs, u64 flags);
long bpf_timer_cancel(struct bpf_timer *timer);

/* A simulation has one thread, so nothing need be atomic: counted instead. */
extern _Thread_local u64 native_atomics;
#define __native_atomic(ptr, value, new)        \
	({                                      \
		typeof(ptr) ___at = (ptr);      \
		typeof(*___at) ___old = *___at; \
		typeof(*___at) ___by = (value); \
		native_atomics++;               \
		*___at = (new);                 \
		___old;                         \
	})
#define atomic_add(ptr, n) __native_atomic(ptr, n, ___old + ___by)
#define atomic_and(ptr, bits) __native_atomic(ptr, bits, ___old &___by)
#define atomic_or(ptr, bits) __native_atomic(ptr, bits, ___old | ___by)
#define atomic_xchg(ptr, value) __native_atomic(ptr, value, ___by)
#define atomic_cas(ptr, expected, value)                                             \
	({                                                                           \
		typeof(*(ptr)) ___expected = (expected);                             \
		__native_atomic(ptr, value, ___old == ___expected ? ___by : ___old); \
	})

static inline long bpf_probe_read_kernel(void *dst, u32 size, const void *src)
{
	__builtin_memcpy(dst, src, size);
	return 0;
}

static inline long bpf_probe_read_kernel_str(void *dst, u32 size, const void *src)
{
	const char *from = src;
	char *to = dst;
	u32 n = 0;

	while (n + 1 < size && from[n]) {
		to[n] = from[n];
		n++;
	}
	to[n] = 0;
	return n + 1;
}

#endif
