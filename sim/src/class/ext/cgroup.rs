// SPDX-License-Identifier: GPL-2.0-only
//! cgroups, as the scheduler sees them.

use std::ptr::NonNull;

use crate::host::{Bandwidth, Core};
use crate::ids::{GroupId, TaskId};

use super::ffi::{Cgroup, CgroupInitArgs, KernfsNode};
use super::maps::Storages;
use super::ops::{one, OpKind, NOBODY};
use super::Ext;

/// A `struct cgroup` with what belongs to it; the scheduler's pointers are to its first field.
#[repr(C)]
pub struct KernCgroup {
    kern: Cgroup,
    id: GroupId,
    node: KernfsNode,
    pub storages: Storages,
}

pub struct ExtCgroup(NonNull<KernCgroup>);

impl ExtCgroup {
    fn new(id: GroupId, level: u32) -> Self {
        // kernfs numbers files from 1, the root.
        let node = KernfsNode { id: u64::from(id.0) + 1 };
        let kern = Cgroup { level: level as i32, kn: std::ptr::null(), dom_cgrp: std::ptr::null_mut() };
        let all = Box::leak(Box::new(KernCgroup { kern, id, node, storages: Storages::default() }));
        all.kern.kn = &raw const all.node;
        let new = Self(NonNull::from(all));
        // SAFETY: just leaked, and nobody else has the pointer yet.
        unsafe { (*new.0.as_ptr()).kern.dom_cgrp = new.ptr() };
        new
    }

    pub fn ptr(&self) -> *mut Cgroup {
        self.0.as_ptr().cast()
    }
}

impl Drop for ExtCgroup {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in new(); the scheduler does not run any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The group that the scheduler means by this pointer.
pub fn cgroup_at(p: *const Cgroup) -> Option<GroupId> {
    // SAFETY: the scheduler has its cgroups from the model, where each is the first field of a KernCgroup that lives as long as the simulation.
    (!p.is_null()).then(|| unsafe { (*p.cast::<KernCgroup>()).id })
}

impl Ext {
    /// scx_tg_online(), or what scx_cgroup_init() does with a group that is there already; parents come first in both.
    pub(super) fn new_cgroup(&mut self, core: &mut Core, group: GroupId) {
        debug_assert_eq!(group.index(), self.cgroups.len());
        self.cgroups.push(ExtCgroup::new(group, core.group_level(group)));
        let known = &core.groups[group.index()];
        let Bandwidth { period_us, quota_us, burst_us } = known.bandwidth;
        let mut args = CgroupInitArgs {
            weight: known.weight,
            bw_period_us: period_us,
            bw_quota_us: quota_us,
            bw_burst_us: burst_us,
            sched_idle: known.idle,
        };
        let kern = self.cgroups[group.index()].ptr();
        let err = self.op(core, OpKind::CgroupInit, NOBODY, |ops| {
            ops.cgroup_init.map_or(0, |init| init(kern, &raw mut args))
        });
        self.must_succeed(core, OpKind::CgroupInit, err);
    }

    /// scx_tg_offline(). The cgroup itself, and what the scheduler keeps with it, goes when nobody looks any more.
    pub(super) fn cgroup_removed(&mut self, core: &mut Core, group: GroupId) {
        let kern = self.cgroups[group.index()].ptr();
        self.op(core, OpKind::CgroupExit, NOBODY, |ops| ops.cgroup_exit.map(|exit| exit(kern)));
        // SAFETY: the scheduler does not run now.
        unsafe { (*kern.cast::<KernCgroup>()).storages.clear() };
    }

    pub(super) fn must_succeed(&mut self, core: &mut Core, kind: OpKind, err: i32) {
        if err != 0 {
            let reason = format!("failed: {err}");
            core.fail(crate::SimError::Refused { at_ns: core.now_ns, op: kind.name(), reason });
        }
    }

    pub(super) fn cgroup_weight_changed(&mut self, core: &mut Core, group: GroupId) {
        let (kern, weight) = (self.cgroups[group.index()].ptr(), core.groups[group.index()].weight);
        self.op(core, OpKind::CgroupSetWeight, NOBODY, |ops| {
            ops.cgroup_set_weight.map(|op| op(kern, weight))
        });
    }

    pub(super) fn cgroup_bandwidth_changed(&mut self, core: &mut Core, group: GroupId) {
        let Bandwidth { period_us, quota_us, burst_us } = core.groups[group.index()].bandwidth;
        let kern = self.cgroups[group.index()].ptr();
        self.op(core, OpKind::CgroupSetBandwidth, NOBODY, |ops| {
            ops.cgroup_set_bandwidth.map(|op| op(kern, period_us, quota_us, burst_us))
        });
    }

    pub(super) fn cgroup_idle_changed(&mut self, core: &mut Core, group: GroupId) {
        let (kern, idle) = (self.cgroups[group.index()].ptr(), core.groups[group.index()].idle);
        self.op(core, OpKind::CgroupSetIdle, NOBODY, |ops| ops.cgroup_set_idle.map(|op| op(kern, idle)));
    }

    pub(super) fn cgroup_moved(&mut self, core: &mut Core, id: TaskId, from: GroupId) {
        let to = self.cgroups[core.task(id).group.index()].ptr();
        let (p, from) = (self.tasks[id.index()].ptr(), self.cgroups[from.index()].ptr());
        self.op(core, OpKind::CgroupMove, one(id), |ops| ops.cgroup_move.map(|op| op(p, from, to)));
    }
}
