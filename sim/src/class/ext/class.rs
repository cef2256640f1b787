// SPDX-License-Identifier: GPL-2.0-only
//! The hooks of the scheduling class, as kernel/sched/ext.c has them.

use cohort_topology::Place;

use crate::class::{Class, Dequeue, Enqueue};
use crate::error::SimError;
use crate::events::Event;
use crate::host::{Core, State};
use crate::ids::{CpuId, GroupId, TaskId, VmId};
use crate::metrics::window::Counters;
use crate::rng::{Rng, Stream};
use crate::time::Ns;

use super::dsq::{ENQ_HEAD, ENQ_LAST, ENQ_REENQ, ENQ_WAKEUP};
use super::ffi::{self, CpuReleaseArgs, ExitTaskArgs, InitTaskArgs};
use super::ops::{one, OpKind, NOBODY};
use super::task::{ExtTask, Opaque, Queue, Vcpu, PF_EXITING, PID_FIRST, SLICE_DEFAULT_NS};
use super::{Ext, Other};

/// What bpf_get_prandom_u32() draws from: no pCPU's.
const RANDOM_STREAM: u64 = 1 << 32;
const WAKE_TTWU: u64 = 8;
pub(super) const WAKE_SYNC: u64 = 16;
const DEQ_SLEEP: u64 = 1;
/// DEQUEUE_SAVE and ENQUEUE_RESTORE.
const SAVE_RESTORE: u64 = 2;
const KICK_IDLE: u64 = 1;
/// The scheduler gets the last task of a pCPU in ops.enqueue().
const OPS_ENQ_LAST: u64 = 2;
const OPS_ENQ_EXITING: u64 = 1 << 2;
const OPS_ENQ_MIGRATION_DISABLED: u64 = 1 << 4;
const KICK_PREEMPT: u64 = 2;

impl Ext {
    fn slice(&self, id: TaskId) -> u64 {
        self.tasks[id.index()].slice()
    }

    /// After how long without a pCPU the kernel ejects the scheduler.
    fn timeout_ns(&self) -> Ns {
        Ns::from(self.ops.timeout_ms) * 1_000_000
    }

    /// It could go on: on the queue, and its slice is not used up.
    fn goes_on(&self, prev: Option<TaskId>) -> bool {
        prev.is_some_and(|id| self.tasks[id.index()].is_queued() && self.slice(id) > 0)
    }

