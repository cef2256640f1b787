// SPDX-License-Identifier: GPL-2.0-only
//! Sets of vCPUs (gang partial), as user space tells the scheduler; and what it does to find them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use cohort_sets::{entry, first_of_each, Finder, Given, Sets, PERIOD_S};

use crate::class::AnyClass;
use crate::error::SimError;
use crate::ids::VmId;
use crate::policies::GANGS;
use crate::time::{Ns, SEC};
use crate::Host;

use super::ExtConfig;

/// What of two vCPUs counts as communication.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// One sends the other an interrupt.
    #[default]
    Interrupts,
    /// Both touch the same page, which KVM is made to drop now and then.
    Faults,
    Both,
}

/// How often KVM is made to drop what it has mapped. On hosts a part of the memory at a time, here all of it.
const DROP_NS: Ns = SEC / 5;
/// How often user space looks for VMs that have come.
const LOOK_NS: Ns = SEC;
const PERIOD_NS: Ns = PERIOD_S * SEC;

extern "C" {
    fn poke_set(number: u32, vcpu: i32, entry: u64);
    fn peek_set(number: u32, vcpu: i32) -> u64;
    fn peek_traffic(number: u32, x: u32, y: u32) -> u64;
}

/// What is wrong with a file of `cohort run --sets`, as one line; `None`: nothing.
pub fn wrong_with(sets: &str) -> Option<String> {
    Given::parse(sets).err().map(|error| error.to_string())
}

/// Is the gang one whose sets are found?
pub(super) fn finds_sets(config: &ExtConfig) -> bool {
    let gang = config.knobs.get("gang").and_then(|gang| GANGS.get(*gang as usize));
    gang.is_some_and(|row| row[0] == "partial-auto")
}

impl Host {
    /// Say which of a VM's vCPUs are to run together. Return false if the scheduler does not know the VM yet.
    pub fn set_sets(&mut self, vm: VmId, sets: &[Vec<u32>]) -> bool {
        let Some(slot) = self.slot_of(vm) else { return false };
        let generation = self.peek_vm_told(slot).generation as u32;
        let firsts = first_of_each(sets, self.vm(vm).vcpus as usize);
        self.peek(|| {
            for (vcpu, first) in firsts.iter().enumerate() {
                let value = first.map_or(0, |first| entry(generation, slot, first));
                // SAFETY: a look-up with bounds, in a map that is the simulation's.
                unsafe { poke_set(slot, vcpu as i32, value) };
            }
        });
        true
    }

    /// A VM's sets of more than one vCPU, as the scheduler has them now.
    pub fn sets_of(&mut self, vm: VmId) -> Sets {
        let Some(slot) = self.slot_of(vm) else { return Sets::new() };
        let vcpus = self.vm(vm).vcpus;
        let mut by_entry: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        self.peek(|| {
            for vcpu in 0..vcpus {
                // SAFETY: a look-up with bounds.
                by_entry.entry(unsafe { peek_set(slot, vcpu as i32) }).or_default().push(vcpu);
            }
        });
        let mut sets: Sets =
            by_entry.into_iter().filter(|(entry, _)| *entry != 0).map(|(_, set)| set).collect();
        sets.sort();
        sets
    }

    /// How often each two of a VM's vCPUs have told each other something.
    pub fn traffic_of(&mut self, vm: VmId) -> Vec<(usize, usize, u64)> {
        let Some(slot) = self.slot_of(vm) else { return Vec::new() };
        let vcpus = self.vm(vm).vcpus;
        let pairs = (0..vcpus).flat_map(|x| (x + 1..vcpus).map(move |y| (x, y)));
        // SAFETY: a look-up with bounds.
        let events = |x, y| unsafe { peek_traffic(slot, x, y) };
        let all = pairs.map(|(x, y)| (x as usize, y as usize, events(x, y)));
        self.peek(|| all.filter(|(_, _, events)| *events > 0).collect()).unwrap_or_default()
    }

    /// How often vCPUs x and y, x being the lower number, have; also of numbers that the VM does not have.
    pub fn traffic_between(&mut self, vm: VmId, x: usize, y: usize) -> u64 {
        let Some(slot) = self.slot_of(vm) else { return 0 };
        // SAFETY: a look-up with bounds.
        self.peek(|| unsafe { peek_traffic(slot, x as u32, y as u32) }).unwrap_or(0)
    }
}

/// Tells the scheduler about sets, now and then, as `cohort run` does.
pub struct SetsTeller {
    names: Vec<String>,
    given: Option<Given>,
    /// One for each VM, if sets are found.
    finders: Vec<Finder>,
    split: f64,
    due_ns: Ns,
    /// When KVM is made to drop memory next; None: never.
    drop_ns: Option<Ns>,
}

impl SetsTeller {
    /// For VMs of these names; None if there is nothing to tell.
    pub fn of(host: &Host, names: Vec<String>) -> Result<Option<Self>, SimError> {
        let AnyClass::Ext(ext) = &host.class else { return Ok(None) };
        let text = &ext.config.sets;
        let refuse = |error: cohort_sets::GivenError| SimError::Config(format!("policy.sets: {error}"));
        let given = (!text.is_empty()).then(|| Given::parse(text)).transpose().map_err(refuse)?;
        let finders = if ext.finds_sets { vec![Finder::default(); names.len()] } else { Vec::new() };
        let due_ns = if finders.is_empty() { LOOK_NS } else { PERIOD_NS };
        let wanted = given.is_some() || !finders.is_empty();
        let drop_ns = (ext.finds_sets && ext.config.traffic != Traffic::Interrupts).then_some(DROP_NS);
        let split = ext.config.split;
        if !(1.0..=100.0).contains(&split) {
            return Err(SimError::Config(format!("policy.split: {split}; allowed: numbers from 1 to 100")));
        }
        Ok(wanted.then_some(Self { names, given, finders, split, due_ns, drop_ns }))
    }

    /// When there is something to do next.
    pub fn due_ns(&self) -> Ns {
        self.drop_ns.map_or(self.due_ns, |drop_ns| drop_ns.min(self.due_ns))
    }

    /// Do it.
    pub fn look(&mut self, host: &mut Host) {
        if let Some(drop_ns) = self.drop_ns.as_mut().filter(|drop_ns| host.now_ns() >= **drop_ns) {
            *drop_ns += DROP_NS;
            (0..self.names.len()).for_each(|vm| host.drop_memory(VmId::from(vm)));
        }
        if host.now_ns() < self.due_ns {
            return;
        }
        self.due_ns += if self.finders.is_empty() { LOOK_NS } else { PERIOD_NS };
        // Without it each look-up would exchange all of the scheduler's variables, twice.
        let _image = host.class.enter();
        for (index, name) in self.names.iter().enumerate() {
            let vm = VmId::from(index);
            let vcpus = host.vm(vm).vcpus as usize;
            let sets = match (&self.given, self.finders.get_mut(index)) {
                (Some(given), _) => given.of(name, vcpus),
                (None, Some(finder)) => {
                    finder.look(vcpus, host.traffic_of(vm), self.split);
                    finder.sets().clone()
                }
                (None, None) => continue,
            };
            host.set_sets(vm, &sets);
        }
    }
}
