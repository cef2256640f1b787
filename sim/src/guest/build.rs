// SPDX-License-Identifier: GPL-2.0-only
//! From a scenario's VMs and processes to threads of the host and their bodies.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::class::fair::Idling;
use crate::class::Class as _;
use crate::cpuset::CpuSet;
use crate::error::SimError;
use crate::events::Timer;
use crate::host::task::nice_to_weight;
use crate::host::{Bandwidth, TaskSpec};
use crate::ids::{CpuId, GroupId, VcpuId, VmId};
use crate::kvm::vcpu::Vcpu;
use crate::kvm::{Ipi, KvmConfig};
use crate::metrics::window::ProgramSpec;
use crate::rng::{Rng, Stream};
use crate::scenario::{TaskConfig, VmConfig, PERIOD_US};
use crate::time::{Ns, Progress};
use crate::workload::code::{Code, Inst};
use crate::workload::{Dist, Span};
use crate::Host;

use super::device::Device;
use super::hold::Hold;
use super::lock::Lock;
use super::ops::{Doing, Frame, Op};
use super::sync::{Barrier, Condition, Mutex, Pipe, Pool};
use super::task::{Cpu, State, Task, NO_SPACE};
use super::tlb::Space;
use super::vm::{ProgramState, Vm};
use super::{GuestConfig, Guests, Owner, Process, PROCESS};

/// Kinds of VMs that are remembered while a run is built: looking for one must not take long if all are different.
const KINDS_MAX: usize = 16;
/// Pairs of a VM's vCPUs and its program's address spaces: what these take of the memory.
const SPACE_PAIRS_MAX: u64 = 1 << 28;
/// Number of the random stream of where a VM's vCPUs were last.
const PLACES: u64 = 1 << 48;
/// How long a VMM's thread has run at the beginning, so that it is not new later.
const MOMENT_NS: Ns = 1_000;

impl Guests {
    /// Make all tasks of a run and wake those that have something to do.
    pub fn build(
        host: &mut Host,
        vms: &[VmConfig],
        tasks: &[TaskConfig],
        seed: u64,
    ) -> Result<Self, SimError> {
        let mut guests =
            Self { vms: Vec::new(), owners: Vec::new(), processes: Vec::new(), sleepers: Vec::new() };
        let mut kinds: Vec<Kind<'_>> = Vec::new();
        for (index, config) in vms.iter().enumerate() {
            let at = match kinds.iter().position(|kind| kind.is_of(config)) {
                Some(at) => at,
                None => {
                    kinds.truncate(KINDS_MAX - 1);
                    kinds.insert(0, Kind::new(config, index)?);
                    0
                }
            };
            guests.add_vm(host, config, &kinds[at], index, seed);
        }
        // The first of a name.
        let by_name: BTreeMap<&str, usize> =
            vms.iter().enumerate().rev().map(|(index, vm)| (vm.name.as_str(), index)).collect();
        for config in tasks {
            let vmm = config.vm.as_ref().and_then(|name| by_name.get(name.as_str()).copied());
            guests.add_process(host, config, vmm, seed);
        }
        Ok(guests)
    }

    fn own(&mut self, task: crate::ids::TaskId, owner: Owner) {
        debug_assert_eq!(task.index(), self.owners.len(), "the guests make all tasks of a run");
        self.owners.push(owner);
    }

