// SPDX-License-Identifier: GPL-2.0-only
//! From a program as its file says it to the code for one VM.

use std::collections::BTreeMap;

use crate::time::Ns;

use super::code::{BarrierUse, Code, Inst, MutexUse, PipeUse, TaskCode};
use super::program::{Metric, Program, Spin, Step, Thread, Times, TASKS_MAX};

/// Messages that a pipe holds if nothing is said: 16 pages of one message each (PIPE_DEF_BUFFERS).
const PIPE_CAPACITY: u32 = 16;

/// Instructions of all tasks together: what a model may take of the memory.
const INSTS_MAX: usize = 1 << 20;

/// What the file says about an object: under its name, or under one with `{i}` in the place of its number.
fn spec<'a, T>(specs: &'a BTreeMap<String, T>, name: &str) -> Option<&'a T> {
    let fits = |key: &str| {
        let Some((before, after)) = key.split_once("{i}") else { return false };
        let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit()))
    };
    specs.get(name).or_else(|| specs.iter().find(|(key, _)| fits(key)).map(|(_, found)| found))
}

struct Scope<'a> {
    program: &'a Program,
    copy: u32,
    index: u32,
    count: u32,
    /// Where its rounds come from, if it has them together with others.
    pool: Option<u32>,
}

impl Scope<'_> {
    fn plain(&self, name: &str) -> String {
        let next = (self.index + 1) % self.count.max(1);
        name.replace("{i}", &self.index.to_string()).replace("{i+1}", &next.to_string())
    }

    /// A name's object is the copy's own.
    fn name(&self, name: &str) -> String {
        let name = self.plain(name);
        if self.program.copies == 1 {
            name
        } else {
            format!("{}/{name}", self.copy)
        }
    }
}

impl Code {
    /// The code of a program that starts at `start_ns`. An error begins with the field.
    pub fn new(program: &Program, vcpus: u32, start_ns: Ns) -> Result<Self, String> {
        let mut code = Self { unit_value: 1.0, unit_kind: u16::MAX, ..Self::default() };
        let mut insts = 0;
        for copy in 0..program.copies {
            let shared = code.spaces;
            code.spaces += 1;
            for (at, thread) in program.threads.iter().enumerate() {
                let count = thread.count.of(vcpus);
                let pool = code.pool(thread);
                for index in 0..count {
                    if code.tasks.len() as u64 >= TASKS_MAX {
                        return Err(format!("thread[{at}].count: with those before it more than {TASKS_MAX} tasks; allowed: fewer"));
                    }
                    let scope = Scope { program, copy, index, count, pool };
                    code.add(&scope, thread, shared, (vcpus, start_ns));
                    insts += code.tasks.last().map_or(0, |task| task.code.len());
                    if insts > INSTS_MAX {
                        return Err(format!(
                            "thread[{at}].steps: of all tasks together more than {INSTS_MAX}; allowed: fewer"
                        ));
                    }
                }
            }
        }
        if let Metric::Rate { done, value, .. } = &program.metric {
            let Some(kind) = code.kinds.known.get(done) else {
                return Err(format!(
                    "metric.rate.done: no step is {done:?}; allowed: the name of a `done` step"
                ));
            };
            code.unit_kind = *kind as u16;
            code.unit_value = *value;
        }
        if code.kinds.list.len() >= usize::from(u16::MAX) {
            return Err("thread: too many names of `done` steps; allowed: 65534".into());
        }
        Ok(code)
    }

    fn add(&mut self, scope: &Scope<'_>, thread: &Thread, shared: u32, (vcpus, start_ns): (u32, Ns)) {
        let mut insts = match start_ns {
            0 => Vec::new(),
            _ => vec![Inst::Until(start_ns), Inst::Started],
        };
        let mut meets = Vec::new();
        self.steps(scope, &thread.first, &mut insts, &mut meets);
        match (scope.pool, thread.times) {
            (Some(pool), _) => self.rounds(scope, pool, &thread.steps, &mut insts, &mut meets),
            (None, Times::Fixed(all)) if thread.divide => {
                let (index, count) = (u64::from(scope.index), u64::from(scope.count.max(1)));
                let part = Times::Fixed(all / count + u64::from(index < all % count));
                self.repeat(scope, part, &thread.steps, &mut insts, &mut meets);
            }
            (None, times) => self.repeat(scope, times, &thread.steps, &mut insts, &mut meets),
        }
        for barrier in meets {
            let barrier = &mut self.barriers[barrier as usize];
            barrier.parties += u32::from(!barrier.fixed);
        }
        let space = if thread.process {
            self.spaces += 1;
            self.spaces - 1
        } else {
            shared
        };
        let background = thread.background || thread.times == Times::Forever;
        self.ends |= !background;
        let copy = if scope.program.copies == 1 { String::new() } else { format!("{}/", scope.copy) };
        self.tasks.push(TaskCode {
            name: format!("{copy}{}{}", thread.name, scope.index).into(),
            code: insts.into(),
            space,
            pin: thread.vcpu.or(thread.pin.then_some(scope.index)).map(|vcpu| vcpu % vcpus.max(1)),
            background,
        });
    }

