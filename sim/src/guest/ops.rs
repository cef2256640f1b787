// SPDX-License-Identifier: GPL-2.0-only
//! What code in a guest does: a stack of small operations, the next one on top. An operation that consists of others puts them on the stack in its
//! place, so that the stack is what the code still has to do, as a call stack is.

use crate::observe::Spin;
use crate::prefetch::fetch_place;
use crate::time::{Ns, Progress};

/// One operation. What it does takes no time, except where it says so. Four fit a line of the processor's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Takes time, in the present mode.
    Work(Ns),
    /// A system call, or a fault: from here on in kernel mode.
    ToKernel,
    /// The way out of it.
    ToUser,
    IrqOff,
    IrqOn,

    /// A spin lock of the kernel.
    Lock(u32),
    Unlock(u32),
    /// ... of the run queue of the vCPU that executes this.
    LockRq,
    UnlockRq,

    /// __schedule()
    Schedule,
    /// preempt_enable(), local_irq_restore(): a preemptible kernel lets another task go first now.
    Preempt,
    Switch,
    /// Back to what was interrupted or called from there, in that mode, unless other tasks are to go first: exit_to_user_mode_loop(), preempt_schedule_irq().
    Return {
        kernel: bool,
    },
    /// try_to_wake_up(); by one that is about to sleep (WF_SYNC: pipes and sockets).
    Wake(u32),
    WakeSync(u32),
    Enqueue {
        task: u32,
        cpu: u32,
    },
    Resched(u32),
    /// A wake-up that is left to that vCPU; there, in the interrupt.
    LeaveWake {
        task: u32,
        cpu: u32,
    },
    TakeWakes,
    WakeAll,
    Tick,
    /// Behind the tick: nohz_balancer_kick().
    KickIdle,
    SliceEnd,
    TellSlice,
    Timers,
    /// The guest sets its timer: an exit.
    SetTimer,
    IoDone,
    Halt,

    /// Interrupt those of the level's list of receivers, as many at a time as [`super::SendIpi`] says.
    SendIpis(u8),
    /// KVM_HC_SCHED_YIELD to the first busy and preempted one of those interrupted, if they are several (kvm_smp_send_call_func_ipi()).
    SchedYield,
    /// Answer the calls that have come: the next one, if there is one.
    Answer(u8),
    Ack {
        to: u32,
        vector: u8,
    },
    /// Spin until all have answered.
    WaitAnswers(u8),
    Flush {
        freed: bool,
    },
    FlushEnd {
        targets: u32,
        since_ns: Ns,
    },
    /// The pages from there on, up to that one.
    Touch {
        memory: u32,
        page: u32,
        end: u32,
    },
    Call {
        same_space: bool,
    },
    CallEnd,
    /// KVM_HC_KICK_CPU
    Kick(u32),

    MutexTake(u32),
    MutexSpin(u32),
    MutexWait(u32),
    MutexDrop(u32),
    MutexWake(u32),
    BarrierArrive {
        barrier: u32,
        spin_ns: Ns,
    },
    BarrierSleep {
        barrier: u32,
        round: u64,
    },
    BarrierWake(u32),
    /// `other`: a signal that came after the task's own last one.
    ConditionTake {
        condition: u32,
        other: bool,
    },
    ConditionWait {
        condition: u32,
        round: u64,
        other: bool,
    },
    ConditionGive {
        condition: u32,
        all: bool,
    },
    ConditionWake {
        condition: u32,
        all: bool,
    },
    PipePut(u32),
    PipePutDone(u32),
    PipeGet(u32),
    PipeGetDone(u32),
    /// Sleep for so long; until the next activation of a period.
    Sleep(Ns),
    /// For the device: the task's request.
    Io,
    Yield,
    Done(u16),
    Exit,
}

const _: () = assert!(size_of::<Op>() == 16);

/// What a loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Locked(u32),
    Answered,
    /// A mutex is free, or its owner is not worth being waited for.
    Owner(u32),
    /// The barrier's round is another one.
    Passed {
        barrier: u32,
        round: u64,
    },
}

/// A loop that waits.
#[derive(Clone, Copy, Debug)]
pub struct Loop {
    pub until: Until,
    pub why: Spin,
    pub since_ns: Ns,
    /// Time that it has spun so far, and since when it does again.
    pub spun_ns: Ns,
    pub from_ns: Option<Ns>,
    /// It does something else after having spun for so long.
    pub limit: Option<Progress>,
    /// A pv lock's waiter that has halted.
    pub halted: bool,
}

/// What is being done right now.
#[derive(Clone, Copy, Debug, Default)]
pub enum Doing {
    #[default]
    Nothing,
    Work(Progress),
    Spin(Loop),
}

impl Doing {
    /// Time has passed until now.
    pub fn stop(&mut self, now_ns: Ns) {
        match self {
            Self::Nothing => {}
            Self::Work(work) => work.stop(now_ns),
            Self::Spin(spin) => {
                if let Some(from_ns) = spin.from_ns.take() {
                    spin.spun_ns += now_ns - from_ns;
                }
                if let Some(limit) = &mut spin.limit {
                    limit.stop(now_ns);
                }
            }
        }
    }
}

/// A flow of control: a task's, or the interrupt handlers' of a vCPU.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    stack: Vec<Op>,
    pub doing: Doing,
}

impl Frame {
    /// With room for what most flows need: made with its owner it lies beside it, and not wherever the first interrupt finds memory.
    pub fn with_room() -> Self {
        Self { stack: Vec::with_capacity(8), doing: Doing::Nothing }
    }

    /// These come next, in this order, before all that was to come.
    pub fn first(&mut self, ops: &[Op]) {
        self.stack.extend(ops.iter().rev().copied());
    }

    pub fn pop(&mut self) -> Option<Op> {
        self.stack.pop()
    }

    /// What comes next.
    pub fn top(&self) -> Option<&Op> {
        self.stack.last()
    }

    /// What comes next, and where it will put more.
    pub(super) fn prefetch(&self) {
        let depth = self.stack.len();
        fetch_place(&self.stack, depth.saturating_sub(1));
        fetch_place(&self.stack, depth + 4);
    }
}