    fn add_vm(&mut self, host: &mut Host, config: &VmConfig, kind: &Kind<'_>, index: usize, seed: u64) {
        let code = &kind.code;
        let id = host.new_vm(config.vcpus);
        host.set_apicv(id, config.kvm.ipi != Ipi::Trapped);
        let bandwidth = match config.quota_us {
            0 => Bandwidth::default(),
            quota_us => Bandwidth { period_us: PERIOD_US, quota_us, burst_us: 0 },
        };
        let group = host.new_limited_group(GroupId(0), config.weight, bandwidth);
        let set = |cpus: &[u32]| -> Option<CpuSet> {
            (!cpus.is_empty()).then(|| cpus.iter().copied().map(CpuId).collect())
        };
        let allowed = set(&config.cpus);
        let footprint_per_mille = kind.footprint_per_mille;
        let mut threads = Vec::new();
        // The guest has booted and idled before anything is looked at, and its vCPUs were last wherever they were.
        let mut places = Rng::derive(seed, Stream::Vm, PLACES + u64::from(id.0));
        let online = |host: &Host, allowed: &Option<CpuSet>| -> Vec<CpuId> {
            let may = |cpu: &CpuId| allowed.as_ref().is_none_or(|set| set.has(*cpu));
            host.core.online.iter().filter(may).collect()
        };
        let for_all = online(host, &allowed);
        for v in 0..config.vcpus {
            let vcpu = VcpuId { vm: id, id: v };
            let own = config.vcpu_cpus.get(v as usize).map(|cpus| set(cpus));
            let places_of = own.as_ref().map(|own| online(host, own));
            let online = places_of.as_ref().unwrap_or(&for_all);
            let was_on = online.get(places.below(online.len() as u64) as usize).copied();
            let allowed = own.unwrap_or_else(|| allowed.clone());
            let spec = TaskSpec {
                vcpu: Some(vcpu),
                group,
                allowed,
                was_on,
                footprint_per_mille,
                ..TaskSpec::default()
            };
            let task = host.spawn(spec);
            host.set_in_kvm(task, true);
            host.set_guest_kernel(task, true);
            self.own(task, Owner::Vcpu { vm: index as u32, v });
            threads.push(Vcpu::new(task, vcpu, config.kvm.ple.window()));
        }
        let mut vm = make_vm(config, kind, id, threads, seed);
        vm.base = self.sleepers.len() as u32;
        self.sleepers.extend(std::iter::repeat_n(index as u32, vm.tasks.len()));
        if code.tasks.iter().any(|task| task.code.iter().any(|inst| matches!(inst, Inst::Io { .. }))) {
            let tgid = Some(host.vm(id).tgid);
            let task = host.spawn(TaskSpec { group, allowed, tgid, ..TaskSpec::default() });
            self.own(task, Owner::Device { vm: index as u32 });
            vm.device = Some(Device::new(task));
        }
        let quota_us = if host.class.has_quotas() { 0 } else { config.quota_us };
        vm.hold = Hold::new(config.rhythm, quota_us, config.vcpus as usize);
        vm.hold_begins(host, config.start_ns);
        let tasks = code.tasks.iter().filter(|task| !task.background).count() as u32;
        vm.program = kind.program.as_ref().map(|_| ProgramState {
            left: code.ends.then_some(tasks),
            again: if config.repeat { tasks } else { 0 },
            has_started: config.start_ns == 0,
            has_ended: false,
        });
        if let Some(name) = &kind.program {
            let spec = ProgramSpec {
                name: name.clone(),
                unit_kind: code.unit_kind,
                unit_value: code.unit_value,
                at_once: config.start_ns == 0,
                is_awaited: code.ends && config.measured,
            };
            host.core.programs.add(id, spec);
        }
        for v in 0..vm.cpus.len() {
            if !vm.cpus[v].queue.is_empty() {
                host.wake(vm.vcpus[v].task, None);
            }
        }
        self.vms.push(vm);
    }

    /// `vmm`: it is a thread of that VM's VMM.
    fn add_process(&mut self, host: &mut Host, config: &TaskConfig, vmm: Option<usize>, seed: u64) {
        let allowed = (!config.cpus.is_empty()).then(|| config.cpus.iter().copied().map(CpuId).collect());
        let weight = nice_to_weight(config.nice);
        // What it refills is part of the time that it is said to run.
        let footprint_per_mille = 0;
        let (group, tgid) = match vmm.map(|vm| host.core.task(self.vms[vm].vcpus[0].task)) {
            Some(vcpu) => (vcpu.group, Some(vcpu.tgid)),
            None => (GroupId(0), None),
        };
        let spec = TaskSpec { weight, allowed, group, tgid, footprint_per_mille, ..TaskSpec::default() };
        let task = host.spawn(spec);
        self.own(task, Owner::Process(self.processes.len() as u32));
        // Without sleep it never stops running.
        let run_ns = if config.sleep_ns == 0 && !config.once { 0 } else { config.run_ns.max(1) };
        let mut process = Process {
            run_ns,
            sleep_ns: config.sleep_ns,
            once: config.once,
            until_ns: None,
            work: Progress::new(run_ns),
            timer: Timer::default(),
            name: config.name.clone(),
            rng: config.random.then(|| Rng::derive(seed, Stream::Task, u64::from(task.0))),
        };
        if config.once && tgid.is_some() && config.start_ns > MOMENT_NS {
            // A VMM's thread has run before: as a new one it would count in its group's load as if it had always been runnable (init_entity_runnable_average()).
            process.until_ns = Some(config.start_ns);
            process.work = Progress::new(MOMENT_NS);
            host.wake(task, None);
        } else if config.start_ns > 0 {
            process.work = Progress::new(process.draw(run_ns));
            host.set_timer(config.start_ns, task.0, PROCESS, process.timer.arm());
        } else {
            host.wake(task, None);
        }
        self.processes.push(process);
    }
}