    fn repeat(
        &mut self,
        scope: &Scope<'_>,
        times: Times,
        steps: &[Step],
        insts: &mut Vec<Inst>,
        meets: &mut Vec<u32>,
    ) {
        let times = match times {
            Times::Fixed(1) => return self.steps(scope, steps, insts, meets),
            Times::Fixed(times) => times,
            Times::Forever => u64::MAX,
        };
        let start = insts.len();
        insts.push(Inst::Loop { times, end: 0 });
        self.steps(scope, steps, insts, meets);
        insts[start] = Inst::Loop { times, end: insts.len() as u32 };
        insts.push(Inst::End { start: start as u32 });
    }

    /// The pool of the rounds that a thread's tasks have together.
    fn pool(&mut self, thread: &Thread) -> Option<u32> {
        match thread.times {
            Times::Fixed(all) if thread.share => {
                self.pools.push(all);
                Some(self.pools.len() as u32 - 1)
            }
            _ => None,
        }
    }

    /// One round after another, as long as there are any in the pool.
    fn rounds(
        &mut self,
        scope: &Scope<'_>,
        pool: u32,
        steps: &[Step],
        insts: &mut Vec<Inst>,
        meets: &mut Vec<u32>,
    ) {
        let start = insts.len();
        insts.push(Inst::Round { pool, end: 0 });
        self.steps(scope, steps, insts, meets);
        insts.push(Inst::Again { start: start as u32 });
        insts[start] = Inst::Round { pool, end: insts.len() as u32 };
    }

    fn steps(&mut self, scope: &Scope<'_>, steps: &[Step], insts: &mut Vec<Inst>, meets: &mut Vec<u32>) {
        for step in steps {
            let inst = match step {
                Step::Compute(work) => Inst::Compute(*work),
                Step::Kernel(work) => Inst::Kernel(*work),
                Step::Lock { name, hold, irqs_off } => {
                    let lock = self.locks.number(scope.name(name));
                    Inst::Lock { lock, hold: *hold, irqs_off: *irqs_off }
                }
                Step::Acquire(name) => Inst::Acquire(self.mutex(scope, name)),
                Step::Release(name) => Inst::Release(self.mutex(scope, name)),
                Step::Mutex { name, steps } => {
                    let mutex = self.mutex(scope, name);
                    insts.push(Inst::Acquire(mutex));
                    self.steps(scope, steps, insts, meets);
                    Inst::Release(mutex)
                }
                Step::Shootdown { pages, freed } => Inst::Shootdown { pages: *pages, freed: *freed },
                Step::Touch { name, pages } => {
                    Inst::Touch { memory: self.memories.number(scope.name(name)), pages: *pages }
                }
                Step::Barrier { name, spin } => {
                    let barrier = self.barrier(scope, name);
                    if !meets.contains(&barrier) {
                        meets.push(barrier);
                    }
                    let spin_ns = match spin {
                        Spin::Not => 0,
                        Spin::For(span) => span.0,
                        Spin::Forever => Ns::MAX,
                    };
                    Inst::Barrier { barrier, spin_ns }
                }
                Step::Send(name) => Inst::Send(self.pipe(scope, name)),
                Step::Recv(name) => Inst::Recv(self.pipe(scope, name)),
                Step::Wait(name) => {
                    Inst::Wait { condition: self.conditions.number(scope.name(name)), other: false }
                }
                Step::WaitOther(name) => {
                    Inst::Wait { condition: self.conditions.number(scope.name(name)), other: true }
                }
                Step::Signal(name) => {
                    Inst::Signal { condition: self.conditions.number(scope.name(name)), all: false }
                }
                Step::Broadcast(name) => {
                    Inst::Signal { condition: self.conditions.number(scope.name(name)), all: true }
                }
                Step::Io { device, host } => Inst::Io { device: *device, host: *host },
                Step::Sleep(time) => Inst::Sleep(*time),
                Step::Period(time) => Inst::Period(time.0),
                Step::Yield {} => Inst::Yield,
                Step::Call { same_space } => Inst::Call { same_space: *same_space },
                Step::Done(kind) => Inst::Done(self.kinds.number(kind.clone()) as u16),
                Step::Repeat { times, steps } => {
                    self.repeat(scope, *times, steps, insts, meets);
                    continue;
                }
            };
            insts.push(inst);
        }
    }

