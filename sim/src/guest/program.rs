// SPDX-License-Identifier: GPL-2.0-only
//! From a program's instructions to operations.

use crate::observe::What;
use crate::prefetch::fetch;
use crate::time::Ns;
use crate::workload::code::Inst;
use crate::Host;

use super::ops::Op;
use super::task::State;
use super::vm::Vm;

impl Vm {
    /// The task has done all that it had to: the next instruction of its program.
    pub(crate) fn next_step(&mut self, host: &mut Host, v: usize) {
        let now_ns = host.now_ns();
        let costs = &self.guest.costs;
        let (kernel, syscall) = (Op::ToKernel, Op::Work(costs.syscall_ns));
        let page_ns = costs.page_ns;
        // The run queues' locks come first.
        let lock_base = self.cpus.len() as u32;
        let task = &mut self.tasks[self.cpus[v].current as usize];
        let inst = task.code.get(task.at).copied();
        task.at += 1;
        let rng = &mut task.rng;
        let frame = &mut task.frame;
        match inst {
            None => frame.first(&[kernel, syscall, Op::Exit]),
            Some(Inst::Compute(work)) => frame.first(&[Op::Work(work.draw(rng))]),
            Some(Inst::Kernel(work)) => frame.first(&[kernel, syscall, Op::Work(work.draw(rng)), Op::ToUser]),
            Some(Inst::Lock { lock, hold, irqs_off }) => {
                let (lock, work) = (lock_base + lock, Op::Work(hold.draw(rng)));
                fetch(&self.locks[lock as usize]);
                let (take, leave) = (Op::Lock(lock), Op::Unlock(lock));
                if irqs_off {
                    frame.first(&[kernel, syscall, Op::IrqOff, take, work, leave, Op::IrqOn, Op::ToUser]);
                } else {
                    frame.first(&[kernel, syscall, take, work, leave, Op::ToUser]);
                }
            }
            Some(Inst::Acquire(mutex)) => frame.first(&[Op::MutexTake(mutex)]),
            Some(Inst::Release(mutex)) => frame.first(&[Op::MutexDrop(mutex)]),
            Some(Inst::Shootdown { pages, freed }) => {
                let work = Op::Work(page_ns * u64::from(pages));
                frame.first(&[kernel, syscall, work, Op::Flush { freed }, Op::ToUser]);
            }
            Some(Inst::Touch { memory, pages }) => frame.first(&[Op::Touch { memory, page: 0, end: pages }]),
            Some(Inst::Barrier { barrier, spin_ns }) => {
                frame.first(&[Op::BarrierArrive { barrier, spin_ns }])
            }
            Some(Inst::Send(pipe)) => {
                let lock = self.pipes[pipe as usize].lock;
                frame.first(&[kernel, syscall, Op::Lock(lock), Op::PipePut(pipe)]);
            }
            Some(Inst::Recv(pipe)) => {
                let lock = self.pipes[pipe as usize].lock;
                frame.first(&[kernel, syscall, Op::Lock(lock), Op::PipeGet(pipe)]);
            }
            Some(Inst::Wait { condition, other }) => frame.first(&[Op::ConditionTake { condition, other }]),
            Some(Inst::Signal { condition, all }) => frame.first(&[Op::ConditionGive { condition, all }]),
            Some(Inst::Io { device, host }) => {
                task.io_ns = (device.draw(rng), host.draw(rng));
                frame.first(&[kernel, syscall, Op::Io, Op::ToUser]);
            }
            Some(Inst::Sleep(time)) => {
                frame.first(&[kernel, syscall, Op::Sleep(time.draw(rng)), Op::ToUser]);
            }
            Some(Inst::Period(time_ns)) => {
                // An activation that is late does not move those after it.
                task.period_since_ns = task.period_since_ns.saturating_add(time_ns);
                let sleep = Op::Sleep(task.period_since_ns.saturating_sub(now_ns));
                frame.first(&[kernel, syscall, sleep, Op::ToUser]);
            }
            Some(Inst::Until(at_ns)) => {
                frame.first(&[kernel, syscall, Op::Sleep(at_ns.saturating_sub(now_ns)), Op::ToUser]);
            }
            Some(Inst::Started) => {
                (task.period_since_ns, task.unit_since_ns) = (now_ns, now_ns);
                self.program_starts(host, v);
            }
            Some(Inst::Yield) => frame.first(&[kernel, syscall, Op::Yield, Op::ToUser]),
            Some(Inst::Call { same_space }) => {
                frame.first(&[kernel, syscall, Op::Call { same_space }, Op::ToUser]);
            }
            Some(Inst::Done(kind)) => frame.first(&[Op::Done(kind)]),
            Some(Inst::Loop { times, end }) => {
                if times == 0 {
                    task.at = end as usize + 1;
                } else {
                    task.loops.push(times);
                }
            }
            Some(Inst::End { start }) => {
                if let Some(left) = task.loops.last_mut() {
                    if *left != u64::MAX {
                        *left -= 1;
                    }
                    if *left > 0 {
                        task.at = start as usize + 1;
                    } else {
                        task.loops.pop();
                    }
                }
            }
            Some(Inst::Round { pool, end }) => match &mut self.pools[pool as usize].left {
                0 => task.at = end as usize,
                left => *left -= 1,
            },
            Some(Inst::Again { start }) => task.at = start as usize,
        }
    }

