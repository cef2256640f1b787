// SPDX-License-Identifier: GPL-2.0-only
//! What the cgroups of a VM say: its weight, its quota, and how long quotas kept its vCPUs from running.
//!
//! libvirt gives each vCPU's thread a cgroup of its own, which has the quota, and the process another one beside these.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::sample::Sample;
use crate::checks::Host;

const ROOT: &str = "/sys/fs/cgroup";
/// The kernel's default at each level.
pub const WEIGHT_DEFAULT: f64 = 100.0;
/// Of a cgroup with cpu.idle, whose cpu.weight is shown as 0: the kernel counts 3 where it counts 1024 for the default.
const WEIGHT_IDLE: f64 = WEIGHT_DEFAULT * 3.0 / 1024.0;

/// Fields of a sample's VMs that are computed from quotas, and those from weights.
pub const OF_QUOTAS: &[&str] = &["throttled_ns"];
pub const OF_WEIGHTS: &[&str] = &["weight", "lag_ns", "lag_behind_ns", "lag_ahead_ns"];

/// µs of CPU time in each period of so many µs.
type Quota = (u64, u64);

/// For how many µs quotas of these cgroups have kept somebody from running, ever.
type Readings = HashMap<PathBuf, u64>;

/// Why nothing is known of a VM's cgroups.
#[derive(Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Its process is.
    Gone,
    /// They are of the first version, or some of them are outside of what can be seen from here.
    Hidden,
    /// Its process is there, and /proc does not show it to us.
    ProcessHidden,
}

/// The cgroups that a VM is in.
pub struct Cgroups {
    /// The names along its process' path.
    process: Vec<OsString>,
    vcpus: Tree,
}

/// A cgroup, and those inside it in which vCPUs are.
#[derive(Default)]
struct Tree {
    inside: BTreeMap<OsString, Tree>,
    /// vCPUs are in it, and in none of those inside it.
    has_vcpus: bool,
}

impl Cgroups {
    /// Of a process, some of whose threads are vCPUs.
    pub fn of(host: &Host, pid: i32, tids: impl Iterator<Item = u32>) -> Result<Self, Unknown> {
        let Some(text) = host.bytes(&format!("/proc/{pid}/cgroup")) else {
            return Err(if host.has_task(pid) { Unknown::ProcessHidden } else { Unknown::Gone });
        };
        let process = path(&text)?;
        // The root of all cgroups has no type: this is a part of them, and what is above it weighs and limits as well.
        if host.exists(&format!("{ROOT}/cgroup.type")) {
            return Err(Unknown::Hidden);
        }
        let mut vcpus = Tree::default();
        let mut count = 0;
        for tid in tids {
            // Who is shown the process is shown its threads.
            let text = host.bytes(&format!("/proc/{pid}/task/{tid}/cgroup"));
            match text.map_or(Err(Unknown::Gone), |text| path(&text)) {
                // One thread: its siblings may be there.
                Err(Unknown::Gone) => continue,
                path => vcpus.put(&path?),
            }
            count += 1;
        }
        if count == 0 {
            vcpus.put(&process);
        }
        Ok(Cgroups { process, vcpus })
    }

    /// Times those above it, of 100 each.
    pub fn weight(&self, host: &Host) -> f64 {
        let mut group = PathBuf::from(ROOT);
        let parts = self.process.iter().map(|part| {
            group.push(part);
            let weight = host.read(&group.join("cpu.weight")).and_then(|text| text.parse::<f64>().ok());
            weight.map_or(1.0, |weight| weight.max(WEIGHT_IDLE) / WEIGHT_DEFAULT)
        });
        WEIGHT_DEFAULT * parts.product::<f64>()
    }

    /// By quotas of the vCPUs' own cgroups and of those above them, since the readings `before` (None: ever);
    /// and the readings of now. One above that is shared with others counts in full.
    fn throttled_ns(
        &self,
        host: &Host,
        stats: &mut Stats,
        before: Option<&Readings>,
    ) -> Result<(u64, Readings), Unknown> {
        let mut now = Readings::new();
        let us = self.vcpus.throttled_us(Path::new(ROOT), &mut |dir: &Path| {
            let us = stats.throttled_us(host, dir)?;
            now.insert(dir.to_path_buf(), us);
            // Of a cgroup that was not read then, all of it may be from before that, and of other VMs.
            Some(before.map_or(us, |before| before.get(dir).map_or(0, |then| us.saturating_sub(*then))))
        });
        Ok((us.ok_or(Unknown::Hidden)?.saturating_mul(1_000), now))
    }

