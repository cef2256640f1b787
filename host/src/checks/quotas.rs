// SPDX-License-Identifier: GPL-2.0-only
//! CPU quotas (`cpu.max`). The kernel's fair class enforces them, and under a sched_ext scheduler nobody does unless that scheduler is told of
//! them. Where it is not told, loading it would lift every tenant's cap without a word, so that a host with quotas is refused.

use std::fs;
use std::path::Path;

use super::Host;
use crate::vmname::printable_path;

const CGROUPS: &str = "/sys/fs/cgroup";
/// So many cgroups are named; the others are counted.
const NAMED_MAX: usize = 5;

impl Host {
    pub(super) fn quotas(&self) -> Option<String> {
        // Since Linux 6.17, with CONFIG_EXT_GROUP_SCHED.
        if self.kernel_ops()?.contains("cgroup_set_bandwidth") {
            return None;
        }
        // The root has no type.
        if self.exists(&format!("{CGROUPS}/cgroup.type")) {
            return Some(
                "this kernel does not tell a sched_ext scheduler about CPU quotas (cpu.max), and whether cgroups of the host have any is not seen here: \
                 run outside containers, or with the host's cgroups (--cgroupns=host, and /sys/fs/cgroup mounted from it)"
                    .to_string(),
            );
        }
        let limited = self.limited_cgroups();
        let more = limited.len().saturating_sub(NAMED_MAX);
        let mut names = limited.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        (!limited.is_empty()).then(|| {
            format!(
                "this kernel does not tell a sched_ext scheduler about CPU quotas (cpu.max), which would no longer hold for {names}: \
                 boot one of version 6.17 or newer built with CONFIG_EXT_GROUP_SCHED=y, or set these quotas to max"
            )
        })
    }

    /// The cgroups that have a quota, by their paths below the mount, in order.
    fn limited_cgroups(&self) -> Vec<String> {
        let mut limited = Vec::new();
        self.each_cgroup(|dir, path| {
            if has_quota(dir) {
                limited.push(path());
            }
        });
        limited.sort();
        limited
    }

    /// Call `each` with the folder of every cgroup, and what gives its path below the mount.
    pub fn each_cgroup(&self, mut each: impl FnMut(&Path, &dyn Fn() -> String)) {
        let root = self.path(CGROUPS);
        let mut todo = vec![root.clone()];
        while let Some(dir) = todo.pop() {
            let path = dir.strip_prefix(&root).unwrap_or(&dir);
            each(&dir, &|| printable_path(&format!("/{}", path.display())));
            // A cgroup may be gone by now. What file_type() says of a symbolic link is not that it is a folder: none is followed.
            let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
            todo.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
        }
    }
}

fn has_quota(cgroup: &Path) -> bool {
    let read = |file| fs::read_to_string(cgroup.join(file)).unwrap_or_default();
    let quota = |text: String| text.split_whitespace().next().is_some_and(|word| word.parse::<u64>().is_ok());
    // "max 100000" or "50000 100000"; in the first version of cgroups -1 or 50000.
    quota(read("cpu.max")) || quota(read("cpu.cfs_quota_us"))
}

#[cfg(test)]
mod tests {
    use crate::checks::tests::FakeHost;
    use crate::kernel_ops::Names;

    /// A host whose kernel knows no quotas, with one on each of these cgroups.
    fn deaf_host(limited: &[&str]) -> FakeHost {
        let host = FakeHost::good()
            .with_ops(|_| Some(Names::new()))
            .file("/sys/fs/cgroup/cgroup.procs", "1\n")
            .file("/sys/fs/cgroup/user.slice/cpu.max", "max 100000\n");
        limited
            .iter()
            .fold(host, |host, name| host.file(&format!("/sys/fs/cgroup{name}/cpu.max"), "50000 100000\n"))
    }

    #[test]
    fn quotas_that_the_kernel_would_not_tell() {
        assert_eq!(deaf_host(&[]).host().refusals(), Vec::<String>::new(), "no quota, no harm");
        deaf_host(&["/machine.slice/web.scope"]).refused_for(&[
            "cpu.max",
            "for /machine.slice/web.scope:",
            "6.17",
            "CONFIG_EXT_GROUP_SCHED=y",
            "to max",
        ]);
        let host = deaf_host(&["/z", "/a/b", "/a"]);
        host.refused_for(&["for /a, /a/b, /z:"]);
        let host = host.with_ops(|_| Some(["cgroup_set_bandwidth".to_string()].into()));
        assert_eq!(host.host().refusals(), Vec::<String>::new(), "told, and kept");
    }

    #[test]
    fn a_part_of_the_hosts_cgroups_says_nothing_of_the_others() {
        let part = deaf_host(&[]).file("/sys/fs/cgroup/cgroup.type", "domain\n");
        part.refused_for(&["cpu.max", "not seen here", "--cgroupns=host"]);
        let told = part.with_ops(|_| Some(["cgroup_set_bandwidth".to_string()].into()));
        assert_eq!(told.host().refusals(), Vec::<String>::new());
    }

    #[test]
    fn cgroups_of_one_vm_can_be_told_apart() {
        let libvirt = "/machine.slice/machine-qemu\\x2d12\\x2dweb\\x2dfrontend\\x2dproduction.scope/libvirt";
        deaf_host(&[&format!("{libvirt}/vcpu0"), &format!("{libvirt}/vcpu1")])
            .refused_for(&["/libvirt/vcpu0, ", "/libvirt/vcpu1:"]);
    }

    #[test]
    fn many_quotas_are_counted() {
        let host = deaf_host(&["/a", "/b", "/c", "/d", "/e"]);
        host.refused_for(&["/a, /b, /c, /d, /e: boot"]);
        let host = host.file("/sys/fs/cgroup/f/cpu.max", "1000 100000\n");
        host.refused_for(&["/a, /b, /c, /d, /e and 1 more: boot"]);
        host.file("/sys/fs/cgroup/g/h/cpu.max", "1000 100000\n").refused_for(&["/e and 2 more:"]);
    }

    #[test]
    fn quotas_of_the_first_version_of_cgroups() {
        let unlimited = deaf_host(&[]).file("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
        assert_eq!(unlimited.host().refusals(), Vec::<String>::new());
        unlimited
            .file("/sys/fs/cgroup/cpu,cpuacct/b/cpu.cfs_quota_us", "50000\n")
            .refused_for(&["/cpu,cpuacct/b:"]);
    }

    #[test]
    fn a_cgroup_cannot_drive_the_terminal_nor_lead_elsewhere() {
        let host = deaf_host(&["/a\x1b[2J"]);
        host.refused_for(&["for /a?[2J:"]);
        let host = deaf_host(&[]).file("/elsewhere/cpu.max", "1 2\n");
        std::os::unix::fs::symlink(host.host().path("/elsewhere"), host.host().path("/sys/fs/cgroup/link"))
            .unwrap();
        assert_eq!(host.host().refusals(), Vec::<String>::new());
    }

    #[test]
    fn kernel_whose_types_cannot_be_read_is_not_judged_by_them() {
        let host = deaf_host(&["/a"]).with_ops(|_| None);
        assert_eq!(host.host().refusals(), Vec::<String>::new());
    }
}
