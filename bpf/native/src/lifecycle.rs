// SPDX-License-Identifier: GPL-2.0-only
//! What happens to tasks, cgroups and pCPUs besides running: birth, death, another affinity or cgroup, hotplug.

use std::ptr::{self, NonNull};

use crate::ffi::{self, Cgroup, CgroupInitArgs, CpuMask, ExitInfo, ExitTaskArgs, InitTaskArgs};
use crate::ops::OpKind;
use crate::task::{State, TaskId, PF_EXITING};
use crate::world::{CgroupState, Event, World};

const DEQ_SAVE: u64 = 2;
const ENQ_RESTORE: u64 = 2;

impl World {
    pub(crate) fn init_task(&mut self, id: TaskId) {
        let p = self.task(id).ptr();
        let mut args = InitTaskArgs { fork: true, cgroup: self.cgroups[self.task(id).cgroup].kern.as_ptr() };
        let err =
            self.op(OpKind::InitTask, &[id], |ops| ops.init_task.map_or(0, |init| init(p, &raw mut args)));
        assert_eq!(err, 0, "ops.init_task failed");
    }

    /// Let a task exit; it wakes for that, and is gone once it has run a little more.
    pub fn exit(&mut self, id: TaskId) {
        self.task_mut(id).wants_exit = true;
        if self.is_running(id) && !self.task(id).is_exiting() {
            // From here on it is on its way through do_exit(), which takes no time when it need not wait.
            self.task_mut(id).kern_mut().flags |= PF_EXITING;
            self.task_mut(id).in_guest = false;
            self.task_mut(id).kern_mut().preempt_notifiers = ptr::null_mut();
            self.block(id);
        } else {
            self.wake(id);
        }
    }

    /// After the last switch away from a dead task.
    pub(crate) fn bury(&mut self, id: TaskId) {
        let p = self.task(id).ptr();
        let mut args = ExitTaskArgs { cancelled: false };
        self.op(OpKind::ExitTask, &[id], |ops| ops.exit_task.map(|exit| exit(p, &raw mut args)));
        self.maps.forget(p as usize);
    }

    /// sched_setaffinity().
    pub fn set_affinity(&mut self, id: TaskId, cpus: &[usize]) {
        self.on_cpu(self.online_cpu(), |w| {
            w.change(id, |w| w.task_mut(id).set_mask(CpuMask::of(cpus.iter().copied())));
            let cpu = w.task(id).cpu;
            if !w.task(id).is_queued() || w.task(id).allowed(cpu) {
                return;
            }
            if w.is_running(id) {
                w.after(w.config.ipi_ns, Event::Migrate(id));
            } else {
                w.migrate(id);
            }
        });
    }

    /// Change something about a task as the kernel does: off the queue, on again; a running one goes on where it is.
    fn change(&mut self, id: TaskId, f: impl FnOnce(&mut Self)) {
        if !self.task(id).is_queued() {
            return f(self);
        }
        let running = self.is_running(id);
        self.dequeue(id, DEQ_SAVE, false);
        f(self);
        if running {
            self.task_mut(id).set_queued(true);
            let p = self.task(id).ptr();
            self.op(OpKind::Running, &[id], |ops| ops.running.map(|running| running(p)));
        } else {
            self.enqueue(id, ENQ_RESTORE);
        }
    }

    /// The stopper thread has taken the pCPU from a task that may not be there.
    pub(crate) fn stopper_moves(&mut self, id: TaskId) {
        let cpu = self.task(id).cpu;
        if self.task(id).allowed(cpu) || !self.task(id).is_queued() {
            return;
        }
        self.on_cpu(cpu, |w| {
            if w.is_running(id) {
                w.take_off(cpu);
                w.resched(cpu);
            }
            w.migrate(id);
        });
    }

    /// A higher class takes the pCPU.
    fn take_off(&mut self, cpu: usize) {
        self.update_curr(cpu);
        let Some(id) = self.cpus[cpu].curr else { return };
        self.put_prev(id);
        self.cpus[cpu].curr = None;
        self.cpus[cpu].exec_start_ns = self.now_ns;
        self.sched_out(id);
    }

    /// Move a waiting task to a pCPU where it may be, through the scheduler.
    fn migrate(&mut self, id: TaskId) {
        self.dequeue(id, DEQ_SAVE, true);
        let cpu = self.fallback_cpu(id);
        self.task_mut(id).cpu = cpu;
        self.enqueue(id, 0);
        if self.cpus[cpu].curr.is_none() {
            self.resched(cpu);
        }
    }

    /// Take a pCPU away. What runs or is about to run there is pushed to others.
    pub fn cpu_offline(&mut self, cpu: usize) {
        if !self.cpus[cpu].online || self.cpus.iter().filter(|cpu| cpu.online).count() == 1 {
            return;
        }
        // Not active any more, before the scheduler is told.
        self.cpus[cpu].online = false;
        self.cpus[cpu].idle = false;
        self.op(OpKind::CpuOffline, &[], |ops| ops.cpu_offline.map(|offline| offline(cpu as i32)));
        self.online_mask.0[cpu / 64] &= !(1 << (cpu % 64));
        self.on_cpu(cpu, |w| w.take_off(cpu));
        self.push_away(cpu);
        self.cpus[cpu].needs_resched = false;
    }

