// SPDX-License-Identifier: GPL-2.0-only
//! What tasks of a guest wait for each other with: mutex, condition, barrier, pipe. User mode decides as long as nobody has to sleep or be woken;
//! sleeping and waking are the kernel's, under the spin lock of the object's wait queue (futex.c, pipe.c).
//!
//! No wake-up is lost: who is about to sleep puts itself on the queue and looks at the object in one step under that lock, and who changes
//! the object looks at the queue afterwards.

use std::collections::VecDeque;

use crate::observe::{Spin, What};
use crate::time::Ns;
use crate::Host;

use super::ops::{Op, Until};
use super::owner::HANDOFF_NS;
use super::task::State;
use super::vm::Vm;

#[derive(Clone, Debug, Default)]
pub struct Mutex {
    pub owner: Option<u32>,
    pub since_ns: Ns,
    /// Those who sleep. If it spins, the first stays there when it is woken, until it has the lock.
    pub waiters: VecDeque<u32>,
    pub lock: u32,
    /// Who waits spins first; see [`super::owner`].
    pub spins: bool,
    pub spinners: VecDeque<u32>,
    /// The next to release it hands it to the first who sleeps.
    pub handoff: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Barrier {
    pub parties: u32,
    pub come: u32,
    pub round: u64,
    pub sleepers: VecDeque<u32>,
    /// Those whose round is over, and whom who opened it has yet to wake.
    pub leaving: VecDeque<u32>,
    pub spinners: Vec<u32>,
    pub lock: u32,
    /// Who spins executes PAUSE, so often (0: as the kernel does).
    pub pause: bool,
    pub pause_every_ns: Ns,
    /// Whoever has spun in vain goes on alone.
    pub gives_up: bool,
}

/// A condition variable whose predicate is a number: `wait` waits until it is above 0 and counts it down, `signal` counts it up. A broadcast ends a round: it is
/// for all who had come to wait by then, also for who is on the way to sleep, and for nobody who comes later (as the sequence that a futex's waiter has read).
#[derive(Clone, Debug, Default)]
pub struct Condition {
    /// Signals that nobody has taken yet, the oldest first: which of the VM's each is.
    pub signals: VecDeque<u64>,
    pub round: u64,
    pub waiters: VecDeque<u32>,
    pub lock: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Pipe {
    pub filled: u32,
    pub capacity: u32,
    /// Blocked writers are woken when so few messages are left.
    pub low_water: u32,
    pub readers: VecDeque<u32>,
    pub writers: VecDeque<u32>,
    pub lock: u32,
}

/// Rounds that tasks have together, and how many of them are left: one counter in memory that they share.
#[derive(Clone, Debug)]
pub struct Pool {
    pub all: u64,
    pub left: u64,
}

impl Condition {
    /// Take the oldest signal that came after this one. Return false if there is none.
    fn take(&mut self, after: u64) -> bool {
        let at = self.signals.partition_point(|signal| *signal <= after);
        self.signals.remove(at).is_some()
    }
}

impl Vm {
    /// Into the kernel, and take a wait queue's lock; `then` is under it.
    fn enter_locked(&mut self, v: usize, lock: u32, then: Op) {
        let costs = &self.guest.costs;
        let (syscall, work) = (Op::Work(costs.syscall_ns), Op::Work(costs.futex_ns));
        self.frame(v).first(&[Op::ToKernel, syscall, Op::Lock(lock), work, then]);
    }

    /// Sleep; when woken take the lock again, for `then`.
    fn sleep_locked(&mut self, v: usize, lock: u32, then: Op) {
        let work = Op::Work(self.guest.costs.futex_ns);
        self.tasks[self.cpus[v].current as usize].state = State::Sleeping;
        self.frame(v).first(&[Op::Unlock(lock), Op::Schedule, Op::Lock(lock), work, then]);
    }

    /// Release the lock, wake these, and back to user mode.
    fn leave_and_wake(&mut self, v: usize, lock: u32, tasks: impl DoubleEndedIterator<Item = u32>) {
        self.leave_with(v, lock, tasks.map(Op::Wake));
    }

    fn leave_with(&mut self, v: usize, lock: u32, wakes: impl DoubleEndedIterator<Item = Op>) {
        let frame = self.frame(v);
        frame.first(&[Op::ToUser]);
        for wake in wakes.rev() {
            frame.first(&[wake]);
        }
        frame.first(&[Op::Unlock(lock)]);
    }

