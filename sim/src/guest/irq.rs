// SPDX-License-Identifier: GPL-2.0-only
//! Interrupts in the guest: handlers, calls of functions on other vCPUs, timers.

use std::collections::VecDeque;

use crate::kvm::vcpu::Then;
use crate::kvm::{exit, vector};
use crate::observe::{Spin, What};
use crate::Host;

use super::config::SendIpi;
use super::ops::{Doing, Op, Until};
use super::task::State;
use super::vm::Vm;

/// vCPUs of a cluster of the x2APIC.
const CLUSTER: u32 = 16;
/// KVM_IPI_CLUSTER_SIZE
const PV_RANGE: u32 = 128;

/// How many of these receivers are reached at once, and whether by hypercall.
fn at_once(how: SendIpi, receivers: &VecDeque<u32>, others: usize) -> (usize, bool) {
    let Some(first) = receivers.front().copied() else { return (0, false) };
    let all = receivers.len();
    let within = |near: &dyn Fn(u32) -> bool| receivers.iter().take_while(|to| near(**to)).count();
    match how {
        SendIpi::Hypercall => (all, true),
        SendIpi::Cluster => (within(&|to| to / CLUSTER == first / CLUSTER), false),
        SendIpi::Shorthand | SendIpi::KvmPv if all == others => (all, false),
        SendIpi::KvmPv if all > 1 => (within(&|to| to.wrapping_sub(first) < PV_RANGE), true),
        SendIpi::Each | SendIpi::Shorthand | SendIpi::KvmPv => (1, false),
    }
}

impl Vm {
    /// The handler begins.
    pub(crate) fn handle_interrupt(&mut self, host: &mut Host, v: usize, vector: u8) {
        self.cpus[v].in_irq = true;
        self.tell_mode(host, v);
        let before_ns = self.guest.costs.irq_ns / 2;
        let after = Op::Work(self.guest.costs.irq_ns - before_ns);
        let before = Op::Work(before_ns);
        let frame = &mut self.cpus[v].irq;
        match vector {
            vector::CALL | vector::TLB => frame.first(&[before, Op::Answer(vector), after]),
            vector::WAKE => frame.first(&[before, Op::TakeWakes, after]),
            vector::TIMER => frame.first(&[before, Op::Timers, after]),
            vector::IO => frame.first(&[before, Op::IoDone, after]),
            _ => frame.first(&[before, after]),
        }
    }

    /// The handler has ended. What it interrupted goes on, unless another task is to run and may (preempt_schedule_irq(),
    /// irqentry_exit_to_user_mode()).
    pub(crate) fn interrupt_return(&mut self, host: &mut Host, v: usize) {
        let cpu = &mut self.cpus[v];
        cpu.in_irq = false;
        let (current, may) = (cpu.current, cpu.no_preempt == 0 && cpu.irq_off == 0);
        let kernel = self.tasks[current as usize].kernel;
        if may && self.is_idle_task(current) {
            // Idle looks for work at once.
            if self.cpus[v].need_resched {
                self.tasks[current as usize].frame.doing = Doing::Nothing;
            }
        } else if may && self.goes_first(v, kernel) {
            let task = &mut self.tasks[current as usize];
            if matches!(task.saved, Doing::Nothing) {
                task.saved = std::mem::take(&mut task.frame.doing);
                task.kernel = true;
                task.frame.first(&[Op::Schedule, Op::Return { kernel }]);
            }
        }
        self.tell_mode(host, v);
    }