    fn mutex(&mut self, scope: &Scope<'_>, name: &str) -> u32 {
        let mutex = self.mutex_names.number(scope.name(name));
        if mutex as usize == self.mutexes.len() {
            let found = spec(&scope.program.mutexes, &scope.plain(name));
            self.mutexes.push(MutexUse { spins: found.is_some_and(|found| found.spins) });
        }
        mutex
    }

    fn barrier(&mut self, scope: &Scope<'_>, name: &str) -> u32 {
        let barrier = self.barrier_names.number(scope.name(name));
        if barrier as usize == self.barriers.len() {
            let found = spec(&scope.program.barriers, &scope.plain(name));
            let parties = found.and_then(|found| found.parties);
            self.barriers.push(BarrierUse {
                parties: parties.unwrap_or(0),
                pause: found.is_some_and(|found| found.pause),
                pause_every_ns: found.and_then(|found| found.pause_every).map_or(0, |every| every.0),
                gives_up: found.is_some_and(|found| found.gives_up),
                fixed: parties.is_some(),
            });
        }
        barrier
    }

    fn pipe(&mut self, scope: &Scope<'_>, name: &str) -> u32 {
        let pipe = self.pipe_names.number(scope.name(name));
        if pipe as usize == self.pipes.len() {
            let found = spec(&scope.program.pipes, &scope.plain(name));
            let capacity = found.map_or(PIPE_CAPACITY, |found| found.capacity);
            let low_water = found.and_then(|found| found.low_water).unwrap_or(capacity - 1);
            self.pipes.push(PipeUse { capacity, low_water });
        }
        pipe
    }
}

#[cfg(test)]
mod tests {
    use super::super::dist::Dist;
    use super::*;

    fn code(text: &str, vcpus: u32) -> Code {
        Code::new(&super::super::parse("test", text).unwrap(), vcpus, 0).unwrap()
    }

    #[test]
    fn loops_become_flat_and_names_numbers() {
        let text = "
            name = 'x'
            copies = 2
            pipes = { 'p{i}' = { capacity = 4 } }
            [[thread]]
            name = 'a'
            count = 2
            times = 3
            first = [{ wait = 'go' }]
            steps = [{ compute = '1us' }, { repeat = { times = 'forever', steps = [{ send = 'p{i}' }] } }]
            [[thread]]
            name = 'b'
            count = 'vcpus-1'
            process = true
            steps = [{ barrier = { name = 'meet' } }]";
        let code = code(text, 4);
        assert_eq!(code.tasks.len(), 2 * (2 + 3));
        assert_eq!(
            &code.tasks[1].code[..],
            [
                Inst::Wait { condition: 0, other: false },
                Inst::Loop { times: 3, end: 6 },
                Inst::Compute(Dist::fixed(1_000)),
                Inst::Loop { times: u64::MAX, end: 5 },
                Inst::Send(1),
                Inst::End { start: 3 },
                Inst::End { start: 1 },
            ]
        );
        assert_eq!(&*code.tasks[6].name, "1/a1");
        assert_eq!(code.pipes, [PipeUse { capacity: 4, low_water: 3 }; 4]);
        assert_eq!(
            code.barriers,
            [BarrierUse { parties: 3, pause: false, pause_every_ns: 0, gives_up: false, fixed: false }; 2]
        );
        let spaces: Vec<u32> = code.tasks.iter().map(|task| task.space).collect();
        assert_eq!(spaces, [0, 0, 1, 2, 3, 4, 4, 5, 6, 7]);
    }
    #[test]
    fn rounds_come_from_a_pool_or_are_divided() {
        let text = |how: &str| {
            format!(
                "name = 'x'\ncopies = 2\n[[thread]]\nname = 'a'\ncount = 2\ntimes = 5\n{how} = true\nsteps = [{{ compute = '1us' }}]"
            )
        };
        let shared = code(&text("share"), 1);
        assert_eq!(shared.pools, [5, 5], "each copy has its own");
        for (task, pool) in shared.tasks.iter().zip([0, 0, 1, 1]) {
            let round =
                [Inst::Round { pool, end: 3 }, Inst::Compute(Dist::fixed(1_000)), Inst::Again { start: 0 }];
            assert_eq!(task.code[..], round);
        }
        let divided = code(&text("divide"), 1);
        assert!(divided.pools.is_empty());
        let times: Vec<_> = divided.tasks.iter().map(|task| task.code[0]).collect();
        assert_eq!(times, [3, 2, 3, 2].map(|times| Inst::Loop { times, end: 2 }));
    }
}
