// SPDX-License-Identifier: GPL-2.0-only
//! For how long pCPUs were idle.

use std::collections::HashMap;

use crate::checks::Host;

/// Adds up idle time, waiting for disks included. What the kernel shows of a pCPU goes back a little now and then, and to 0 when the pCPU was offline.
#[derive(Default)]
pub struct Idle {
    /// Of each pCPU that is online, as shown last.
    ticks: HashMap<u32, u64>,
    /// By how much each of them has grown since the look before.
    grown: HashMap<u32, u64>,
    sum_ns: u64,
}

impl Idle {
    /// Of all pCPUs together, since the first look.
    pub fn look(&mut self, host: &Host) -> u64 {
        let stat = host.read("/proc/stat").unwrap_or_default();
        let now: HashMap<u32, u64> = stat.lines().filter_map(of_pcpu).collect();
        let new = now.iter().map(|(cpu, ticks)| {
            let before = self.ticks.get(cpu).unwrap_or(ticks);
            (*cpu, ticks.saturating_sub(*before))
        });
        self.grown = new.collect();
        self.ticks = now;
        self.sum_ns = self.sum_ns.saturating_add(self.grown_ns(|_| true));
        self.sum_ns
    }

    /// Of some pCPUs together, between the last look and the one before.
    pub fn grown_ns(&self, of: impl Fn(u32) -> bool) -> u64 {
        // SAFETY: takes a number, returns a number.
        let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
        let ticks = self.grown.iter().filter(|(cpu, _)| of(**cpu)).map(|(_, ticks)| *ticks);
        ticks.fold(0, u64::saturating_add).saturating_mul(1_000_000_000 / ticks_per_s)
    }
}

/// A pCPU and its ticks without work, of `cpu3 USER NICE SYSTEM IDLE IOWAIT ...`.
fn of_pcpu(line: &str) -> Option<(u32, u64)> {
    let (cpu, times) = line.strip_prefix("cpu")?.split_once(' ')?;
    let ticks = times.split_whitespace().skip(3).take(2).filter_map(|n| n.parse().ok());
    Some((cpu.parse().ok()?, ticks.fold(0, u64::saturating_add)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    /// A host whose pCPUs have had so many ticks of idling, and of waiting for disks.
    fn host(pcpus: &[(u64, u64)]) -> FakeHost {
        let line =
            |(cpu, (idle, iowait)): (usize, &(u64, u64))| format!("cpu{cpu} 1 2 3 {idle} {iowait} 6\n");
        let lines: String = pcpus.iter().enumerate().map(line).collect();
        FakeHost::new().file("/proc/stat", &format!("cpu  1 2 3 400 50 6\n{lines}intr 7 8 9\n"))
    }

    #[test]
    fn idle_time_is_that_of_all_pcpus_since_the_first_look() {
        let mut idle = Idle::default();
        assert_eq!(idle.look(&host(&[(100, 5), (200, 0)]).host()), 0);
        assert_eq!(idle.look(&host(&[(150, 15), (240, 0)]).host()), 1_000_000_000);
        assert_eq!(idle.grown_ns(|cpu| cpu == 1), 400_000_000, "what some cannot use is not theirs");
        assert_eq!(idle.look(&FakeHost::new().host()), 1_000_000_000, "nothing to read");
    }

    #[test]
    fn idle_time_never_goes_back() {
        let mut idle = Idle::default();
        idle.look(&host(&[(100, 50), (200, 0)]).host());
        assert_eq!(idle.look(&host(&[(100, 40), (210, 0)]).host()), 100_000_000, "a small step back");
        // pCPU 1 goes, comes with nothing, and what another one had before it came does not count.
        assert_eq!(idle.look(&host(&[(110, 40)]).host()), 200_000_000);
        assert_eq!(idle.look(&host(&[(110, 40), (0, 0), (900, 0)]).host()), 200_000_000);
        assert_eq!(idle.look(&host(&[(110, 40), (20, 0), (900, 0)]).host()), 400_000_000);
    }
}
