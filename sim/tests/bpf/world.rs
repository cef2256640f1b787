// SPDX-License-Identifier: GPL-2.0-only
//! A host with the scheduler, moved by hand. What a test sees of tasks and pCPUs is a copy, taken after everything that happens.

use std::collections::BTreeSet;

use cohort_sim::class::ext::{self, Ext, ExtConfig, PeekEntity, PeekSbco, PeekStats, PeekTask, PeekVm};
use cohort_sim::class::AnyClass;
use cohort_sim::host::{self, Bandwidth, TaskSpec};
use cohort_sim::machine::{Costs, MachineConfig};
use cohort_sim::observe::Observer;
use cohort_sim::Host;
use cohort_sim::{CpuId, GroupId, Simulation, VcpuId, VmId};

use crate::puppets::{Puppet, Puppets, Vm};
use crate::spec::{Config, Spec};
use crate::view::{Cpu, Queue, State, Task};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub usize);

impl TaskId {
    pub fn real(self) -> cohort_sim::TaskId {
        cohort_sim::TaskId::from(self.0)
    }
}

pub struct World {
    pub config: Config,
    pub now_ns: u64,
    pub cpus: Vec<Cpu>,
    pub tasks: Vec<Task>,
    /// VMs of which sets were said.
    pub vms_of_sets: BTreeSet<usize>,
    pub sim: Simulation<Puppets>,
}

impl World {
    pub fn new(config: Config) -> Self {
        let costs = Costs {
            tick_ns: config.tick_ns,
            ipi_ns: config.ipi_ns,
            ipi_remote_ns: config.ipi_ns,
            ..Costs::free()
        };
        let machine = MachineConfig {
            sockets: config.sockets as u32,
            cores_per_socket: (config.cpus / config.threads_per_core / config.sockets) as u32,
            threads_per_core: config.threads_per_core as u32,
            cores_per_cache: config.cores_per_cache as u32,
            costs,
        };
        let ext_config = ExtConfig {
            knobs: config.knobs.by_name(),
            ktime_ahead_ns: config.ktime_ahead_ns,
            cpu_skew_ns: config.skew_ns.clone(),
            sched_switch: config.sched_switch,
            preempt_rcu: config.preempt_rcu,
            wakes_sync: config.wakes_sync,
            no_timers_until_ns: config.no_timers_until_ns,
            ..ExtConfig::default()
        };
        let class = AnyClass::Ext(Ext::new(ext_config, &machine).unwrap());
        let host = Host::new(&machine, class, 0).unwrap();
        let sim = Simulation::new(host, Puppets::default());
        let mut world = Self {
            config,
            now_ns: 0,
            cpus: Vec::new(),
            tasks: Vec::new(),
            vms_of_sets: BTreeSet::new(),
            sim,
        };
        world.look();
        assert_eq!(world.cpus.len(), world.config.cpus, "test: they cannot be divided like this");
        world
    }

    fn ext(&self) -> &Ext {
        match &self.sim.host.class {
            AnyClass::Ext(ext) => ext,
            _ => unreachable!(),
        }
    }

    /// What follows at this instant; then look.
    pub fn done(&mut self) {
        let now_ns = self.sim.host.now_ns();
        self.sim.run_until(now_ns).unwrap_or_else(|error| panic!("{error}"));
        self.look();
    }

