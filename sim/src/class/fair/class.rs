// SPDX-License-Identifier: GPL-2.0-only
//! The hooks of the scheduling class, as kernel/sched/fair.c has them.

use crate::class::{Class, Dequeue, Enqueue};
use crate::events::Event;
use crate::host::{Core, State, Task};
use crate::ids::{CpuId, GroupId, TaskId};
use crate::time::Ns;

use super::queue::{Entity, Rq};
use super::{Fair, Variant, NICE_0};

/// hrtick_start(): no timer is shorter.
const HRTICK_MIN_NS: Ns = 10_000;

/// It was made, and not woken yet: `wake_up_new_task()` is to come.
fn never_woken(task: &Task) -> bool {
    task.state == State::Asleep && task.switches == 0 && task.warm_on.is_none()
}

impl Fair {
    /// Is `id` this task's entity, or a group's that it is in?
    fn is_above(&self, id: u32, task: u32) -> bool {
        let mut at = Some(task);
        while let Some(entity) = at {
            if entity == id {
                return true;
            }
            at = self.parent(entity);
        }
        false
    }

    /// `put_prev_entity()` at every level, but for those that the next one is in as well.
    fn put_chain(&mut self, from: u32, next: Option<u32>) {
        let mut at = Some(from);
        while let Some(id) = at {
            if next.is_some_and(|next| self.is_above(id, next)) {
                break;
            }
            let rq = self.entity(id).rq;
            if self.rq(rq).curr == Some(id) {
                self.rq_mut(rq).curr = None;
                if self.entity(id).on_rq {
                    self.tree_insert(id);
                }
            }
            at = self.parent(id);
        }
    }

    /// `set_next_entity()` at every level that is not set already.
    fn set_chain(&mut self, task: u32) {
        let now_ns = self.now_ns;
        let mut at = Some(task);
        while let Some(id) = at {
            let rq = self.entity(id).rq;
            if self.rq(rq).curr == Some(id) {
                break;
            }
            self.clear_buddies(id);
            self.tree_remove(id);
            self.rq_mut(rq).curr = Some(id);
            if self.flat {
                let weight = self.weight_in_all(id);
                self.reweigh(id, weight, true);
            }
            let entity = self.entity_mut(id);
            entity.prev_exec_ns = entity.exec_ns;
            entity.exec_start_ns = now_ns;
            entity.vprot = entity.deadline;
            at = self.parent(id);
        }
    }

    /// Mark an entity, and its groups', in their queues: `set_next_buddy()` and the like.
    pub(super) fn set_buddy(&mut self, id: u32, buddy: fn(&mut Rq) -> &mut Option<u32>) {
        let mut at = Some(id);
        while let Some(id) = at.filter(|id| self.entity(*id).on_rq) {
            let rq = self.entity(id).rq;
            *buddy(self.rq_mut(rq)) = Some(id);
            at = self.parent(id);
        }
    }

    /// `entity_tick()` at every level.
    fn entity_tick(&mut self, core: &Core, cpu: CpuId) {
        let Some(curr) = core.cpu(cpu).curr else { return };
        let id = self.of_task[curr.index()];
        let mut at = Some(id);
        while let Some(entity) = at {
            self.update_load(entity);
            self.update_group(entity);
            at = self.rq(self.entity(entity).home).owner;
        }
        if self.flat && self.entity(id).on_rq {
            let weight = self.weight_in_all(id);
            self.reweigh(id, weight, true);
        }
    }

    /// `hrtick_update()`: who comes sets a timer for the end of the runner's slice, if none is set for this turn.
    pub(super) fn hrtick_update(&mut self, core: &mut Core, cpu: CpuId) {
        let turn = core.cpu(cpu).turn;
        if self.rq(cpu.0).curr.is_none() || self.hrtick[cpu.index()] == Some(turn) {
            return;
        }
        if let Some(slice_ns) = self.exact_slice_ns(core, cpu) {
            self.hrtick[cpu.index()] = Some(turn);
            core.events.push(core.now_ns + slice_ns, Event::SliceEnd { cpu, turn });
        }
    }

    /// `check_preempt_wakeup_fair()`, in 7.3 `wakeup_preempt_fair()`. `forked`: WF_FORK, which since 6.19 does not preempt.
    pub(super) fn check_preempt(&mut self, core: &mut Core, task: TaskId, forked: bool) {
        let cpu = core.task(task).cpu;
        let Some(curr) = core.cpu(cpu).curr.filter(|curr| *curr != task) else { return };
        let ids = (self.of_task[curr.index()], self.of_task[task.index()]);
        if core.cpu(cpu).needs_resched || !self.entity(ids.0).on_rq || !self.entity(ids.1).on_rq {
            return;
        }
        self.charge(core, cpu);
        let Some((curr, woken)) = self.matching(ids.0, ids.1) else { return };
        let preempts = if forked && self.config.variant >= Variant::EevdfForfeit {
            false
        } else if self.eevdf {
            self.pick_at_wakeup(self.entity(woken).rq, curr) == Some(woken)
        } else {
            self.cfs_wakeup_preempts(curr, woken)
        };
        if preempts {
            self.resched_curr_lazy(core, cpu);
        } else if self.flat {
            self.shorten_protection(curr);
        }
    }