    pub(crate) fn interrupt_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::Timers => {
                let cpu = &mut self.cpus[v];
                if std::mem::take(&mut cpu.tick_due) {
                    let work = Op::Work(self.guest.costs.tick_work_ns);
                    let steps =
                        [Op::LockRq, work, Op::Tick, Op::UnlockRq, Op::KickIdle, Op::SetTimer, Op::Timers];
                    cpu.irq.first(&steps);
                } else if std::mem::take(&mut cpu.slice_due) {
                    cpu.irq.first(&[Op::LockRq, Op::SliceEnd, Op::UnlockRq, Op::TellSlice, Op::Timers]);
                } else if let Some(task) = cpu.expired.pop_front() {
                    cpu.irq.first(&[Op::Wake(task), Op::Timers]);
                }
            }
            Op::Tick => self.tick(host, v),
            Op::KickIdle => self.kick_idle(v),
            Op::SliceEnd => self.slice_ends(host, v),
            Op::TellSlice => self.tell_slice(host, v),
            Op::SetTimer => {
                self.cpus[v].slice_untold = false;
                if !self.guest.periodic_tick {
                    self.begin_exit(host, v, exit::TIMER, self.kvm.costs.timer_ns, Then::Done);
                }
            }
            Op::IoDone => {
                let cpu = &mut self.cpus[v];
                if let Some(task) = cpu.io_done.pop_front() {
                    cpu.irq.first(&[Op::Wake(task), Op::IoDone]);
                }
            }
            Op::Answer(vector) => {
                let Some(to) = self.cpus[v].calls[usize::from(vector)].pop_front() else { return };
                let flushes = vector == vector::TLB && self.cpus[v].space == self.cpus[to as usize].space;
                let flush_ns = if flushes { self.guest.costs.flush_ns } else { 0 };
                self.cpus[v].irq.first(&[Op::Work(flush_ns), Op::Ack { to, vector }, Op::Answer(vector)]);
            }
            Op::Ack { to, vector } => {
                // The caller waits, so it still has the address space that it flushes.
                if vector == vector::TLB && self.told_to_flush(v, self.cpus[to as usize].space) {
                    let id = self.vcpus[v].id;
                    host.tell(|| What::TlbFlushed { vcpu: id });
                }
                let caller = &mut self.cpus[to as usize];
                caller.answers_left -= 1;
                if caller.answers_left == 0 {
                    self.poke(to as usize);
                }
            }
            _ => {}
        }
    }

    /// Queue a call for each of these vCPUs, as smp_call_function_many_cond() does: only who has none queued yet needs an interrupt.
    pub(crate) fn call_all(&mut self, v: usize, targets: &[u32], vector: u8) {
        let level = usize::from(self.cpus[v].in_irq);
        self.cpus[v].answers_left += targets.len() as u32;
        self.cpus[v].called.clear();
        for to in targets {
            let calls = &mut self.cpus[*to as usize].calls[usize::from(vector)];
            let first = calls.is_empty();
            calls.push_back(v as u32);
            if first {
                self.cpus[v].receivers[level].push_back(*to);
                self.cpus[v].called.push(*to);
            }
        }
    }

    pub(crate) fn call_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::SendIpis(vector) => {
                let others = self.cpus.len() - 1;
                let level = usize::from(self.cpus[v].in_irq);
                let receivers = &mut self.cpus[v].receivers[level];
                let (count, by_hypercall) = at_once(self.guest.send_ipi, receivers, others);
                if count == 0 {
                    return;
                }
                self.vcpus[v].ipi_to.extend(receivers.drain(..count));
                if !receivers.is_empty() {
                    self.frame(v).first(&[Op::SendIpis(vector)]);
                }
                self.send_ipis(host, v, vector, by_hypercall);
            }
            // One alone is called in another way (send_call_function_single_ipi()).
            Op::SchedYield if self.kvm.sched_yield && self.cpus[v].called.len() > 1 => {
                // idle_cpu(): since 9ee83635d872, 5.17.
                let preempted = |other: &&u32| {
                    let other = **other as usize;
                    self.vcpus[other].seen_preempted && !self.is_idle(other)
                };
                if let Some(to) = self.cpus[v].called.iter().find(preempted).copied() {
                    let hypercall_ns = self.kvm.costs.hypercall_ns;
                    self.begin_exit(host, v, exit::HYPERCALL, hypercall_ns, Then::Yield(to));
                }
            }
            Op::WaitAnswers(vector) if self.cpus[v].answers_left > 0 => {
                let why = if vector == vector::TLB { Spin::Shootdown } else { Spin::IpiAnswer };
                self.begin_spin(host, v, Until::Answered, why, None);
            }
            Op::Call { same_space } => {
                let cpu = &self.cpus[v];
                let space = cpu.space;
                let wanted = |other: &u32| {
                    let at = &self.cpus[*other as usize];
                    *other as usize != v && (!same_space || at.space == space && !at.lazy)
                };
                let targets: Vec<u32> = (0..self.cpus.len() as u32).filter(wanted).collect();
                self.cpus[v].no_preempt += 1;
                self.call_all(v, &targets, vector::CALL);
                self.frame(v).first(&[
                    Op::SendIpis(vector::CALL),
                    Op::SchedYield,
                    Op::WaitAnswers(vector::CALL),
                    Op::CallEnd,
                ]);
            }
            Op::CallEnd => {
                self.cpus[v].no_preempt -= 1;
                self.frame(v).first(&[Op::Preempt]);
            }
            _ => {}
        }
    }

    /// The tick's time has come.
    pub(crate) fn tick_fired(&mut self, host: &mut Host, v: usize, generation: u32) {
        if self.cpus[v].tick.fires(generation) {
            self.cpus[v].tick_due = true;
            self.deliver(host, v, vector::TIMER, None);
        }
    }

    /// A sleep's time has come, or a device has finished.
    pub(crate) fn task_fired(&mut self, host: &mut Host, task: u32, vector: u8, generation: u32) {
        let known = &mut self.tasks[task as usize];
        if !known.timer.fires(generation) {
            return;
        }
        debug_assert!(known.state != State::Dead);
        let v = known.timer_cpu as usize;
        if vector == vector::IO {
            self.cpus[v].io_done.push_back(task);
        } else {
            self.cpus[v].expired.push_back(task);
        }
        self.deliver(host, v, vector, None);
    }
}
