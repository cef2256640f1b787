// SPDX-License-Identifier: GPL-2.0-only
//! A virtual machine: its vCPUs as KVM sees them, its kernel's state, and what the host tells it.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::body::Run;
use crate::ids::TaskId;
use crate::kvm::vcpu::{Place, Vcpu};
use crate::kvm::{vector, KvmConfig};
use crate::observe::{Stop, What};
use crate::rng::Rng;
use crate::time::Ns;
use crate::Host;

use super::config::GuestConfig;
use super::lock::Lock;
use super::ops::{Doing, Frame, Until};
use super::sync::{Barrier, Condition, Mutex, Pipe, Pool};
use super::task::{Cpu, Task};

/// What a guest counts about itself, as its /proc/interrupts and kvm_stat do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Interrupts taken, by vector.
    pub taken: [u64; vector::COUNT],
    /// Exits, by reason.
    pub exits: [u64; crate::kvm::exit::COUNT],
    /// Tasks taken from another vCPU's queue.
    pub steals: u64,
}

/// A program's state; what comes of it is kept in [`crate::metrics::window`].
#[derive(Clone, Debug)]
pub struct ProgramState {
    /// Tasks that it waits for; `None`: it never ends.
    pub left: Option<u32>,
    /// It begins anew, with so many tasks; 0: it does not.
    pub again: u32,
    pub has_started: bool,
    /// ... once at least.
    pub has_ended: bool,
}

pub struct Vm {
    pub name: String,
    pub kvm: Rc<KvmConfig>,
    pub guest: Rc<GuestConfig>,
    pub vcpus: Vec<Vcpu>,
    pub cpus: Vec<Cpu>,
    /// The first ones are the vCPUs' idle tasks.
    pub tasks: Vec<Task>,
    /// What the guest's task number is added to for [`crate::body::Bodies::event`].
    pub base: u32,
    pub locks: Vec<Lock>,
    pub mutexes: Vec<Mutex>,
    pub barriers: Vec<Barrier>,
    pub conditions: Vec<Condition>,
    /// How many signals its tasks have made, of all conditions.
    pub(super) signalled: u64,
    pub pipes: Vec<Pipe>,
    /// Rounds that tasks have together.
    pub(super) pools: Vec<Pool>,
    pub(super) memory: super::memory::Memory,
    /// Tasks that spin for a mutex.
    pub spinning: u32,
    pub spaces: Vec<super::tlb::Space>,
    pub lock_rng: Rng,
    pub tick_phase_ns: Ns,
    /// Where kvm_vcpu_on_spin() begins: one behind `last_boosted_vcpu`.
    pub boost_from: usize,
    pub counters: Counters,
    pub program: Option<ProgramState>,
    pub hold: super::hold::Hold,
    /// The thread that serves the devices, and its requests.
    pub device: Option<super::device::Device>,
    /// vCPUs for which something has changed at this instant: mostly there is one.
    todo: Option<u32>,
    todo_then: VecDeque<u32>,
    /// Operations at this instant, against programs that do nothing for ever.
    pub(crate) in_instant: (Ns, usize),
}

impl Vm {
    #[expect(clippy::too_many_arguments, reason = "one caller, which has just made them all")]
    pub(crate) fn new(
        name: String,
        kvm: Rc<KvmConfig>,
        guest: Rc<GuestConfig>,
        vcpus: Vec<Vcpu>,
        cpus: Vec<Cpu>,
        tasks: Vec<Task>,
        locks: Vec<Lock>,
        lock_rng: Rng,
    ) -> Self {
        Self {
            name,
            kvm,
            guest,
            vcpus,
            cpus,
            tasks,
            base: 0,
            locks,
            mutexes: Vec::new(),
            barriers: Vec::new(),
            conditions: Vec::new(),
            signalled: 0,
            pipes: Vec::new(),
            pools: Vec::new(),
            memory: Default::default(),
            spinning: 0,
            spaces: Vec::new(),
            lock_rng,
            tick_phase_ns: 0,
            // kvm_create_vm() leaves `last_boosted_vcpu` at 0.
            boost_from: 1,
            counters: Counters::default(),
            program: None,
            hold: Default::default(),
            device: None,
            todo: None,
            todo_then: VecDeque::new(),
            in_instant: (0, 0),
        }
    }

    /// Something has changed for this vCPU: look what it does now.
    pub(crate) fn poke(&mut self, v: usize) {
        let v = v as u32;
        match self.todo {
            None => self.todo = Some(v),
            Some(first) if first == v || self.todo_then.contains(&v) => {}
            Some(_) => self.todo_then.push_back(v),
        }
    }

    /// Work off what the last callback of the host has led to.
    pub(crate) fn settle(&mut self, host: &mut Host) {
        while let Some(v) = self.todo {
            self.todo = self.todo_then.pop_front();
            self.advance(host, v as usize);
            if host.core.machine.feels_spinners() {
                if let Some(run) = self.vcpus[v as usize].run {
                    host.runner_spins(run.cpu, self.vcpus[v as usize].task, self.only_waits(v as usize));
                }
            }
        }
    }

    /// The vCPU has its pCPU and only waits in a loop: the guest's, or the host's that polls for a halted one.
    fn only_waits(&mut self, v: usize) -> bool {
        match self.vcpus[v].place {
            _ if !self.vcpus[v].settled => false,
            Place::Poll => true,
            Place::Guest => matches!(self.frame(v).doing, Doing::Spin(_)),
            Place::Exit | Place::Blocked => false,
        }
    }

    pub(crate) fn start(&mut self, v: usize, run: Run) {
        let vcpu = &mut self.vcpus[v];
        vcpu.run = Some(run);
        vcpu.settled = false;
        self.poke(v);
    }

