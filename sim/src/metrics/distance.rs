// SPDX-License-Identifier: GPL-2.0-only
//! How far siblings are from one another in their run queues: the scheduling distance of SBCO, section II-C.
//!
//! A vCPU that runs has the ordinate 0. One that waits has as many as turns begin on its pCPU until its own has begun; that
//! is known only afterwards, and then under every scheduler alike. The paper's kernel thread looks at the run queues now and
//! then and counts how often a vCPU has its turn while a sibling is farther away than two thirds of a queue (table II).

use std::sync::Arc;

use crate::ids::{CpuId, TaskId};
use crate::time::Ns;

/// Between two looks. No multiple of a tick or a slice.
const PERIOD_NS: Ns = 9_973_000;

/// How it stands on all pCPUs at one look.
struct Look {
    /// Turns begun so far.
    begun: Vec<u64>,
    /// Tasks that run or wait.
    lengths: Vec<u64>,
}

/// A VM at one look, until all its vCPUs that waited have had a turn.
#[derive(Default)]
struct Case {
    vm: usize,
    waiting: usize,
    far: bool,
}

/// What was found of a VM: its cases, and those in which a sibling was far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distance {
    pub cases: u64,
    pub far: u64,
}

pub struct Distances {
    next_ns: Ns,
    begun: Vec<u64>,
    cases: Vec<Case>,
    free: Vec<usize>,
    /// By task: the cases in which it waits.
    waits: Vec<Vec<(usize, Arc<Look>)>>,
    found: Vec<Distance>,
}

impl Distances {
    pub fn new(pcpus: usize, vms: usize) -> Self {
        Self {
            next_ns: PERIOD_NS,
            begun: vec![0; pcpus],
            cases: Vec::new(),
            free: Vec::new(),
            waits: Vec::new(),
            found: vec![Distance::default(); vms],
        }
    }

    /// Returns whether somebody should look before what happens at `now_ns`; where nobody waits, that can be left out.
    pub fn is_due(&mut self, now_ns: Ns, anybody_waits: impl FnOnce() -> bool) -> bool {
        if now_ns <= self.next_ns {
            return false;
        }
        let anybody_waits = anybody_waits();
        let due = if anybody_waits { 1 } else { (now_ns - self.next_ns).div_ceil(PERIOD_NS) };
        self.next_ns += due * PERIOD_NS;
        anybody_waits
    }

    /// Looks at the VMs that have a vCPU running: `queued` are all tasks that run or wait, and where; `vms` the numbers of
    /// those VMs' vCPUs that run, and the tasks of those that wait.
    pub fn look(
        &mut self,
        queued: impl Iterator<Item = CpuId>,
        vms: impl Iterator<Item = (usize, u32, Vec<TaskId>)>,
    ) {
        let mut lengths = vec![0; self.begun.len()];
        for cpu in queued {
            lengths[cpu.index()] += 1;
        }
        let look = Arc::new(Look { begun: self.begun.clone(), lengths });
        for (vm, running, waiting) in vms {
            if running == 0 || running as usize + waiting.len() < 2 {
                continue;
            }
            if waiting.is_empty() {
                self.found[vm].cases += 1;
                continue;
            }
            let number = self.free.pop().unwrap_or_else(|| {
                self.cases.push(Case::default());
                self.cases.len() - 1
            });
            self.cases[number] = Case { vm, waiting: waiting.len(), far: false };
            for task in waiting {
                if self.waits.len() <= task.index() {
                    self.waits.resize_with(task.index() + 1, Vec::new);
                }
                self.waits[task.index()].push((number, Arc::clone(&look)));
            }
        }
    }

    /// A task's turn begins.
    pub fn begins(&mut self, task: TaskId, cpu: CpuId) {
        let begun = self.begun[cpu.index()];
        self.begun[cpu.index()] += 1;
        let Some(waits) = self.waits.get_mut(task.index()) else { return };
        for (number, look) in waits.drain(..) {
            let ordinate = 1 + begun - look.begun[cpu.index()];
            let case = &mut self.cases[number];
            case.far |= 3 * ordinate > 2 * look.lengths[cpu.index()];
            case.waiting -= 1;
            if case.waiting == 0 {
                let found = &mut self.found[case.vm];
                found.cases += 1;
                found.far += u64::from(case.far);
                self.free.push(number);
            }
        }
    }

    pub fn found(&self, vm: usize) -> Distance {
        self.found[vm]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VM: usize = 0;

    /// Two pCPUs with queues of six. vCPU 0 of the VM runs on the first, vCPU 1 is `ahead` turns from its own on the second.
    fn after(ahead: u32) -> Distance {
        let mut distances = Distances::new(2, 1);
        let queued = (0..12).map(|task| CpuId(task % 2));
        distances.look(queued, std::iter::once((VM, 1, vec![TaskId(1)])));
        for other in 0..ahead {
            distances.begins(TaskId(10 + other), CpuId(1));
            distances.begins(TaskId(20 + other), CpuId(0)); // another queue's turns do not count
        }
        assert_eq!(distances.found(VM), Distance::default());
        distances.begins(TaskId(1), CpuId(1));
        distances.found(VM)
    }

    #[test]
    fn only_the_last_of_a_queue_of_six_is_farther_than_two_thirds() {
        let far: Vec<_> = (0..5).map(|ahead| after(ahead).far).collect();
        assert_eq!(far, [0, 0, 0, 0, 1]);
    }

    #[test]
    fn a_vm_counts_once_a_look_and_when_all_have_had_their_turn() {
        let mut distances = Distances::new(1, 1);
        let waiting = vec![TaskId(1), TaskId(2)];
        distances.look([CpuId(0); 3].into_iter(), std::iter::once((VM, 1, waiting)));
        distances.begins(TaskId(1), CpuId(0));
        assert_eq!(distances.found(VM).cases, 0);
        distances.begins(TaskId(2), CpuId(0));
        // 1 of 3 is near; 2 of 3 is not beyond two thirds.
        assert_eq!(distances.found(VM), Distance { cases: 1, far: 0 });
    }

    #[test]
    fn who_runs_with_its_siblings_is_near_and_who_is_alone_is_no_case() {
        let mut distances = Distances::new(2, 1);
        distances.look([CpuId(0), CpuId(1)].into_iter(), std::iter::once((VM, 2, vec![])));
        distances.look([CpuId(0)].into_iter(), std::iter::once((VM, 1, vec![])));
        distances.look([CpuId(0)].into_iter(), std::iter::once((VM, 0, vec![TaskId(1)])));
        assert_eq!(distances.found(VM), Distance { cases: 1, far: 0 });
    }

    #[test]
    fn looks_are_a_period_apart_and_none_is_taken_while_nobody_waits() {
        let mut distances = Distances::new(1, 1);
        assert!(!distances.is_due(PERIOD_NS, || true));
        assert!(distances.is_due(3 * PERIOD_NS + 1, || true));
        assert!(distances.is_due(3 * PERIOD_NS + 1, || true));
        assert!(distances.is_due(3 * PERIOD_NS + 1, || true));
        assert!(!distances.is_due(3 * PERIOD_NS + 1, || true));
        assert!(!distances.is_due(9 * PERIOD_NS, || false));
        assert!(!distances.is_due(9 * PERIOD_NS, || true));
        assert!(distances.is_due(9 * PERIOD_NS + 1, || true));
    }
}