    fn depth(&self, id: u32) -> u32 {
        std::iter::successors(self.parent(id), |id| self.parent(*id)).count() as u32
    }

    /// `find_matching_se()`: the two at the level where they are in one queue.
    fn matching(&self, mut a: u32, mut b: u32) -> Option<(u32, u32)> {
        while self.entity(a).rq != self.entity(b).rq {
            let (deep_a, deep_b) = (self.depth(a), self.depth(b));
            if deep_a >= deep_b {
                a = self.parent(a)?;
            }
            if deep_b >= deep_a {
                b = self.parent(b)?;
            }
        }
        Some((a, b))
    }
}

impl Class for Fair {
    fn init(&mut self, core: &mut Core) {
        self.set_defaults(core.cpus.len());
        self.online = core.online.clone();
        self.tick_ns = core.machine.costs.tick_ns;
        self.queues = core.machine.all().map(|cpu| Rq::new(cpu, GroupId(0), None)).collect();
        self.picked = vec![None; core.cpus.len()];
        self.running = vec![None; core.cpus.len()];
        self.hrtick = vec![None; core.cpus.len()];
        self.sleepers = vec![0; core.cpus.len()];
        self.group_queues = vec![Vec::new(); core.cpus.len()];
        self.balance.resize(core);
        self.add_group(core, GroupId(0));
    }

    fn task_new(&mut self, core: &mut Core, task: TaskId) {
        let weight = Self::weight_of(core, task);
        let rq = core.task(task).cpu.0;
        let id = self.new_entity(Entity::new(Some(task), None, rq, weight));
        // Under a sched_ext scheduler it may have been woken already.
        self.entity_mut(id).new = never_woken(core.task(task));
        self.of_task.push(id);
    }

    fn group_new(&mut self, core: &mut Core, group: GroupId) {
        self.add_group(core, group);
    }

    fn group_moved(&mut self, _core: &mut Core, task: TaskId, _from: GroupId) {
        let id = self.of_task[task.index()];
        if self.entity(id).delayed {
            self.finish_delayed(id);
        }
    }

    fn group_weight_changed(&mut self, core: &mut Core, group: GroupId) {
        for cpu in core.machine.all().collect::<Vec<_>>() {
            self.charge(core, cpu);
        }
        self.set_shares(core, group);
    }

    fn select_cpu(&mut self, core: &mut Core, task: TaskId, prev: CpuId, _why: Enqueue) -> CpuId {
        let entity = self.entity(self.of_task[task.index()]);
        if entity.new {
            self.select_for_new(core, task)
        } else if entity.delayed {
            // It is still queued there (`ttwu_runnable()`).
            prev
        } else {
            self.select_for_woken(core, task, prev)
        }
    }

    fn enqueue(&mut self, core: &mut Core, task: TaskId, why: Enqueue) {
        let (cpu, id) = (core.task(task).cpu, self.of_task[task.index()]);
        self.charge(core, cpu);
        let requeued = self.entity(id).delayed && self.rq(self.entity(id).home).cpu == cpu;
        self.enqueue_task(core, task, why == Enqueue::Wakeup);
        if why == Enqueue::RestoreRunning {
            self.set_chain(id);
            self.running[cpu.index()] = Some(id);
        } else if !requeued {
            // Who was still there sets no timer (ENQUEUE_DELAYED).
            self.hrtick_update(core, cpu);
        }
    }

    fn dequeue(&mut self, core: &mut Core, task: TaskId, why: Dequeue) {
        let (cpu, state) = (core.task(task).cpu, core.task(task).state);
        self.charge(core, cpu);
        self.dequeue_task(core, task, why == Dequeue::Sleep && !core.task(task).exiting);
        if state == State::Running && why == Dequeue::Save {
            self.put_chain(self.of_task[task.index()], None);
            self.running[cpu.index()] = None;
        }
    }

    fn preempt_wakeup(&mut self, core: &mut Core, task: TaskId) {
        let forked = core.task(task).switches == 0;
        self.check_preempt(core, task, forked);
    }

    fn update_curr(&mut self, core: &mut Core, cpu: CpuId) {
        self.charge(core, cpu);
    }

