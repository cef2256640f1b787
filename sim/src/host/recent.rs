// SPDX-License-Identifier: GPL-2.0-only
//! Whose data a pCPU's TLB and private caches still hold: for how long others have had it since a process was there last.

use crate::time::Ns;

/// Whoever was there before so many others has nothing left.
const KNOWN: usize = 4;

/// The processes that had a pCPU last, the latest first; of each, the pCPU's busy time when it left.
#[derive(Clone, Copy, Debug)]
pub struct Recent([Option<(u32, Ns)>; KNOWN]);

impl Recent {
    pub const fn new() -> Self {
        Self([None; KNOWN])
    }

    /// A thread of this process leaves the pCPU.
    pub fn leaves(&mut self, tgid: u32, busy_ns: Ns) {
        let is_it = |of: &Option<(u32, Ns)>| of.is_some_and(|(known, _)| known == tgid);
        let at = self.0.iter().position(is_it).unwrap_or(KNOWN - 1);
        self.0[..=at].rotate_right(1);
        self.0[0] = Some((tgid, busy_ns));
    }

    /// A thread of this process has the pCPU: how long others have had it since one of its threads was there last, or since ever.
    pub fn others_ns(&self, tgid: u32, busy_ns: Ns) -> Ns {
        let left = self.0.iter().flatten().find(|(known, _)| *known == tgid);
        busy_ns - left.map_or(0, |(_, at_ns)| *at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_loses_by_the_time_that_others_had() {
        let mut recent = Recent::new();
        assert_eq!(recent.others_ns(1, 0), 0, "nobody was there");
        recent.leaves(1, 10);
        recent.leaves(2, 14);
        assert_eq!((recent.others_ns(1, 14), recent.others_ns(2, 14), recent.others_ns(3, 14)), (4, 0, 14));
        recent.leaves(1, 20);
        assert_eq!((recent.others_ns(1, 20), recent.others_ns(2, 20)), (0, 6));
        for other in 3..6 {
            recent.leaves(other, 21);
        }
        assert_eq!((recent.others_ns(1, 22), recent.others_ns(2, 22)), (2, 22), "too long ago");
    }
}
