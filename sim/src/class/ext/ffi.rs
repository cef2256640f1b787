// SPDX-License-Identifier: GPL-2.0-only
//! What the compiled scheduler and the model share: the kernel's structs as in `kernel_types.h`, and the scheduler's symbols.

use std::mem::{offset_of, size_of};
use std::ptr;

use cohort_topology::Neighbours;

use crate::cpuset::CpuSet;
use crate::ids::CpuId;

/// pCPUs that a mask has room for.
pub const MASK_CPUS: usize = 1024;

#[repr(C)]
#[derive(Clone)]
pub struct CpuMask(pub [u64; MASK_CPUS / 64]);

impl CpuMask {
    pub fn of(cpus: &CpuSet) -> Self {
        let mut mask = Self([0; MASK_CPUS / 64]);
        for (to, from) in mask.0.iter_mut().zip(cpus.words()) {
            *to = *from;
        }
        mask
    }

    /// All of 0 to n - 1.
    pub fn first(n: usize) -> Self {
        let mut mask = Self([0; MASK_CPUS / 64]);
        for (index, word) in mask.0.iter_mut().enumerate() {
            let absent = 64 - n.saturating_sub(64 * index).min(64) as u32;
            *word = u64::MAX.checked_shr(absent).unwrap_or(0);
        }
        mask
    }

    pub fn one(cpu: CpuId) -> Self {
        let mut mask = Self([0; MASK_CPUS / 64]);
        mask.0[cpu.index() / 64] = 1 << (cpu.0 % 64);
        mask
    }

    pub fn has(&self, cpu: usize) -> bool {
        cpu < MASK_CPUS && self.0[cpu / 64] >> (cpu % 64) & 1 == 1
    }
}

#[repr(C)]
pub struct ListNode {
    pub next: *mut ListNode,
}

#[repr(C)]
pub struct ScxEntity {
    pub flags: u32,
    pub weight: u32,
    pub slice: u64,
}

#[repr(C)]
pub struct SchedEntity {
    pub sum_exec_runtime: u64,
}

#[repr(C)]
pub struct TaskStruct {
    pub se: SchedEntity,
    pub flags: u32,
    pub exit_state: i32,
    pub pid: i32,
    pub tgid: i32,
    pub prio: i32,
    pub nr_cpus_allowed: i32,
    pub cpus_ptr: *const CpuMask,
    pub migration_disabled: u16,
    pub preempt_notifiers: *mut ListNode,
    pub scx: ScxEntity,
}

#[repr(C)]
pub struct KernfsNode {
    pub id: u64,
}

#[repr(C)]
pub struct Cgroup {
    pub level: i32,
    pub kn: *const KernfsNode,
    pub dom_cgrp: *mut Cgroup,
}

#[repr(C)]
pub struct InitTaskArgs {
    pub fork: bool,
    pub cgroup: *mut Cgroup,
}

#[repr(C)]
pub struct ExitTaskArgs {
    pub cancelled: bool,
}

#[repr(C)]
pub struct CgroupInitArgs {
    pub weight: u32,
    pub bw_period_us: u64,
    pub bw_quota_us: u64,
    pub bw_burst_us: u64,
    pub sched_idle: bool,
}

#[repr(C)]
pub struct CpuReleaseArgs {
    pub task: Task,
}

#[repr(C)]
pub struct ExitInfo {
    pub kind: i32,
    pub exit_code: i64,
    pub reason: *const u8,
    pub msg: *const u8,
    pub dump: *const u8,
}

/// `struct bpf_iter_scx_dsq`; what the kernel keeps in it is the kernel's business, and here the model's.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct DsqIter {
    /// The queue's number; `u32::MAX`: none.
    pub dsq: u32,
    /// The caller's and the kernel's own.
    pub flags: u32,
    /// 1 + the number of the task returned last; 0: none yet.
    pub last: u32,
    /// Tasks queued later are not part of the walk. Wraps, as the kernel's does.
    pub seq: u32,
    /// The last one's place in the order.
    pub key: (i64, u64),
    pub slice: u64,
    pub vtime: u64,
}

const _: () = assert!(size_of::<DsqIter>() == 48);

type Task = *mut TaskStruct;

/// A program on sched_switch: preempted or not, from whom, to whom. What it returns is ignored.
pub type OnSwitch = extern "C" fn(bool, Task, Task);

