// SPDX-License-Identifier: GPL-2.0-only
//! How far siblings are from one another in their run queues: the scheduling distance of SBCO, section II-C.
//!
//! A vCPU that runs has the ordinate 0. One that waits has as many as turns begin on its pCPU until its own has begun; that
//! is known only afterwards, and then under every scheduler alike. The paper's kernel thread looks at the run queues now and
//! then and counts how often a vCPU has its turn while a sibling is farther away than two thirds of a queue (table II).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{CpuId, TaskId};
use crate::time::Ns;

/// Between two looks. No multiple of a tick or a slice.
const PERIOD_NS: Ns = 9_973_000;
/// Who waits for as many looks as this, ten seconds, is counted with what is known of it by then. So are looks while nothing happens.
const LOOKS_MAX: usize = 1_000;

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
    /// By task: the cases in which it waits, oldest first.
    waits: Vec<VecDeque<Wait>>,
    found: Vec<Distance>,
}

/// A task waited at a look, there.
struct Wait {
    case: usize,
    cpu: CpuId,
    look: Arc<Look>,
}

impl Wait {
    /// Whether it is farther than two thirds of the queue in which its turn comes; or, if that is not yet, surely will be.
    fn is_far(&self, begun: u64, cpu: CpuId) -> bool {
        let ordinate = 1 + begun - self.look.begun[cpu.index()];
        // Who has come from another queue makes this one longer.
        let length = self.look.lengths[cpu.index()] + u64::from(cpu != self.cpu);
        // The next of all is not far, however short the queue.
        ordinate > 1 && 3 * ordinate > 2 * length
    }
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

    /// Returns how many looks are due before what happens at `now_ns`; all see the same.
    pub fn due(&mut self, now_ns: Ns) -> u64 {
        if now_ns <= self.next_ns {
            return 0;
        }
        let due = (now_ns - self.next_ns).div_ceil(PERIOD_NS);
        self.next_ns += due * PERIOD_NS;
        due
    }