/// What VMs that are alike share: most of a large host's are, and what is shared stays in the processor's caches.
struct Kind<'a> {
    config: &'a VmConfig,
    kvm: Rc<KvmConfig>,
    guest: Rc<GuestConfig>,
    /// Of its program.
    program: Option<String>,
    footprint_per_mille: u32,
    code: Code,
}

impl<'a> Kind<'a> {
    fn new(config: &'a VmConfig, index: usize) -> Result<Self, SimError> {
        let field = format!("vms[{index}]");
        if config.vcpus == 0 {
            return Err(SimError::Config(format!("{field}.vcpus: is 0; allowed: 1 or more")));
        }
        config.kvm.check(&format!("{field}.kvm"))?;
        config.guest.check(&format!("{field}.guest"))?;
        let at = format!("{field}.workload");
        let program = config.workload.as_ref().map(|workload| workload.program(&at)).transpose()?;
        let code = match &program {
            None => Code::default(),
            Some(program) => Code::new(program, config.vcpus, config.start_ns)
                .map_err(|what| SimError::Config(format!("{at}: {what}")))?,
        };
        if u64::from(config.vcpus) * u64::from(code.spaces) > SPACE_PAIRS_MAX {
            return Err(SimError::Config(format!(
                "{at}: {} vCPUs and {} address spaces are more than {SPACE_PAIRS_MAX} pairs; allowed: fewer",
                config.vcpus, code.spaces
            )));
        }
        Ok(Self {
            config,
            kvm: Rc::new(config.kvm.clone()),
            guest: Rc::new(config.guest.clone()),
            footprint_per_mille: program.as_ref().map_or(1000, |program| program.footprint_per_mille),
            program: program.map(|program| program.name),
            code,
        })
    }

    fn is_of(&self, other: &VmConfig) -> bool {
        // Of the others the VM itself makes use.
        let VmConfig { vcpus, kvm, guest, start_ns, workload, .. } = other;
        let known = self.config;
        known.vcpus == *vcpus
            && known.kvm == *kvm
            && known.guest == *guest
            && known.start_ns == *start_ns
            && known.workload == *workload
    }
}

fn idle_task(v: u32, rng: Rng) -> Task {
    Task {
        name: format!("idle{v}").into(),
        state: State::Runnable,
        on_rq: true,
        cpu: v,
        pin: Some(v),
        kernel: true,
        frame: Frame::default(),
        saved: Doing::Nothing,
        vruntime_ns: 0,
        ahead_ns: 0,
        deadline_ns: 0,
        left_ns: None,
        delayed: false,
        ran_ns: 0,
        waits_since_ns: 0,
        signalled: 0,
        space: NO_SPACE,
        background: true,
        code: Rc::new([]),
        at: 0,
        loops: Vec::new(),
        rng,
        timer: Timer::default(),
        timer_cpu: v,
        io_ns: (0, 0),
        unit_since_ns: 0,
        period_since_ns: 0,
    }
}

