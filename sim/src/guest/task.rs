// SPDX-License-Identifier: GPL-2.0-only
//! A task of a guest, and what its kernel keeps for each vCPU.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::class::fair::Idling;
use crate::events::Timer;
use crate::rng::Rng;
use crate::time::Ns;
use crate::workload::code::Inst;

use super::ops::{Doing, Frame};
use super::queue::RunQueue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Runnable,
    /// On a [`Cpu::wakelist`].
    Waking,
    Sleeping,
    Dead,
}

/// Address space of the kernel alone: idle.
pub const NO_SPACE: u32 = u32::MAX;

#[derive(Debug)]
pub struct Task {
    pub name: Rc<str>,
    pub state: State,
    /// On a run queue, or running.
    pub on_rq: bool,
    pub cpu: u32,
    pub pin: Option<u32>,
    pub kernel: bool,
    pub frame: Frame,
    /// What it was doing when it was preempted.
    pub saved: Doing,
    /// Virtual run time; EEVDF: how much it was ahead of the average of the queue that it left.
    pub vruntime_ns: Ns,
    pub ahead_ns: i64,
    /// EEVDF's virtual deadline; what was left until then when it moved; it sleeps, and stays queued to pay for what it is ahead.
    pub deadline_ns: Ns,
    pub left_ns: Option<Ns>,
    pub delayed: bool,
    /// When it ran last, by the guest's clock (exec_start); 0: never.
    pub ran_ns: Ns,
    /// When it began to wait for a mutex.
    pub waits_since_ns: Ns,
    /// Which of the VM's signals its last one was; 0: it has made none.
    pub signalled: u64,
    pub space: u32,
    pub background: bool,

    pub code: Rc<[Inst]>,
    pub at: usize,
    /// Rounds still to go of each loop that it is in.
    pub loops: Vec<u64>,
    pub rng: Rng,
    pub timer: Timer,
    /// The vCPU whose timer or device interrupt wakes it.
    pub timer_cpu: u32,
    /// Of its request ([`super::ops::Op::Io`]): how long the device takes, and the VMM's thread before it.
    pub io_ns: (Ns, Ns),
    /// When its last unit of work was complete; the last activation of its period.
    pub unit_since_ns: Ns,
    pub period_since_ns: Ns,
}

/// What the guest's kernel keeps for a vCPU.
#[derive(Debug)]
pub struct Cpu {
    pub current: u32,
    /// The interrupt handler, if one runs. Interrupts are off in it.
    pub irq: Frame,
    pub in_irq: bool,
    /// Interrupts are off this many times over.
    pub irq_off: u32,
    /// Not preemptible this many times over: spin locks held or waited for, calls waited for.
    pub no_preempt: u32,
    /// Spin locks held; counted only where they are announced.
    pub locks_held: u32,
    /// Another task is to run (TIF_NEED_RESCHED_LAZY or TIF_NEED_RESCHED): before user mode, or, urgent, as soon as can be.
    pub need_resched: bool,
    pub urgent: bool,
    /// By virtual run time, the running one not included.
    pub queue: RunQueue,
    pub min_vruntime_ns: Ns,
    /// The running task is charged up to this time of the guest's clock.
    pub charged_ns: Ns,
    pub ran_ns: Ns,
    /// EEVDF: up to this virtual run time of the running task it goes before others that are no further behind. How many in the queue sleep.
    pub protected_until_ns: Ns,
    pub delayed: usize,
    pub rq_lock: u32,
    /// For balancing: how long it idles, another vCPU has asked it to look for a task, and it has failed to take one so often (nr_balance_failed); when it,
    /// busy, looks next.
    pub idling: Idling,
    pub kicked: bool,
    pub failed: u32,
    pub balance_ns: Ns,
    /// Tasks that others have woken, and that this one is to put on its queue (`rq->ttwu_pending`).
    pub wakelist: VecDeque<u32>,

    /// Who has called a function here (call_single_queue), by vector: CALL, TLB.
    pub calls: [VecDeque<u32>; 2],
    pub answers_left: u32,
    /// Receivers of the interrupts being sent, by level: task, interrupt handler; and those that the last call of functions needed.
    pub receivers: [VecDeque<u32>; 2],
    pub called: Vec<u32>,

    pub tick: Timer,
    pub tick_due: bool,
    /// The end of the running task's slice; it has come; it is set, but the APIC does not know yet.
    pub slice: Timer,
    pub slice_due: bool,
    pub slice_untold: bool,
    pub expired: VecDeque<u32>,
    pub io_done: VecDeque<u32>,

    /// The address space loaded, whether only lazily (idle), and up to which flush it is in order; the one that it left while it idled, told to flush.
    pub space: u32,
    pub left_space: u32,
    pub lazy: bool,
    pub flushed: u64,
    pub told_kernel: bool,
}

impl Cpu {
    pub fn new(idle: u32, rq_lock: u32, idling: Idling) -> Self {
        Self {
            current: idle,
            irq: Frame::with_room(),
            in_irq: false,
            irq_off: 0,
            no_preempt: 0,
            locks_held: 0,
            need_resched: false,
            urgent: false,
            queue: RunQueue::default(),
            min_vruntime_ns: 0,
            charged_ns: 0,
            ran_ns: 0,
            protected_until_ns: 0,
            delayed: 0,
            rq_lock,
            idling,
            kicked: false,
            failed: 0,
            balance_ns: 0,
            wakelist: VecDeque::new(),
            calls: Default::default(),
            answers_left: 0,
            receivers: Default::default(),
            called: Vec::new(),
            tick: Timer::default(),
            tick_due: false,
            slice: Timer::default(),
            slice_due: false,
            slice_untold: false,
            expired: VecDeque::with_capacity(4),
            io_done: VecDeque::new(),
            space: NO_SPACE,
            left_space: NO_SPACE,
            lazy: true,
            flushed: 0,
            told_kernel: false,
        }
    }

    pub fn interrupts_on(&self) -> bool {
        !self.in_irq && self.irq_off == 0
    }
}
