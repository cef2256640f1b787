// SPDX-License-Identifier: GPL-2.0-only
//! What happens to tasks, cgroups and pCPUs besides running: birth, another affinity or cgroup, hotplug.

use crate::cpuset::CpuSet;
use crate::events::Event;
use crate::ids::{CpuId, GroupId, TaskId};
use crate::observe::Stop;

use super::class::{Class, Dequeue, Enqueue};
use super::core::{Bandwidth, Core, Group};
use super::task::{State, Task, TaskSpec};
use super::Host;

impl Core {
    pub fn first_online(&self) -> CpuId {
        self.online.iter().next().unwrap_or(CpuId(0))
    }
}

impl<C: Class> Host<C> {
    /// Where the kernel puts a task for which there is no pCPU any more; its affinity gives way if it must (select_fallback_rq()).
    pub(super) fn fallback_cpu(&mut self, task: TaskId) -> CpuId {
        let core = &mut self.core;
        if let Some(cpu) = core.online.iter().find(|cpu| core.task(task).may_use(*cpu)) {
            return cpu;
        }
        core.task_mut(task).allowed = None;
        self.class.affinity_changed(core, task);
        core.first_online()
    }

    /// Make a task. It sleeps; [`Host::wake`] starts it.
    pub fn spawn(&mut self, spec: TaskSpec) -> TaskId {
        let id = TaskId::from(self.core.tasks.len());
        let tgid = spec.tgid.unwrap_or(match spec.vcpu {
            Some(vcpu) => self.core.vms[vcpu.vm.index()].tgid,
            None => id.0 + 1,
        });
        let allowed = |cpu: &CpuId| spec.allowed.as_ref().is_none_or(|set| set.has(*cpu));
        let cpu = spec.was_on.filter(allowed).or_else(|| self.core.online.iter().find(allowed));
        self.core.tasks.push(Task::new(spec, tgid, cpu.unwrap_or(CpuId(0))));
        self.class.task_new(&mut self.core, id);
        id
    }

    /// Make a cgroup; `weight` as cpu.weight: 100 is the default.
    pub fn new_group(&mut self, parent: GroupId, weight: u32) -> GroupId {
        self.new_limited_group(parent, weight, Bandwidth::default())
    }

    /// Make a cgroup that has had its cpu.max before the scheduler hears of it.
    pub fn new_limited_group(&mut self, parent: GroupId, weight: u32, bandwidth: Bandwidth) -> GroupId {
        self.add_group(Group::new(Some(parent), weight, bandwidth))
    }

    /// Make a cgroup that has had cpu.idle before the scheduler hears of it.
    pub fn new_idle_group(&mut self, parent: GroupId, weight: u32) -> GroupId {
        self.add_group(Group { idle: true, ..Group::new(Some(parent), weight, Bandwidth::default()) })
    }

    fn add_group(&mut self, group: Group) -> GroupId {
        let id = GroupId::from(self.core.groups.len());
        self.core.groups.push(group);
        self.class.group_new(&mut self.core, id);
        id
    }

    /// Remove a cgroup. Return false, and do nothing, if a task or a group is in it (rmdir's EBUSY), or if it is the root.
    pub fn remove_group(&mut self, group: GroupId) -> bool {
        let groups = &self.core.groups;
        let occupied = self.core.tasks.iter().any(|task| task.group == group && task.state != State::Dead)
            || groups.iter().any(|other| other.parent == Some(group) && !other.removed);
        let known = &groups[group.index()];
        if occupied || known.parent.is_none() || known.removed {
            return false;
        }
        self.core.groups[group.index()].removed = true;
        self.class.group_removed(&mut self.core, group);
        true
    }

    pub fn set_group_weight(&mut self, group: GroupId, weight: u32) {
        let known = &mut self.core.groups[group.index()];
        if known.weight != weight {
            known.weight = weight;
            self.class.group_weight_changed(&mut self.core, group);
        }
    }

    /// cpu.max and cpu.max.burst.
    pub fn set_group_bandwidth(&mut self, group: GroupId, bandwidth: Bandwidth) {
        let known = &mut self.core.groups[group.index()];
        if known.bandwidth != bandwidth {
            known.bandwidth = bandwidth;
            let by = self.core.first_online();
            self.on_cpu(by, |host| host.class.group_bandwidth_changed(&mut host.core, group));
        }
    }

