// SPDX-License-Identifier: GPL-2.0-only
//! How long a halted vCPU's thread polls before it blocks: grow_halt_poll_ns(), shrink_halt_poll_ns() and the end of kvm_vcpu_halt() of
//! virt/kvm/kvm_main.c.

use crate::time::Ns;

use super::config::HaltPoll;

/// While it polls the thread looks this often whether somebody else wants its pCPU (`kvm_vcpu_can_poll()` does so all the time).
pub const POLL_LOOK_NS: Ns = 20_000;

/// A vCPU's poll time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    pub ns: Ns,
}

impl Polling {
    /// How long to poll now.
    pub fn now_ns(&mut self, config: &HaltPoll) -> Ns {
        self.ns = self.ns.min(config.max_ns);
        self.ns
    }

    /// The halt has ended after this time, polling included.
    pub fn learn(&mut self, config: &HaltPoll, halted_ns: Ns) {
        if config.max_ns == 0 {
            self.ns = 0;
        } else if halted_ns <= self.ns {
            // The poll was long enough.
        } else if self.ns > 0 && halted_ns > config.max_ns {
            self.ns = if config.shrink == 0 { 0 } else { self.ns / Ns::from(config.shrink) };
            if self.ns < config.grow_start_ns {
                self.ns = 0;
            }
        } else if self.ns < config.max_ns && halted_ns < config.max_ns && config.grow > 0 {
            self.ns =
                self.ns.saturating_mul(Ns::from(config.grow)).max(config.grow_start_ns).min(config.max_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_grows_with_short_halts_and_shrinks_with_long_ones() {
        let config = HaltPoll::default();
        let mut polling = Polling::default();
        let mut after = |halted_ns| {
            polling.learn(&config, halted_ns);
            polling.now_ns(&config)
        };
        assert_eq!(after(50_000), 10_000);
        assert_eq!(after(50_000), 20_000);
        assert_eq!(after(15_000), 20_000, "the poll was long enough");
        assert_eq!(after(150_000), 40_000);
        assert_eq!(after(150_000), 80_000);
        assert_eq!(after(150_000), 160_000);
        assert_eq!(after(190_000), 200_000, "the maximum");
        assert_eq!(after(1_000_000), 100_000);
        for _ in 0..4 {
            after(1_000_000);
        }
        assert_eq!(after(1_000_000), 0);
        let mut polling = Polling { ns: 160_000 };
        polling.learn(&HaltPoll { shrink: 0, ..config }, 1_000_000);
        assert_eq!(polling.ns, 0, "before 6.11");
    }

    #[test]
    fn without_a_maximum_nobody_polls() {
        let config = HaltPoll { max_ns: 0, ..HaltPoll::default() };
        let mut polling = Polling::default();
        polling.learn(&config, 1_000);
        assert_eq!(polling.now_ns(&config), 0);
    }
}
