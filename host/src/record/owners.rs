// SPDX-License-Identifier: GPL-2.0-only
//! Who the slots are that events name: VMs with their names, weights and quotas, vCPUs with their threads.

use std::collections::BTreeMap;

use cohort_recording::{Event, VcpuAbout, VmAbout};
use tracing::debug;

use crate::checks::Host;
use crate::probe::{self, Probe};
use crate::top::cgroup::{self, Cgroup};
use crate::topology::cpu_list;
use crate::vmname::VmNames;

#[derive(Default)]
pub struct Owners {
    names: VmNames,
    /// Joined, and not looked at yet: by slot.
    new: BTreeMap<u16, Event>,
    /// By process and KVM's VM.
    vms: BTreeMap<(u32, u64), VmAbout>,
}

impl Owners {
    /// A slot has a new owner; who it is, look() finds out.
    pub fn joined(&mut self, event: Event) {
        self.new.insert(event.vcpu, event);
    }

    pub fn look(&mut self, host: &Host, probe: &Probe<'_>) {
        let slots = match probe::slots(probe) {
            Ok(slots) => slots,
            Err(error) => {
                // They stay new: the next look may see them.
                debug!("cannot look at the VMs: {error:#}");
                return;
            }
        };
        for slot in slots {
            let is_new =
                |event: &&Event| u32::from(event.cpu) == slot.vm_slot && u32::from(event.b) == slot.vcpu;
            let number = slot.slot as u16;
            let Some(event) = self.new.get(&number).filter(is_new).copied() else { continue };
            self.new.remove(&number);
            let vm = self.vms.entry((slot.pid, slot.vm_id)).or_insert_with(|| {
                let pid = slot.pid as i32;
                VmAbout {
                    name: self.names.get(host, pid, slot.vm_id),
                    pid: slot.pid,
                    weight: Cgroup::of(host, pid).weight,
                    quota_us: cgroup::quota_us(host, pid),
                    vcpus: Vec::new(),
                }
            });
            vm.vcpus.push(VcpuAbout {
                slot: number,
                from_ns: event.time_ns,
                vcpu: slot.vcpu,
                tid: slot.tid,
                cpus: affinity(host, slot.tid),
            });
        }
    }

    pub fn into_vms(self) -> Vec<VmAbout> {
        let mut vms: Vec<VmAbout> = self.vms.into_values().collect();
        vms.iter_mut().for_each(|vm| vm.vcpus.sort_by_key(|vcpu| (vcpu.vcpu, vcpu.from_ns)));
        vms
    }
}

/// pCPUs that a thread may use; empty: all that are online, or it is gone.
fn affinity(host: &Host, tid: u32) -> Vec<u32> {
    let status = host.read(&format!("/proc/{tid}/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = cpu_list(list.unwrap_or_default());
    let online = cpu_list(&host.online_cpus().unwrap_or_default());
    if online.iter().all(|cpu| allowed.contains(cpu)) {
        return Vec::new();
    }
    allowed.into_iter().filter(|cpu| online.contains(cpu)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    #[test]
    fn an_affinity_is_what_is_not_all() {
        let host = |list: &str| {
            FakeHost::new()
                .file("/sys/devices/system/cpu/online", "0-3\n")
                .file("/proc/7/status", &format!("Name:\tx\nCpus_allowed_list:\t{list}\n"))
        };
        assert_eq!(affinity(&host("0-7").host(), 7), Vec::<u32>::new());
        assert_eq!(affinity(&host("1,3-9").host(), 7), [1, 3]);
        assert_eq!(affinity(&host("1").host(), 8), Vec::<u32>::new(), "it is gone");
    }
}
