// SPDX-License-Identifier: GPL-2.0-only
//! Guests: a kernel with a scheduler, spin locks, interrupts between vCPUs, TLB shootdown and sleeping; and the programs on it. The bodies of
//! all tasks of a run.
//!
//! | module | what it is |
//! |---|---|
//! | [`vm`] | a VM, and what the host tells it |
//! | [`ops`], [`engine`] | the operations that a vCPU's time is made of, and the loop over them |
//! | [`lock`] | spin-lock algorithms |
//! | [`sched`], `cfs`, `eevdf`, `slice`, `resched`, `wakelist`, [`queue`], [`irq`], [`tlb`], [`sync`], [`device`] | the parts of the guest's kernel |
//! | [`owner`] | kernel locks that sleep, spun for while their owner runs |
//! | [`program`] | from programs to operations |
//! | [`hold`] | VMs that may not run now: paused, or beyond their quota |
//! | `ahead` | hints which memory is needed soon |
//! | [`build`] | from a scenario to all this |

mod ahead;
mod balance;
pub mod build;
mod cfs;
pub mod config;
pub mod device;
mod eevdf;
pub mod engine;
pub mod hold;
pub mod irq;
pub mod lock;
mod memory;
pub mod ops;
pub mod owner;
pub mod program;
pub mod queue;
mod resched;
pub mod sched;
mod slice;
pub mod sync;
pub mod task;
pub mod tlb;
pub mod vm;
mod wakelist;

use crate::body::{Bodies, Run};
use crate::events::Timer;
use crate::ids::TaskId;
use crate::kvm::vector;
use crate::observe::Stop;
use crate::rng::Rng;
use crate::time::{Ns, Progress};
use crate::Host;

pub use self::config::{
    GuestConfig, GuestCosts, Heeds, LazyTlb, LockKind, Scheduler, SendIpi, TlbMode, Wakelist,
};
pub use self::vm::{Counters, Vm};

/// Kinds of [`crate::body::Bodies::event`].
pub(crate) const WORK: u8 = 0;
pub(crate) const TICK: u8 = 1;
pub(crate) const SLEEP: u8 = 2;
pub(crate) const IO: u8 = 3;
pub(crate) const DEVICE: u8 = 4;
pub(crate) const PROCESS: u8 = 5;
pub(crate) const PAUSE: u8 = 6;
pub(crate) const QUOTA: u8 = 7;
pub(crate) const SLICE: u8 = 8;

/// Whose body a thread of the host is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    Vcpu { vm: u32, v: u32 },
    Device { vm: u32 },
    Process(u32),
}

/// An ordinary process of the host: runs and sleeps in turn, runs once, or never sleeps.
#[derive(Debug)]
pub(crate) struct Process {
    pub run_ns: Ns,
    pub sleep_ns: Ns,
    pub once: bool,
    /// It runs for a moment first, and sleeps until then.
    pub until_ns: Option<Ns>,
    pub work: Progress,
    pub timer: Timer,
    pub name: String,
    /// Both times are drawn, exponentially.
    pub rng: Option<Rng>,
}

impl Process {
    fn draw(&mut self, mean_ns: Ns) -> Ns {
        // At least 1, so that time passes.
        self.rng.as_mut().map_or(mean_ns, |rng| rng.exponential(mean_ns)).max(1)
    }
}

/// The bodies of all tasks: vCPUs, VMMs' threads, processes.
pub struct Guests {
    pub vms: Vec<Vm>,
    pub(crate) owners: Vec<Owner>,
    pub(crate) processes: Vec<Process>,
    /// By guest task: its VM. What [`Host::set_timer`] was given is an index of it.
    pub(crate) sleepers: Vec<u32>,
}

impl Guests {
    /// Of a thread of the host.
    pub fn task_name(&self, task: TaskId) -> String {
        match self.owners.get(task.index()) {
            Some(Owner::Vcpu { vm, v }) => format!("{}/vcpu{v}", self.vms[*vm as usize].name),
            Some(Owner::Device { vm }) => format!("{}/io", self.vms[*vm as usize].name),
            Some(Owner::Process(index)) => self.processes[*index as usize].name.clone(),
            None => format!("task{}", task.0),
        }
    }

    fn process(&mut self, task: TaskId) -> Option<&mut Process> {
        match self.owners.get(task.index()) {
            Some(Owner::Process(index)) => self.processes.get_mut(*index as usize),
            _ => None,
        }
    }
}