    /// balance_scx(): see that there is something to run. Return true if that is the task that has been running.
    fn balance(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> bool {
        if std::mem::take(&mut self.cpus[cpu.index()].released) {
            self.op(core, OpKind::CpuAcquire, NOBODY, |ops| {
                ops.cpu_acquire.map(|op| op(cpu.0 as i32, std::ptr::null_mut()))
            });
        }
        if self.goes_on(prev) {
            return true;
        }
        if !self.cpus[cpu.index()].local.is_empty() || self.consume(core, Queue::Global, cpu) {
            return false;
        }
        if core.cpu(cpu).online {
            let p = self.pointer(prev);
            self.op(core, OpKind::Dispatch, NOBODY, |ops| {
                ops.dispatch.map(|dispatch| dispatch(cpu.0 as i32, p))
            });
            if self.goes_on(prev) {
                return true;
            }
            if !self.cpus[cpu.index()].local.is_empty() || self.consume(core, Queue::Global, cpu) {
                return false;
            }
        }
        // Who is left alone goes on, unless the scheduler wants to be asked: then it is put back as any other.
        self.ops.flags & OPS_ENQ_LAST == 0 && prev.is_some_and(|id| self.tasks[id.index()].is_queued())
    }

    fn set_queued(&mut self, core: &Core, id: TaskId, queued: bool) {
        let task = &mut self.tasks[id.index()];
        if task.is_queued() != queued {
            task.set_queued(queued);
            let running = &mut self.cpus[core.task(id).cpu.index()].running;
            *running = if queued { *running + 1 } else { *running - 1 };
        }
    }

    /// do_enqueue_task()
    fn do_enqueue(&mut self, core: &mut Core, id: TaskId, flags: u64) {
        let cpu = core.task(id).cpu;
        let online = core.cpu(cpu).online;
        let disabled = core.task(id).migration_disabled && self.ops.flags & OPS_ENQ_MIGRATION_DISABLED == 0;
        let task = &self.tasks[id.index()];
        let exiting = task.is_exiting() && self.ops.flags & OPS_ENQ_EXITING == 0;
        if online && task.verdict.is_none() && !exiting && !disabled {
            let p = task.ptr();
            self.op(core, OpKind::Enqueue, one(id), |ops| ops.enqueue.map(|enqueue| enqueue(p, flags)));
            if self.tasks[id.index()].verdict.is_none() {
                return self.insert_refused(core, id, format!("ops.enqueue() inserted {id:?} nowhere"));
            }
        }
        match self.tasks[id.index()].verdict.take().filter(|_| online) {
            Some((dsq, verdict_flags)) => self.insert(core, id, dsq, verdict_flags | flags),
            None => {
                // Not shown to the scheduler: going offline; exiting, or with migration disabled, and not asked for.
                self.tasks[id.index()].set_slice(SLICE_DEFAULT_NS);
                self.insert_local(core, cpu, id, flags);
            }
        }
    }

    /// scx_update_idle()
    fn now_idle(&mut self, core: &Core, cpu: CpuId) {
        if core.cpu(cpu).online {
            self.idle.insert(cpu);
        }
    }

    /// What user space does before it lets the scheduler start.
    fn fill_neighbours(&mut self, core: &mut Core) {
        self.maps.resize(&raw const ffi::neighbours as usize, core.cpus.len() as u32);
        let (llc, node) = core.machine.spans();
        let place = |cpu: CpuId| {
            let core = cpu.0 / core.machine.threads_per_core();
            Some(Place { core, llc: cpu.0 / llc, node: cpu.0 / node })
        };
        let places: Vec<Option<Place>> = core.machine.all().map(place).collect();
        for (cpu, neighbours) in cohort_topology::neighbours(&places).iter().enumerate() {
            // SAFETY: the struct of intf.h, by its size (check_layout()).
            self.call(core, OpKind::UserSpace, NOBODY, || unsafe {
                ffi::poke_neighbours(cpu as u32, neighbours)
            });
        }
    }

    fn watchdog(&mut self, core: &mut Core) {
        let timeout_ns = self.timeout_ns();
        let stalled = |id: &TaskId| {
            let task = core.task(*id);
            task.state == State::Waiting && core.now_ns - task.waits_since_ns > timeout_ns
        };
        let stalled = core.runnable().find(stalled);
        if let Some(id) = stalled {
            let ms = (core.now_ns - core.task(id).waits_since_ns) / 1_000_000;
            let reason = format!("runnable task stall: {id:?} failed to run for {ms} ms");
            core.fail(SimError::Refused { at_ns: core.now_ns, op: "watchdog", reason });
        }
        core.events.push(core.now_ns + timeout_ns / 2, Event::Watchdog);
    }
}

impl Class for Ext {
    fn init(&mut self, core: &mut Core) {
        self.make_other_tasks();
        self.random = Rng::derive(core.seed, Stream::Host, RANDOM_STREAM);
        // SAFETY: constants of peek.c.
        let (vms_max, entities_max) = unsafe { (ffi::native_max_vms, ffi::native_max_entities) };
        self.maps.resize(&raw const ffi::vm_on_cpu as usize, vms_max * core.cpus.len() as u32);
        self.maps.resize(&raw const ffi::clocks as usize, entities_max * core.cpus.len() as u32);
        self.fill_neighbours(core);
        let err = self.op(core, OpKind::Init, NOBODY, |ops| ops.init.map_or(0, |init| init()));
        self.must_succeed(core, OpKind::Init, err);
        self.new_cgroup(core, GroupId(0));
        core.events.push(core.now_ns + self.timeout_ns() / 2, Event::Watchdog);
    }

