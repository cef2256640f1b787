// SPDX-License-Identifier: GPL-2.0-only
//! What the scheduler knows of cgroups: those with a quota, as `cpu.stat` would show them, and how many entries of its tables are taken.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libbpf_rs::MapCore;
use serde_json::{json, Value};

use crate::bpf::types::entity_ctx;
use crate::checks::Host;
use crate::intf;
use crate::maps;

/// enum cohort_entity_kind
const ENTITY_GROUP: u32 = 1;
const ENTITY_VM: u32 = 2;

/// The cgroups of the map `entities` at one moment.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Those with a quota, by path.
    limited: Vec<Group>,
    /// Entries taken by cgroups, and by VMs.
    groups: u32,
    vms: u32,
}

#[derive(Clone, Debug)]
struct Group {
    path: String,
    ctx: entity_ctx,
}

/// Paths of cgroups by their ids, which are the numbers of their inodes.
#[derive(Debug, Default)]
pub struct GroupNames {
    known: HashMap<u64, String>,
    /// Ids that were not found when all cgroups were looked through last: they alone are no reason to do it again.
    missing: HashSet<u64>,
}

/// Where a cgroup's quota is, by the version of cgroups.
const QUOTA_FILES: [&str; 2] = ["cpu.max", "cpu.cfs_quota_us"];

/// Can it have a quota? In the first version of cgroups each hierarchy numbers its own, and only those of the CPU controller are meant.
fn may_have_quota(cgroup: &Path) -> bool {
    QUOTA_FILES.iter().any(|file| cgroup.join(file).exists())
}

impl GroupNames {
    /// Look through all cgroups if one of `ids` is new; forget those that are gone.
    fn find(&mut self, host: &Host, ids: impl Iterator<Item = u64>) {
        let ids: HashSet<u64> = ids.collect();
        if ids.iter().all(|id| self.known.contains_key(id) || self.missing.contains(id)) {
            return;
        }
        self.known.clear();
        host.each_cgroup(|dir, path| {
            if !may_have_quota(dir) {
                return;
            }
            // One may be gone by now.
            if let Ok(about) = fs::symlink_metadata(dir) {
                self.known.insert(about.ino(), path());
            }
        });
        self.missing = ids.into_iter().filter(|id| !self.known.contains_key(id)).collect();
    }
}

/// Read the map `entities`.
pub fn read(entities: &impl MapCore, host: &Host, names: &mut GroupNames) -> libbpf_rs::Result<Groups> {
    let mut all = Vec::new();
    let end = |root: &[u8]| entity_from(root).map_or(0, |root| root.end);
    maps::for_each_until(entities, end, |_, bytes| {
        all.extend(entity_from(bytes).filter(|ctx| ctx.kind != 0));
    })?;
    Ok(Groups::of(&all, host, names))
}

impl Groups {
    fn of(all: &[entity_ctx], host: &Host, names: &mut GroupNames) -> Groups {
        let count = |kind| all.iter().filter(|ctx| ctx.kind == kind).count() as u32;
        let limited = || all.iter().filter(|ctx| ctx.kind == ENTITY_GROUP && ctx.quota_ns > 0);
        names.find(host, limited().map(|ctx| ctx.id));
        let path = |id| names.known.get(&id).cloned().unwrap_or_default();
        let mut limited: Vec<_> = limited().map(|ctx| Group { path: path(ctx.id), ctx: *ctx }).collect();
        limited.sort_by(|a, b| a.path.cmp(&b.path));
        Groups { limited, groups: count(ENTITY_GROUP), vms: count(ENTITY_VM) }
    }

    /// The cgroups with a quota, as in `cpu.stat`.
    pub fn json(&self) -> Vec<Value> {
        self.limited.iter().map(Group::json).collect()
    }

    /// How many entries of the scheduler's tables are taken.
    pub fn taken(&self, vms: usize, vcpus: u32) -> Value {
        json!({
            "vms": vms,
            "vcpus": vcpus,
            "cgroups": self.groups,
            "entities": self.groups + self.vms,
            "entities_max": intf::MAX_ENTITIES - 1,
            "quotas": self.limited.len(),
        })
    }
}

impl Group {
    fn json(&self) -> Value {
        let c = &self.ctx;
        json!({
            "cgroup": self.path,
            "quota_usec": c.quota_ns / 1000,
            "period_usec": c.period_ns / 1000,
            "burst_usec": c.burst_ns / 1000,
            "used_usec": c.used_ns / 1000,
            "nr_periods": c.nr_periods,
            "nr_throttled": c.nr_throttled,
            "throttled_usec": c.throttled_ns / 1000,
        })
    }
}