    /// cpu.idle
    pub fn set_group_idle(&mut self, group: GroupId, idle: bool) {
        let known = &mut self.core.groups[group.index()];
        if known.idle != idle {
            known.idle = idle;
            self.class.group_idle_changed(&mut self.core, group);
        }
    }

    pub fn move_to_group(&mut self, task: TaskId, group: GroupId) {
        let by = self.core.first_online();
        self.on_cpu(by, |host| {
            host.change(task, |host| {
                let from = std::mem::replace(&mut host.core.task_mut(task).group, group);
                host.class.group_moved(&mut host.core, task, from);
            });
        });
    }

    /// sched_setaffinity(); `None`: all pCPUs.
    pub fn set_affinity(&mut self, task: TaskId, allowed: Option<CpuSet>) {
        let by = self.core.first_online();
        self.on_cpu(by, |host| {
            host.change(task, |host| {
                host.core.task_mut(task).allowed = allowed;
                host.class.affinity_changed(&mut host.core, task);
            });
            let known = host.core.task(task);
            let cpu = known.cpu;
            if !known.is_queued() || known.may_use(cpu) {
                return;
            }
            if known.state == State::Running {
                let delay_ns = host.core.machine.costs.ipi_ns;
                host.core.events.push(host.core.now_ns + delay_ns, Event::Migrate(task));
            } else {
                host.migrate(task);
            }
        });
    }

    /// migrate_disable() or migrate_enable() in a running task.
    pub fn set_migration_disabled(&mut self, task: TaskId, disabled: bool) {
        if !disabled && self.core.task(task).narrowed {
            self.on_cpu(self.core.task(task).cpu, |host| host.narrow(task, false));
        }
        self.core.task_mut(task).migration_disabled = disabled;
        self.class.affinity_changed(&mut self.core, task);
    }

    /// migrate_disable_switch(): a running task has to make room in a section that forbids migration. Its affinity is that of its pCPU to the end of it.
    pub(super) fn narrow(&mut self, task: TaskId, narrowed: bool) {
        let known = self.core.task_mut(task);
        if known.narrowed == narrowed || !known.migration_disabled {
            return;
        }
        known.narrowed = narrowed;
        self.change(task, |host| host.class.affinity_changed(&mut host.core, task));
    }

    /// Change something about a task as the kernel does (DEQUEUE_SAVE, ENQUEUE_RESTORE): off the queue, on again; a running one goes on.
    pub(crate) fn change(&mut self, task: TaskId, f: impl FnOnce(&mut Self)) {
        let (state, cpu) = (self.core.task(task).state, self.core.task(task).cpu);
        match state {
            State::Running => {
                self.class.update_curr(&mut self.core, cpu);
                self.class.dequeue(&mut self.core, task, Dequeue::Save);
                f(self);
                self.class.enqueue(&mut self.core, task, Enqueue::RestoreRunning);
            }
            State::Waiting => {
                self.class.dequeue(&mut self.core, task, Dequeue::Save);
                f(self);
                self.class.enqueue(&mut self.core, task, Enqueue::Restore);
            }
            State::Asleep | State::Dead => f(self),
        }
    }

    /// Move a waiting task to a pCPU where it may be.
    fn migrate(&mut self, task: TaskId) {
        self.class.dequeue(&mut self.core, task, Dequeue::Migrate);
        let cpu = self.fallback_cpu(task);
        self.core.set_task_cpu(task, cpu);
        self.class.enqueue(&mut self.core, task, Enqueue::Migrate);
        let cpu = self.cpu_of(task);
        if self.core.cpu(cpu).curr.is_none() {
            self.core.resched(cpu);
        }
    }

    /// The stopper thread has taken the pCPU from a task that may not be there: it leaves as in any preemption, and is then moved.
    pub(super) fn stopper_moves(&mut self, task: TaskId) {
        let known = self.core.task(task);
        let cpu = known.cpu;
        if known.may_use(cpu) || !known.is_queued() {
            return;
        }
        self.on_cpu(cpu, |host| {
            if host.core.task(task).state == State::Running {
                host.take_off(cpu);
                host.schedule_awake(cpu);
            }
            // It may have been on its way to sleep.
            if host.core.task(task).is_queued() {
                host.migrate(task);
            }
        });
    }