    fn task_new(&mut self, core: &mut Core, id: TaskId) {
        let cpus = core.cpus.len();
        let mut task = ExtTask::new(id, core.task(id), PID_FIRST + id.0, cpus);
        task.vcpu = core.task(id).vcpu.map(|vcpu| Vcpu::new(&self.vms[vcpu.vm.index()], vcpu.id));
        self.tasks.push(task);
        self.forest.reserve(self.tasks.len());
        let p = self.tasks[id.index()].ptr();
        let group = core.task(id).group.index();
        let mut args = InitTaskArgs { fork: true, cgroup: self.cgroups[group].ptr() };
        let err = self
            .op(core, OpKind::InitTask, one(id), |ops| ops.init_task.map_or(0, |op| op(p, &raw mut args)));
        self.must_succeed(core, OpKind::InitTask, err);
    }

    fn task_dead(&mut self, core: &mut Core, id: TaskId) {
        let p = self.tasks[id.index()].ptr();
        let mut args = ExitTaskArgs { cancelled: false };
        self.op(core, OpKind::ExitTask, one(id), |ops| ops.exit_task.map(|op| op(p, &raw mut args)));
        self.tasks[id.index()].kern_mut().storages.clear();
    }

    fn group_new(&mut self, core: &mut Core, group: GroupId) {
        self.new_cgroup(core, group);
    }

    fn group_removed(&mut self, core: &mut Core, group: GroupId) {
        self.cgroup_removed(core, group);
    }

    fn group_bandwidth_changed(&mut self, core: &mut Core, group: GroupId) {
        self.cgroup_bandwidth_changed(core, group);
    }

    fn group_idle_changed(&mut self, core: &mut Core, group: GroupId) {
        self.cgroup_idle_changed(core, group);
    }

    fn group_weight_changed(&mut self, core: &mut Core, group: GroupId) {
        self.cgroup_weight_changed(core, group);
    }

    fn group_moved(&mut self, core: &mut Core, id: TaskId, from: GroupId) {
        self.cgroup_moved(core, id, from);
    }

    fn affinity_changed(&mut self, core: &mut Core, id: TaskId) {
        let cpus = core.cpus.len();
        let task = &mut self.tasks[id.index()];
        // set_cpus_allowed_scx(); of a set that stays the same the kernel tells as well.
        if task.sync_affinity(core.task(id), cpus) {
            let (p, mask) = (task.ptr(), task.kern().kern.cpus_ptr);
            self.op(core, OpKind::SetCpumask, one(id), |ops| ops.set_cpumask.map(|op| op(p, mask)));
        }
    }

    fn vm_new(&mut self, _core: &mut Core, _vm: VmId) {
        // Its address is the VM's identity.
        self.vms.push(Opaque::new(8));
    }

    fn vcpu_changed(&mut self, core: &mut Core, id: TaskId) {
        if core.task(id).exiting {
            self.tasks[id.index()].kern_mut().kern.flags |= PF_EXITING;
        }
        self.sync_vcpu(core, id);
    }

    fn select_cpu(&mut self, core: &mut Core, id: TaskId, prev: CpuId, _why: Enqueue) -> CpuId {
        let p = self.tasks[id.index()].ptr();
        let prev_cpu = prev.0 as i32;
        let flags = WAKE_TTWU | if self.config.wakes_sync { WAKE_SYNC } else { 0 };
        let selected = self.op(core, OpKind::SelectCpu, one(id), |ops| {
            ops.select_cpu.map_or(prev_cpu, |select| select(p, prev_cpu, flags))
        });
        match u32::try_from(selected).ok().filter(|cpu| (*cpu as usize) < core.cpus.len()) {
            Some(cpu) => CpuId(cpu),
            None => {
                let reason = format!("invalid CPU {selected}");
                core.fail(SimError::Refused { at_ns: core.now_ns, op: "select_cpu", reason });
                prev
            }
        }
    }

