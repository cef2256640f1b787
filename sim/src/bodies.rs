// SPDX-License-Identifier: GPL-2.0-only
//! The simplest bodies: always busy, run and sleep in turn, run on demand, run and yield. For tests, benchmarks, and as an example of [`Bodies`].

use crate::body::{Bodies, Run};
use crate::events::Timer;
use crate::ids::TaskId;
use crate::observe::Stop;
use crate::time::{Ns, Progress, Speed};
use crate::Host;

/// What a task does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Always wants to run.
    Busy,
    /// Runs for so long, sleeps for so long, and again.
    Cycle { run_ns: Ns, sleep_ns: Ns },
    /// Runs for so long whenever somebody wakes it.
    OnDemand { run_ns: Ns },
    /// Runs for so long, offers its pCPU to others (sched_yield()), and again.
    Yields { run_ns: Ns },
}

impl Program {
    /// Its piece of work; 0: it has no end.
    fn run_ns(self) -> Ns {
        match self {
            Self::Busy => 0,
            Self::Cycle { run_ns, .. } | Self::OnDemand { run_ns } | Self::Yields { run_ns } => run_ns,
        }
    }
}

struct Body {
    program: Program,
    work: Progress,
    end: Timer,
    /// Of the present turn.
    speed: Speed,
    done: u64,
}

#[derive(Default)]
pub struct Simple {
    bodies: Vec<Option<Body>>,
}

const END: u8 = 0;
const WAKE: u8 = 1;

impl Simple {
    /// Say what a task does; its number comes from [`Host::spawn`].
    pub fn add(&mut self, task: TaskId, program: Program) {
        if self.bodies.len() <= task.index() {
            self.bodies.resize_with(task.index() + 1, || None);
        }
        self.bodies[task.index()] = Some(Body {
            program,
            work: Progress::new(program.run_ns()),
            end: Timer::default(),
            speed: Speed::FULL,
            done: 0,
        });
    }

    /// How many times the task has done its work.
    pub fn done(&self, task: TaskId) -> u64 {
        self.bodies.get(task.index()).and_then(Option::as_ref).map_or(0, |body| body.done)
    }

    fn get(&mut self, task: TaskId) -> Option<&mut Body> {
        self.bodies.get_mut(task.index()).and_then(Option::as_mut)
    }
}

impl Bodies for Simple {
    fn start(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let Some(body) = self.get(task).filter(|body| body.program != Program::Busy) else { return };
        body.speed = run.speed;
        let end_ns = body.work.start(run.from_ns, run.speed);
        host.set_timer(end_ns, task.0, END, body.end.arm());
    }

    fn speed(&mut self, host: &mut Host, task: TaskId, run: Run) {
        let now_ns = host.now_ns();
        if let Some(body) = self.get(task) {
            body.work.stop(now_ns);
        }
        self.start(host, task, run);
    }

    fn stop(&mut self, host: &mut Host, task: TaskId, why: Stop) {
        let now_ns = host.now_ns();
        let Some(body) = self.get(task) else { return };
        body.work.stop(now_ns);
        body.end.cancel();
        if why == Stop::Blocked {
            if let Program::Cycle { sleep_ns, .. } = body.program {
                host.set_timer(now_ns + sleep_ns, task.0, WAKE, 0);
            }
        }
    }

    fn event(&mut self, host: &mut Host, id: u32, what: u8, generation: u32) {
        let (task, now_ns) = (TaskId(id), host.now_ns());
        let Some(body) = self.get(task) else { return };
        if what == WAKE {
            host.wake(task, None);
        } else if body.end.fires(generation) {
            body.work.stop(now_ns);
            body.done += 1;
            body.work = Progress::new(body.program.run_ns());
            if let Program::Yields { .. } = body.program {
                // It goes on unless somebody else takes the pCPU; then it is told to stop.
                let end_ns = body.work.start(now_ns, body.speed);
                host.set_timer(end_ns, id, END, body.end.arm());
                host.yield_now(task);
            } else {
                host.block(task);
            }
        }
    }

    fn interrupt(&mut self, _host: &mut Host, _task: TaskId, _what: u32) {}
}
