// SPDX-License-Identifier: GPL-2.0-only
//! A program as a VM executes it: one list of instructions for each task, with names resolved to numbers and loops flat.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::time::Ns;

use super::dist::Dist;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Inst {
    Compute(Dist),
    Kernel(Dist),
    Lock {
        lock: u32,
        hold: Dist,
        irqs_off: bool,
    },
    Acquire(u32),
    Release(u32),
    Shootdown {
        pages: u32,
        freed: bool,
    },
    Touch {
        memory: u32,
        pages: u32,
    },
    Barrier {
        barrier: u32,
        spin_ns: Ns,
    },
    Send(u32),
    Recv(u32),
    /// `other`: for a signal that came after the task's own last one.
    Wait {
        condition: u32,
        other: bool,
    },
    Signal {
        condition: u32,
        all: bool,
    },
    Io {
        device: Dist,
        host: Dist,
    },
    Sleep(Dist),
    Period(Ns),
    Yield,
    Call {
        same_space: bool,
    },
    Done(u16),
    /// Sleep until the program is to start.
    Until(Ns),
    /// The program has started.
    Started,
    /// `times`: u64::MAX is for ever. `end` is where its `End` is.
    Loop {
        times: u64,
        end: u32,
    },
    End {
        start: u32,
    },
    /// Take one of the rounds that are left of a pool; if there is none, go on behind its `Again`, at `end`.
    Round {
        pool: u32,
        end: u32,
    },
    Again {
        start: u32,
    },
}

/// Names in order of first use; the number of each is its place.
#[derive(Clone, Debug, Default)]
pub struct Names {
    pub(super) known: BTreeMap<String, u32>,
    pub list: Vec<String>,
}

impl Names {
    pub(super) fn number(&mut self, name: String) -> u32 {
        if let Some(number) = self.known.get(&name) {
            return *number;
        }
        let number = self.list.len() as u32;
        self.list.push(name.clone());
        self.known.insert(name, number);
        number
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierUse {
    pub parties: u32,
    pub pause: bool,
    pub pause_every_ns: Ns,
    pub gives_up: bool,
    /// The file says how many parties there are; otherwise they are counted.
    pub(super) fixed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MutexUse {
    pub spins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeUse {
    pub capacity: u32,
    pub low_water: u32,
}

#[derive(Clone, Debug)]
pub struct TaskCode {
    pub name: Rc<str>,
    pub code: Rc<[Inst]>,
    /// Number of its address space in the program.
    pub space: u32,
    pub pin: Option<u32>,
    pub background: bool,
}

/// All of a program.
#[derive(Clone, Debug, Default)]
pub struct Code {
    pub tasks: Vec<TaskCode>,
    pub spaces: u32,
    pub locks: Names,
    pub(super) mutex_names: Names,
    pub mutexes: Vec<MutexUse>,
    pub conditions: Names,
    pub(super) memories: Names,
    pub kinds: Names,
    pub(super) barrier_names: Names,
    pub barriers: Vec<BarrierUse>,
    pub(super) pipe_names: Names,
    pub pipes: Vec<PipeUse>,
    /// Rounds that tasks have together.
    pub pools: Vec<u64>,
    /// Which unit of work counts, and for what.
    pub unit_kind: u16,
    pub unit_value: f64,
    pub ends: bool,
}