    fn enqueue(&mut self, core: &mut Core, id: TaskId, why: Enqueue) {
        self.set_queued(core, id, true);
        match why {
            Enqueue::Wakeup => self.do_enqueue(core, id, ENQ_WAKEUP),
            Enqueue::Migrate => self.do_enqueue(core, id, 0),
            Enqueue::Restore => self.do_enqueue(core, id, SAVE_RESTORE),
            Enqueue::RestoreRunning => {
                let p = self.tasks[id.index()].ptr();
                self.op(core, OpKind::Running, one(id), |ops| ops.running.map(|running| running(p)));
            }
        }
    }

    fn dequeue(&mut self, core: &mut Core, id: TaskId, why: Dequeue) {
        let p = self.tasks[id.index()].ptr();
        if core.task(id).state == State::Running {
            self.op(core, OpKind::Stopping, one(id), |ops| ops.stopping.map(|stopping| stopping(p, false)));
        }
        if why != Dequeue::Migrate {
            let flags = if why == Dequeue::Sleep { DEQ_SLEEP } else { SAVE_RESTORE };
            self.op(core, OpKind::Quiescent, one(id), |ops| {
                ops.quiescent.map(|quiescent| quiescent(p, flags))
            });
        }
        self.set_queued(core, id, false);
        self.tasks[id.index()].verdict = None;
        self.unqueue(id);
    }

    fn preempt_wakeup(&mut self, _core: &mut Core, _id: TaskId) {}

    fn update_curr(&mut self, core: &mut Core, cpu: CpuId) {
        let delta_ns = core.charge(cpu);
        if let Some(curr) = core.cpu(cpu).curr {
            self.tasks[curr.index()].used(delta_ns);
        }
    }

    fn pick(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>) -> Option<TaskId> {
        let keep = self.balance(core, cpu, prev);
        let next = if keep { prev } else { self.cpus[cpu.index()].local.front().copied() };
        if let Some(id) = next.filter(|id| self.slice(*id) == 0) {
            self.tasks[id.index()].set_slice(SLICE_DEFAULT_NS);
        }
        self.cpus[cpu.index()].goes_idle = next.is_none();
        // An idle pCPU that finds nothing is idle again, whoever had claimed it.
        if next.is_none() && prev.is_none() {
            self.now_idle(core, cpu);
            if self.cpus[cpu.index()].other != Other::Idle {
                self.switched(core, cpu, None, None);
            }
        }
        next
    }

    fn put_prev(&mut self, core: &mut Core, cpu: CpuId, id: TaskId) {
        let p = self.tasks[id.index()].ptr();
        self.op(core, OpKind::Stopping, one(id), |ops| ops.stopping.map(|stopping| stopping(p, true)));
        if self.slice(id) > 0 {
            self.insert_local(core, cpu, id, ENQ_HEAD);
        } else {
            // In the local queue it would wait until something else makes the pCPU schedule: 7.3 does that by itself, 6.18 does not.
            let last = self.cpus[cpu.index()].goes_idle && !core.cpu(cpu).taken;
            self.do_enqueue(core, id, if last { ENQ_LAST } else { 0 });
        }
    }

    fn set_next(&mut self, core: &mut Core, cpu: CpuId, id: TaskId) {
        self.idle.remove(cpu);
        self.unqueue(id);
        let p = self.tasks[id.index()].ptr();
        self.arriving = Some((id, None));
        self.op(core, OpKind::Running, one(id), |ops| ops.running.map(|running| running(p)));
        if let Some((_, Some(slice_ns))) = self.arriving.take() {
            self.tasks[id.index()].set_slice(slice_ns);
        }
    }

