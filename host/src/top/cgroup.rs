// SPDX-License-Identifier: GPL-2.0-only
//! What a VM's cgroup says: its weight, and how long its quota kept it from running. And how long pCPUs were idle.

use crate::checks::Host;

const ROOT: &str = "/sys/fs/cgroup";
const WEIGHT_DEFAULT: f64 = 100.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cgroup {
    /// 100 for the kernel's default at each level.
    pub weight: f64,
    pub throttled_ns: u64,
}

impl Cgroup {
    /// Of a process. One without cgroup v2 has the default weight and no quota.
    pub fn of(host: &Host, pid: i32) -> Self {
        let text = host.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let mut found = Cgroup { weight: WEIGHT_DEFAULT, throttled_ns: 0 };
        let mut group = String::from(ROOT);
        for part in path.split('/').filter(|part| !part.is_empty()) {
            group = format!("{group}/{part}");
            let weight = host.read(&format!("{group}/cpu.weight")).and_then(|text| text.parse::<f64>().ok());
            found.weight *= weight.unwrap_or(WEIGHT_DEFAULT) / WEIGHT_DEFAULT;
            let stat = host.read(&format!("{group}/cpu.stat")).unwrap_or_default();
            let us = stat.lines().find_map(|line| line.strip_prefix("throttled_usec ")?.parse::<u64>().ok());
            // The tightest quota is the one that holds it back.
            found.throttled_ns = found.throttled_ns.max(us.unwrap_or(0).saturating_mul(1_000));
        }
        found
    }
}

/// The tightest `cpu.max` of a process's cgroup and those above it: µs of CPU time in each period of so many µs.
pub fn quota_us(host: &Host, pid: i32) -> Option<(u64, u64)> {
    let text = host.read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let path = text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut group = String::from(ROOT);
    let mut tightest: Option<(u64, u64)> = None;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        group = format!("{group}/{part}");
        let max = host.read(&format!("{group}/cpu.max")).unwrap_or_default();
        let mut words = max.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(quota)), Some(Ok(period @ 1..))) = (words.next(), words.next()) else { continue };
        let share = |(quota, period): (u64, u64)| quota as f64 / period as f64;
        if tightest.is_none_or(|known| share((quota, period)) < share(known)) {
            tightest = Some((quota, period));
        }
    }
    tightest
}

/// Time that pCPUs were idle, waiting for disks included, all together.
pub fn idle_ns(host: &Host) -> u64 {
    // SAFETY: takes a number, returns a number.
    let ticks_per_s = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    let stat = host.read("/proc/stat").unwrap_or_default();
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: u64 = all.split_whitespace().skip(3).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    ticks.saturating_mul(1_000_000_000 / ticks_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    #[test]
    fn weights_multiply_along_the_path_and_the_tightest_quota_counts() {
        let host = FakeHost::new()
            .file("/proc/7/cgroup", "0::/machine.slice/a.scope\n")
            .file("/sys/fs/cgroup/machine.slice/cpu.weight", "200\n")
            .file("/sys/fs/cgroup/machine.slice/cpu.stat", "usage_usec 9\nthrottled_usec 3\n")
            .file("/sys/fs/cgroup/machine.slice/a.scope/cpu.weight", "50\n")
            .file("/sys/fs/cgroup/machine.slice/a.scope/cpu.stat", "throttled_usec 40\n");
        assert_eq!(Cgroup::of(&host.host(), 7), Cgroup { weight: 100.0, throttled_ns: 40_000 });
        assert_eq!(Cgroup::of(&host.host(), 8), Cgroup { weight: 100.0, throttled_ns: 0 });
    }

    #[test]
    fn the_tightest_quota_is_of_any_level() {
        let host = FakeHost::new()
            .file("/proc/7/cgroup", "0::/machine.slice/a.scope\n")
            .file("/sys/fs/cgroup/machine.slice/cpu.max", "150000 100000\n")
            .file("/sys/fs/cgroup/machine.slice/a.scope/cpu.max", "max 100000\n");
        assert_eq!(quota_us(&host.host(), 7), Some((150_000, 100_000)));
        assert_eq!(quota_us(&host.host(), 8), None);
    }

    #[test]
    fn idle_time_is_that_of_all_pcpus() {
        let host = FakeHost::new().file("/proc/stat", "cpu  1 2 3 400 50 6\ncpu0 1 1 1 1 1\n");
        assert_eq!(idle_ns(&host.host()), 4_500_000_000);
    }
}
