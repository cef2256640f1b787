// SPDX-License-Identifier: GPL-2.0-only
//! A host's pCPUs, and who shares them: cgroups in cgroups, VMs, tasks, each with weight and affinity. Random ones, and what each entity is due.

use proptest::prelude::*;

use crate::oracle::Tree;

/// Of threads: bit n is pCPU n. Without one of the host's it is all of them.
pub type Mask = u8;

#[derive(Clone, Debug)]
pub struct Cgroup {
    /// 0 is the root, n the n-th of those before this one.
    pub parent: usize,
    pub weight: u32,
    /// In hundredths of a pCPU.
    pub quota: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Vm {
    pub cgroup: usize,
    pub vcpus: Vec<Mask>,
}

#[derive(Clone, Debug)]
pub struct Task {
    pub cgroup: usize,
    pub weight: u32,
    pub mask: Mask,
}

#[derive(Clone, Debug)]
pub struct Partition {
    pub pcpus: usize,
    pub cgroups: Vec<Cgroup>,
    pub vms: Vec<Vm>,
    pub tasks: Vec<Task>,
}

/// The entities of a partition: nodes of the tree, in the order in which a world makes cgroups, VMs, and threads (vCPUs first).
pub struct Nodes {
    pub cgroups: Vec<usize>,
    pub vms: Vec<usize>,
    pub threads: Vec<usize>,
    pub tasks: Vec<usize>,
}

impl Nodes {
    /// Everything that is divided by weight, except what VMs do inside.
    pub fn entities(&self) -> impl Iterator<Item = usize> + '_ {
        self.cgroups.iter().skip(1).chain(&self.vms).chain(&self.tasks).copied()
    }
}

impl Partition {
    pub fn allowed(&self, mask: Mask) -> Vec<usize> {
        let some: Vec<usize> = (0..self.pcpus).filter(|cpu| mask >> cpu & 1 == 1).collect();
        if some.is_empty() {
            (0..self.pcpus).collect()
        } else {
            some
        }
    }

    /// Of the thread with that number, vCPUs first.
    pub fn set_mask(&mut self, thread: usize, mask: Mask) {
        let vcpus = self.vms.iter_mut().flat_map(|vm| &mut vm.vcpus);
        if let Some(of) = vcpus.chain(self.tasks.iter_mut().map(|task| &mut task.mask)).nth(thread) {
            *of = mask;
        }
    }

    /// Of the VM or task with that number, VMs first. Returns its threads.
    pub fn set_cgroup(&mut self, who: usize, cgroup: usize) -> std::ops::Range<usize> {
        let vcpus = |vms: &[Vm]| vms.iter().map(|vm| vm.vcpus.len()).sum::<usize>();
        if let Some(vm) = self.vms.get_mut(who) {
            vm.cgroup = cgroup;
            let first = vcpus(&self.vms[..who]);
            return first..first + self.vms[who].vcpus.len();
        }
        let task = who - self.vms.len();
        self.tasks[task].cgroup = cgroup;
        let first = vcpus(&self.vms) + task;
        first..first + 1
    }

    pub fn tree(&self) -> (Tree, Nodes) {
        let mut tree = Tree::new(self.pcpus);
        let mut cgroups = vec![0];
        for cgroup in &self.cgroups {
            let node = tree.entity(cgroups[cgroup.parent], cgroup.weight);
            tree.nodes[node].quota = cgroup.quota.map(|quota| f64::from(quota) / 100.0);
            cgroups.push(node);
        }
        let (mut vms, mut threads, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
        for vm in &self.vms {
            let node = tree.entity(cgroups[vm.cgroup], 100);
            threads.extend(vm.vcpus.iter().map(|mask| tree.thread(node, 100, &self.allowed(*mask))));
            vms.push(node);
        }
        for task in &self.tasks {
            let node = tree.thread(cgroups[task.cgroup], task.weight, &self.allowed(task.mask));
            threads.push(node);
            tasks.push(node);
        }
        (tree, Nodes { cgroups, vms, threads, tasks })
    }
}

/// From 1 to 10,000, all magnitudes alike.
pub fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![
        2 => Just(100u32),
        1 => 1..10u32,
        2 => 10..100u32,
        3 => 100..1_000u32,
        1 => 1_000..10_001u32,
    ]
}

/// How many may be where: anywhere, in parts of the host that do not overlap, or wherever each mask says.
#[derive(Clone, Copy, Debug)]
pub enum Affinity {
    None,
    Cpusets,
    Any,
}

/// The masks of so many pCPUs that lie in one of the host's two parts, or are the whole.
fn mask(affinity: Affinity) -> BoxedStrategy<Mask> {
    match affinity {
        Affinity::None => Just(0).boxed(),
        Affinity::Cpusets => prop_oneof![Just(0b11), Just(0b0011_1100)].boxed(),
        Affinity::Any => prop_oneof![1 => Just(0), 3 => any::<u8>()].boxed(),
    }
}

fn cgroups() -> impl Strategy<Value = Vec<Cgroup>> {
    prop::collection::vec((0..100usize, weight()), 0..5).prop_map(|all| {
        let cgroup = |(index, (parent, weight)): (usize, (usize, u32))| Cgroup {
            parent: parent % (index + 1),
            weight,
            quota: None,
        };
        all.into_iter().enumerate().map(cgroup).collect()
    })
}

/// The threads of one VM may all use the same pCPUs, or each others.
fn vm(affinity: Affinity) -> impl Strategy<Value = (usize, Vec<Mask>)> {
    let same = (mask(affinity), 1..5usize).prop_map(|(mask, vcpus)| vec![mask; vcpus]);
    let vcpus = match affinity {
        Affinity::Any => prop_oneof![same, prop::collection::vec(mask(affinity), 1..5)].boxed(),
        _ => same.boxed(),
    };
    (0..100usize, vcpus)
}

pub fn partition(affinity: Affinity) -> impl Strategy<Value = Partition> {
    let tasks = prop::collection::vec((0..100usize, weight(), mask(affinity)), 0..4);
    (1..7usize, cgroups(), prop::collection::vec(vm(affinity), 1..5), tasks).prop_map(
        |(pcpus, cgroups, vms, tasks)| {
            let at = |cgroup: usize| cgroup % (cgroups.len() + 1);
            let vms = vms.into_iter().map(|(cgroup, vcpus)| Vm { cgroup: at(cgroup), vcpus }).collect();
            let task = |(cgroup, weight, mask)| Task { cgroup: at(cgroup), weight, mask };
            Partition { pcpus, vms, tasks: tasks.into_iter().map(task).collect(), cgroups }
        },
    )
}

/// ... in which some cgroups, and one at least, may use so much only.
pub fn limited_partition(affinity: Affinity) -> impl Strategy<Value = Partition> {
    let quota = prop_oneof![1 => Just(None), 1 => (5..250u32).prop_map(Some)];
    let quotas = prop::collection::vec(quota, 5);
    (partition(affinity), weight(), 5..250u32, quotas).prop_map(|(mut partition, weight, first, quotas)| {
        partition.cgroups.iter_mut().zip(quotas).for_each(|(cgroup, quota)| cgroup.quota = quota);
        partition.cgroups.push(Cgroup { parent: 0, weight, quota: Some(first) });
        partition.vms[0].cgroup = partition.cgroups.len();
        partition
    })
}
