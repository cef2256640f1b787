// SPDX-License-Identifier: GPL-2.0-only
//! The guests' files of a merged report: which VM each is, and which task runs on which vCPU.
//!
//! The text does not say which VM a file is of. But a guest can only trace while its vCPU is inside of it: so it is the VM that was, whenever there is a
//! line. That also shows whether the clocks of both are the same.

use std::collections::{BTreeMap, BTreeSet};

use super::line::File;
use super::Slots;
use crate::about::{VcpuAbout, VmAbout};
use crate::tasks::{Switch, Tasks};

/// How well two clocks agree.
const TOLERANCE_NS: u64 = 10_000;
/// That part of a file's lines must be of times at which the vCPU was inside, and so much more than of any other VM.
const FITS: f64 = 0.9;
const APART: f64 = 0.05;
/// Fewer lines say nothing; more than the other are not looked at.
const LINES_MIN: usize = 20;
const LINES_MAX: usize = 20_000;

/// Which of its VM's vCPUs a guest's CPU is.
#[derive(Clone, Copy, Debug)]
enum By {
    /// That of its place: vCPUs have the numbers of their APICs, and these have holes where a guest has cores
    /// or threads whose number is no power of two.
    Place,
    /// That of its number: a vCPU that never entered its guest has no place.
    Number,
}

impl By {
    fn vcpu(self, vm: &VmAbout, cpu: u32) -> Option<&VcpuAbout> {
        let at = match self {
            Self::Place => cpu as usize,
            // They are in the order of their numbers (vms()), also when threads were exchanged.
            Self::Number => vm.vcpus.binary_search_by_key(&cpu, |vcpu| vcpu.vcpu).ok()?,
        };
        vm.vcpus.get(at)
    }
}

/// How well a guest's file fits a VM: one of the VMs' places, and which part of the lines does.
#[derive(Clone, Copy, Debug)]
struct Fit {
    vm: usize,
    share: f64,
    by: By,
}

/// By slot: when the vCPU went into its guest (true) and out of it.
pub struct Inside(Vec<Vec<(u64, bool)>>);

impl Inside {
    pub fn of(host: &File<'_>, slots: &Slots) -> Self {
        let mut changes = vec![Vec::new(); slots.len()];
        for line in &host.lines {
            let (tid, inside) = match line.name {
                "kvm_entry" => (Some(line.pid), true),
                "kvm_exit" => (Some(line.pid), false),
                // Where exits were not traced.
                "sched_switch" => (line.switch().map(|switch| switch.prev_pid), false),
                _ => continue,
            };
            if let Some(slot) = tid.and_then(|tid| slots.get(&tid)) {
                changes[usize::from(*slot)].push((line.time_ns, inside));
            }
        }
        changes.iter_mut().for_each(|of_one| of_one.sort_by_key(|(time_ns, _)| *time_ns));
        Self(changes)
    }

    fn at(&self, slot: u16, time_ns: u64) -> bool {
        let changes = &self.0[usize::from(slot)];
        let next =
            changes.partition_point(|(change_ns, _)| *change_ns <= time_ns.saturating_sub(TOLERANCE_NS));
        let last_ns = time_ns.saturating_add(TOLERANCE_NS);
        let near = changes[next..].iter().take_while(|(change_ns, _)| *change_ns <= last_ns);
        changes[..next].last().into_iter().chain(near).any(|(_, inside)| *inside)
    }

    /// Which part of the guest's lines is of times at which its VM's vCPU was inside: by the vCPUs' places or
    /// by their numbers, whichever fits better. Holes are rare, so if none does, by the numbers.
    fn fit(&self, guest: &File<'_>, vm: usize, about: &VmAbout) -> Fit {
        let every = guest.lines.len().div_ceil(LINES_MAX).max(1);
        let looked_at = || guest.lines.iter().step_by(every);
        let fits = |by: By| {
            let slot = |cpu: u32| by.vcpu(about, cpu).map(|vcpu| vcpu.slot);
            looked_at().filter(|line| slot(line.cpu).is_some_and(|slot| self.at(slot, line.time_ns))).count()
        };
        let (place, number) = (fits(By::Place), fits(By::Number));
        let (count, by) = if place > number { (place, By::Place) } else { (number, By::Number) };
        Fit { vm, share: count as f64 / looked_at().count().max(1) as f64, by }
    }
}