fn make_vm(config: &VmConfig, kind: &Kind<'_>, id: VmId, threads: Vec<Vcpu>, seed: u64) -> Vm {
    let code = &kind.code;
    let guest = &config.guest;
    let vcpus = config.vcpus;
    let rng = |stream, entity: u32| Rng::derive(seed, stream, u64::from(id.0) << 32 | u64::from(entity));
    let looking_ns = Ns::from(vcpus) * guest.costs.newidle_vcpu_ns;
    let idling = |v| Idling::new(looking_ns, rng(Stream::Vcpu, v));
    let mut cpus: Vec<Cpu> = (0..vcpus).map(|v| Cpu::new(v, v, idling(v))).collect();
    for cpu in &mut cpus {
        cpu.told_kernel = true;
    }
    let mut tasks: Vec<Task> = (0..vcpus).map(|v| idle_task(v, rng(Stream::GuestTask, v))).collect();
    for (at, task) in code.tasks.iter().enumerate() {
        let number = vcpus + at as u32;
        let cpu = task.pin.unwrap_or(at as u32 % vcpus);
        let mut frame = Frame::with_room();
        // As if it had been switched away from: see Op::Schedule.
        frame.first(&[Op::UnlockRq, Op::IrqOn, Op::ToUser]);
        tasks.push(Task {
            name: Rc::clone(&task.name),
            cpu,
            pin: task.pin,
            deadline_ns: guest.slice_ns / 2, // PLACE_DEADLINE_INITIAL
            frame,
            space: task.space,
            background: task.background,
            code: Rc::clone(&task.code),
            ..idle_task(cpu, rng(Stream::GuestTask, number))
        });
        cpus[cpu as usize].queue.insert(0, number);
    }

    if guest.housekeeping_period_ns > 0 {
        let rest = Dist::Exp(Span(guest.housekeeping_period_ns));
        let work = Dist::Exp(Span(guest.housekeeping_work_ns));
        let forever = [
            Inst::Loop { times: u64::MAX, end: 3 },
            Inst::Sleep(rest),
            Inst::Kernel(work),
            Inst::End { start: 0 },
        ];
        for v in 0..vcpus {
            let number = tasks.len() as u32;
            let mut frame = Frame::with_room();
            frame.first(&[Op::UnlockRq, Op::IrqOn]);
            tasks.push(Task {
                name: format!("kernel{v}").into(),
                deadline_ns: guest.slice_ns / 2,
                frame,
                code: Rc::new(forever),
                ..idle_task(v, rng(Stream::GuestTask, number))
            });
            cpus[v as usize].queue.insert(0, number);
        }
    }

    let program_locks = code.locks.list.len() as u32;
    let queue_locks =
        (code.mutexes.len() + code.barriers.len() + code.conditions.list.len() + code.pipes.len()) as u32;
    let locks = vcpus + program_locks + queue_locks;
    let locks = (0..locks).map(|_| Lock::new(config.guest.lock)).collect();
    let mut next = vcpus + program_locks;
    let mut lock = || {
        next += 1;
        next - 1
    };

    let mut vm = Vm::new(
        config.name.clone(),
        Rc::clone(&kind.kvm),
        Rc::clone(&kind.guest),
        threads,
        cpus,
        tasks,
        locks,
        rng(Stream::Vm, 0),
    );
    let mutex =
        |of: &crate::workload::code::MutexUse, lock| Mutex { lock, spins: of.spins, ..Mutex::default() };
    vm.mutexes = code.mutexes.iter().map(|of| mutex(of, lock())).collect();
    let barrier = |of: &crate::workload::code::BarrierUse, lock| Barrier {
        parties: of.parties,
        pause: of.pause,
        pause_every_ns: of.pause_every_ns,
        gives_up: of.gives_up,
        lock,
        ..Barrier::default()
    };
    vm.barriers = code.barriers.iter().map(|of| barrier(of, lock())).collect();
    vm.conditions =
        code.conditions.list.iter().map(|_| Condition { lock: lock(), ..Condition::default() }).collect();
    let pipe = |of: &crate::workload::code::PipeUse, lock| Pipe {
        capacity: of.capacity,
        low_water: of.low_water,
        lock,
        ..Pipe::default()
    };
    vm.pipes = code.pipes.iter().map(|of| pipe(of, lock())).collect();
    vm.pools = code.pools.iter().map(|all| Pool { all: *all, left: *all }).collect();
    vm.spaces = vec![Space::new(vcpus as usize); code.spaces as usize];
    if config.guest.tick_ns > 0 {
        // Neither the guests nor the host booted at the same instant.
        vm.tick_phase_ns = rng(Stream::Vm, 1).below(config.guest.tick_ns);
    }
    vm
}
