// SPDX-License-Identifier: GPL-2.0-only
//! Sleeping for a time and for a device. A request goes from the guest to a thread of the VMM, which works on it, then to the device; its completion
//! is an interrupt for the vCPU that made it.

use std::collections::VecDeque;

use crate::body::Run;
use crate::events::Timer;
use crate::ids::{CpuId, TaskId};
use crate::kvm::exit;
use crate::kvm::vcpu::Then;
use crate::time::{Ns, Progress};
use crate::Host;

use super::ops::Op;
use super::task::State;
use super::vm::Vm;
use super::{DEVICE, IO, SLEEP};

/// The VMM's I/O thread.
#[derive(Debug)]
pub struct Device {
    pub task: TaskId,
    requests: VecDeque<u32>,
    work: Progress,
    timer: Timer,
    run: Option<Run>,
}

impl Device {
    pub fn new(task: TaskId) -> Self {
        Self { task, requests: VecDeque::new(), work: Progress::new(0), timer: Timer::default(), run: None }
    }
}

impl Vm {
    pub(crate) fn sleep(&mut self, host: &mut Host, v: usize, ns: Ns) {
        if ns == 0 {
            return;
        }
        let current = self.cpus[v].current;
        let task = &mut self.tasks[current as usize];
        task.state = State::Sleeping;
        task.timer_cpu = v as u32;
        let generation = task.timer.arm();
        host.set_timer(host.now_ns().saturating_add(ns), self.base + current, SLEEP, generation);
        self.frame(v).first(&[Op::SetTimer, Op::Schedule]);
    }

    pub(crate) fn io(&mut self, host: &mut Host, v: usize) {
        let current = self.cpus[v].current;
        let task = &mut self.tasks[current as usize];
        task.state = State::Sleeping;
        task.timer_cpu = v as u32;
        self.frame(v).first(&[Op::Schedule]);
        self.begin_exit(host, v, exit::IO, self.kvm.costs.io_ns, Then::Io(current));
    }

    /// The request has left the guest, on that pCPU (ioeventfd_write()).
    pub(crate) fn io_submit(&mut self, host: &mut Host, task: u32, by: CpuId) {
        let host_ns = self.tasks[task as usize].io_ns.1;
        match &mut self.device {
            Some(device) if host_ns > 0 => {
                device.requests.push_back(task);
                if device.requests.len() == 1 {
                    device.work = Progress::new(host_ns);
                    let thread = device.task;
                    host.wake(thread, Some(by));
                    // Woken before it had left its pCPU it goes on without a new turn.
                    self.serve(host);
                }
            }
            _ => self.io_starts(host, task),
        }
    }

    fn io_starts(&mut self, host: &mut Host, task: u32) {
        let known = &mut self.tasks[task as usize];
        let generation = known.timer.arm();
        host.set_timer(host.now_ns().saturating_add(known.io_ns.0), self.base + task, IO, generation);
    }

    /// The thread works on its first request, if it has a pCPU.
    fn serve(&mut self, host: &mut Host) {
        let Some(device) = &mut self.device else { return };
        let Some(run) = device.run else { return };
        if device.requests.is_empty() {
            return host.block(device.task);
        }
        device.work.stop(host.now_ns());
        let end_ns = device.work.start(run.from_ns.max(host.now_ns()), run.speed);
        host.set_timer(end_ns, device.task.0, DEVICE, device.timer.arm());
    }

    pub(crate) fn device_start(&mut self, host: &mut Host, run: Run) {
        if let Some(device) = &mut self.device {
            device.run = Some(run);
        }
        self.serve(host);
    }

    pub(crate) fn device_speed(&mut self, host: &mut Host, run: Run) {
        if let Some(device) = &mut self.device {
            device.work.stop(host.now_ns());
        }
        self.device_start(host, run);
    }

    pub(crate) fn device_stop(&mut self, now_ns: Ns) {
        if let Some(device) = &mut self.device {
            device.work.stop(now_ns);
            device.timer.cancel();
            device.run = None;
        }
    }

    pub(crate) fn device_fired(&mut self, host: &mut Host, generation: u32) {
        let Some(device) = &mut self.device else { return };
        if !device.timer.fires(generation) {
            return;
        }
        let done = device.requests.pop_front();
        if let Some(next) = device.requests.front() {
            device.work = Progress::new(self.tasks[*next as usize].io_ns.1);
        }
        if let Some(task) = done {
            self.io_starts(host, task);
        }
        self.serve(host);
    }
}