    pub(crate) fn push_away(&mut self, cpu: usize) {
        while let Some(id) = self.cpus[cpu].local.front().copied().filter(|_| !self.cpus[cpu].online) {
            self.on_cpu(cpu, |w| w.migrate(id));
        }
    }

    pub fn cpu_online(&mut self, cpu: usize) {
        if self.cpus[cpu].online {
            return;
        }
        self.op(OpKind::CpuOnline, &[], |ops| ops.cpu_online.map(|online| online(cpu as i32)));
        self.cpus[cpu].online = true;
        self.cpus[cpu].exec_start_ns = self.now_ns;
        self.online_mask.0[cpu / 64] |= 1 << (cpu % 64);
        self.on_cpu(cpu, |w| w.resched(cpu));
    }

    pub(crate) fn new_cgroup_state(&mut self, parent: Option<usize>, weight: u32) -> usize {
        let level = parent.map_or(0, |parent| self.cgroup_level(parent) + 1);
        let kern = NonNull::from(Box::leak(Box::new(Cgroup { level, kn: ptr::null() })));
        self.cgroups.push(CgroupState { kern, parent, weight });
        let mut args = CgroupInitArgs { weight };
        let p = kern.as_ptr();
        let err =
            self.op(OpKind::CgroupInit, &[], |ops| ops.cgroup_init.map_or(0, |init| init(p, &raw mut args)));
        assert_eq!(err, 0, "ops.cgroup_init failed");
        self.cgroups.len() - 1
    }

    fn cgroup_level(&self, cgroup: usize) -> i32 {
        // SAFETY: ours until the world ends.
        unsafe { self.cgroups[cgroup].kern.as_ref() }.level
    }

    /// Make a cgroup below `parent` (0 is the root).
    pub fn new_cgroup(&mut self, parent: usize, weight: u32) -> usize {
        self.new_cgroup_state(Some(parent), weight)
    }

    /// Write cpu.weight.
    pub fn set_cgroup_weight(&mut self, cgroup: usize, weight: u32) {
        self.cgroups[cgroup].weight = weight;
        let p = self.cgroups[cgroup].kern.as_ptr();
        self.op(OpKind::CgroupSetWeight, &[], |ops| ops.cgroup_set_weight.map(|set| set(p, weight)));
    }

    pub fn move_to_cgroup(&mut self, id: TaskId, cgroup: usize) {
        self.on_cpu(self.online_cpu(), |w| {
            w.change(id, |w| {
                let from = w.cgroups[w.task(id).cgroup].kern.as_ptr();
                let (p, to) = (w.task(id).ptr(), w.cgroups[cgroup].kern.as_ptr());
                w.task_mut(id).cgroup = cgroup;
                w.op(OpKind::CgroupMove, &[id], |ops| ops.cgroup_move.map(|op| op(p, from, to)));
            });
        });
    }

    /// migrate_disable() or enable() in a running task.
    pub fn set_migration_disabled(&mut self, id: TaskId, disabled: bool) {
        let task = self.task_mut(id);
        task.migration_disabled = disabled;
        task.kern_mut().migration_disabled = u16::from(disabled);
    }

    pub(crate) fn cgroup_at(&self, p: *const Cgroup) -> Option<usize> {
        self.cgroups.iter().position(|cgroup| ptr::eq(cgroup.kern.as_ptr(), p))
    }

    /// The ancestor at a level, itself included.
    pub(crate) fn cgroup_ancestor(&self, cgroup: usize, level: i32) -> Option<usize> {
        let mut at = Some(cgroup);
        while let Some(found) = at.filter(|at| self.cgroup_level(*at) > level) {
            at = self.cgroups[found].parent;
        }
        at.filter(|at| self.cgroup_level(*at) == level)
    }

    /// End the scheduler as user space does.
    pub fn unload(&mut self, reason: &std::ffi::CStr) {
        let text = reason.as_ptr().cast();
        let mut info = ExitInfo { kind: 64, exit_code: 0, reason: text, msg: text, dump: ptr::null() };
        self.op(OpKind::Exit, &[], |ops| ops.exit.map(|exit| exit(&raw mut info)));
    }

    /// The kernel ejects a scheduler that leaves a runnable task waiting for too long.
    pub(crate) fn watchdog(&self) {
        // SAFETY: a constant of the scheduler.
        let timeout_ns = u64::from(unsafe { ffi::cohort_ops.timeout_ms }) * 1_000_000;
        for (index, task) in self.tasks.iter().enumerate() {
            let waits = task.state == State::Runnable && task.queue.is_some();
            assert!(
                !waits || self.now_ns - task.waits_since_ns <= timeout_ns,
                "runnable task stall: {:?} failed to run for {} ms",
                TaskId(index),
                (self.now_ns - task.waits_since_ns) / 1_000_000
            );
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for cgroup in &self.cgroups {
            // SAFETY: leaked from a box in new_cgroup_state(); the scheduler runs no more.
            drop(unsafe { Box::from_raw(cgroup.kern.as_ptr()) });
        }
    }
}
