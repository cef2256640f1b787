// SPDX-License-Identifier: GPL-2.0-only
//! cgroups, as the scheduler sees them.

use std::ptr::{self, NonNull};

use crate::host::Core;
use crate::ids::{GroupId, TaskId};

use super::ffi::{Cgroup, CgroupInitArgs};
use super::maps::Storages;
use super::ops::{one, OpKind, NOBODY};
use super::Ext;

pub struct ExtCgroup {
    pub kern: NonNull<Cgroup>,
    pub storages: Storages,
}

impl Drop for ExtCgroup {
    fn drop(&mut self) {
        // SAFETY: leaked from a box in new_cgroup(); the scheduler does not run any more.
        drop(unsafe { Box::from_raw(self.kern.as_ptr()) });
    }
}

impl Ext {
    pub(super) fn new_cgroup(&mut self, core: &mut Core, group: GroupId) {
        debug_assert_eq!(group.index(), self.cgroups.len());
        let kern = Box::new(Cgroup { level: core.group_level(group) as i32, kn: ptr::null() });
        let kern = NonNull::from(Box::leak(kern));
        self.cgroups.push(ExtCgroup { kern, storages: Storages::default() });
        let mut args = CgroupInitArgs { weight: core.groups[group.index()].weight };
        let err = self.op(core, OpKind::CgroupInit, NOBODY, |ops| {
            ops.cgroup_init.map_or(0, |init| init(kern.as_ptr(), &raw mut args))
        });
        self.must_succeed(core, OpKind::CgroupInit, err);
    }

    pub(super) fn must_succeed(&mut self, core: &mut Core, kind: OpKind, err: i32) {
        if err != 0 {
            let reason = format!("failed: {err}");
            core.fail(crate::SimError::Refused { at_ns: core.now_ns, op: kind.name(), reason });
        }
    }

    pub(super) fn cgroup_at(&self, p: *const Cgroup) -> Option<GroupId> {
        self.cgroups.iter().position(|cgroup| ptr::eq(cgroup.kern.as_ptr(), p)).map(GroupId::from)
    }

    pub(super) fn cgroup_weight_changed(&mut self, core: &mut Core, group: GroupId) {
        let (kern, weight) = (self.cgroups[group.index()].kern.as_ptr(), core.groups[group.index()].weight);
        self.op(core, OpKind::CgroupSetWeight, NOBODY, |ops| {
            ops.cgroup_set_weight.map(|op| op(kern, weight))
        });
    }

    pub(super) fn cgroup_moved(&mut self, core: &mut Core, id: TaskId, from: GroupId) {
        let to = self.cgroups[core.task(id).group.index()].kern.as_ptr();
        let (p, from) = (self.tasks[id.index()].ptr(), self.cgroups[from.index()].kern.as_ptr());
        self.op(core, OpKind::CgroupMove, one(id), |ops| ops.cgroup_move.map(|op| op(p, from, to)));
    }
}