    /// The first of its tasks is there.
    fn program_starts(&mut self, host: &mut Host, v: usize) {
        let vcpu = self.vcpus[v].id;
        if let Some(program) = self.program.as_mut().filter(|program| !program.has_started) {
            program.has_started = true;
            host.program_starts(vcpu);
        }
    }

    pub(crate) fn unit_done(&mut self, host: &mut Host, v: usize, kind: u16) {
        let (vcpu, now_ns) = (self.vcpus[v].id, host.now_ns());
        let task = &mut self.tasks[self.cpus[v].current as usize];
        let took_ns = now_ns - std::mem::replace(&mut task.unit_since_ns, now_ns);
        host.core.programs.step(vcpu.vm, kind);
        host.tell(|| What::Progress { vcpu, kind, took_ns });
    }

    pub(crate) fn task_ends(&mut self, host: &mut Host, v: usize) {
        let vcpu = self.vcpus[v].id;
        let task = &mut self.tasks[self.cpus[v].current as usize];
        task.state = State::Dead;
        // What is behind it is for a program that begins anew.
        task.frame.first(&[Op::Schedule, Op::ToUser]);
        let background = task.background;
        let Some(program) = &mut self.program else { return };
        let Some(left) = program.left.as_mut().filter(|_| !background) else { return };
        *left -= 1;
        if *left > 0 {
            return;
        }
        *left = program.again;
        let again = program.again > 0;
        if !std::mem::replace(&mut program.has_ended, true) {
            host.program_ends(vcpu);
        }
        if again {
            self.begin_again(v, host.now_ns());
        }
    }

    /// The program's last task has ended: it wakes the others and is the first of the next time.
    fn begin_again(&mut self, v: usize, now_ns: Ns) {
        // Nobody else has the objects now, except tasks that never end: what those wait for, or have put there, stays.
        for pipe in self.pipes.iter_mut().filter(|pipe| pipe.readers.is_empty() && pipe.writers.is_empty()) {
            pipe.filled = 0;
        }
        for condition in self.conditions.iter_mut().filter(|condition| condition.waiters.is_empty()) {
            condition.signals.clear();
        }
        for pool in &mut self.pools {
            pool.left = pool.all;
        }
        let current = self.cpus[v].current;
        let first = self.cpus.len() as u32;
        // Of those that the program does not wait for the ones that have ended as well; the others have never stopped.
        let begins = |task: &u32| {
            let task = &self.tasks[*task as usize];
            !task.background || task.state == State::Dead
        };
        let others: Vec<u32> = (first..self.tasks.len() as u32).filter(begins).collect();
        for task in &others {
            let known = &mut self.tasks[*task as usize];
            known.at = 0;
            known.loops.clear();
            (known.period_since_ns, known.unit_since_ns) = (now_ns, now_ns);
            known.state = if *task == current { State::Runnable } else { State::Sleeping };
        }
        let frame = self.frame(v);
        frame.pop();
        for task in others.iter().filter(|task| **task != current) {
            frame.first(&[Op::Wake(*task)]);
        }
    }
}