/// `struct native_knob` of peek.c.
#[repr(C)]
pub struct KnobEntry {
    pub name: *const std::ffi::c_char,
    pub offset: u32,
    pub size: u32,
}

// SAFETY: constants; the name is a string literal.
unsafe impl Sync for KnobEntry {}

#[repr(C)]
pub struct Ops {
    pub select_cpu: Option<extern "C" fn(Task, i32, u64) -> i32>,
    pub enqueue: Option<extern "C" fn(Task, u64)>,
    pub dispatch: Option<extern "C" fn(i32, Task)>,
    pub tick: Option<extern "C" fn(Task)>,
    pub running: Option<extern "C" fn(Task)>,
    pub stopping: Option<extern "C" fn(Task, bool)>,
    pub quiescent: Option<extern "C" fn(Task, u64)>,
    pub disable: Option<extern "C" fn(Task)>,
    pub set_cpumask: Option<extern "C" fn(Task, *const CpuMask)>,
    pub cpu_acquire: Option<extern "C" fn(i32, *mut u8)>,
    pub cpu_release: Option<extern "C" fn(i32, *mut CpuReleaseArgs)>,
    pub r#yield: Option<extern "C" fn(Task, Task) -> bool>,
    pub init_task: Option<extern "C" fn(Task, *mut InitTaskArgs) -> i32>,
    pub exit_task: Option<extern "C" fn(Task, *mut ExitTaskArgs)>,
    pub cgroup_init: Option<extern "C" fn(*mut Cgroup, *mut CgroupInitArgs) -> i32>,
    pub cgroup_exit: Option<extern "C" fn(*mut Cgroup)>,
    pub cgroup_move: Option<extern "C" fn(Task, *mut Cgroup, *mut Cgroup)>,
    pub cgroup_set_weight: Option<extern "C" fn(*mut Cgroup, u32)>,
    pub cgroup_set_bandwidth: Option<extern "C" fn(*mut Cgroup, u64, u64, u64)>,
    pub cgroup_set_idle: Option<extern "C" fn(*mut Cgroup, bool)>,
    pub cpu_online: Option<extern "C" fn(i32)>,
    pub cpu_offline: Option<extern "C" fn(i32)>,
    pub init: Option<extern "C" fn() -> i32>,
    pub exit: Option<extern "C" fn(*mut ExitInfo)>,
    pub flags: u64,
    pub timeout_ms: u32,
}

/// Of enum cohort_boost.
pub const BOOST_IPI: u64 = 16;

/// A Linux guest's (asm/irq_vectors.h).
pub const VECTOR_CALL: u8 = 0xfc;
pub const VECTOR_RESCHEDULE: u8 = 0xfd;

extern "C" {
    pub static cohort_ops: Ops;
    /// The program on fentry/kvm_vcpu_on_spin.
    pub fn cohort_on_spin(vcpu: *mut u64, in_kernel: bool) -> i32;
    /// The program on fexit/kvm_arch_vcpu_put.
    pub fn cohort_vcpu_put(vcpu: *mut u64) -> i32;
    /// The program on the tracepoint kvm_apic_accept_irq.
    pub fn cohort_on_irq(to: u32, mode: u16, trigger: u16, vector: u8) -> i32;
    /// The program on fexit/kvm_apic_send_ipi.
    pub fn cohort_on_ipi_sent() -> i32;
    /// The program on fexit/kvm_tdp_mmu_map, for a page that is in a slot or not.
    pub fn native_on_fault(vcpu: *mut u64, gfn: u64, in_slot: bool) -> i32;
    pub static vm_on_cpu: u8;
    pub static neighbours: u8;
    static native_neighbours_size: u32;
    /// The program on sched_switch, if the scheduler has one.
    pub fn native_on_switch() -> Option<OnSwitch>;
    /// A call into the scheduler begins, of the simulation with these maps, on that pCPU.
    pub fn native_enter(maps: u64, cpu: u64);
    /// Atomic operations of this thread since it was asked last, and look-ups in array maps.
    pub fn native_take_atomics() -> u64;
    pub fn native_take_array_lookups() -> u64;
    pub fn poke_neighbours(cpu: u32, value: *const Neighbours);
    pub static clocks: u8;
    pub static native_max_vms: u32;
    pub static native_max_entities: u32;
    pub static native_vcpu_size: u32;
    pub static native_apic_size: u32;
    /// Returns the node by which a thread inside KVM_RUN is known.
    pub fn poke_vcpu(vcpu: *mut u64, kvm: *mut u64, id: i32, apic: *mut u64) -> *mut ListNode;
    pub fn poke_preempted(vcpu: *mut u64, preempted: bool, in_kernel: bool);
    pub fn poke_apic(vcpu: *mut u64, irq_pending: bool, apicv_active: bool);
    static native_layout: [u64; LAYOUT.len()];
    static native_layout_len: u32;
    pub static native_image_size: u32;
    pub fn native_image_save(to: *mut u64);
    pub fn native_image_load(from: *const u64);
    pub static native_knobs: KnobEntry;
    pub static native_knobs_len: u32;
}