    /// `pick_next_task_fair()`
    fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId> {
        self.now_ns = core.now_ns;
        let mut rq = cpu.0;
        loop {
            if self.rq(cpu.0).nr == 0 && !self.newidle_balance(core, cpu, prev.is_none()) {
                if let Some(old) = self.running[cpu.index()].take() {
                    self.put_chain(old, None);
                }
                return None;
            }
            let curr = self.rq(rq).curr.filter(|id| self.entity(*id).on_rq);
            let id = if self.eevdf { self.eevdf_pick(rq, curr, true) } else { self.cfs_pick(rq, curr) }?;
            let entity = self.entity(id);
            if entity.delayed {
                self.finish_delayed(id);
                rq = cpu.0;
                continue;
            }
            if let Some(mine) = entity.my_rq {
                rq = mine;
                continue;
            }
            let next = entity.task;
            self.picked[cpu.index()] = next.filter(|_| next != prev);
            return next;
        }
    }

    fn put_prev(&mut self, _core: &mut Core, cpu: CpuId, prev: TaskId) {
        let next = self.picked[cpu.index()].map(|next| self.of_task[next.index()]);
        self.put_chain(self.of_task[prev.index()], next);
        if next.is_none() {
            // Another class has the pCPU, or nobody: wherever prev runs next, it is not this pCPU's.
            self.running[cpu.index()] = None;
        }
    }

    fn set_next(&mut self, core: &mut Core, cpu: CpuId, next: TaskId) {
        let id = self.of_task[next.index()];
        if let Some(old) = self.running[cpu.index()].replace(id) {
            self.put_chain(old, Some(id));
        }
        self.picked[cpu.index()] = None;
        self.now_ns = core.now_ns;
        self.balance.runs(core.now_ns, cpu);
        self.set_chain(id);
        // The turn that begins has a timer if anybody waits (`exact_slice_ns()`).
        let turn = core.cpu(cpu).turn.wrapping_add(1);
        self.hrtick[cpu.index()] = (self.flat && self.rq(cpu.0).nr > 1).then_some(turn);
    }

    /// `task_tick_fair()`
    fn tick(&mut self, core: &mut Core, cpu: CpuId) {
        self.charge(core, cpu);
        self.entity_tick(core, cpu);
        if !self.eevdf {
            self.cfs_tick(core, cpu);
        }
        self.periodic_balance(core, cpu);
    }

    /// HRTICK: what is left of the slice, if anybody waits for its end, and how late the timer is.
    fn exact_slice_ns(&self, core: &Core, cpu: CpuId) -> Option<Ns> {
        if !self.flat || self.rq(cpu.0).nr <= 1 {
            return None;
        }
        let curr = self.entity(self.of_task[core.cpu(cpu).curr?.index()]);
        let left = u128::from((curr.deadline - curr.vruntime).max(0) as u64);
        let left_ns = (left * u128::from(curr.weight) / u128::from(NICE_0)) as Ns;
        Some(left_ns.max(HRTICK_MIN_NS) + core.machine.costs.timer_late_ns)
    }

    fn slice_end(&mut self, core: &mut Core, cpu: CpuId) {
        self.hrtick[cpu.index()] = None;
        self.entity_tick(core, cpu);
        core.resched(cpu);
    }

    fn yield_now(&mut self, core: &mut Core, task: TaskId) {
        if self.nr_running(core.task(task).cpu) <= 1 {
            return;
        }
        let id = self.of_task[task.index()];
        self.clear_buddies(id);
        if self.eevdf {
            self.eevdf_yield(task);
        } else {
            self.set_buddy(id, |rq| &mut rq.skip);
        }
    }

    /// `yield_to_task_fair()`
    fn yield_to(&mut self, core: &mut Core, from: TaskId, to: TaskId) -> bool {
        let target = self.of_task[to.index()];
        if !self.entity(target).on_rq || self.entity(target).delayed {
            return false;
        }
        self.set_buddy(target, |rq| &mut rq.next);
        if self.config.unfair_boost {
            self.set_buddy(target, |rq| &mut rq.boosted);
        }
        self.yield_now(core, from);
        true
    }

    fn cpu_online(&mut self, _core: &mut Core, cpu: CpuId) {
        self.online.insert(cpu);
    }

    fn cpu_offline(&mut self, _core: &mut Core, cpu: CpuId) {
        self.online.remove(cpu);
        self.untell_groups(cpu);
    }

    fn queue_len(&self, cpu: CpuId) -> u32 {
        self.nr_running(cpu)
    }

    fn first_waiting(&self, _core: &Core, cpu: CpuId) -> Option<TaskId> {
        let mut found = Vec::new();
        self.waiting_on(cpu, &mut found);
        found.into_iter().min()
    }
}