    /// The tightest quota: of a cgroup that all vCPUs are in, or the sum where each of them has one of its own.
    pub fn quota_us(&self, host: &Host) -> Option<Quota> {
        self.vcpus.quota_us(host, Path::new(ROOT))
    }

    /// Has one of its vCPUs a quota?
    fn is_limited(&self, host: &Host) -> bool {
        self.vcpus.is_limited(host, Path::new(ROOT))
    }
}

impl Tree {
    fn put(&mut self, path: &[OsString]) {
        match path.split_first() {
            Some((first, rest)) => self.inside.entry(first.clone()).or_default().put(rest),
            None => self.has_vcpus = true,
        }
    }

    /// All inside it together, where `of` tells it of each cgroup; None: one is not to be read.
    fn throttled_us(&self, dir: &Path, of: &mut dyn FnMut(&Path) -> Option<u64>) -> Option<u64> {
        let mut sum = 0u64;
        for (name, group) in &self.inside {
            let dir = dir.join(name);
            let us = of(&dir)?;
            // Who is held back by its own quota and by one above it is held back once.
            let inside = group.throttled_us(&dir, of)?;
            sum = sum.saturating_add(us.max(inside));
        }
        Some(sum)
    }

    /// All inside it together; None: not each of its vCPUs has one there.
    fn quota_us(&self, host: &Host, dir: &Path) -> Option<Quota> {
        let of_each = self.inside.iter().map(|(name, group)| {
            let dir = dir.join(name);
            tightest(quota(host, &dir), group.quota_us(host, &dir))
        });
        let sum = of_each.reduce(|a, b| Some(added(a?, b?))).flatten();
        sum.filter(|_| !self.has_vcpus)
    }

    fn is_limited(&self, host: &Host, dir: &Path) -> bool {
        self.inside.iter().any(|(name, group)| {
            let dir = dir.join(name);
            quota(host, &dir).is_some() || group.is_limited(host, &dir)
        })
    }
}

/// What cpu.stat says of the cgroups that VMs are in. For who reads it the kernel adds up what all pCPUs have counted there: so it is read once a look, and no more
/// while there is no quota.
#[derive(Default)]
struct Stats {
    look: u64,
    known: HashMap<PathBuf, Stat>,
}

struct Stat {
    /// When it was asked for last, and whether there was a quota then.
    look: u64,
    has_quota: bool,
    throttled_us: u64,
}

impl Stats {
    /// What was read before is old. Cgroups that the last look did not ask for are gone.
    fn begin_look(&mut self) {
        let last = self.look;
        self.known.retain(|_, stat| stat.look == last);
        self.look += 1;
    }

    /// None: not to be read.
    fn throttled_us(&mut self, host: &Host, dir: &Path) -> Option<u64> {
        let look = self.look;
        let known = self.known.get_mut(dir);
        if let Some(stat) = known.as_ref().filter(|stat| stat.look == look) {
            return Some(stat.throttled_us);
        }
        let has_quota = quota(host, dir).is_some();
        if let Some(stat) = known.filter(|stat| !stat.has_quota && !has_quota) {
            stat.look = look;
            return Some(stat.throttled_us);
        }
        let text = host.read(&dir.join("cpu.stat"))?;
        let us = text.lines().find_map(|line| line.strip_prefix("throttled_usec ")?.parse::<u64>().ok());
        // It has no such line where no quota can be.
        let throttled_us = us.unwrap_or(0);
        self.known.insert(dir.to_path_buf(), Stat { look, has_quota, throttled_us });
        Some(throttled_us)
    }
}

/// The names along the path of a task's cgroup, which may be any bytes, by its file in /proc.
fn path(text: &[u8]) -> Result<Vec<OsString>, Unknown> {
    let lines = || text.split(|byte| *byte == b'\n');
    // A task that has ended, of which somebody is still to be told.
    if lines().any(|line| line.ends_with(b" (deleted)")) {
        return Err(Unknown::Gone);
    }
    // Where the first version has the controller, the second has a path as well, which says nothing of quotas.
    let is_of_cpu = |line: &[u8]| {
        let controllers = line.split(|byte| *byte == b':').nth(1).unwrap_or_default();
        controllers.split(|byte| *byte == b',').any(|name| name == b"cpu")
    };
    if lines().any(is_of_cpu) {
        return Err(Unknown::Hidden);
    }
    let path = lines().find_map(|line| line.strip_prefix(b"0::")).ok_or(Unknown::Hidden)?;
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let names: Vec<OsString> = names.map(|name| OsString::from_vec(name.to_vec())).collect();
    // Outside this cgroup namespace the kernel writes "/../x".
    if names.iter().any(|name| name == "..") {
        return Err(Unknown::Hidden);
    }
    Ok(names)
}

