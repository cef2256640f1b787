// SPDX-License-Identifier: GPL-2.0-only
//! The sets of one VM, found anew every few seconds from counters that go on counting.

use std::collections::BTreeMap;

use crate::{Matrix, Sets, Tree};

/// Seconds after which sets are found anew, as in the paper.
pub const PERIOD_S: u64 = 5;

/// What is known of a VM.
#[derive(Clone, Debug, Default)]
pub struct Finder {
    /// Of each pair, what has been counted already.
    counted: BTreeMap<(usize, usize), u64>,
    matrix: Matrix,
    sets: Sets,
}

impl Finder {
    pub fn matrix(&self) -> &Matrix {
        &self.matrix
    }

    pub fn sets(&self) -> &Sets {
        &self.sets
    }

    /// A period is over. `events`: of each pair that has any, how many since the counters began. Return true if the sets are others now.
    pub fn look(
        &mut self,
        vcpus: usize,
        events: impl IntoIterator<Item = (usize, usize, u64)>,
        split: f64,
    ) -> bool {
        self.matrix.grow(vcpus);
        self.matrix.age();
        for (x, y, count) in events {
            let before = self.counted.insert((x, y), count).unwrap_or(0);
            self.matrix.add(x, y, count.saturating_sub(before));
        }
        let sets = Tree::of(&self.matrix).map(|tree| tree.sets(split)).unwrap_or_default();
        let changed = sets != self.sets;
        self.sets = sets;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_what_is_said() {
        let mut finder = Finder::default();
        assert!(finder.look(4, [(0, 1, 50), (2, 3, 40)], 1.5));
        assert_eq!(*finder.sets(), [vec![0, 1], vec![2, 3]]);
        // Counters go on counting. Now 0 talks to 2, and 1 to 3.
        for n in [100, 200, 300] {
            finder.look(4, [(0, 1, 50), (2, 3, 40), (0, 2, n), (1, 3, n)], 1.5);
        }
        assert_eq!(*finder.sets(), [vec![0, 2], vec![1, 3]]);
        assert_eq!(finder.matrix().get(0, 1), 6, "50, three times halved");
        assert!(!finder.look(4, [(0, 2, 400), (1, 3, 400)], 1.5));
    }
}
