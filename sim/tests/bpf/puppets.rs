// SPDX-License-Identifier: GPL-2.0-only
//! Bodies that do what a test says: run for so long, sleep, exit, spin.

use cohort_sim::host::YieldTo;
use cohort_sim::observe::Stop;
use cohort_sim::Host;
use cohort_sim::{Bodies, Ns, Progress, Run, TaskId, VcpuId};

/// Run time without end.
pub const FOREVER: Ns = Ns::MAX;
/// What it takes to exit, as a rule.
const EXIT_NS: Ns = 50_000;
/// What kvm_vcpu_on_spin() tries before it gives up.
const YIELD_TRIES: u32 = 3;

const END: u8 = 0;
const WAKE: u8 = 1;
const SPIN: u8 = 2;

pub struct Puppet {
    pub vcpu: Option<VcpuId>,
    pub run_ns: Ns,
    pub sleep_ns: Option<Ns>,
    /// What do_exit() costs before the last schedule().
    pub exit_ns: Ns,
    left: Progress,
    turn: u32,
    pub wants_sleep: bool,
    pub wants_exit: bool,
    /// In the middle of a pause-loop exit.
    pub spins: bool,
    /// ... that the program on it has had preempted, as if in it.
    pub in_program: bool,
}

impl Puppet {
    pub fn new(vcpu: Option<VcpuId>, run_ns: Ns, sleep_ns: Option<Ns>) -> Self {
        let left = Progress::new(run_ns);
        Self {
            vcpu,
            run_ns,
            sleep_ns,
            exit_ns: EXIT_NS,
            left,
            turn: 0,
            wants_sleep: false,
            wants_exit: false,
            spins: false,
            in_program: false,
        }
    }
}

#[derive(Default)]
pub struct Vm {
    /// By vCPU: the thread that entered KVM_RUN for it last.
    pub threads: Vec<Option<TaskId>>,
    pub last_boosted: usize,
}

#[derive(Default)]
pub struct Puppets {
    pub all: Vec<Puppet>,
    pub vms: Vec<Vm>,
}

impl Puppets {
    pub fn get(&mut self, task: TaskId) -> &mut Puppet {
        &mut self.all[task.index()]
    }

    /// KVM looks for a sibling to yield to, as kvm_vcpu_on_spin() does.
    pub fn pause_goes_on(&mut self, host: &mut Host, task: TaskId) {
        if !host.is_running(task) || !std::mem::take(&mut self.get(task).spins) {
            return;
        }
        if std::mem::take(&mut self.get(task).in_program) {
            host.set_migration_disabled(task, false);
        }
        let known = host.core.task(task).kvm;
        let Some(me) = self.get(task).vcpu.filter(|_| known.in_kvm) else { return };
        let vm = &mut self.vms[me.vm.index()];
        let (count, start) = (vm.threads.len(), vm.last_boosted + 1);
        let mut tries = YIELD_TRIES;
        for sibling in (start..start + count).map(|i| i % count).filter(|i| *i != me.id as usize) {
            let Some(target) = vm.threads[sibling] else { continue };
            let kvm = host.core.task(target).kvm;
            let user_only =
                kvm.preempted && known.guest_kernel && !kvm.irq_pending && !kvm.preempted_in_kernel;
            if !kvm.ready || user_only {
                continue;
            }
            match host.yield_to(task, target) {
                YieldTo::Granted => {
                    vm.last_boosted = sibling;
                    break;
                }
                YieldTo::Refused => {}
                YieldTo::NoPoint => tries -= 1,
            }
            if tries == 0 {
                break;
            }
        }
    }
}

impl Bodies for Puppets {
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let exiting = host.core.task(task).exiting;
        let puppet = self.get(task);
        puppet.turn += 1;
        if puppet.wants_exit && !exiting {
            puppet.left = Progress::new(puppet.exit_ns);
            host.begin_exit(task);
        } else if puppet.wants_sleep && !exiting {
            puppet.left = Progress::new(0);
        }
        if let Some(vcpu) =
            puppet.vcpu.filter(|_| !host.core.task(task).exiting && !host.core.task(task).kvm.in_kvm)
        {
            host.set_in_kvm(task, true);
            self.vms[vcpu.vm.index()].threads[vcpu.id as usize] = Some(task);
        }
        let puppet = self.get(task);
        if puppet.left.left_ns() != FOREVER {
            let end_ns = puppet.left.start(run.from_ns, run.speed);
            host.set_timer(end_ns, task.0, END, puppet.turn);
        }
        if puppet.spins {
            host.set_timer(host.now_ns(), task.0, SPIN, 0);
        }
    }

    fn speed(&mut self, _host: &mut Host, _task: TaskId, _run: Run) {}

    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop) {
        let now_ns = host.now_ns();
        let puppet = self.get(task);
        puppet.turn += 1;
        puppet.left.stop(now_ns);
        if why == Stop::Blocked {
            puppet.wants_sleep = false;
            puppet.left = Progress::new(puppet.run_ns);
            if let Some(ns) = puppet.sleep_ns {
                host.set_timer(now_ns + ns, task.0, WAKE, 0);
            }
        }
    }

    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32) {
        let task = TaskId(id);
        match what {
            END if self.get(task).turn == generation => host.block(task),
            WAKE => {
                self.get(task).wants_sleep = false;
                host.wake(task, None);
            }
            SPIN => self.pause_goes_on(host, task),
            _ => {}
        }
    }

    fn interrupt(&mut self, _host: &mut Host, _task: TaskId, _what: u32) {}
}
