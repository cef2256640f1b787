// SPDX-License-Identifier: GPL-2.0-only
//! Which slot is which vCPU, and the host and its VMs as observers know them.

use cohort_recording::reader::{Owners, PCPUS_MAX};
use cohort_recording::{Event, Kind, Recording};

use crate::error::SimError;
use crate::ids::{TaskId, VcpuId, VmId};
use crate::metrics::layout::{TaskLayout, VmLayout};
use crate::metrics::Layout;
use crate::time::Ns;

/// Ten days: no recording is longer, and no sum of times overflows.
const LENGTH_MAX_NS: Ns = 864_000_000_000_000;
const VCPUS_MAX: usize = 1 << 17;

/// The pCPU that an event is about; of some kinds the number says something else, or nothing.
pub fn pcpu_of(event: &Event) -> Option<u32> {
    matches!(event.kind, Kind::Run | Kind::Woken | Kind::Moved).then_some(u32::from(event.cpu))
}

pub struct Who {
    pub layout: Layout,
    /// When the recording begins, by its own clock, and how long it lasts.
    pub start_ns: Ns,
    pub length_ns: Ns,
    owners: Owners,
    /// By VM, and by place in the recording's list of its vCPUs: the vCPU's rank among their numbers.
    ranks: Vec<Vec<u32>>,
    /// By VM: its first task. Task by task they are the vCPUs.
    bases: Vec<usize>,
}

impl Who {
    pub fn of(recording: &Recording) -> Result<Self, SimError> {
        let refuse = |what: String| Err(SimError::Config(what));
        let count: usize = recording.end.vms.iter().map(|vm| vm.vcpus.len()).sum();
        if count > VCPUS_MAX {
            return refuse(format!("end: vms: have {count} vCPUs; allowed: at most {VCPUS_MAX}"));
        }
        let first_ns = recording.events.first().map(|event| event.time_ns);
        let last_ns = recording.events.last().map_or(0, |event| event.time_ns).max(recording.end.clock_ns);
        // What is there from the beginning on was found before the header was written.
        let start_ns = first_ns.unwrap_or(recording.header.clock_ns);
        let length_ns = last_ns.saturating_sub(start_ns).max(1);
        if length_ns > LENGTH_MAX_NS {
            return refuse(format!("lasts {length_ns} ns; allowed: at most {LENGTH_MAX_NS}"));
        }
        // The header has those that were online when the recording began; a pCPU may have come since.
        let told = recording.header.pcpus.iter().map(|pcpu| pcpu.cpu);
        let seen = recording.events.iter().filter_map(pcpu_of).filter(|cpu| *cpu < PCPUS_MAX);
        let pcpus = told.chain(seen).max().map_or(1, |most| most + 1);
        let (mut vms, mut tasks, mut ranks, mut bases) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, vm) in recording.end.vms.iter().enumerate() {
            let mut numbers: Vec<u32> = vm.vcpus.iter().map(|vcpu| vcpu.vcpu).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let rank = |number: u32| numbers.partition_point(|other| *other < number) as u32;
            ranks.push(vm.vcpus.iter().map(|vcpu| rank(vcpu.vcpu)).collect());
            bases.push(tasks.len());
            let twin = recording.end.vms[..index].iter().any(|other| other.name == vm.name);
            let name = if twin { format!("{} (pid {})", vm.name, vm.pid) } else { vm.name.clone() };
            for (id, number) in numbers.iter().enumerate() {
                tasks.push(TaskLayout {
                    name: format!("{name}/{number}"),
                    vm: Some(index as u32),
                    vcpu: Some(VcpuId { vm: VmId(index as u32), id: id as u32 }),
                    waits_on: None,
                });
            }
            vms.push(VmLayout {
                name,
                vcpus: numbers.len() as u32,
                weight: (vm.weight.clamp(1.0, 10_000.0)) as u32,
                pinned: vm.vcpus.iter().any(|vcpu| vcpu.cpus.as_ref().is_some_and(|cpus| !cpus.is_empty())),
            });
        }
        let layout = Layout { pcpus, spans: (0, 0), vms, tasks };
        Ok(Self { layout, start_ns, length_ns, owners: Owners::of(recording), ranks, bases })
    }

    /// The vCPU that a slot is at that time, of the recording's clock.
    pub fn vcpu(&self, slot: u16, time_ns: Ns) -> Option<VcpuId> {
        let (vm, place) = self.owners.at(slot, time_ns)?;
        Some(VcpuId { vm: VmId(vm as u32), id: *self.ranks.get(vm)?.get(place)? })
    }

    /// Its thread.
    pub fn task(&self, vcpu: VcpuId) -> TaskId {
        TaskId::from(self.bases[vcpu.vm.index()] + vcpu.id as usize)
    }

    /// How many vCPUs there are.
    pub fn vcpus(&self) -> usize {
        self.layout.tasks.len()
    }

    /// A time of the recording's clock as one since its begin.
    pub fn since_start_ns(&self, time_ns: Ns) -> Ns {
        time_ns.saturating_sub(self.start_ns).min(self.length_ns)
    }
}