    pub(crate) fn speed(&mut self, host: &mut Host, v: usize, run: Run) {
        self.pause(host.now_ns(), v);
        self.vcpus[v].run = Some(run);
        // It has yielded and keeps its pCPU: its timer of this very instant was cancelled, and nothing else lets it go on.
        if self.vcpus[v].comes_back {
            self.arm(host, v, host.now_ns());
        }
        self.poke(v);
    }

    pub(crate) fn stop(&mut self, now_ns: Ns, v: usize, why: Stop) {
        self.pause(now_ns, v);
        if why == Stop::Preempted {
            self.sched_out(now_ns, v);
        }
        if self.kvm.tells_always {
            self.vcpus[v].seen_preempted = self.kvm.steal_time && self.kvm.tells_preempted;
            self.look_at_owners();
        }
        if self.guest.halts_behind_preempted && self.vcpus[v].seen_preempted {
            self.look_behind(v);
        }
        let shrunk = self.kvm.ple.shrunk(self.vcpus[v].window_size);
        let vcpu = &mut self.vcpus[v];
        vcpu.run = None;
        vcpu.settled = false;
        vcpu.goes_on();
        vcpu.loop_ends();
        // vmx_vcpu_load(), when it was scheduled out.
        vcpu.window_size = shrunk;
    }

    /// The vCPU's own timer.
    pub(crate) fn fired(&mut self, now_ns: Ns, v: usize, generation: u32) {
        if self.vcpus[v].timer.fires(generation) {
            self.comes_due(now_ns, v);
            self.poke(v);
        }
    }

    fn comes_due(&mut self, now_ns: Ns, v: usize) {
        self.pause(now_ns, v);
        self.vcpus[v].goes_on();
    }

    /// If nothing else happens before, let time pass to when the vCPU's timer would fire, and return true: the same comes of it as of [`Vm::arm`] and
    /// [`Vm::fired`], without the queue of events.
    pub(crate) fn passes(&mut self, host: &mut Host, v: usize, at_ns: Ns) -> bool {
        // Its core's other threads hear in between whether it spins.
        let alone = self.todo.is_none() && !host.core.machine.feels_spinners();
        if at_ns == Ns::MAX || !alone || !host.core.passes(at_ns) {
            return false;
        }
        // As after any timer, those that were set before are void.
        self.vcpus[v].timer.arm();
        self.comes_due(at_ns, v);
        true
    }

    pub(crate) fn arm(&mut self, host: &mut Host, v: usize, at_ns: Ns) {
        let vcpu = &mut self.vcpus[v];
        if at_ns != Ns::MAX {
            host.set_timer(at_ns, vcpu.task.0, super::WORK, vcpu.timer.arm());
        }
    }

    /// Bring what the vCPU does up to date; it goes on with [`Vm::advance`].
    pub(crate) fn pause(&mut self, now_ns: Ns, v: usize) {
        let vcpu = &mut self.vcpus[v];
        vcpu.timer.cancel();
        match vcpu.place {
            Place::Exit => vcpu.exit.work.stop(now_ns),
            Place::Guest => {
                if let Some(window) = &mut vcpu.window {
                    window.stop(now_ns);
                }
                if let Some(stalls) = &mut vcpu.stalls {
                    stalls.stop(now_ns);
                }
                self.frame(v).doing.stop(now_ns);
            }
            Place::Poll | Place::Blocked => {}
        }
    }

    /// The flow of control that the vCPU executes.
    pub(crate) fn frame(&mut self, v: usize) -> &mut Frame {
        let cpu = &mut self.cpus[v];
        if cpu.in_irq {
            &mut cpu.irq
        } else {
            &mut self.tasks[cpu.current as usize].frame
        }
    }

    pub(crate) fn is_kernel(&self, v: usize) -> bool {
        let cpu = &self.cpus[v];
        cpu.in_irq || self.tasks[cpu.current as usize].kernel
    }

    /// To be called wherever the mode may have changed.
    pub(crate) fn tell_mode(&mut self, host: &mut Host, v: usize) {
        let kernel = self.is_kernel(v);
        if self.cpus[v].told_kernel != kernel {
            self.cpus[v].told_kernel = kernel;
            let vcpu = &self.vcpus[v];
            let id = vcpu.id;
            host.set_guest_kernel(vcpu.task, kernel);
            host.tell(|| What::Mode { vcpu: id, kernel });
        }
    }

    pub(crate) fn is_idle_task(&self, task: u32) -> bool {
        (task as usize) < self.cpus.len()
    }

    /// Who waits for or holds a spin lock: a vCPU, and whether an interrupt handler of it (qspinlock has a node for each level, too).
    pub(crate) fn waiter(&self, v: usize) -> u32 {
        v as u32 * 2 + u32::from(self.cpus[v].in_irq)
    }

    pub(crate) fn waiter_vcpu(who: u32) -> usize {
        who as usize / 2
    }

    /// Does this waiter execute its loop at this instant?
    pub(crate) fn spins(vcpus: &[Vcpu], cpus: &[Cpu], tasks: &[Task], who: u32, lock: u32) -> bool {
        let v = Self::waiter_vcpu(who);
        let cpu = &cpus[v];
        if !vcpus[v].in_guest() || cpu.in_irq != (who % 2 == 1) {
            return false;
        }
        let doing = if cpu.in_irq { &cpu.irq.doing } else { &tasks[cpu.current as usize].frame.doing };
        matches!(doing, Doing::Spin(spin) if spin.until == Until::Locked(lock))
    }

    pub(crate) fn thread(&self, v: usize) -> TaskId {
        self.vcpus[v].task
    }
}