    fn switched(&mut self, core: &mut Core, cpu: CpuId, prev: Option<TaskId>, next: Option<TaskId>) {
        let now = Self::other_on(core, cpu);
        let taken = now != Other::Idle;
        if taken {
            self.claim_idle(cpu);
        } else if next.is_none() {
            // set_next_task_idle(): only now.
            self.now_idle(core, cpu);
        }
        let before = std::mem::replace(&mut self.cpus[cpu.index()].other, now);
        if let Some(program) = self.on_switch {
            let preempt = prev.is_some_and(|id| core.task(id).state == State::Waiting);
            let from = prev.map_or_else(|| self.other_task(before), |id| self.tasks[id.index()].ptr());
            let to = next.map_or_else(|| self.other_task(now), |id| self.tasks[id.index()].ptr());
            self.call(core, OpKind::SchedSwitch, NOBODY, || program(preempt, from, to));
        } else if taken && prev.is_some() && !std::mem::replace(&mut self.cpus[cpu.index()].released, true) {
            // switch_class(), of a task of ours that leaves: one that takes an idle pCPU comes unannounced.
            let mut args = CpuReleaseArgs { task: self.other_task(now) };
            self.op(core, OpKind::CpuRelease, NOBODY, |ops| {
                ops.cpu_release.map(|op| op(cpu.0 as i32, &raw mut args))
            });
        }
    }

    fn tick(&mut self, core: &mut Core, cpu: CpuId) {
        self.update_curr(core, cpu);
        let Some(curr) = core.cpu(cpu).curr else { return };
        let p = self.tasks[curr.index()].ptr();
        self.op(core, OpKind::Tick, one(curr), |ops| ops.tick.map(|tick| tick(p)));
        if self.slice(curr) == 0 {
            core.resched(cpu);
        }
    }

    fn event(&mut self, core: &mut Core, event: Event) {
        match event {
            Event::Watchdog => self.watchdog(core),
            Event::ClassTimer { id, generation } => self.timer_fires(core, id, generation),
            _ => {}
        }
    }

