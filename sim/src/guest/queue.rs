// SPDX-License-Identifier: GPL-2.0-only
//! The run queue of a vCPU: tasks by virtual run time. There are few, so a sorted list is shorter than a tree, and of an empty one no memory is looked at.

use crate::time::Ns;

#[derive(Clone, Debug, Default)]
pub struct RunQueue {
    /// The first one last.
    list: Vec<(Ns, u32)>,
    sum_ns: Ns,
}

impl RunQueue {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn insert(&mut self, vruntime_ns: Ns, task: u32) {
        let at = self.list.partition_point(|other| *other > (vruntime_ns, task));
        self.list.insert(at, (vruntime_ns, task));
        self.sum_ns += vruntime_ns;
    }

    pub fn remove(&mut self, vruntime_ns: Ns, task: u32) {
        let at = self.list.partition_point(|other| *other > (vruntime_ns, task));
        if self.list.get(at) == Some(&(vruntime_ns, task)) {
            self.list.remove(at);
            self.sum_ns -= vruntime_ns;
        }
    }

    /// Of their virtual run times.
    pub fn sum_ns(&self) -> Ns {
        self.sum_ns
    }

    pub fn first_ns(&self) -> Option<Ns> {
        self.list.last().map(|(vruntime_ns, _)| *vruntime_ns)
    }

    pub fn pop_first(&mut self) -> Option<u32> {
        let (vruntime_ns, task) = self.list.pop()?;
        self.sum_ns -= vruntime_ns;
        Some(task)
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.list.iter().rev().map(|(_, task)| *task)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::{Rng, Stream};

    #[test]
    fn behaves_as_a_sorted_set() {
        let (mut queue, mut set) = (RunQueue::default(), BTreeSet::new());
        let mut rng = Rng::derive(1, Stream::Host, 0);
        for task in 0..5_000 {
            let vruntime_ns = rng.below(30);
            match rng.below(5) {
                0 | 1 => {
                    queue.insert(vruntime_ns, task);
                    set.insert((vruntime_ns, task));
                }
                2 => assert_eq!(queue.pop_first(), set.pop_first().map(|(_, task)| task)),
                3 => {
                    let some = set.iter().nth(rng.below(8) as usize).copied().unwrap_or((vruntime_ns, task));
                    queue.remove(some.0, some.1);
                    set.remove(&some);
                }
                _ => assert_eq!(queue.first_ns(), set.first().map(|(vruntime_ns, _)| *vruntime_ns)),
            }
            assert!(queue.iter().eq(set.iter().map(|(_, task)| *task)));
            assert_eq!(queue.sum_ns(), set.iter().map(|(vruntime_ns, _)| vruntime_ns).sum::<Ns>());
            assert_eq!((queue.len(), queue.is_empty()), (set.len(), set.is_empty()));
        }
    }
}
