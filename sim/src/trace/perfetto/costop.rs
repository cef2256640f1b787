// SPDX-License-Identifier: GPL-2.0-only
//! Who waits while a sibling runs.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Does {
    #[default]
    Sleep,
    Wait,
    Run,
}

pub struct CoStop {
    /// By VM: how many of its vCPUs run.
    running: Vec<u32>,
    /// By vCPU: what it does, and whether its slice is open.
    vcpus: Vec<(Does, bool)>,
}

impl CoStop {
    pub fn new(vms: usize, vcpus: usize) -> Self {
        Self { running: vec![0; vms], vcpus: vec![(Does::Sleep, false); vcpus] }
    }

    pub fn change(&mut self, vm: usize, at: usize, does: Does) {
        let before = std::mem::replace(&mut self.vcpus[at].0, does);
        self.running[vm] += u32::from(does == Does::Run);
        self.running[vm] -= u32::from(before == Does::Run);
    }

    /// Does its slice begin (true) or end (false) now?
    pub fn look(&mut self, vm: usize, at: usize) -> Option<bool> {
        let (does, open) = self.vcpus[at];
        let wanted = does == Does::Wait && self.running[vm] > 0;
        self.vcpus[at].1 = wanted;
        (wanted != open).then_some(wanted)
    }

    /// The trace ends. Was its slice open?
    pub fn close(&mut self, at: usize) -> bool {
        std::mem::take(&mut self.vcpus[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_waiting_while_a_sibling_runs_and_nothing_else() {
        let mut costop = CoStop::new(1, 2);
        let mut after = |at, does| {
            costop.change(0, at, does);
            (costop.look(0, 0), costop.look(0, 1))
        };
        assert_eq!(after(0, Does::Wait), (None, None), "nobody runs");
        assert_eq!(after(1, Does::Run), (Some(true), None));
        assert_eq!(after(1, Does::Sleep), (Some(false), None));
        assert_eq!(after(0, Does::Run), (None, None));
        assert_eq!(after(1, Does::Wait), (None, Some(true)));
        assert_eq!(after(0, Does::Wait), (None, Some(false)));
    }
}
