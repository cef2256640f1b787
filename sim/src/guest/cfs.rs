// SPDX-License-Identifier: GPL-2.0-only
//! CFS between the tasks of a vCPU, which all weigh the same: the least virtual run time (kernel/sched/fair.c, 2.6.32 to 6.5).

use crate::time::Ns;

use super::vm::Vm;

impl Vm {
    /// sched_slice(): each has its turn within the latency, if that leaves enough for it.
    pub(super) fn cfs_slice_ns(&self, v: usize) -> Ns {
        let tasks = self.cpus[v].queue.len() as Ns + 1;
        (self.guest.latency_ns / tasks).max(self.guest.slice_ns)
    }

    /// The distance from the least is kept on another vCPU (migrate_task_rq_fair()).
    pub(super) fn cfs_move(&mut self, task: u32, from: usize, to: usize) {
        let shift_ns = self.cpus[to].min_vruntime_ns as i64 - self.cpus[from].min_vruntime_ns as i64;
        let task = &mut self.tasks[task as usize];
        task.vruntime_ns = task.vruntime_ns.saturating_add_signed(shift_ns);
    }

    /// place_entity(): who has slept goes on where it was, or half a latency before the others (GENTLE_FAIR_SLEEPERS).
    pub(super) fn cfs_place_woken(&mut self, task: u32, to: usize) {
        self.cfs_move(task, self.tasks[task as usize].cpu as usize, to);
        let earliest_ns = self.cpus[to].min_vruntime_ns.saturating_sub(self.guest.latency_ns / 2);
        let task = &mut self.tasks[task as usize];
        task.vruntime_ns = task.vruntime_ns.max(earliest_ns);
    }
}