    pub(crate) fn sync_op(&mut self, host: &mut Host, v: usize, op: Op) {
        let current = self.cpus[v].current;
        match op {
            Op::MutexTake(at) | Op::MutexWait(at) | Op::MutexDrop(at) | Op::MutexWake(at) => {
                self.mutex_op(host, v, op, at as usize);
            }
            Op::MutexSpin(at) => self.mutex_spin(host, v, at as usize),
            Op::BarrierArrive { barrier, spin_ns } => self.arrive(host, v, barrier, spin_ns),
            Op::BarrierSleep { barrier, round } => {
                let known = &mut self.barriers[barrier as usize];
                let lock = known.lock;
                if known.round == round {
                    known.sleepers.push_back(current);
                    self.tasks[current as usize].state = State::Sleeping;
                    self.frame(v).first(&[Op::Unlock(lock), Op::Schedule, Op::ToUser]);
                } else {
                    self.leave_and_wake(v, lock, std::iter::empty());
                }
            }
            Op::BarrierWake(barrier) => {
                let known = &mut self.barriers[barrier as usize];
                let (lock, woken) = (known.lock, std::mem::take(&mut known.leaving));
                self.leave_and_wake(v, lock, woken.into_iter());
            }
            Op::ConditionTake { condition, other } => {
                let after = self.takes_after(current, other);
                let known = &mut self.conditions[condition as usize];
                if !known.take(after) {
                    let (lock, round) = (known.lock, known.round);
                    self.enter_locked(v, lock, Op::ConditionWait { condition, round, other });
                }
            }
            Op::ConditionWait { condition, round, other } => {
                let after = self.takes_after(current, other);
                let known = &mut self.conditions[condition as usize];
                let lock = known.lock;
                // What was signalled is another's if a broadcast was for this one.
                if known.round != round || known.take(after) {
                    self.leave_and_wake(v, lock, std::iter::empty());
                } else {
                    known.waiters.push_back(current);
                    self.sleep_locked(v, lock, op);
                }
            }
            Op::ConditionGive { condition, all } => {
                let known = &mut self.conditions[condition as usize];
                if all {
                    known.round += 1;
                } else {
                    self.signalled += 1;
                    self.tasks[current as usize].signalled = self.signalled;
                    known.signals.push_back(self.signalled);
                }
                if !known.waiters.is_empty() {
                    let lock = known.lock;
                    self.enter_locked(v, lock, Op::ConditionWake { condition, all });
                }
            }
            Op::ConditionWake { condition, all } => {
                let known = &mut self.conditions[condition as usize];
                let (lock, count) = (known.lock, if all { usize::MAX } else { 1 });
                let rest = known.waiters.split_off(known.waiters.len().min(count));
                let woken = std::mem::replace(&mut known.waiters, rest);
                self.leave_and_wake(v, lock, woken.into_iter());
            }
            Op::PipePut(at) | Op::PipePutDone(at) | Op::PipeGet(at) | Op::PipeGetDone(at) => {
                self.pipe_op(v, op, at as usize);
            }
            Op::Sleep(ns) => self.sleep(host, v, ns),
            Op::Io => self.io(host, v),
            Op::Yield => self.yield_task(host, v),
            _ => {}
        }
    }

    /// Signals up to this one are not for the task; those that count are numbered from 1.
    fn takes_after(&self, task: u32, other: bool) -> u64 {
        if other {
            self.tasks[task as usize].signalled
        } else {
            0
        }
    }

    /// Mutexes are numbered after the spin locks in what is reported.
    fn mutex_number(&self, at: usize) -> u32 {
        (self.locks.len() + at) as u32
    }

    pub(super) fn mutex_taken(&mut self, host: &mut Host, v: usize, at: usize, waited_ns: Ns) {
        let (vcpu, lock) = (self.vcpus[v].id, self.mutex_number(at));
        self.mutexes[at].owner = Some(self.cpus[v].current);
        self.mutexes[at].since_ns = host.now_ns();
        host.tell(|| What::LockTaken { vcpu, lock, sleeps: true, waited_ns });
    }