    fn yield_now(&mut self, core: &mut Core, id: TaskId) {
        let p = self.tasks[id.index()].ptr();
        let told =
            self.op(core, OpKind::Yield, one(id), |ops| ops.r#yield.map(|op| op(p, std::ptr::null_mut())));
        if told.is_none() {
            self.tasks[id.index()].set_slice(0);
        }
    }

    fn yield_to(&mut self, core: &mut Core, from: TaskId, to: TaskId) -> bool {
        let (p, target) = (self.tasks[from.index()].ptr(), self.tasks[to.index()].ptr());
        self.op(core, OpKind::Yield, [Some(from), Some(to)], |ops| {
            ops.r#yield.is_some_and(|op| op(p, target))
        })
    }

    fn on_spin(&mut self, core: &mut Core, id: TaskId, in_kernel: bool) -> bool {
        if !core.task(id).kvm.in_kvm {
            return false;
        }
        let Some(kern) = self.tasks[id.index()].vcpu.as_ref().map(|vcpu| vcpu.kern.ptr()) else {
            return false;
        };
        // SAFETY: the vCPU is alive, and no reference to it is held.
        self.call(core, OpKind::Tracing, NOBODY, || unsafe { ffi::cohort_on_spin(kern, in_kernel) });
        // Where RCU's readers cannot be preempted, nor can the program.
        self.config.preempt_rcu
    }

    fn vcpu_put(&mut self, core: &mut Core, id: TaskId) {
        // The loader attaches it for a guard only.
        if !self.guards {
            return;
        }
        let Some(kern) = self.tasks[id.index()].vcpu.as_ref().map(|vcpu| vcpu.kern.ptr()) else { return };
        // prepare_task_switch(): the class has heard of the next task, the pCPU has not switched to it.
        self.leaving = Some(id);
        // SAFETY: the vCPU is alive, and no reference to it is held.
        self.call(core, OpKind::Tracing, one(id), || unsafe { ffi::cohort_vcpu_put(kern) });
        self.leaving = None;
    }

    fn on_irq(&mut self, core: &mut Core, from: TaskId, to: TaskId, called: bool) {
        if !self.watches_irqs || !core.task(from).kvm.in_kvm {
            return;
        }
        let Some(id) = self.tasks[to.index()].vcpu.as_ref().map(|vcpu| vcpu.id) else { return };
        let cpu = core.task(from).cpu;
        self.update_curr(core, cpu);
        let before = std::mem::replace(&mut core.this_cpu, cpu);
        let vector = if called { ffi::VECTOR_CALL } else { ffi::VECTOR_RESCHEDULE };
        // SAFETY: takes numbers.
        self.call(core, OpKind::Tracing, NOBODY, || unsafe { ffi::cohort_on_irq(id, 0, 0, vector) });
        core.this_cpu = before;
    }

    fn on_irqs_sent(&mut self, core: &mut Core, from: TaskId) {
        if !self.watches_calls || !core.task(from).kvm.in_kvm {
            return;
        }
        let cpu = core.task(from).cpu;
        self.update_curr(core, cpu);
        let before = std::mem::replace(&mut core.this_cpu, cpu);
        // SAFETY: takes nothing.
        self.call(core, OpKind::Tracing, NOBODY, || unsafe { ffi::cohort_on_ipi_sent() });
        core.this_cpu = before;
    }

    fn on_fault(&mut self, core: &mut Core, id: TaskId, gfn: u64) {
        if !self.finds_sets || !core.task(id).kvm.in_kvm {
            return;
        }
        let Some(kern) = self.tasks[id.index()].vcpu.as_ref().map(|vcpu| vcpu.kern.ptr()) else { return };
        let cpu = core.task(id).cpu;
        let before = std::mem::replace(&mut core.this_cpu, cpu);
        // SAFETY: the vCPU is alive, and no reference to it is held.
        self.call(core, OpKind::Tracing, NOBODY, || unsafe { ffi::native_on_fault(kern, gfn, true) });
        core.this_cpu = before;
    }

    fn cpu_online(&mut self, core: &mut Core, cpu: CpuId) {
        self.op(core, OpKind::CpuOnline, NOBODY, |ops| ops.cpu_online.map(|op| op(cpu.0 as i32)));
    }

    fn cpu_offline(&mut self, core: &mut Core, cpu: CpuId) {
        self.idle.remove(cpu);
        self.op(core, OpKind::CpuOffline, NOBODY, |ops| ops.cpu_offline.map(|op| op(cpu.0 as i32)));
    }

    fn queue_len(&self, cpu: CpuId) -> u32 {
        self.cpus[cpu.index()].running
    }

    fn first_waiting(&self, _core: &Core, cpu: CpuId) -> Option<TaskId> {
        self.cpus[cpu.index()].local.front().copied()
    }

    fn counters(&mut self, core: &mut Core) -> Counters {
        self.stats(core).named()
    }

    /// What was put off to when no run queue is locked: local queues put through ops.enqueue() again (reenq_local()), and the kicks asked for, by
    /// irq_work (kick_one_cpu()).
    fn finish(&mut self, core: &mut Core) {
        while let Some(cpu) = self.reenqueues.pop_front() {
            for id in self.cpus[cpu.index()].local.clone() {
                self.unqueue(id);
                self.do_enqueue(core, id, ENQ_REENQ);
            }
        }
        while let Some((cpu, flags)) = self.kicks.pop_front() {
            let target = core.cpu(cpu);
            if !target.online && cpu != core.this_cpu || flags & KICK_IDLE != 0 && target.is_busy() {
                continue;
            }
            if let (true, Some(curr)) = (flags & KICK_PREEMPT != 0, target.curr) {
                self.tasks[curr.index()].set_slice(0);
            }
            core.resched(cpu);
        }
    }
}
