// SPDX-License-Identifier: GPL-2.0-only
//! Which of a VM's vCPUs run together, counted from the stream of events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use cohort_sim::observe::{Observer, Stop, What};

use crate::view;
use crate::world::{TaskId, World};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Asleep,
    Waiting,
    Running,
}

#[derive(Clone, Debug, Default)]
struct Vcpu {
    state: State,
    /// Runnable without running, in all.
    waited_ns: u64,
    ran_ns: u64,
}

/// A VM's vCPUs, as the events tell.
#[derive(Clone, Debug, Default)]
struct Gang {
    vcpus: BTreeMap<TaskId, Vcpu>,
    /// A part of the vCPUs that do not sleep runs, and has for so long.
    torn_ns: u64,
    longest_torn_ns: u64,
    ran_ns: u64,
    /// The longest that nobody ran although somebody could.
    waits_ns: u64,
    longest_wait_ns: u64,
    greatest_lead_ns: u64,
}

impl Gang {
    fn pass(&mut self, ns: u64) {
        let count = |state| self.vcpus.values().filter(|vcpu| vcpu.state == state).count();
        let (running, waiting) = (count(State::Running), count(State::Waiting));
        if running > 0 {
            self.ran_ns += ns;
            self.waits_ns = 0;
        } else if waiting > 0 {
            self.waits_ns += ns;
        }
        if running > 0 && waiting > 0 {
            self.torn_ns += ns;
        } else if ns > 0 {
            self.torn_ns = 0;
        }
        self.longest_torn_ns = self.longest_torn_ns.max(self.torn_ns);
        self.longest_wait_ns = self.longest_wait_ns.max(self.waits_ns);
        for vcpu in self.vcpus.values_mut() {
            match vcpu.state {
                State::Running => vcpu.ran_ns += ns,
                State::Waiting => vcpu.waited_ns += ns,
                State::Asleep => {}
            }
        }
        let awake = || self.vcpus.values().filter(|vcpu| vcpu.state != State::Asleep);
        let most = awake().map(|vcpu| vcpu.waited_ns).max().unwrap_or(0);
        let least = awake().map(|vcpu| vcpu.waited_ns).min().unwrap_or(0);
        self.greatest_lead_ns = self.greatest_lead_ns.max(most - least);
    }
}

#[derive(Default)]
struct Log {
    last_ns: u64,
    gangs: Vec<Gang>,
}

impl Log {
    fn set(&mut self, task: cohort_sim::TaskId, state: State) {
        let id = TaskId(task.index());
        for vcpu in self.gangs.iter_mut().filter_map(|gang| gang.vcpus.get_mut(&id)) {
            vcpu.state = state;
        }
    }

    fn pass(&mut self, now_ns: u64) {
        let ns = now_ns - self.last_ns;
        self.last_ns = now_ns;
        self.gangs.iter_mut().for_each(|gang| gang.pass(ns));
    }
}

/// What has been seen of one VM.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The longest time in which a part of the vCPUs that did not sleep ran.
    pub longest_torn_ns: u64,
    /// The time in which any of them ran.
    pub ran_ns: u64,
    /// The longest that all who could run waited.
    pub longest_wait_ns: u64,
    /// The most by which one had waited more than a sibling, of those that did not sleep, since the watch began.
    pub greatest_lead_ns: u64,
}

pub struct Watch(Rc<RefCell<Log>>);

struct Ear(Rc<RefCell<Log>>);

impl Observer for Ear {
    fn record(&mut self, now_ns: u64, what: &What) {
        let mut log = self.0.borrow_mut();
        log.pass(now_ns);
        match *what {
            What::Wakeup { task, .. } => log.set(task, State::Waiting),
            What::Switch { prev, why, next, .. } => {
                if let Some(prev) = prev {
                    let waits = why == Stop::Preempted;
                    log.set(prev, if waits { State::Waiting } else { State::Asleep });
                }
                if let Some(next) = next {
                    log.set(next, State::Running);
                }
            }
            _ => {}
        }
    }
}

/// Watch these VMs' vCPUs from now on.
pub fn watch(w: &mut World, vms: &[&[TaskId]]) -> Watch {
    let state = |id: TaskId| match w.task(id).state {
        view::State::Runnable if w.is_running(id) => State::Running,
        view::State::Runnable => State::Waiting,
        _ => State::Asleep,
    };
    let gang = |vm: &&[TaskId]| Gang {
        vcpus: vm.iter().map(|id| (*id, Vcpu { state: state(*id), ..Vcpu::default() })).collect(),
        ..Gang::default()
    };
    let log = Log { last_ns: w.sim_ns(), gangs: vms.iter().map(gang).collect() };
    let log = Rc::new(RefCell::new(log));
    w.watch(Box::new(Ear(Rc::clone(&log))));
    Watch(log)
}

impl Watch {
    pub fn seen(&self, w: &World) -> Vec<Seen> {
        let mut log = self.0.borrow_mut();
        log.pass(w.sim_ns());
        let seen = |gang: &Gang| Seen {
            longest_torn_ns: gang.longest_torn_ns,
            ran_ns: gang.ran_ns,
            longest_wait_ns: gang.longest_wait_ns,
            greatest_lead_ns: gang.greatest_lead_ns,
        };
        log.gangs.iter().map(seen).collect()
    }
}