    /// The stopper takes the pCPU, does its work at once, and leaves.
    fn take_off(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).curr.is_some() {
            self.core.cpu_mut(cpu).by_stopper = true;
            self.take(cpu);
        }
        // From an offline pCPU those of higher classes go elsewhere too.
        if self.core.cpu(cpu).taken {
            self.give_back(cpu);
        }
        if !self.core.cpu(cpu).online {
            self.core.idle.remove(cpu);
        }
    }

    /// A task of a higher class, real-time or deadline, takes the pCPU at once: what runs there waits, and the bodies are told. Nothing happens if one
    /// has it already.
    pub fn rt_takes(&mut self, cpu: CpuId) {
        let state = self.core.cpu(cpu);
        if state.online && !state.taken {
            self.on_cpu(cpu, |host| host.take(cpu));
        }
    }

    /// Another real-time task takes the pCPU from the one that has it.
    pub fn rt_switches(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).taken {
            self.on_cpu(cpu, |host| host.class.switched(&mut host.core, cpu, None, None));
        }
    }

    /// It sleeps, and the pCPU schedules.
    pub fn rt_leaves(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).taken {
            self.on_cpu(cpu, |host| {
                host.give_back(cpu);
                host.schedule_awake(cpu);
            });
        }
    }

    /// The pCPU, which runs nobody of this class but is awake, schedules at once.
    fn schedule_awake(&mut self, cpu: CpuId) {
        self.core.cpu_mut(cpu).needs_resched = true;
        self.core.pending.push_back(cpu);
    }

    fn take(&mut self, cpu: CpuId) {
        self.core.this_cpu = cpu;
        let now_ns = self.core.now_ns;
        let Some(task) = self.core.cpu(cpu).curr else {
            let state = self.core.cpu_mut(cpu);
            state.taken = true;
            state.needs_resched = false;
            state.idle_ns += now_ns - state.idle_since_ns;
            self.core.idle.remove(cpu);
            self.class.switched(&mut self.core, cpu, None, None);
            return;
        };
        self.narrow(task, true);
        self.class.update_curr(&mut self.core, cpu);
        let why = if self.core.task(task).leaving { self.leave(task) } else { Stop::Preempted };
        self.core.cpu_mut(cpu).taken = true;
        let switch = self.switch(cpu, Some(task), why, None);
        self.core.cpu_mut(cpu).needs_resched = false;
        self.core.notices.push_back(switch);
    }

    fn give_back(&mut self, cpu: CpuId) {
        let now_ns = self.core.now_ns;
        let state = self.core.cpu_mut(cpu);
        state.taken = false;
        state.by_stopper = false;
        state.idle_since_ns = now_ns;
        self.core.idle.insert(cpu);
    }

    /// Take a pCPU away, hotplug. What runs or waits there goes to others. The last one stays.
    pub fn cpu_offline(&mut self, cpu: CpuId) {
        if !self.core.cpu(cpu).online || self.core.online.len() == 1 {
            return;
        }
        // Not active any more, before the scheduler is told.
        self.core.cpu_mut(cpu).online = false;
        self.core.idle.remove(cpu);
        self.class.cpu_offline(&mut self.core, cpu);
        self.core.online.remove(cpu);
        self.on_cpu(cpu, |host| host.take_off(cpu));
        self.push_away(cpu);
        self.core.cpu_mut(cpu).needs_resched = false;
    }

    pub(super) fn push_away(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).online {
            return;
        }
        while let Some(task) = self.class.first_waiting(&self.core, cpu) {
            self.on_cpu(cpu, |host| host.migrate(task));
        }
    }

    pub fn cpu_online(&mut self, cpu: CpuId) {
        if self.core.cpu(cpu).online {
            return;
        }
        self.class.cpu_online(&mut self.core, cpu);
        self.core.cpu_mut(cpu).online = true;
        self.core.online.insert(cpu);
        // Whoever finds nothing to do there finds it as it was.
        self.core.idle.insert(cpu);
        self.on_cpu(cpu, |host| host.core.resched(cpu));
    }
}
