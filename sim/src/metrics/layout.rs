// SPDX-License-Identifier: GPL-2.0-only
//! Who is who: the stream of events has numbers only; observers are told names and belongings once, before the run.

use std::collections::HashMap;

use serde::{Serialize, Serializer};

use crate::host::State;
use crate::ids::{CpuId, TaskId, VcpuId};
use crate::Host;

/// What observers know about the run beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub pcpus: u32,
    /// pCPUs that share a last-level cache, and a socket; 0: all.
    pub spans: (u32, u32),
    pub vms: Vec<VmLayout>,
    /// By task number.
    pub tasks: Vec<TaskLayout>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmLayout {
    pub name: String,
    pub vcpus: u32,
    /// cpu.weight of its cgroup.
    pub weight: u32,
    /// Its vCPUs may not use every pCPU.
    pub pinned: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskLayout {
    pub name: String,
    /// The VM to which it belongs: as a vCPU, or as another thread of its VMM.
    pub vm: Option<u32>,
    /// Its number, if it is one.
    #[serde(serialize_with = "number_only")]
    pub vcpu: Option<VcpuId>,
    /// It waits there at the beginning already.
    #[serde(skip)]
    pub waits_on: Option<CpuId>,
}

fn number_only<S: Serializer>(vcpu: &Option<VcpuId>, serializer: S) -> Result<S::Ok, S::Error> {
    vcpu.map(|vcpu| vcpu.id).serialize(serializer)
}

impl Layout {
    /// As the host knows it; `vms` has the names that it does not know.
    pub fn of(host: &Host, vms: Vec<VmLayout>) -> Self {
        let core = &host.core;
        let mut vm_of = HashMap::new();
        for (vm, known) in core.vms.iter().enumerate() {
            vm_of.entry(known.tgid).or_insert(vm as u32);
        }
        let tasks = core.tasks.iter().enumerate().map(|(number, task)| {
            let vm = vm_of.get(&task.tgid).copied();
            let name = match (task.vcpu, vm.and_then(|vm| vms.get(vm as usize))) {
                (Some(vcpu), Some(vm)) => format!("{}/{}", vm.name, vcpu.id),
                (None, Some(vm)) => format!("{}/vmm", vm.name),
                _ => format!("task-{number}"),
            };
            TaskLayout {
                name,
                vm,
                vcpu: task.vcpu,
                waits_on: (task.state == State::Waiting).then_some(task.cpu),
            }
        });
        Self { pcpus: core.cpus.len() as u32, spans: core.machine.spans(), tasks: tasks.collect(), vms }
    }

    /// Are the two in different parts of so many pCPUs each?
    fn apart(a: CpuId, b: CpuId, span: u32) -> bool {
        span > 0 && a.0 / span != b.0 / span
    }

    pub fn is_other_llc(&self, a: CpuId, b: CpuId) -> bool {
        Self::apart(a, b, self.spans.0)
    }

    pub fn is_other_node(&self, a: CpuId, b: CpuId) -> bool {
        Self::apart(a, b, self.spans.1)
    }

    pub fn vcpu_of(&self, task: TaskId) -> Option<VcpuId> {
        self.tasks.get(task.index()).and_then(|task| task.vcpu)
    }

    pub fn vm_of(&self, task: TaskId) -> Option<usize> {
        self.tasks.get(task.index()).and_then(|task| task.vm).map(|vm| vm as usize)
    }

    pub fn name_of(&self, task: TaskId) -> &str {
        self.tasks.get(task.index()).map_or("?", |task| &task.name)
    }

    /// Where each VM's vCPUs begin in a table of all vCPUs, and the table's length.
    pub fn vcpu_bases(&self) -> (Vec<usize>, usize) {
        let mut next = 0;
        let bases = self.vms.iter().map(|vm| {
            let base = next;
            next += vm.vcpus as usize;
            base
        });
        (bases.collect(), next)
    }
}
