// SPDX-License-Identifier: GPL-2.0-only
//! For how long pCPUs were idle.

use std::collections::HashMap;

use super::read::clock_since;
use crate::checks::Host;

/// What the probe knows of a pCPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pcpu {
    pub switches: u64,
    /// A reading of its clock word.
    pub idle_ns: u64,
}

/// What is known of a pCPU that is online.
#[derive(Clone, Copy)]
struct Known {
    /// As the kernel shows it.
    ticks: u64,
    probe: Pcpu,
}

/// Adds up idle time, waiting for disks included.
///
/// The probe has it exactly once a pCPU has switched; before that it cannot tell who is there. The kernel's own figure stands in until then: it goes back a
/// little now and then, and to 0 when the pCPU was offline. One that goes and comes back between two looks counts as idle meanwhile.
#[derive(Default)]
pub struct Idle {
    looked_ns: u64,
    known: HashMap<u32, Known>,
    /// By how much each of them has grown since the look before.
    grown_ns: HashMap<u32, u64>,
    sum_ns: u64,
}

impl Idle {
    /// Of all pCPUs together, since the first look. `pcpus`: all possible ones, in order, at `now`.
    pub fn look(&mut self, host: &Host, pcpus: &[Pcpu], now: u64) -> u64 {
        let stat = host.read("/proc/stat").unwrap_or_default();
        let known = stat.lines().filter_map(of_pcpu).map(|(cpu, ticks)| {
            let mut probe =
                usize::try_from(cpu).ok().and_then(|at| pcpus.get(at)).copied().unwrap_or_default();
            // Who became idle just after `now` was read has a reading that is behind: the next one counts from the one before.
            if let Some(before) = self.known.get(&cpu).filter(|before| before.probe.switches > 0) {
                if clock_since(before.probe.idle_ns, probe.idle_ns) == 0 {
                    probe.idle_ns = before.probe.idle_ns;
                }
            }
            (cpu, Known { ticks, probe })
        });
        let known: HashMap<u32, Known> = known.collect();
        let window_ns = now.saturating_sub(self.looked_ns);
        let grown = known.iter().map(|(cpu, now)| {
            let before = self.known.get(cpu).unwrap_or(now);
            // The kernel's ticks may be more than the time that has passed.
            (*cpu, before.idle_until(now).min(window_ns))
        });
        self.grown_ns = grown.collect();
        (self.known, self.looked_ns) = (known, now);
        self.sum_ns = self.sum_ns.saturating_add(self.grown_ns(|_| true));
        self.sum_ns
    }

    /// Of some pCPUs together, between the last look and the one before.
    pub fn grown_ns(&self, of: impl Fn(u32) -> bool) -> u64 {
        let grown = self.grown_ns.iter().filter(|(cpu, _)| of(**cpu)).map(|(_, ns)| *ns);
        grown.fold(0, u64::saturating_add)
    }
}

impl Known {
    /// For how long it was idle until that later look.
    fn idle_until(&self, later: &Known) -> u64 {
        if self.probe.switches > 0 {
            return clock_since(self.probe.idle_ns, later.probe.idle_ns);
        }
        // SAFETY: takes a number, returns a number.
        let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
        later.ticks.saturating_sub(self.ticks).saturating_mul(1_000_000_000 / ticks_per_s)
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

    const S: u64 = 1_000_000_000;

    /// Looks a second apart at a host of which the probe knows nothing yet.
    fn by_ticks(looks: &[&[(u64, u64)]]) -> (Idle, Vec<u64>) {
        let mut idle = Idle::default();
        let sums =
            looks.iter().zip(1..).map(|(pcpus, second)| idle.look(&host(pcpus).host(), &[], second * S));
        let sums = sums.collect();
        (idle, sums)
    }

    #[test]
    fn idle_time_is_that_of_all_pcpus_since_the_first_look() {
        let (mut idle, sums) = by_ticks(&[&[(100, 5), (200, 0)], &[(150, 15), (240, 0)]]);
        assert_eq!(sums, [0, S]);
        assert_eq!(idle.grown_ns(|cpu| cpu == 1), 400_000_000, "what some cannot use is not theirs");
        assert_eq!(idle.look(&FakeHost::new().host(), &[], 3 * S), S, "nothing to read");
    }

    #[test]
    fn idle_time_never_goes_back_nor_is_it_more_than_all() {
        let (_, sums) = by_ticks(&[
            &[(100, 50), (200, 0)],
            &[(100, 40), (210, 0)], // a small step back
            &[(110, 40)],
            &[(110, 40), (0, 0), (900, 0)], // pCPU 1 has come back with nothing; what another one had before it came does not count
            &[(110, 40), (20, 0), (900, 0)],
            &[(310, 40), (20, 0), (900, 0)],
        ]);
        assert_eq!(sums, [0, 100_000_000, 200_000_000, 200_000_000, 400_000_000, 1_400_000_000]);
    }

    #[test]
    fn who_has_switched_is_known_by_the_probe() {
        let ticks = |n| host(&[(n, 0), (n, 0)]);
        let pcpus = |of: [(u64, u64); 2]| of.map(|(switches, idle_ns)| Pcpu { switches, idle_ns });
        let mut idle = Idle::default();
        idle.look(&ticks(0).host(), &pcpus([(7, 300), (0, 0)]), S);
        // By then the second one has switched, but what it was before that only the ticks tell.
        assert_eq!(idle.look(&ticks(10).host(), &pcpus([(9, 700), (1, 5)]), 2 * S), 100_000_400);
        assert_eq!(idle.look(&ticks(20).host(), &pcpus([(9, 900), (1, 25)]), 3 * S), 100_000_620);
        assert_eq!(
            idle.look(&ticks(30).host(), &pcpus([(9, 899), (1, 25)]), 4 * S),
            100_000_620,
            "clocks of two pCPUs"
        );
    }
}
