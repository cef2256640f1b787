// SPDX-License-Identifier: GPL-2.0-only
//! VMs that may not run now: paused by their owner, or beyond their quota where the host's class knows of none.
//!
//! Only vCPUs are held: the VMM's other threads need little. The quota is that of kernel/sched/fair.c as of 6.18, where a throttled task stops on its way
//! to user mode (here: to the guest): it is charged every millisecond, and what was overdrawn is taken from the next period.

use crate::scenario::{Rhythm, PERIOD_US};
use crate::time::{Ns, MS, US};
use crate::Host;

use super::vm::Vm;
use super::{PAUSE, QUOTA};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    quota_ns: i64,
    left_ns: i64,
    /// The VM's CPU time that is charged already.
    charged_ns: Ns,
}

/// Why a VM is held, if it is.
#[derive(Clone, Debug, Default)]
pub struct Hold {
    rhythm: Option<Rhythm>,
    quota: Option<Quota>,
    is_paused: bool,
    is_throttled: bool,
    /// By vCPU: it has got a pCPU while it was held, and its body was not told.
    pub(super) untold: Vec<bool>,
}

impl Hold {
    pub(super) fn new(rhythm: Option<Rhythm>, quota_us: u64, vcpus: usize) -> Self {
        let quota_ns = (quota_us * US) as i64;
        let quota = (quota_us > 0).then_some(Quota { quota_ns, left_ns: quota_ns, charged_ns: 0 });
        Self { rhythm, quota, untold: vec![false; vcpus], ..Self::default() }
    }

    fn is_on(&self) -> bool {
        self.is_paused || self.is_throttled
    }
}

impl Vm {
    /// Set the first timers.
    pub(super) fn hold_begins(&self, host: &mut Host, start_ns: Ns) {
        let id = self.vcpus[0].task.0;
        if let Some(rhythm) = self.hold.rhythm {
            host.set_timer(start_ns.saturating_add(rhythm.run_ns), id, PAUSE, 0);
        }
        if self.hold.quota.is_some() {
            host.set_timer(MS, id, QUOTA, 0);
        }
    }

    /// A timer of the above.
    pub(super) fn hold_fired(&mut self, host: &mut Host, what: u8) {
        let was_on = self.hold.is_on();
        let next_ns = if what == PAUSE { self.turn_rhythm(host) } else { self.charge_quota(host) };
        if let Some(next_ns) = next_ns {
            host.set_timer(next_ns, self.vcpus[0].task.0, what, 0);
        }
        let is_on = self.hold.is_on();
        for v in 0..self.vcpus.len() {
            match (was_on, is_on) {
                (false, true) => host.hold(self.thread(v)),
                (true, false) => host.release(self.thread(v)),
                _ => {}
            }
        }
    }

    fn turn_rhythm(&mut self, host: &Host) -> Option<Ns> {
        let hold = &mut self.hold;
        let rhythm = hold.rhythm?;
        hold.is_paused = !hold.is_paused;
        let next_ns = if hold.is_paused { rhythm.pause_ns } else { rhythm.run_ns };
        Some(host.now_ns().saturating_add(next_ns))
    }

    fn charge_quota(&mut self, host: &Host) -> Option<Ns> {
        let used_ns = self.vcpus.iter().map(|vcpu| host.run_ns(vcpu.task)).sum();
        let (period_ns, now_ns) = (PERIOD_US * US, host.now_ns());
        let hold = &mut self.hold;
        let quota = hold.quota.as_mut()?;
        quota.left_ns -= used_ns as i64 - quota.charged_ns as i64;
        quota.charged_ns = used_ns;
        if now_ns % period_ns == 0 {
            quota.left_ns = quota.quota_ns + quota.left_ns.min(0);
        }
        hold.is_throttled = quota.left_ns <= 0;
        Some(if hold.is_throttled { (now_ns / period_ns + 1) * period_ns } else { now_ns + MS })
    }
}
