/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's half of kernel.h for an ordinary process: the same types as plain structs, the same functions, supplied
 * by the model in native/ instead of the kernel. Part of kernel.h, with COHORT_NATIVE; include that one.
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

#define SEC(name)
#define __always_inline		inline __attribute__((always_inline))
#define BPF_PROG(name, args...) name(args)
#define bpf_ksym_exists(symbol) 1

/* Maps are declared as for libbpf: a struct of pointers, from whose types every size can be had back. */
#define __uint(name, value)	 int(*name)[value]
#define __type(name, value)	 typeof(value) *name
#define __native_uint(map, name) (sizeof(*(map)->name) / sizeof(int))
#define __native_map(map) \
	(map), __native_uint(map, type), sizeof(*(map)->key), sizeof(*(map)->value), __native_uint(map, max_entries)

void *native_map_lookup(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key);
long native_map_update(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key,
		       const void *value, u64 flags);
long native_map_delete(const void *map, u32 type, u32 key_size, u32 value_size, u32 max_entries, const void *key);
void *native_storage(const void *map, const void *owner, u32 value_size, u64 flags);

#define bpf_map_lookup_elem(map, k)		     native_map_lookup(__native_map(map), (k))
#define bpf_map_update_elem(map, k, from, flags)     native_map_update(__native_map(map), (k), (from), (flags))
#define bpf_map_delete_elem(map, k)		     native_map_delete(__native_map(map), (k))
#define bpf_task_storage_get(map, task, from, flags) native_storage((map), (task), sizeof(*(map)->value), (flags))
#define bpf_cgrp_storage_get(map, cgrp, from, flags) native_storage((map), (cgrp), sizeof(*(map)->value), (flags))

#define bpf_for(i, start, end)			     for ((i) = (start); (i) < (end); (i)++)
#define bpf_for_each(type, cursor, args...)                                                    \
	for (struct bpf_iter_##type ___it __attribute__((cleanup(bpf_iter_##type##_destroy))), \
	     *___p = (bpf_iter_##type##_new(&___it, args), &___it);                            \
	     ((cursor) = bpf_iter_##type##_next(___p));)

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node);
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags);
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags);
bool scx_bpf_dsq_move_to_local(u64 dsq_id);
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id, u64 enq_flags);
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice);
s32 scx_bpf_dsq_nr_queued(u64 dsq_id);
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags);
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it);
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it);

s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle);
s32 scx_bpf_pick_idle_cpu(const cpumask_t *allowed, u64 flags);
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu);
void scx_bpf_kick_cpu(s32 cpu, u64 flags);
s32 scx_bpf_task_cpu(const struct task_struct *p);
const struct cpumask *scx_bpf_get_online_cpumask(void);
void scx_bpf_put_cpumask(const struct cpumask *mask);
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask);
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice);
u64 scx_bpf_now(void);
struct cgroup *scx_bpf_task_cgroup(struct task_struct *p);
void scx_bpf_error_bstr(char *fmt, unsigned long long *data, u32 data_len);

u64 bpf_ktime_get_ns(void);
struct task_struct *bpf_get_current_task_btf(void);
struct task_struct *bpf_task_from_pid(s32 pid);
void bpf_task_release(struct task_struct *p);
struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level);
void bpf_cgroup_release(struct cgroup *cgrp);

static inline void bpf_rcu_read_lock(void)
{
}

static inline void bpf_rcu_read_unlock(void)
{
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

/* The same as in kernel.h, without CO-RE and without versions. */
static __always_inline u64 now_ns(void)
{
	return scx_bpf_now();
}

static __always_inline void task_set_slice(struct task_struct *p, u64 slice_ns)
{
	scx_bpf_task_set_slice(p, slice_ns);
}

static __always_inline bool task_is_queued(const struct task_struct *p)
{
	return p->scx.flags & SCX_TASK_QUEUED;
}

static __always_inline bool task_allowed_on(const struct task_struct *p, s32 cpu)
{
	if (p->nr_cpus_allowed == 1 || p->migration_disabled)
		return scx_bpf_task_cpu(p) == cpu;
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

static __always_inline struct kvm_vcpu *task_vcpu(struct task_struct *p)
{
	char *link = (char *)p->preempt_notifiers.first;

	if (!link)
		return NULL;
	return (struct kvm_vcpu *)(link - __builtin_offsetof(struct preempt_notifier, link) -
				   __builtin_offsetof(struct kvm_vcpu, preempt_notifier));
}

static __always_inline u64 vcpu_kvm(struct kvm_vcpu *v)
{
	return (u64)v->kvm;
}

static __always_inline s32 vcpu_id(struct kvm_vcpu *v)
{
	return v->vcpu_id;
}

static __always_inline bool vcpu_preempted_in_kernel(struct kvm_vcpu *v)
{
	return v->arch.preempted_in_kernel;
}

static __always_inline bool vcpu_irq_pending(struct kvm_vcpu *v)
{
	return v->arch.apic && v->arch.apic->irr_pending;
}

#endif
