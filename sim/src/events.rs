// SPDX-License-Identifier: GPL-2.0-only
//! The events to come. A total order: by time, then by the order in which they were made. Nothing is ever taken out of the middle: who made
//! an event void (a timer set again, a turn that ended early) counts a generation up, and the event finds out when its time has come.

use crate::ids::{CpuId, TaskId};
use crate::time::Ns;

/// What is to happen. Small and `Copy`: no allocation for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The scheduler's tick of a pCPU.
    Tick(CpuId),
    /// A reschedule request has got to a pCPU.
    Resched(CpuId),
    /// A slice that is exact to the ns has ended (hrtick); void if the pCPU's turn is another one.
    SliceEnd { cpu: CpuId, turn: u32 },
    /// A task's sleep that the host itself keeps has ended.
    Wake(TaskId),
    /// The stopper thread moves a running task off a pCPU that it may no longer use.
    Migrate(TaskId),
    /// A pCPU that is going offline hands on what it was given.
    Push(CpuId),
    /// The ext class looks for tasks that have waited for too long.
    Watchdog,
    /// The fair class's periodic balancing of a pCPU.
    Balance(CpuId),
    /// An interrupt arrives at the pCPU where this task runs; `what` is the bodies' business. See [`crate::body::Bodies::interrupt`].
    Interrupt { task: TaskId, what: u32 },
    /// A timer of the bodies; see [`crate::body::Bodies::event`]. `id` is a task, a vCPU, a device: the bodies' business.
    Body { id: u32, what: u8, generation: u32 },
}

/// One timer of one entity: armed again or cancelled, what it was armed for before is void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timer {
    generation: u32,
    armed: bool,
}

impl Timer {
    /// Returns the generation to put into the event.
    pub fn arm(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.armed = true;
        self.generation
    }

    pub fn cancel(&mut self) {
        self.armed = false;
    }

    pub fn is_armed(&self) -> bool {
        self.armed
    }

    /// Return true if the event with this generation is the one armed last; it then is no longer armed.
    pub fn fires(&mut self, generation: u32) -> bool {
        let fires = self.armed && self.generation == generation;
        if fires {
            self.armed = false;
        }
        fires
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at_ns: Ns,
    made: u64,
    event: Event,
}

impl Entry {
    fn key(&self) -> u128 {
        u128::from(self.at_ns) << 64 | u128::from(self.made)
    }
}

/// A 4-ary heap: half as deep as a binary one, and four children fit two cache lines.
#[derive(Debug, Default)]
pub struct EventQueue {
    heap: Vec<Entry>,
    made: u64,
}

const WIDTH: usize = 4;

impl EventQueue {
    pub fn push(&mut self, at_ns: Ns, event: Event) {
        let entry = Entry { at_ns, made: self.made, event };
        self.made += 1;
        let mut hole = self.heap.len();
        self.heap.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / WIDTH;
            if self.heap[parent].key() <= entry.key() {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = entry;
    }

    /// The next event, if it is due by then.
    pub fn pop_until(&mut self, until_ns: Ns) -> Option<(Ns, Event)> {
        let first = *self.heap.first().filter(|first| first.at_ns <= until_ns)?;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sink(last);
        }
        Some((first.at_ns, first.event))
    }

    /// Put an entry where the first one was.
    fn sink(&mut self, entry: Entry) {
        let (mut hole, len, key) = (0, self.heap.len(), entry.key());
        loop {
            let first = hole * WIDTH + 1;
            let children = first..(first + WIDTH).min(len);
            let Some(least) = children.min_by_key(|child| self.heap[*child].key()) else { break };
            if self.heap[least].key() >= key {
                break;
            }
            self.heap[hole] = self.heap[least];
            hole = least;
        }
        self.heap[hole] = entry;
    }

    pub fn next_ns(&self) -> Option<Ns> {
        self.heap.first().map(|first| first.at_ns)
    }

    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// How many have been made since the start.
    pub fn made(&self) -> u64 {
        self.made
    }
}
