// SPDX-License-Identifier: GPL-2.0-only
//! Sets that are found: every few seconds, from what the vCPUs of each VM have told one another since, and before, the older the less.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cohort_sets::{Finder, Matrix, Sets, PERIOD_S};
use libbpf_rs::{ErrorKind, MapCore, MapFlags};
use tracing::debug;

use crate::stats::Vm;

/// How often sets are found anew.
const PERIOD: Duration = Duration::from_secs(PERIOD_S);

pub struct Auto {
    split: f64,
    due: Instant,
    /// By slot, with the VM's identity.
    vms: BTreeMap<u32, (Life, Finder)>,
}

impl Auto {
    pub fn new(split: f64) -> Self {
        Self { split, due: Instant::now() + PERIOD, vms: BTreeMap::new() }
    }

    pub fn start(&mut self) {
        self.due = Instant::now() + PERIOD;
        self.vms.clear();
    }

    /// If it is time: count what has been said since, and find the sets anew. Return true if they may have changed.
    pub fn look(&mut self, vms: &[Vm], traffic: &impl MapCore) -> libbpf_rs::Result<bool> {
        let now = Instant::now();
        if now < self.due {
            return Ok(false);
        }
        self.due = now + PERIOD;
        let events = read(traffic)?;
        for pair in gone(vms, &events) {
            match traffic.delete(&pair.to_ne_bytes()) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.count(vms, &events);
        Ok(true)
    }

    fn count(&mut self, vms: &[Vm], events: &[Event]) {
        self.vms.retain(|slot, (life, _)| vms.iter().any(|vm| vm.slot == *slot && life_of(vm) == *life));
        for vm in vms {
            let (_, finder) = self.vms.entry(vm.slot).or_insert_with(|| (life_of(vm), Finder::default()));
            let of_vm = |event: &&Event| event.vm() == vm.slot && event.generation == vm.ctx.generation;
            let pairs = events.iter().filter(of_vm).map(|event| event.counted());
            if finder.look(vm.ctx.vcpu_end as usize, pairs, self.split) {
                debug!("{}: sets {:?}", vm.name, finder.sets());
            }
        }
    }

    fn of(&self, vm: &Vm) -> Option<&Finder> {
        self.vms.get(&vm.slot).filter(|(life, _)| *life == life_of(vm)).map(|(_, finder)| finder)
    }

    pub fn sets_of(&self, vm: &Vm) -> Sets {
        self.of(vm).map(|finder| finder.sets().clone()).unwrap_or_default()
    }
}

/// Pairs of VMs that are no more: they would fill the map, and those that come later count for nothing then.
fn gone(vms: &[Vm], events: &[Event]) -> Vec<u32> {
    let is_of = |vm: &Vm, event: &Event| event.vm() == vm.slot && event.generation == vm.ctx.generation;
    events.iter().filter(|event| !vms.iter().any(|vm| is_of(vm, event))).map(|event| event.pair).collect()
}

/// The address of its struct kvm, and its generation: a VM that comes after another may have the same slot and the same address, and counts from 0.
pub type Life = (u64, u32);

pub fn life_of(vm: &Vm) -> Life {
    (vm.ctx.kvm, vm.ctx.generation)
}

/// What the vCPUs of a VM have told one another between two looks, each as `read` returns it: sorted by pair.
pub fn matrix_between(vm: &Vm, before: &[Event], after: &[Event]) -> Matrix {
    let of_vm = |event: &&Event| event.vm() == vm.slot && event.generation == vm.ctx.generation;
    let mut matrix = Matrix::new(vm.ctx.vcpu_end as usize);
    for event in after.iter().filter(of_vm) {
        // A VM of 256 vCPUs has tens of thousands of pairs: too many to look through all of them for each.
        let place = before.binary_search_by_key(&event.pair, |then| then.pair);
        let then = place.ok().map(|place| before[place]);
        let then = then.filter(|then| then.generation == event.generation).map_or(0, |then| then.count);
        let (x, y, count) = event.counted();
        matrix.add(x, y, count.saturating_sub(then));
    }
    matrix
}

/// An element of the map `traffic`: how often two vCPUs of a VM have told each other something.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// VM << 16 | lower vCPU << 8 | higher vCPU.
    pair: u32,
    generation: u32,
    count: u64,
}

impl Event {
    fn vm(self) -> u32 {
        self.pair >> 16
    }

    /// Two vCPUs, and how often so far.
    fn counted(self) -> (usize, usize, u64) {
        ((self.pair >> 8 & 0xff) as usize, (self.pair & 0xff) as usize, self.count)
    }
}