    fn look(&mut self) {
        let host = &self.sim.host;
        self.now_ns = host.now_ns() + ext::BOOT_NS;
        let waits_ns = |task: &host::Task| match task.state {
            host::State::Waiting => host.now_ns() - task.waits_since_ns,
            _ => 0,
        };
        let task = |(index, task): (usize, &host::Task)| Task {
            state: match task.state {
                host::State::Asleep => State::Asleep,
                host::State::Waiting | host::State::Running => State::Runnable,
                host::State::Dead => State::Dead,
            },
            cpu: task.cpu.index(),
            queue: self.ext().queue_of(index.into()).map(Queue::of),
            vcpu: task.vcpu,
            used_ns: host.run_ns(index.into()),
            waits_since_ns: task.waits_since_ns + ext::BOOT_NS,
            wait_ns: task.wait_ns,
            wait_max_ns: task.wait_max_ns.max(waits_ns(task)),
            switches: task.switches,
            migration_disabled: task.migration_disabled,
            exiting: task.exiting,
            kthread: task.kthread,
            allowed: task.allowed.clone(),
        };
        let cpu = |cpu: &host::Cpu| Cpu {
            online: cpu.online,
            taken: cpu.taken,
            curr: cpu.curr.map(|id| TaskId(id.index())),
            busy_ns: cpu.busy_ns + if cpu.curr.is_some() { host.now_ns() - cpu.charged_ns } else { 0 },
        };
        let tasks = host.core.tasks.iter().enumerate().map(task).collect();
        self.cpus = host.core.cpus.iter().map(cpu).collect();
        self.tasks = tasks;
    }

    pub fn run(&mut self, ns: u64) {
        self.sim.run_until(self.sim.host.now_ns() + ns).unwrap_or_else(|error| panic!("{error}"));
        self.look();
    }

    /// Let pass what is already on its way between pCPUs.
    pub fn settle(&mut self) {
        self.run(8 * self.config.ipi_ns);
    }

    pub fn new_vm(&mut self, vcpus: usize) -> usize {
        self.sim.bodies.vms.push(Vm { threads: vec![None; vcpus], ..Vm::default() });
        self.sim.host.new_vm(vcpus as u32).index()
    }

    /// The `struct kvm` of two VMs change places, for threads that are spawned from now on.
    pub fn swap_addresses(&mut self, a: usize, b: usize) {
        self.sim.host.swap_vm_addresses(VmId::from(a), VmId::from(b));
    }

    /// The vCPU thread goes on as a vCPU of a new VM, whose `struct kvm` is where the old one was.
    pub fn renew_vcpu(&mut self, id: TaskId) {
        self.sim.host.renew_vcpu(id.real());
    }

    pub fn vm_count(&self) -> usize {
        self.sim.bodies.vms.len()
    }

    pub fn vm_tgid(&self, vm: usize) -> i32 {
        self.sim.host.vm(VmId::from(vm)).tgid as i32
    }