    fn mutex_op(&mut self, host: &mut Host, v: usize, op: Op, at: usize) {
        let current = self.cpus[v].current;
        let lock = self.mutexes[at].lock;
        let (vcpu, number, now_ns) = (self.vcpus[v].id, self.mutex_number(at), host.now_ns());
        match op {
            Op::MutexTake(_) if self.mutexes[at].owner.is_none() => self.mutex_taken(host, v, at, 0),
            Op::MutexTake(name) => {
                host.tell(|| What::LockWait { vcpu, lock: number });
                self.tasks[current as usize].waits_since_ns = now_ns;
                if self.may_spin(v, at) {
                    let syscall = Op::Work(self.guest.costs.syscall_ns);
                    self.frame(v).first(&[Op::ToKernel, syscall, Op::MutexSpin(name)]);
                } else {
                    self.enter_locked(v, lock, Op::MutexWait(name));
                }
            }
            Op::MutexWait(_) if self.mutexes[at].owner.is_none_or(|owner| owner == current) => {
                let since_ns = self.tasks[current as usize].waits_since_ns;
                self.mutexes[at].waiters.retain(|task| *task != current);
                self.mutex_taken(host, v, at, now_ns - since_ns);
                self.leave_and_wake(v, lock, std::iter::empty());
            }
            Op::MutexWait(_) => {
                let since_ns = self.tasks[current as usize].waits_since_ns;
                let mutex = &mut self.mutexes[at];
                if !mutex.waiters.contains(&current) {
                    mutex.waiters.push_back(current);
                }
                let is_first = mutex.waiters.front() == Some(&current);
                mutex.handoff |= mutex.spins && is_first && now_ns - since_ns >= HANDOFF_NS;
                self.sleep_locked(v, lock, op);
            }
            Op::MutexDrop(name) => {
                let mutex = &mut self.mutexes[at];
                if mutex.owner != Some(current) {
                    return;
                }
                // Handed to a sleeper it has an owner at once.
                let to_sleeper = std::mem::take(&mut mutex.handoff);
                mutex.owner = mutex.waiters.front().copied().filter(|_| to_sleeper);
                let (held_ns, waited_for) = (now_ns - mutex.since_ns, !mutex.waiters.is_empty());
                host.tell(|| What::LockReleased { vcpu, lock: number, sleeps: true, held_ns });
                if waited_for {
                    self.enter_locked(v, lock, Op::MutexWake(name));
                }
                self.look_at_owners();
            }
            Op::MutexWake(_) => {
                let mutex = &mut self.mutexes[at];
                let woken =
                    if mutex.spins { mutex.waiters.front().copied() } else { mutex.waiters.pop_front() };
                self.leave_and_wake(v, lock, woken.into_iter());
            }
            _ => {}
        }
    }

    fn arrive(&mut self, host: &mut Host, v: usize, barrier: u32, spin_ns: Ns) {
        let current = self.cpus[v].current;
        let known = &mut self.barriers[barrier as usize];
        let round = known.round;
        known.come += 1;
        if known.come < known.parties {
            if spin_ns == 0 {
                return self.waits_in_vain(v, barrier, round);
            }
            known.spinners.push(current);
            let limit = Some(spin_ns).filter(|spin_ns| *spin_ns != Ns::MAX);
            return self.begin_spin(host, v, Until::Passed { barrier, round }, Spin::Barrier, limit);
        }
        known.come = 0;
        known.round += 1;
        known.leaving.append(&mut known.sleepers);
        let (lock, wakes) = (known.lock, !known.leaving.is_empty());
        for task in std::mem::take(&mut known.spinners) {
            let on = self.tasks[task as usize].cpu as usize;
            if self.cpus[on].current == task {
                self.poke(on);
            }
        }
        if wakes {
            self.enter_locked(v, lock, Op::BarrierWake(barrier));
        }
    }

    /// Who has spun for as long as it may sleeps, or goes on as if it had never come.
    pub(crate) fn waits_in_vain(&mut self, v: usize, barrier: u32, round: u64) {
        let current = self.cpus[v].current;
        let known = &mut self.barriers[barrier as usize];
        debug_assert_eq!(known.round, round, "nobody has waited in vain whose round is over");
        if known.gives_up {
            known.come -= 1;
            known.spinners.retain(|task| *task != current);
            return;
        }
        let lock = known.lock;
        self.enter_locked(v, lock, Op::BarrierSleep { barrier, round });
    }

    fn pipe_op(&mut self, v: usize, op: Op, at: usize) {
        let current = self.cpus[v].current;
        let copy = Op::Work(self.guest.costs.copy_ns);
        let pipe = &mut self.pipes[at];
        let lock = pipe.lock;
        match op {
            Op::PipePut(_) if pipe.filled >= pipe.capacity => {
                pipe.writers.push_back(current);
                self.sleep_locked(v, lock, op);
            }
            Op::PipePut(name) => self.frame(v).first(&[copy, Op::PipePutDone(name)]),
            Op::PipePutDone(_) => {
                pipe.filled += 1;
                let reader = pipe.readers.pop_front();
                self.leave_with(v, lock, reader.into_iter().map(Op::WakeSync));
            }
            Op::PipeGet(_) if pipe.filled == 0 => {
                pipe.readers.push_back(current);
                self.sleep_locked(v, lock, op);
            }
            Op::PipeGet(name) => self.frame(v).first(&[copy, Op::PipeGetDone(name)]),
            _ => {
                pipe.filled -= 1;
                let low = pipe.filled <= pipe.low_water;
                let writers = if low { std::mem::take(&mut pipe.writers) } else { VecDeque::new() };
                self.leave_with(v, lock, writers.into_iter().map(Op::WakeSync));
            }
        }
    }
}
