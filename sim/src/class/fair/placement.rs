// SPDX-License-Identifier: GPL-2.0-only
//! Where a waking task is queued: `select_task_rq_fair()`, without its statistics of idle times (it looks as long as it takes)
//! and of who wakes whom (wake_wide()).

use crate::host::Core;
use crate::ids::{CpuId, TaskId};
use crate::machine::Distance;

use super::{Fair, IdleSearch};

impl Fair {
    /// `available_idle_cpu()`
    fn is_idle(&self, core: &Core, cpu: CpuId) -> bool {
        !core.cpu(cpu).is_busy() && self.nr_running(cpu) == 0
    }

    /// Where a task that is new begins: `find_idlest_cpu()`.
    pub(super) fn select_for_new(&self, core: &Core, task: TaskId) -> CpuId {
        let idle = |cpu: &CpuId| self.is_idle(core, *cpu) && core.can_run_on(task, *cpu);
        if let Some(cpu) = core.idle.iter().find(idle) {
            return cpu;
        }
        let allowed = core.online.iter().filter(|cpu| core.can_run_on(task, *cpu));
        let found = allowed.min_by_key(|cpu| (self.tasks_on(*cpu), cpu.0));
        found.unwrap_or(core.task(task).cpu)
    }

    /// `wake_affine()`: near its waker, or where it was? Wake-ups that announce that the waker is about to sleep (WF_SYNC) are not told apart.
    fn wake_affine(&self, core: &Core, task: TaskId, prev: CpuId) -> CpuId {
        let this = core.this_cpu;
        if this == prev || !core.can_run_on(task, this) {
            return prev;
        }
        let share_cache = core.machine.distance(this, prev) <= Distance::Cache;
        if self.is_idle(core, this) && share_cache {
            return if self.is_idle(core, prev) { prev } else { this };
        }
        if self.is_idle(core, prev) {
            return prev;
        }
        // wake_affine_weight(): where it would add less to what is there, with a bias to stay.
        let load = self.h_load(task);
        let here = (self.cpu_load(this) + load) * 100;
        let bias = 100 + self.config.imbalance_percent.saturating_sub(100) / 2;
        let there = self.cpu_load(prev).saturating_sub(load) * bias;
        if here < there {
            this
        } else {
            prev
        }
    }

    /// `select_idle_sibling()`: there, where it was, or somewhere idle that shares a cache with that.
    pub(super) fn select_for_woken(&mut self, core: &Core, task: TaskId, prev: CpuId) -> CpuId {
        let fits = |cpu: CpuId| self.is_idle(core, cpu) && core.can_run_on(task, cpu);
        if fits(prev) && core.this_cpu == prev {
            return prev;
        }
        self.forget(core.now_ns, task);
        let target = self.wake_affine(core, task, prev);
        let fits = |cpu: CpuId| self.is_idle(core, cpu) && core.can_run_on(task, cpu);
        if fits(target) {
            return target;
        }
        if fits(prev) && core.machine.distance(target, prev) <= Distance::Cache {
            return prev;
        }
        let shares_cache = |cpu: CpuId| core.machine.distance(target, cpu) <= Distance::Cache;
        if self.config.idle_search >= IdleSearch::Recent {
            let id = self.of_task[task.index()];
            let recent = self.entity(id).recent.filter(|recent| shares_cache(*recent) && fits(*recent));
            self.entity_mut(id).recent = Some(prev);
            if let Some(recent) = recent {
                return recent;
            }
        }
        let fits = |cpu: CpuId| self.is_idle(core, cpu) && core.can_run_on(task, cpu);
        // A whole idle core first, then an idle thread of its own, then any; from the target on.
        let (per_cache, _) = core.machine.spans();
        let first = target.0 / per_cache * per_cache;
        let order = (1..per_cache).map(|step| CpuId(first + (target.0 - first + step) % per_cache));
        if core.machine.threads_per_core() > 1 {
            let whole =
                |cpu: &CpuId| fits(*cpu) && core.machine.core_of(*cpu).all(|other| self.is_idle(core, other));
            if let Some(cpu) = order.clone().find(whole) {
                return cpu;
            }
            let own = shares_cache(prev) && self.config.idle_search >= IdleSearch::Core;
            if let Some(cpu) = core.machine.core_of(prev).filter(|_| own).find(|cpu| fits(*cpu)) {
                return cpu;
            }
        }
        order.clone().find(|cpu| fits(*cpu)).unwrap_or(target)
    }
}

#[cfg(test)]
mod tests {
    use crate::bodies::{Program, Simple};
    use crate::class::fair::{FairConfig, Variant};
    use crate::class::AnyClass;
    use crate::host::TaskSpec;
    use crate::machine::MachineConfig;
    use crate::time::MS;
    use crate::{Host, Simulation};

    use super::*;

    /// Where a task is woken that was on `prev`, and before that on `recent`, while hogs have these pCPUs.
    fn woken(
        search: IdleSearch,
        machine: &MachineConfig,
        busy: [u32; 2],
        prev: u32,
        recent: Option<u32>,
    ) -> (CpuId, Option<CpuId>) {
        let config = FairConfig { idle_search: search, ..FairConfig::of(Variant::EevdfForfeit) };
        let host = Host::new(machine, AnyClass::Fair(Fair::new(config)), 1).unwrap();
        let mut s = Simulation::new(host, Simple::default());
        for cpu in busy {
            let allowed = Some([CpuId(cpu)].into_iter().collect());
            let hog = s.host.spawn(TaskSpec { allowed, ..TaskSpec::default() });
            s.bodies.add(hog, Program::Busy);
            s.host.wake(hog, None);
        }
        let task = s.host.spawn(TaskSpec::default());
        s.run_until(20 * MS).unwrap();
        let AnyClass::Fair(class) = &mut s.host.class else { panic!("it is the fair class") };
        let id = class.of_task[task.index()];
        class.entity_mut(id).recent = recent.map(CpuId);
        let found = class.select_for_woken(&s.host.core, task, CpuId(prev));
        (found, class.entity(id).recent)
    }

    #[test]
    fn who_finds_its_pcpu_busy_goes_back_to_where_it_was_before() {
        let machine = MachineConfig::ideal(4);
        let woken = |search| woken(search, &machine, [0, 3], 3, Some(2));
        assert_eq!(woken(IdleSearch::Target), (CpuId(1), Some(CpuId(2))));
        assert_eq!(woken(IdleSearch::Recent), (CpuId(2), Some(CpuId(3))));
    }

    #[test]
    fn where_no_core_is_whole_the_other_thread_of_its_own_is_best() {
        let machine = MachineConfig { cores_per_socket: 2, threads_per_core: 2, ..MachineConfig::ideal(2) };
        for prev in [0, 2] {
            let (found, _) = woken(IdleSearch::Core, &machine, [0, 2], prev, None);
            assert_eq!(found, CpuId(prev + 1));
        }
    }
}
