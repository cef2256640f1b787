// SPDX-License-Identifier: GPL-2.0-only
//! Where a waking task is queued: `select_task_rq_fair()`, without its statistics of idle times: it looks as long as it takes.

use crate::host::Core;
use crate::ids::{CpuId, TaskId};

use super::Fair;

impl Fair {
    /// `available_idle_cpu()`
    fn is_idle(&self, core: &Core, cpu: CpuId) -> bool {
        core.cpu(cpu).curr.is_none() && self.tasks_on(cpu) == 0
    }

    /// Where a task that is new begins: `find_idlest_cpu()`.
    pub(super) fn select_for_new(&self, core: &Core, task: TaskId) -> CpuId {
        let allowed = core.online.iter().filter(|cpu| core.can_run_on(task, *cpu));
        let found = allowed.min_by_key(|cpu| (!self.is_idle(core, *cpu), self.tasks_on(*cpu), cpu.0));
        found.unwrap_or(core.task(task).cpu)
    }

    /// `wake_affine_idle()` and `select_idle_sibling()`: where it was, where the waker is, or somewhere that shares a cache with it.
    pub(super) fn select_for_woken(&self, core: &Core, task: TaskId, prev: CpuId) -> CpuId {
        let fits = |cpu: CpuId| self.is_idle(core, cpu) && core.can_run_on(task, cpu);
        if fits(prev) {
            return prev;
        }
        let share_cache = |a: CpuId, b: CpuId| core.machine.distance(a, b) <= crate::machine::Distance::Cache;
        let this = core.this_cpu;
        if share_cache(this, prev) && fits(this) {
            return this;
        }
        // A whole idle core first, then any idle thread; from the target on.
        let (per_cache, _) = core.machine.spans();
        let first = prev.0 / per_cache * per_cache;
        let order = (1..per_cache).map(|step| CpuId(first + (prev.0 - first + step) % per_cache));
        if core.machine.threads_per_core() > 1 {
            let whole =
                |cpu: &CpuId| fits(*cpu) && core.machine.core_of(*cpu).all(|other| self.is_idle(core, other));
            if let Some(cpu) = order.clone().find(whole) {
                return cpu;
            }
        }
        order.clone().find(|cpu| fits(*cpu)).unwrap_or(prev)
    }
}
