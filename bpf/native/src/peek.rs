// SPDX-License-Identifier: GPL-2.0-only
//! Windows into what the scheduler remembers (peek.c), and an audit of it against what is true.

use crate::ffi::TaskStruct;
use crate::ops::OpKind;
use crate::task::{Queue, State, TaskId};
use crate::world::World;

/// One of the scheduler's VM slots.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekVm {
    pub kvm: u64,
    pub generation: u64,
    pub vtime: u64,
    pub runtime_ns: u64,
    pub boosts: u64,
    pub stacked: u64,
    pub run_start_sum: u64,
    pub weight: u32,
    pub nr_vcpus: u32,
    pub nr_active: u32,
    pub nr_running: u32,
}

/// What the scheduler remembers of a task.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekTask {
    pub vtime: u64,
    pub queued_ns: u64,
    pub backoff_ns: u64,
    /// 1 + slot; 0: a host task.
    pub vm: u32,
    pub vcpu: i32,
    pub cpu: i32,
    pub weight: u32,
}

/// The scheduler's counters, of all pCPUs.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct PeekStats {
    pub switches: u64,
    pub preempt_wakeup: u64,
    pub pulls: u64,
    pub steals: u64,
    pub stacked: u64,
    pub starved: u64,
    pub ple: u64,
    pub ple_no_sibling: u64,
    pub ple_backoff: u64,
    pub boost_offered: u64,
    pub boost_chosen: u64,
    pub boost_irq: u64,
    pub boost_kernel: u64,
    pub boost_user: u64,
    pub boost_granted: u64,
    pub boost_migrated: u64,
    pub boost_missed: u64,
    pub gang_starts: u64,
}

extern "C" {
    fn peek_vm(slot: u32, to: *mut PeekVm);
    fn peek_vm_on_cpu(slot: u32, cpu: i32) -> u32;
    fn peek_task(p: *mut TaskStruct, to: *mut PeekTask);
    fn peek_stats(to: *mut PeekStats);
}

impl World {
    pub fn peek_vm(&mut self, slot: u32) -> PeekVm {
        let mut vm = PeekVm::default();
        // SAFETY: peek.c fills the struct declared there as here.
        self.call(OpKind::Tracing, &[], || unsafe { peek_vm(slot, &raw mut vm) });
        vm
    }

    pub fn peek_task(&mut self, id: TaskId) -> PeekTask {
        let mut task = PeekTask::default();
        let p = self.task(id).ptr();
        // SAFETY: as above, for a task that has storage since ops.init_task.
        self.call(OpKind::Tracing, &[], || unsafe { peek_task(p, &raw mut task) });
        task
    }

    pub fn stats(&mut self) -> PeekStats {
        let mut stats = PeekStats::default();
        // SAFETY: as above.
        self.call(OpKind::Tracing, &[], || unsafe { peek_stats(&raw mut stats) });
        stats
    }

    pub fn vm_on_cpu(&mut self, slot: u32, cpu: usize) -> u32 {
        // SAFETY: a look-up with bounds.
        self.call(OpKind::Tracing, &[], || unsafe { peek_vm_on_cpu(slot, cpu as i32) })
    }

    /// The slot in which the scheduler keeps a VM.
    pub fn slot_of(&mut self, vm: usize) -> Option<u32> {
        let kvm = self.vm_kvm(vm);
        // A test has few VMs, and freed slots are taken again from the first.
        (0..self.vms.len() as u32).find(|slot| self.peek_vm(*slot).kvm == kvm)
    }

    /// Where the runnable task is; an error if that is nowhere or in two places.
    pub fn place_of(&self, id: TaskId) -> Result<Option<usize>, String> {
        let running: Vec<usize> =
            (0..self.cpus.len()).filter(|cpu| self.cpus[*cpu].curr == Some(id)).collect();
        let mut queues: Vec<Queue> = Vec::new();
        for (cpu, state) in self.cpus.iter().enumerate() {
            queues.extend(state.local.iter().filter(|other| **other == id).map(|_| Queue::Local(cpu)));
        }
        queues.extend(self.global.iter().filter(|other| **other == id).map(|_| Queue::Global));
        for (dsq, state) in &self.dsqs {
            queues.extend(state.tasks.iter().filter(|other| **other == id).map(|_| Queue::User(*dsq)));
        }
        let task = self.task(id);
        let places = running.len() + queues.len();
        let expected = usize::from(task.state == State::Runnable);
        if places != expected || task.is_queued() != (expected == 1) {
            return Err(format!("{id:?} is {:?} and runs on {running:?}, waits in {queues:?}", task.state));
        }
        if queues.first().copied() != task.queue {
            return Err(format!("{id:?} believes to be in {:?} and is in {queues:?}", task.queue));
        }
        Ok(running.first().copied())
    }
}