    /// Looks so many times at the VMs that have a vCPU running: `queued` are all tasks that run or wait, and where; `vms` the
    /// numbers of those VMs' vCPUs that run, and the tasks of those that wait, and where.
    pub fn look(
        &mut self,
        looks: u64,
        queued: impl Iterator<Item = CpuId>,
        vms: impl Iterator<Item = (usize, u32, Vec<(TaskId, CpuId)>)>,
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
                self.found[vm].cases += looks;
                continue;
            }
            for _ in 0..looks.min(LOOKS_MAX as u64) {
                self.begin_case(vm, &waiting, &look);
            }
        }
    }

    fn begin_case(&mut self, vm: usize, waiting: &[(TaskId, CpuId)], look: &Arc<Look>) {
        let case = self.free.pop().unwrap_or_else(|| {
            self.cases.push(Case::default());
            self.cases.len() - 1
        });
        self.cases[case] = Case { vm, waiting: waiting.len(), far: false };
        for (task, cpu) in waiting {
            if self.waits.len() <= task.index() {
                self.waits.resize_with(task.index() + 1, VecDeque::new);
            }
            let waits = &mut self.waits[task.index()];
            let oldest = if waits.len() < LOOKS_MAX { None } else { waits.pop_front() };
            waits.push_back(Wait { case, cpu: *cpu, look: Arc::clone(look) });
            if let Some(wait) = oldest {
                let far = wait.is_far(self.begun[wait.cpu.index()], wait.cpu);
                self.end_wait(wait.case, far);
            }
        }
    }

    fn end_wait(&mut self, number: usize, far: bool) {
        let case = &mut self.cases[number];
        case.far |= far;
        case.waiting -= 1;
        if case.waiting == 0 {
            let found = &mut self.found[case.vm];
            found.cases += 1;
            found.far += u64::from(case.far);
            self.free.push(number);
        }
    }

    /// A task's turn begins.
    pub fn begins(&mut self, task: TaskId, cpu: CpuId) {
        let begun = self.begun[cpu.index()];
        self.begun[cpu.index()] += 1;
        while let Some(wait) = self.waits.get_mut(task.index()).and_then(VecDeque::pop_front) {
            let far = wait.is_far(begun, cpu);
            self.end_wait(wait.case, far);
        }
    }

    /// What was found of each VM. A case that is still open counts if it is known to be far.
    pub fn found(&self) -> Vec<Distance> {
        let mut found = self.found.clone();
        let mut open = vec![false; self.cases.len()];
        for wait in self.waits.iter().flatten() {
            let far = self.cases[wait.case].far || wait.is_far(self.begun[wait.cpu.index()], wait.cpu);
            if far && !std::mem::replace(&mut open[wait.case], true) {
                let of_vm = &mut found[self.cases[wait.case].vm];
                of_vm.cases += 1;
                of_vm.far += 1;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: CpuId = CpuId(0);
    const THERE: CpuId = CpuId(1);
    const SIBLING: TaskId = TaskId(1);

    fn look(distances: &mut Distances, queued: &[CpuId], running: u32, waiting: &[(TaskId, CpuId)]) {
        distances.look(1, queued.iter().copied(), std::iter::once((0, running, waiting.to_vec())));
    }

    fn found(distances: &Distances) -> (u64, u64) {
        (distances.found()[0].cases, distances.found()[0].far)
    }

    /// Two pCPUs with queues of six. vCPU 0 of the VM runs on the first, vCPU 1 is `ahead` turns from its own on the second.
    fn after(ahead: u32) -> (u64, u64) {
        let mut distances = Distances::new(2, 1);
        look(&mut distances, &[HERE, THERE].repeat(6), 1, &[(SIBLING, THERE)]);
        for other in 0..ahead {
            distances.begins(TaskId(10 + other), THERE);
            distances.begins(TaskId(20 + other), HERE); // another queue's turns do not count
        }
        distances.begins(SIBLING, THERE);
        found(&distances)
    }

    #[test]
    fn only_the_last_of_a_queue_of_six_is_farther_than_two_thirds() {
        assert_eq!([0, 1, 2, 3, 4].map(after), [(1, 0), (1, 0), (1, 0), (1, 0), (1, 1)]);
    }

    #[test]
    fn a_vm_counts_once_a_look_and_when_all_have_had_their_turn() {
        let mut distances = Distances::new(1, 1);
        look(&mut distances, &[HERE; 3], 1, &[(SIBLING, HERE), (TaskId(2), HERE)]);
        distances.begins(SIBLING, HERE);
        assert_eq!(found(&distances), (0, 0));
        distances.begins(TaskId(2), HERE);
        // 2 of 3 is not beyond two thirds.
        assert_eq!(found(&distances), (1, 0));
    }

    #[test]
    fn who_runs_with_its_siblings_is_near_and_who_is_alone_is_no_case() {
        let mut distances = Distances::new(2, 1);
        look(&mut distances, &[HERE, THERE], 2, &[]);
        look(&mut distances, &[HERE], 1, &[]);
        look(&mut distances, &[HERE], 0, &[(SIBLING, HERE)]);
        distances.begins(SIBLING, HERE);
        assert_eq!(found(&distances), (1, 0));
        distances.look(5, [HERE, THERE].into_iter(), std::iter::once((0, 2, vec![])));
        assert_eq!(found(&distances), (6, 0));
    }

    #[test]
    fn the_next_of_all_is_not_far_in_the_shortest_queue_and_who_comes_makes_one_longer() {
        let mut distances = Distances::new(2, 1);
        // Just woken on an idle pCPU; and pulled to one.
        look(&mut distances, &[HERE, THERE], 1, &[(SIBLING, THERE)]);
        distances.begins(SIBLING, THERE);
        look(&mut distances, &[HERE, HERE], 1, &[(SIBLING, HERE)]);
        distances.begins(SIBLING, THERE);
        assert_eq!(found(&distances), (2, 0));
        // Second of two that were there and itself: 2 of 3. Without itself, 2 of 2 would be far.
        look(&mut distances, &[HERE, HERE, THERE, THERE], 1, &[(SIBLING, HERE)]);
        distances.begins(TaskId(7), THERE);
        distances.begins(SIBLING, THERE);
        assert_eq!(found(&distances), (3, 0));
    }

    #[test]
    fn who_waits_for_ever_is_far_and_takes_no_more_memory() {
        let mut distances = Distances::new(1, 1);
        for turn in 0..3 * LOOKS_MAX as u32 {
            look(&mut distances, &[HERE; 3], 1, &[(SIBLING, HERE)]);
            distances.begins(TaskId(10 + turn % 2), HERE);
        }
        assert_eq!(distances.waits[SIBLING.index()].len(), LOOKS_MAX);
        let (cases, far) = found(&distances);
        // The last look or two are open, and not yet known to be far.
        assert!(cases == far && cases >= 3 * LOOKS_MAX as u64 - 2, "{cases} {far}");
    }

    #[test]
    fn looks_are_a_period_apart() {
        let mut distances = Distances::new(1, 1);
        assert_eq!(distances.due(PERIOD_NS), 0);
        assert_eq!(distances.due(3 * PERIOD_NS + 1), 3);
        assert_eq!(distances.due(3 * PERIOD_NS + 1), 0);
        assert_eq!(distances.due(4 * PERIOD_NS + 1), 1);
    }
}