/// Where which vCPU is of which VM was guessed, guests know: put together the threads that were inside when a guest's CPUs said something. Return which
/// VMs are known so, all of them.
pub fn put_together(guests: &[&File<'_>], inside: &Inside, vms: &mut [VmAbout]) -> BTreeSet<usize> {
    let mut known = BTreeSet::new();
    for guest in guests {
        let cpus: BTreeSet<u32> = guest.lines.iter().map(|line| line.cpu).collect();
        let found: Vec<(usize, u32)> =
            cpus.into_iter().filter_map(|cpu| thread(guest, cpu, inside, vms)).collect();
        let Some((home, first)) = found.first().copied() else { continue };
        for (vm, vcpu) in &found[1..] {
            let at = |vm: usize| vms[vm].vcpus.iter().position(|one| one.vcpu == *vcpu);
            if let (Some(here), Some(there), true) = (at(home), at(*vm), home != *vm) {
                let mine = vms[home].vcpus[here].clone();
                vms[home].vcpus[here] = std::mem::replace(&mut vms[*vm].vcpus[there], mine);
            }
        }
        if first == 0 && found.len() == vms[home].vcpus.len() {
            known.insert(home);
        }
    }
    known
}

/// Whose vCPU a guest's CPU is, if its lines fit only one: the VM and the vCPU's number.
fn thread(guest: &File<'_>, cpu: u32, inside: &Inside, vms: &[VmAbout]) -> Option<(usize, u32)> {
    let lines = || guest.lines.iter().filter(|line| line.cpu == cpu).take(LINES_MAX);
    let count = lines().count();
    let mut shares: Vec<(usize, usize)> = Vec::new();
    for (at, vm) in vms.iter().enumerate() {
        let slot = vm.vcpus.iter().find(|vcpu| vcpu.vcpu == cpu).map(|vcpu| vcpu.slot);
        shares.extend(slot.map(|slot| (lines().filter(|line| inside.at(slot, line.time_ns)).count(), at)));
    }
    shares.sort_unstable_by(|a, b| b.cmp(a));
    let part = |at: usize| shares.get(at).map_or(0.0, |(fits, _)| *fits as f64 / count.max(1) as f64);
    let fits = count >= LINES_MIN && part(0) >= FITS && part(1) <= part(0) - APART;
    fits.then(|| (shares[0].1, cpu))
}

/// Find the guests' VMs, give these their guests' names, and return what their tasks did, and what is to be said of each file.
pub fn read(
    host: &File<'_>,
    guests: &[&File<'_>],
    inside: &Inside,
    vms: &mut [VmAbout],
) -> (Tasks, Vec<String>) {
    let (mut tasks, mut notes) = (Tasks::default(), Vec::new());
    let mut fits: Vec<(&File<'_>, Vec<Fit>)> = Vec::new();
    for guest in guests {
        let mut by_vm: Vec<Fit> =
            vms.iter().enumerate().map(|(vm, about)| inside.fit(guest, vm, about)).collect();
        by_vm.sort_by(|a, b| b.share.total_cmp(&a.share));
        fits.push((guest, by_vm));
    }
    // Who fits best comes first, if two want the same VM.
    fits.sort_by(|a, b| b.1[0].share.total_cmp(&a.1[0].share));
    let mut names: BTreeMap<&str, u32> = BTreeMap::new();
    let mut whose: BTreeMap<usize, &str> = BTreeMap::new();
    for (guest, by_vm) in fits {
        let (file, lines) = (guest.name, guest.lines.len());
        let Fit { vm, share, by } = by_vm[0];
        let left_out = |why: String| format!("{file}: is left out, {lines} lines: {why}");
        if guest.dropped > 0 || guest.dropped_some > 0 {
            notes.push(format!("{file}: trace-cmd lost {} events of it, or more", guest.dropped));
        }
        if lines < LINES_MIN {
            notes.push(left_out("too few to know which VM it is".into()));
        } else if share < FITS {
            notes.push(left_out(format!(
                "it fits no VM; best {}, which was in its guest for {:.0} % of them; the clocks must be the same, as with `trace-cmd record -A`",
                vms[vm].name,
                100.0 * share
            )));
        } else if let Some(other) = by_vm.get(1).filter(|other| other.share > share - APART) {
            notes.push(left_out(format!("it fits {} and {}", vms[vm].name, vms[other.vm].name)));
        } else if let Some(other) = whose.get(&vm) {
            notes.push(left_out(format!("it fits {}, and so does {other}", vms[vm].name)));
        } else {
            whose.insert(vm, file);
            vms[vm].name = name(host.name, file);
            let before = tasks.switches.len();
            add(&mut tasks, &mut names, guest, &vms[vm], by);
            let count = tasks.switches.len() - before;
            notes.push(format!(
                "{file}: is the VM {}; {count} switches of its tasks are in the trace, its other {} lines are not used",
                vms[vm].name,
                lines - count
            ));
        }
    }
    tasks.switches.sort_by_key(|switch| switch.time_ns);
    (tasks, notes)
}

/// `trace-cmd record -o trace.dat -A work` calls the guest's file trace-work.dat.
fn name(host: &str, guest: &str) -> String {
    let stem = |file: &'_ str| file.strip_suffix(".dat").unwrap_or(file).to_string();
    let (host, guest) = (stem(host), stem(guest));
    let short = guest.strip_prefix(&host).and_then(|rest| rest.strip_prefix('-'));
    short.filter(|short| !short.is_empty()).unwrap_or(&guest).to_string()
}

fn add<'a>(tasks: &mut Tasks, names: &mut BTreeMap<&'a str, u32>, guest: &File<'a>, vm: &VmAbout, by: By) {
    for line in guest.lines.iter().filter(|line| line.name == "sched_switch") {
        let (Some(switch), Some(vcpu)) = (line.switch(), by.vcpu(vm, line.cpu)) else { continue };
        let mut number = |comm: &'a str| {
            *names.entry(comm).or_insert_with(|| {
                tasks.names.push(comm.to_string());
                tasks.names.len() as u32 - 1
            })
        };
        let to = (switch.next_pid != 0).then(|| (number(switch.next_comm), switch.next_pid));
        tasks.switches.push(Switch { time_ns: line.time_ns, slot: vcpu.slot, to });
    }
}