/// An array map as a place of the scheduler's source knows it (native.h).
#[repr(C)]
pub struct NativeArray {
    pub epoch: u64,
    pub memory: *mut u8,
    pub stride: u64,
    pub copy: u64,
    pub entries: u64,
}

/// In the order of `native_layout` in peek.c.
const LAYOUT: [usize; 56] = [
    offset_of!(TaskStruct, se.sum_exec_runtime),
    offset_of!(TaskStruct, flags),
    offset_of!(TaskStruct, exit_state),
    offset_of!(TaskStruct, pid),
    offset_of!(TaskStruct, tgid),
    offset_of!(TaskStruct, prio),
    offset_of!(TaskStruct, nr_cpus_allowed),
    offset_of!(TaskStruct, cpus_ptr),
    offset_of!(TaskStruct, migration_disabled),
    offset_of!(TaskStruct, preempt_notifiers),
    offset_of!(TaskStruct, scx.flags),
    offset_of!(TaskStruct, scx.weight),
    offset_of!(TaskStruct, scx.slice),
    size_of::<TaskStruct>(),
    offset_of!(Cgroup, level),
    offset_of!(Cgroup, kn),
    offset_of!(Cgroup, dom_cgrp),
    size_of::<Cgroup>(),
    offset_of!(InitTaskArgs, cgroup),
    offset_of!(ExitTaskArgs, cancelled),
    offset_of!(CgroupInitArgs, weight),
    offset_of!(CgroupInitArgs, bw_period_us),
    offset_of!(CgroupInitArgs, bw_quota_us),
    offset_of!(CgroupInitArgs, bw_burst_us),
    offset_of!(CgroupInitArgs, sched_idle),
    offset_of!(CpuReleaseArgs, task),
    offset_of!(ExitInfo, exit_code),
    offset_of!(ExitInfo, reason),
    offset_of!(ExitInfo, msg),
    offset_of!(Ops, select_cpu),
    offset_of!(Ops, enqueue),
    offset_of!(Ops, dispatch),
    offset_of!(Ops, tick),
    offset_of!(Ops, running),
    offset_of!(Ops, stopping),
    offset_of!(Ops, quiescent),
    offset_of!(Ops, disable),
    offset_of!(Ops, set_cpumask),
    offset_of!(Ops, cpu_acquire),
    offset_of!(Ops, cpu_release),
    offset_of!(Ops, r#yield),
    offset_of!(Ops, init_task),
    offset_of!(Ops, exit_task),
    offset_of!(Ops, cgroup_init),
    offset_of!(Ops, cgroup_exit),
    offset_of!(Ops, cgroup_move),
    offset_of!(Ops, cgroup_set_weight),
    offset_of!(Ops, cgroup_set_bandwidth),
    offset_of!(Ops, cgroup_set_idle),
    offset_of!(Ops, cpu_online),
    offset_of!(Ops, cpu_offline),
    offset_of!(Ops, init),
    offset_of!(Ops, exit),
    offset_of!(Ops, flags),
    offset_of!(Ops, timeout_ms),
    size_of::<NativeArray>(),
];

/// Refuse to run with structs that are not those the scheduler was compiled with.
pub fn check_layout() {
    // SAFETY: constants of peek.c, initialized by the compiler; the length is compared before the contents.
    let theirs = unsafe {
        assert_eq!(native_layout_len as usize, LAYOUT.len(), "peek.c and ffi.rs list different fields");
        assert_eq!(native_neighbours_size as usize, size_of::<Neighbours>(), "topology/ and intf.h differ");
        ptr::addr_of!(native_layout).read()
    };
    for (index, (ours, theirs)) in LAYOUT.iter().zip(theirs).enumerate() {
        assert_eq!(
            *ours as u64, theirs,
            "ffi.rs differs from kernel_types.h in entry {index} of its layout table"
        );
    }
}
