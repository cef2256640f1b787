// SPDX-License-Identifier: GPL-2.0-only
//! Locks of the kernel that sleep, but for which a waiter spins first, as long as their owner runs: mutex_optimistic_spin() of kernel/locking/mutex.c and
//! rwsem_optimistic_spin() of rwsem.c, as of Linux 4.15, for writers.
//!
//! Spinners stand in a queue (osq_lock.c). The first watches the owner, each other one who stands before it. Whoever is watched and has no CPU is not
//! waited for; a guest that knows steal time sees that of vCPUs too (vcpu_is_preempted()). The lock goes to the first spinner, ahead of those who sleep;
//! the first sleeper that has waited for [`HANDOFF_NS`] is handed it.

use crate::observe::Spin;
use crate::time::Ns;
use crate::Host;

use super::config::Heeds;
use super::ops::{Loop, Op, Until};
use super::vm::Vm;

/// RWSEM_WAIT_TIMEOUT: a tick of HZ=250.
pub const HANDOFF_NS: Ns = 4_000_000;

impl Vm {
    /// Has this task a CPU, as far as its kernel can see?
    fn is_on_cpu(&self, task: u32) -> bool {
        let on = self.tasks[task as usize].cpu as usize;
        let heeds = self.guest.heeds_preempted >= Heeds::Owners;
        self.cpus[on].current == task && !(heeds && self.vcpus[on].seen_preempted)
    }

    /// rwsem_can_spin_on_owner(). A lock that nobody owns is worth a try.
    pub(super) fn may_spin(&self, v: usize, at: usize) -> bool {
        let mutex = &self.mutexes[at];
        mutex.spins && !self.cpus[v].urgent && mutex.owner.is_none_or(|owner| self.is_on_cpu(owner))
    }

    /// The present task takes the lock, begins to spin for it, or goes to sleep.
    pub(super) fn mutex_spin(&mut self, host: &mut Host, v: usize, at: usize) {
        let current = self.cpus[v].current;
        if self.mutexes[at].owner.is_none() && self.mutexes[at].spinners.is_empty() {
            let waited_ns = host.now_ns() - self.tasks[current as usize].waits_since_ns;
            self.mutex_taken(host, v, at, waited_ns);
            self.frame(v).first(&[Op::ToUser]);
        } else if self.may_spin(v, at) {
            self.mutexes[at].spinners.push_back(current);
            self.spinning += 1;
            self.cpus[v].no_preempt += 1;
            self.begin_spin(host, v, Until::Owner(at as u32), Spin::Lock, None);
        } else {
            self.mutex_sleep(v, at);
        }
    }

    /// Is it the spinner's turn, or is there no sense in going on?
    pub(super) fn is_spin_over(&self, v: usize, at: usize) -> bool {
        let mutex = &self.mutexes[at];
        let current = self.cpus[v].current;
        let place = mutex.spinners.iter().position(|task| *task == current).unwrap_or_default();
        let watched_runs = match place.checked_sub(1) {
            None => match mutex.owner {
                None => return true,
                Some(owner) => self.is_on_cpu(owner),
            },
            Some(before) => self.is_on_cpu(mutex.spinners[before]),
        };
        !watched_runs || self.cpus[v].urgent
    }

    /// The loop is over: the lock is the first spinner's if it is free; whoever else leaves goes to sleep.
    pub(super) fn owner_spin_ends(&mut self, host: &mut Host, v: usize, at: usize, spin: &Loop) {
        let current = self.cpus[v].current;
        let spinners = &mut self.mutexes[at].spinners;
        let was_first = spinners.front() == Some(&current);
        spinners.retain(|task| *task != current);
        self.spinning -= 1;
        self.cpus[v].no_preempt -= 1;
        if was_first && self.mutexes[at].owner.is_none() {
            self.mutex_taken(host, v, at, host.now_ns() - spin.since_ns);
            let handover = Op::Work(self.guest.costs.handover_ns);
            self.frame(v).first(&[handover, Op::ToUser]);
        } else {
            self.mutex_sleep(v, at);
        }
        self.frame(v).first(&[Op::Preempt]);
        self.look_at_owners();
    }

    /// To the queue of those who sleep, from kernel mode.
    fn mutex_sleep(&mut self, v: usize, at: usize) {
        let (lock, work) = (self.mutexes[at].lock, Op::Work(self.guest.costs.futex_ns));
        self.frame(v).first(&[Op::Lock(lock), work, Op::MutexWait(at as u32)]);
    }

    /// Somebody who may be watched has lost or got a CPU or a lock: all spinners look again.
    pub(crate) fn look_at_owners(&mut self) {
        if self.spinning == 0 {
            return;
        }
        let tasks: Vec<u32> = self.mutexes.iter().flat_map(|mutex| mutex.spinners.iter().copied()).collect();
        for task in tasks {
            self.poke(self.tasks[task as usize].cpu as usize);
        }
    }
}