/// What cannot be seen is looked at twice: a VM that ends, or is moved, or loses a vCPU takes a cgroup away between its path and its figures.
fn surely<T>(mut look: impl FnMut() -> Result<T, Unknown>) -> Result<T, Unknown> {
    match look() {
        Err(Unknown::Hidden) => look(),
        other => other,
    }
}

/// `cpu.max`: "50000 100000"; "max 100000" is none.
fn quota(host: &Host, dir: &Path) -> Option<Quota> {
    let text = host.read(&dir.join("cpu.max"))?;
    let (quota, period) = text.split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok().filter(|period| *period > 0)?))
}

fn tightest(a: Option<Quota>, b: Option<Quota>) -> Option<Quota> {
    let share = |(quota, period): &Quota| *quota as f64 / *period as f64;
    [a, b].into_iter().flatten().min_by(|a, b| share(a).total_cmp(&share(b)))
}

/// Over the period of the first.
fn added((quota, period): Quota, (other, other_period): Quota) -> Quota {
    (quota.saturating_add(other.saturating_mul(period) / other_period), period)
}

/// Puts what cgroups say into samples, and remembers it while it cannot be read.
#[derive(Default)]
pub struct Figures {
    /// By VM.
    known: HashMap<u64, Known>,
    stats: Stats,
}

/// What was read last of a VM's cgroups.
struct Known {
    weight: f64,
    /// A counter, which never goes back.
    throttled_ns: u64,
    /// What the last look read, nothing if it could not; None: nobody has looked yet. Each cgroup is
    /// compared with itself alone: a VM that is moved finds in its new one what was throttled there without
    /// it, and a vCPU that is unplugged takes its cgroup's part along.
    readings: Option<Readings>,
}

impl Known {
    fn read(&mut self, weight: f64, throttled_ns: u64, readings: Readings) {
        self.weight = weight;
        self.throttled_ns = self.throttled_ns.saturating_add(throttled_ns);
        self.readings = Some(readings);
    }

    /// What it says next has grown over more than one interval, and would be shown as of the last one.
    fn missed(&mut self) {
        self.readings = Some(Readings::new());
    }
}

impl Figures {
    /// Read them for all VMs of a sample. What is not known of one of them is missing from the sample, and a note says why.
    pub fn update(&mut self, sample: &mut Sample, host: &Host) {
        let extension = host.loaded_scheduler();
        let (mut hidden, mut is_limited) = (None, false);
        self.stats.begin_look();
        for vm in &mut sample.vms {
            let known = self.known.entry(vm.id).or_insert(Known {
                weight: WEIGHT_DEFAULT,
                throttled_ns: 0,
                readings: None,
            });
            let read = surely(|| {
                let groups = Cgroups::of(host, vm.pid, vm.vcpus.iter().map(|vcpu| vcpu.tid))?;
                let throttled = groups.throttled_ns(host, &mut self.stats, known.readings.as_ref())?;
                Ok((groups.weight(host), throttled, extension.is_some() && groups.is_limited(host)))
            });
            match read {
                Ok((weight, (ns, readings), limited)) => {
                    known.read(weight, ns, readings);
                    is_limited |= limited;
                }
                Err(unknown) => {
                    known.missed();
                    hidden = hidden.or((unknown != Unknown::Gone).then_some(unknown));
                }
            }
            (vm.weight, vm.throttled_ns) = (known.weight, known.throttled_ns);
        }
        let alive: HashSet<u64> = sample.vms.iter().map(|vm| vm.id).collect();
        self.known.retain(|id, _| alive.contains(id));
        let mut lose = |fields: &[&str], note: String| {
            sample.missing.extend(fields.iter().map(ToString::to_string));
            sample.notes.push(note);
        };
        if let Some(unknown) = hidden {
            let note = match unknown {
                Unknown::ProcessHidden => {
                    "names, weights and quotas of VMs cannot be read: /proc hides their processes (hidepid=): run with CAP_SYS_PTRACE as well"
                }
                _ => {
                    "weights and quotas of VMs cannot be read: they take cgroup v2 at /sys/fs/cgroup and, in a container, the host's cgroup \
                     namespace (--cgroupns=host)"
                }
            };
            lose(&[OF_QUOTAS, OF_WEIGHTS].concat(), note.into());
        } else if let Some(name) = extension.filter(|_| is_limited) {
            lose(
                OF_QUOTAS,
                format!("the kernel's cpu.stat does not show what {name} throttles (of cohort, `cohort run --monitor 1 --json` does)"),
            );
        }
    }
}

#[cfg(test)]
mod tests;