fn entity_from(bytes: &[u8]) -> Option<entity_ctx> {
    if bytes.len() < size_of::<entity_ctx>() {
        return None;
    }
    // SAFETY: there are enough bytes, read_unaligned needs no alignment, and every bit pattern is a valid entity_ctx: it has integers only.
    Some(unsafe { bytes.as_ptr().cast::<entity_ctx>().read_unaligned() })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    pub fn limited_json() -> Value {
        Group { path: String::new(), ctx: entity_ctx::default() }.json()
    }

    fn group(id: u64, quota_ns: u64) -> entity_ctx {
        entity_ctx { id, kind: ENTITY_GROUP, quota_ns, ..entity_ctx::default() }
    }

    #[test]
    fn a_quota_is_shown_as_in_cpu_stat() {
        let fake = FakeHost::good().file("/sys/fs/cgroup/tenant.slice/web.scope/cpu.max", "30000 100000\n");
        let host = fake.host();
        let id = fs::metadata(host.path("/sys/fs/cgroup/tenant.slice/web.scope")).unwrap().ino();
        let limited = entity_ctx {
            period_ns: 100_000_000,
            burst_ns: 5_000,
            used_ns: 1_500_000,
            nr_periods: 12,
            nr_throttled: 7,
            throttled_ns: 99_999,
            ..group(id, 30_000_000)
        };
        let vm = entity_ctx { id: 1, kind: ENTITY_VM, ..entity_ctx::default() };
        let all = [limited, group(2, 0), vm, vm, group(3, 1_000)];
        let mut names = GroupNames::default();
        let groups = Groups::of(&all, &host, &mut names);
        let gone = json!({
            "cgroup": "", "quota_usec": 1, "period_usec": 0, "burst_usec": 0, "used_usec": 0,
            "nr_periods": 0, "nr_throttled": 0, "throttled_usec": 0,
        });
        let shown = json!({
            "cgroup": "/tenant.slice/web.scope", "quota_usec": 30_000, "period_usec": 100_000, "burst_usec": 5,
            "used_usec": 1_500, "nr_periods": 12, "nr_throttled": 7, "throttled_usec": 99,
        });
        assert_eq!(groups.json(), vec![gone, shown], "by path; one that is gone has none");
        let taken =
            json!({ "vms": 2, "vcpus": 6, "cgroups": 3, "entities": 5, "entities_max": 8191, "quotas": 2 });
        assert_eq!(groups.taken(2, 6), taken);
    }

    #[test]
    fn names_are_looked_up_only_for_newcomers() {
        let fake = FakeHost::good().file("/sys/fs/cgroup/a/cpu.max", "1 2\n");
        let host = fake.host();
        let a = fs::metadata(host.path("/sys/fs/cgroup/a")).unwrap().ino();
        let mut names = GroupNames::default();
        names.find(&host, std::iter::empty());
        assert!(names.known.is_empty(), "nobody asks");
        names.find(&host, [a].into_iter());
        assert_eq!(names.known[&a], "/a");
        names.known.insert(a, "as it was".into());
        names.find(&host, [a].into_iter());
        assert_eq!(names.known[&a], "as it was");
        names.find(&host, [a, a + 1_000_000].into_iter());
        assert_eq!(names.known[&a], "/a");
        // One that was not found is not looked for each time.
        names.known.insert(a, "as it was".into());
        names.find(&host, [a, a + 1_000_000].into_iter());
        assert_eq!(names.known[&a], "as it was");
        names.find(&host, [a, a + 1_000_000, a + 2_000_000].into_iter());
        assert_eq!(names.known[&a], "/a");
    }

    #[test]
    fn ids_of_other_hierarchies_are_not_those_of_the_cpu_controllers() {
        let fake = FakeHost::good()
            .file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "50000\n")
            .file("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1\n")
            .file("/sys/fs/cgroup/unified/c/cgroup.procs", "1\n");
        let host = fake.host();
        let id = |path: &str| fs::metadata(host.path(path)).unwrap().ino();
        let (a, b) = (id("/sys/fs/cgroup/cpu,cpuacct/a"), id("/sys/fs/cgroup/memory/b"));
        let mut names = GroupNames::default();
        names.find(&host, [a, b].into_iter());
        assert_eq!(names.known, HashMap::from([(a, "/cpu,cpuacct/a".to_string())]));
        assert_eq!(names.missing, HashSet::from([b]));
    }

    #[test]
    fn a_map_of_another_layout_is_not_read() {
        assert!(entity_from(&[0; size_of::<entity_ctx>() - 1]).is_none());
        let mut bytes = [0u8; 1024];
        bytes[..8].copy_from_slice(&77u64.to_ne_bytes());
        assert_eq!(entity_from(&bytes).map(|ctx| ctx.id), Some(77));
    }
}