/// Read the map `traffic`.
pub fn read(traffic: &impl MapCore) -> libbpf_rs::Result<Vec<Event>> {
    // While somebody else deletes one may come twice.
    let mut events = BTreeMap::new();
    for key in traffic.keys() {
        // Deleted meanwhile.
        let Some(value) = traffic.lookup(&key, MapFlags::ANY)? else { continue };
        let (Some(pair), Some(count), Some(generation)) = (
            key.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes)),
            value.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)),
            value.get(8..12).and_then(|bytes| bytes.first_chunk().map(|b| u32::from_ne_bytes(*b))),
        ) else {
            continue;
        };
        events.insert(pair, Event { pair, generation, count });
    }
    Ok(events.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::types::vm_ctx;

    fn vm(kvm: u64, vcpus: u32) -> Vm {
        Vm {
            slot: 3,
            name: "web".into(),
            ctx: vm_ctx { kvm, generation: 5, vcpu_end: vcpus, ..Default::default() },
        }
    }

    fn event(x: u32, y: u32, count: u64) -> Event {
        Event { pair: 3 << 16 | x << 8 | y, generation: 5, count }
    }

    #[test]
    fn only_what_was_said_between_two_looks() {
        let matrix =
            matrix_between(&vm(7, 3), &[event(0, 1, 5)], &[event(0, 1, 9), event(1, 2, 1), event(0, 9, 1)]);
        assert_eq!((matrix.get(1, 0), matrix.get(2, 1), matrix.get(0, 2)), (4, 1, 0));
    }

    #[test]
    fn of_many_pairs_each_is_compared_with_itself() {
        let pairs = || (0u32..9).flat_map(|x| (x + 1..9).map(move |y| (x, y)));
        let counted = |x: u32, y: u32| 100 + u64::from(10 * x + y);
        // Those of even vCPUs were there before, and some of these are of who had its slot before.
        let is_old = |x: u32| x % 2 == 0;
        let old = pairs().filter(|(x, _)| is_old(*x));
        let before: Vec<Event> =
            old.map(|(x, y)| Event { generation: 4 + y % 2, ..event(x, y, 50) }).collect();
        let after: Vec<Event> = pairs().map(|(x, y)| event(x, y, counted(x, y))).collect();
        let matrix = matrix_between(&vm(7, 9), &before, &after);
        for (x, y) in pairs() {
            let then = if is_old(x) && y % 2 == 1 { 50 } else { 0 };
            assert_eq!(matrix.get(x as usize, y as usize), counted(x, y) - then, "{x} and {y}");
        }
    }

    #[test]
    fn what_another_vm_said_does_not_count() {
        let mut auto = Auto::new(1.5);
        auto.count(&[vm(7, 2)], &[Event { generation: 4, ..event(0, 1, 9) }]);
        assert_eq!(auto.sets_of(&vm(7, 2)), [vec![0], vec![1]]);
        auto.count(&[vm(7, 2)], &[event(0, 1, 9)]);
        assert_eq!(auto.sets_of(&vm(7, 2)), [vec![0, 1]]);
        assert!(auto.sets_of(&vm(8, 2)).is_empty(), "another VM in its slot");
        auto.count(&[vm(8, 2)], &[]);
        assert_eq!(auto.sets_of(&vm(8, 2)), [vec![0], vec![1]]);
    }

    #[test]
    fn pairs_of_vms_that_are_no_more_leave_the_map() {
        let of_another = Event { pair: 4 << 16 | 1, generation: 5, count: 7 };
        let of_before = Event { generation: 4, ..event(0, 2, 9) };
        let events = [event(0, 1, 1), of_another, of_before];
        assert_eq!(gone(&[vm(7, 3)], &events), [of_another.pair, of_before.pair]);
        assert_eq!(gone(&[], &events).len(), 3);
    }

    #[test]
    fn a_vm_that_was_started_again_counts_from_nothing() {
        let mut auto = Auto::new(1.5);
        auto.count(&[vm(7, 2)], &[event(0, 1, 1_000_000)]);
        let mut again = vm(7, 2);
        again.ctx.generation = 6;
        assert!(auto.sets_of(&again).is_empty(), "those of the one before");
        auto.count(&[again], &[Event { generation: 6, ..event(0, 1, 9) }]);
        let mut again = vm(7, 2);
        again.ctx.generation = 6;
        assert_eq!(auto.sets_of(&again), [vec![0, 1]]);
    }
}