    /// Make a task; it wakes at once.
    pub fn spawn(&mut self, spec: Spec) -> TaskId {
        let vcpu = spec.vcpu.map(|(vm, id)| VcpuId { vm: VmId::from(vm), id: id as u32 });
        let id = self.sim.host.spawn(TaskSpec {
            // Rounded as the kernel rounds it back.
            weight: (u64::from(spec.weight) * 1024 / 100).max(1) as u32,
            allowed: spec.cpus.map(|cpus| cpus.into_iter().map(CpuId::from).collect()),
            group: GroupId::from(spec.cgroup),
            tgid: spec.tgid.map(|tgid| tgid as u32),
            kthread: spec.kthread,
            vcpu,
            ..TaskSpec::default()
        });
        self.sim.bodies.all.push(Puppet::new(vcpu, spec.run_ns, spec.sleep_ns));
        self.sim.host.wake(id, None);
        self.done();
        TaskId(id.index())
    }

    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id.0]
    }

    pub fn is_running(&self, id: TaskId) -> bool {
        self.sim.host.is_running(id.real())
    }

    /// Let a task sleep as soon as it runs.
    pub fn sleep(&mut self, id: TaskId) {
        if self.is_running(id) && !self.task(id).exiting {
            self.sim.host.block(id.real());
        } else {
            self.sim.bodies.get(id.real()).wants_sleep = true;
        }
        self.done();
    }

    pub fn wake(&mut self, id: TaskId) {
        self.sim.bodies.get(id.real()).wants_sleep = false;
        self.sim.host.wake(id.real(), None);
        self.done();
    }

    /// Let a task exit; it wakes for that, and is gone once it has run a little more.
    pub fn exit(&mut self, id: TaskId) {
        self.sim.bodies.get(id.real()).wants_exit = true;
        if self.is_running(id) && !self.task(id).exiting {
            self.sim.host.exit(id.real());
            self.done();
        } else {
            self.wake(id);
        }
    }

    /// Let a task that sleeps exit, with that much to tear down.
    pub fn exit_slowly(&mut self, id: TaskId, exit_ns: u64) {
        self.sim.bodies.get(id.real()).exit_ns = exit_ns;
        self.exit(id);
    }

    /// The running vCPU thread goes to its VMM's code; it enters KVM_RUN again when it next gets a pCPU.
    pub fn leave_kvm(&mut self, id: TaskId) {
        assert!(self.is_running(id), "{id:?} does not run");
        self.sim.host.set_in_kvm(id.real(), false);
    }

    /// The same, and it is back in KVM_RUN at once, as after an access to an emulated device.
    pub fn visits_vmm(&mut self, id: TaskId) {
        self.leave_kvm(id);
        self.sim.host.set_in_kvm(id.real(), true);
    }

    pub fn set_guest_kernel(&mut self, id: TaskId, in_kernel: bool) {
        self.sim.host.set_guest_kernel(id.real(), in_kernel);
    }

    pub fn set_irq_pending(&mut self, id: TaskId, pending: bool) {
        if self.sim.host.core.task(id.real()).kvm.in_kvm {
            self.sim.host.set_irq_pending(id.real(), pending);
        }
    }

    pub fn set_apicv(&mut self, vm: usize) {
        self.sim.host.set_apicv(VmId::from(vm), true);
    }

    /// The running vCPU takes a pause-loop exit.
    pub fn pause_exit(&mut self, id: TaskId) {
        let (task, host) = (id.real(), &mut self.sim.host);
        let kvm = host.core.task(task).kvm;
        if !kvm.in_kvm || !host.is_running(task) {
            return;
        }
        let puppet = self.sim.bodies.get(task);
        puppet.spins = true;
        // A kick of this pCPU takes effect at once, before KVM goes on.
        puppet.in_program = host.on_spin(task, kvm.guest_kernel);
        self.done();
        self.sim.bodies.pause_goes_on(&mut self.sim.host, task);
        self.done();
    }

    /// It takes one at which KVM finds nobody to offer.
    pub fn pause_exit_in_vain(&mut self, id: TaskId) {
        let kvm = self.sim.host.core.task(id.real()).kvm;
        assert!(!self.sim.host.on_spin(id.real(), kvm.guest_kernel), "test: it is stopped in the program");
        self.done();
    }

    pub fn yield_to(&mut self, from: TaskId, to: TaskId) {
        self.sim.host.yield_to(from.real(), to.real());
        self.done();
    }

    pub fn yield_now(&mut self, id: TaskId) {
        if self.is_running(id) {
            self.sim.host.yield_now(id.real());
            self.done();
        }
    }

    pub fn set_affinity(&mut self, id: TaskId, cpus: &[usize]) {
        let set = cpus.iter().copied().map(CpuId::from).collect();
        self.sim.host.set_affinity(id.real(), Some(set));
        self.done();
    }

    pub fn set_migration_disabled(&mut self, id: TaskId, disabled: bool) {
        self.sim.host.set_migration_disabled(id.real(), disabled);
        self.look();
    }

    pub fn cpu_offline(&mut self, cpu: usize) {
        self.sim.host.cpu_offline(CpuId::from(cpu));
        self.done();
    }

    pub fn cpu_online(&mut self, cpu: usize) {
        self.sim.host.cpu_online(CpuId::from(cpu));
        self.done();
    }

    /// A real-time task takes the pCPU at once, and keeps it.
    pub fn rt_takes(&mut self, cpu: usize) {
        self.sim.host.rt_takes(CpuId::from(cpu));
        self.done();
    }

    pub fn rt_are_kthreads(&mut self, kthreads: bool) {
        self.sim.host.poke_rt_kthread(kthreads);
    }

    /// Another real-time task takes it from that one.
    pub fn rt_switches(&mut self, cpu: usize) {
        self.sim.host.rt_switches(CpuId::from(cpu));
        self.done();
    }

    pub fn rt_leaves(&mut self, cpu: usize) {
        self.sim.host.rt_leaves(CpuId::from(cpu));
        self.done();
    }

    /// The real-time task becomes an ordinary one, which has not been seen by the scheduler, and then leaves.
    pub fn rt_is_demoted_and_leaves(&mut self, cpu: usize) {
        self.sim.host.poke_rt_prio(true);
        self.rt_leaves(cpu);
        self.sim.host.poke_rt_prio(false);
    }

    /// Does the scheduler believe that a higher class has the pCPU?
    pub fn believes_taken(&mut self, cpu: usize) -> bool {
        self.sim.host.peek_taken(CpuId::from(cpu))
    }

    /// The time as the simulation's events have it.
    pub fn sim_ns(&self) -> u64 {
        self.sim.host.now_ns()
    }

    /// From now on everything that happens is told to this.
    pub fn watch(&mut self, observer: Box<dyn Observer>) {
        self.sim.host.core.observers.add(observer);
    }

    /// What the scheduler has cost so far.
    pub fn costs(&self) -> ext::Costs {
        self.ext().costs()
    }

    pub fn new_cgroup(&mut self, parent: usize, weight: u32) -> usize {
        self.sim.host.new_group(GroupId::from(parent), weight).index()
    }

    pub fn set_cgroup_weight(&mut self, cgroup: usize, weight: u32) {
        self.sim.host.set_group_weight(GroupId::from(cgroup), weight);
    }

    /// A cgroup that had its cpu.max before the scheduler heard of it.
    pub fn new_limited_cgroup(&mut self, parent: usize, weight: u32, bandwidth: Bandwidth) -> usize {
        self.sim.host.new_limited_group(GroupId::from(parent), weight, bandwidth).index()
    }

    /// A cgroup that had its cpu.idle before the scheduler heard of it.
    pub fn new_idle_cgroup(&mut self, parent: usize, weight: u32) -> usize {
        self.sim.host.new_idle_group(GroupId::from(parent), weight).index()
    }

    /// Write cpu.max and cpu.max.burst; [`cohort_sim::host::NO_QUOTA`]: "max".
    pub fn set_quota(&mut self, cgroup: usize, period_us: u64, quota_us: u64, burst_us: u64) {
        let bandwidth = Bandwidth { period_us, quota_us, burst_us };
        self.sim.host.set_group_bandwidth(GroupId::from(cgroup), bandwidth);
        self.done();
    }

    /// Write cpu.idle.
    pub fn set_cgroup_idle(&mut self, cgroup: usize, idle: bool) {
        self.sim.host.set_group_idle(GroupId::from(cgroup), idle);
        self.done();
    }

    /// Return false, and do nothing, if somebody is in it.
    pub fn remove_cgroup(&mut self, cgroup: usize) -> bool {
        let removed = self.sim.host.remove_group(GroupId::from(cgroup));
        self.done();
        removed
    }

    pub fn move_to_cgroup(&mut self, id: TaskId, cgroup: usize) {
        self.sim.host.move_to_group(id.real(), GroupId::from(cgroup));
        self.done();
    }

    /// End the scheduler as user space does.
    pub fn unload(&mut self, reason: &std::ffi::CStr, msg: &std::ffi::CStr) {
        self.sim.host.unload(reason, msg);
    }

    pub fn peek_exit(&mut self) -> ext::PeekExit {
        self.sim.host.peek_exit()
    }

    pub fn peek_vm(&mut self, slot: u32) -> PeekVm {
        self.sim.host.peek_vm(slot)
    }

    pub fn peek_vm_told(&mut self, slot: u32) -> PeekVm {
        self.sim.host.peek_vm_told(slot)
    }

    pub fn peek_entity(&mut self, slot: u32) -> PeekEntity {
        self.sim.host.peek_entity(slot)
    }

    pub fn peek_task(&mut self, id: TaskId) -> PeekTask {
        self.sim.host.peek_task(id.real())
    }

    /// A task that runs or waits becomes a real-time one, and an ordinary one again: what the scheduler remembers of it in between.
    pub fn becomes_real_time(&mut self, id: TaskId) -> PeekTask {
        let meanwhile = self.sim.host.peek_real_time(id.real());
        self.done();
        meanwhile
    }

    pub fn peek_sbco(&mut self, id: TaskId) -> PeekSbco {
        self.sim.host.peek_sbco(id.real())
    }

    /// Of a task that sleeps.
    pub fn set_vtime(&mut self, id: TaskId, vtime: u64) {
        self.sim.host.poke_vtime(id.real(), vtime);
    }

    /// The pCPU's queue seems to be empty, whoever waits there.
    pub fn unmark(&mut self, cpu: usize) {
        self.sim.host.poke_unmark(CpuId::from(cpu));
    }

    /// Who waits first for `from` comes into the queue of `to` only now.
    pub fn comes_late(&mut self, from: usize, to: usize) {
        self.sim.host.poke_late(CpuId::from(from), CpuId::from(to));
    }

    /// The running thread leaves the vCPU ioctl that it was in, and is none of the VM's vCPUs any more.
    pub fn ends_ioctl(&mut self, id: TaskId) {
        self.leave_kvm(id);
        self.sim.bodies.get(id.real()).vcpu = None;
    }

    pub fn set_sbco_alpha(&mut self, alpha: u32) {
        self.sim.host.poke_sbco_alpha(alpha);
    }

    /// Say which of a VM's vCPUs are sets (gang partial). Its vCPUs have run by now.
    pub fn set_sets(&mut self, vm: usize, sets: &[&[u32]]) {
        let sets: Vec<Vec<u32>> = sets.iter().map(|set| set.to_vec()).collect();
        self.vms_of_sets.insert(vm);
        assert!(self.sim.host.set_sets(VmId::from(vm), &sets), "VM {vm} is known");
    }

    /// So many cgroups have a quota.
    pub fn quotas(&mut self) -> u32 {
        self.sim.host.peek_quotas()
    }

    pub fn domain_tasks(&mut self) -> u32 {
        self.sim.host.peek_domain_tasks()
    }

    pub fn stats(&mut self) -> PeekStats {
        self.sim.host.peek_stats()
    }

    pub fn slot_of(&mut self, vm: usize) -> Option<u32> {
        self.sim.host.slot_of(VmId::from(vm))
    }

    pub fn vm_on_cpu(&mut self, slot: u32, cpu: usize) -> u32 {
        self.sim.host.peek_vm_on_cpu(slot, CpuId::from(cpu))
    }

    /// Where the runnable task is; an error if that is nowhere or in two places.
    pub fn place_of(&self, id: TaskId) -> Result<Option<usize>, String> {
        let is_on = |cpu: &usize| self.cpus[*cpu].curr == Some(id);
        let running: Vec<usize> = (0..self.cpus.len()).filter(is_on).collect();
        let queues: Vec<Queue> = self.ext().queues_with(id.real()).into_iter().map(Queue::of).collect();
        let task = self.task(id);
        let expected = usize::from(task.state == State::Runnable);
        if running.len() + queues.len() != expected {
            return Err(format!("{id:?} is {:?} and runs on {running:?}, waits in {queues:?}", task.state));
        }
        if queues.first().copied() != task.queue {
            return Err(format!("{id:?} believes to be in {:?} and is in {queues:?}", task.queue));
        }
        Ok(running.first().copied())
    }
}