impl Bodies for Guests {
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run) {
        match self.owners.get(task.index()).copied() {
            Some(Owner::Vcpu { vm, v }) => {
                let vm = &mut self.vms[vm as usize];
                if host.core.task(task).held {
                    vm.hold.untold[v as usize] = true;
                    host.core.task_mut(task).woken = true;
                    return host.block(task);
                }
                vm.start(v as usize, run);
                vm.settle(host);
            }
            Some(Owner::Device { vm }) => self.vms[vm as usize].device_start(host, run),
            Some(Owner::Process(_)) => {
                let Some(process) = self.process(task).filter(|process| process.run_ns > 0) else { return };
                let end_ns = process.work.start(run.from_ns, run.speed);
                host.set_timer(end_ns, task.0, PROCESS, process.timer.arm());
            }
            None => {}
        }
    }

    fn speed(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let now_ns = host.now_ns();
        match self.owners.get(task.index()).copied() {
            Some(Owner::Vcpu { vm, v }) => {
                let vm = &mut self.vms[vm as usize];
                if vm.hold.untold[v as usize] {
                    return;
                }
                vm.speed(host, v as usize, run);
                vm.settle(host);
            }
            Some(Owner::Device { vm }) => self.vms[vm as usize].device_speed(host, run),
            Some(Owner::Process(_)) => {
                if let Some(process) = self.process(task) {
                    process.work.stop(now_ns);
                }
                self.start(host, task, run);
            }
            None => {}
        }
    }

    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop) {
        let now_ns = host.now_ns();
        match self.owners.get(task.index()).copied() {
            Some(Owner::Vcpu { vm, v }) => {
                let vm = &mut self.vms[vm as usize];
                if std::mem::take(&mut vm.hold.untold[v as usize]) {
                    return;
                }
                // Whoever is stopped has not halted: it goes on where it was.
                let why = if host.core.task(task).held { Stop::Preempted } else { why };
                vm.stop(now_ns, v as usize, why);
                vm.settle(host);
            }
            Some(Owner::Device { vm }) => self.vms[vm as usize].device_stop(now_ns),
            Some(Owner::Process(_)) => {
                let Some(process) = self.process(task) else { return };
                process.work.stop(now_ns);
                process.timer.cancel();
                if why == Stop::Blocked && (process.until_ns.is_some() || !process.once) {
                    process.work = Progress::new(process.draw(process.run_ns));
                    let at_ns = match process.until_ns.take() {
                        Some(until_ns) => until_ns.max(now_ns),
                        None => now_ns.saturating_add(process.draw(process.sleep_ns)),
                    };
                    host.set_timer(at_ns, task.0, PROCESS, process.timer.arm());
                }
            }
            None => {}
        }
    }

    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32) {
        if what == SLEEP || what == IO {
            let Some(vm) = self.sleepers.get(id as usize).map(|vm| &mut self.vms[*vm as usize]) else {
                return;
            };
            let vector = if what == IO { vector::IO } else { vector::TIMER };
            vm.task_fired(host, id - vm.base, vector, generation);
            return vm.settle(host);
        }
        let task = TaskId(id);
        match self.owners.get(task.index()).copied() {
            Some(Owner::Vcpu { vm, v }) => {
                let vm = &mut self.vms[vm as usize];
                if what == PAUSE || what == QUOTA {
                    vm.hold_fired(host, what);
                } else if what == TICK {
                    vm.tick_fired(host, v as usize, generation);
                } else if what == SLICE {
                    vm.slice_fired(host, v as usize, generation);
                } else {
                    vm.fired(host.now_ns(), v as usize, generation);
                }
                vm.settle(host);
            }
            Some(Owner::Device { vm }) => {
                let vm = &mut self.vms[vm as usize];
                vm.device_fired(host, generation);
                vm.settle(host);
            }
            Some(Owner::Process(_)) => {
                let running = host.is_running(task);
                let Some(process) = self.process(task) else { return };
                if !process.timer.fires(generation) {
                    return;
                }
                process.work.stop(host.now_ns());
                if running {
                    host.block(task);
                } else {
                    host.wake(task, None);
                }
            }
            None => {}
        }
    }

    fn prefetch(&self, host: &Host, id: u32, what: u8, step: usize) {
        if what == SLEEP || what == IO {
            if let Some(vm) = self.sleepers.get(id as usize).map(|vm| &self.vms[*vm as usize]) {
                vm.prefetch_task(host, id - vm.base, step);
            }
        } else if let Some(Owner::Vcpu { vm, v }) = self.owners.get(id as usize) {
            self.vms[*vm as usize].prefetch_vcpu(host, *v as usize, step);
        }
    }

    fn interrupt(&mut self, host: &mut Host, task: TaskId, what: u32) {
        if let Some(Owner::Vcpu { vm, v }) = self.owners.get(task.index()).copied() {
            let vm = &mut self.vms[vm as usize];
            vm.interrupted(host, v as usize, what);
            vm.settle(host);
        }
    }
}
