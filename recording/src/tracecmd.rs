// SPDX-License-Identifier: GPL-2.0-only
//! A recording from the text that `trace-cmd report` prints, of a host alone or merged with its guests: of the scheduler `sched_switch`,
//! `sched_wakeup` and `sched_migrate_task`, and of KVM `kvm_entry` and `kvm_exit`, by which vCPUs' threads are known; of guests `sched_switch`.
//! Interrupts, hypercalls and TLB flushes are taken from the tracepoints from which the probe has them (bpf/probe/probe.bpf.c).
//!
//! The text does not say which VM a vCPU is of. VMMs make the threads of one VM's vCPUs one after the other, so in the order of the threads' numbers a
//! vCPU is of the VM that began last of those that lack its number. If VMs began at the same time, that is a guess, which guests' files put right; else a
//! note says so.

use std::collections::{BTreeMap, BTreeSet};

use crate::about::{End, Header, Pcpu, VcpuAbout, VmAbout};
use crate::event::{Event, Kind, NOBODY};
use crate::reader::{Recording, PCPUS_MAX};

mod guests;
mod line;

use self::guests::Inside;
use self::line::{files, File, Line};

const VCPUS_MAX: u16 = 16_384;
/// The probe's counters that the text says nothing of: no tracepoint tells them.
const UNSEEN: [&str; 5] =
    ["preemptions_kernel", "wait_kernel_ns", "ple_kernel", "yields_asked", "yields_granted"];

/// The recording in this text, or what is wrong with it: one line, without the file's name.
pub fn read(text: &str) -> Result<Recording, String> {
    let files = files(text);
    // Guests may have guests: the host's file comes first.
    let host = files.iter().position(|file| file.lines.iter().any(of_kvm)).ok_or_else(|| {
        "has no vCPU: record with `trace-cmd record -e sched -e kvm`, which has kvm_entry".to_string()
    })?;
    let others: Vec<&File<'_>> =
        files.iter().enumerate().filter(|(at, _)| *at != host).map(|(_, file)| file).collect();
    let host = &files[host];
    let (mut vms, slots, mut guessed) = vms(&threads(host))?;
    let inside = Inside::of(host, &slots);
    if !guessed.is_empty() {
        let known = guests::put_together(&others, &inside, &mut vms);
        guessed.retain(|at| !known.contains(at));
        // Of whom all others are known, is known.
        if guessed.len() == 1 {
            guessed.clear();
        }
    }
    let mut teller = Teller::new(host, &slots, &vms);
    let mut pcpus = host.cpus.clamp(1, PCPUS_MAX);
    for line in &host.lines {
        pcpus = pcpus.max(line.cpu + 1);
        teller.take(line);
    }
    let mut events = teller.events;
    events.sort_by_key(|event| event.time_ns);
    let (Some(first), Some(last)) = (events.first().map(|e| e.time_ns), events.last().map(|e| e.time_ns))
    else {
        return Err("has no sched_switch of a vCPU: record with `trace-cmd record -e sched -e kvm`".into());
    };
    let pcpus = (0..pcpus).map(|cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() }).collect();
    let missing = UNSEEN.map(String::from).to_vec();
    let mut header =
        Header { clock_ns: first, scheduler: "unknown".into(), pcpus, missing, ..Header::default() };
    if !guessed.is_empty() {
        let names = guessed.iter().map(|at| vms[*at].name.as_str()).collect::<Vec<_>>().join(", ");
        header
            .notes
            .push(format!("which of the vCPUs are whose is a guess: VMs began at the same time: {names}"));
    }
    if host.dropped_some > 0 {
        let times = host.dropped_some;
        header.notes.push(format!("trace-cmd lost events {times} times of which it does not say how many"));
    }
    let (tasks, notes) = guests::read(host, &others, &inside, &mut vms);
    header.notes.extend(notes);
    Ok(Recording {
        header,
        end: End { clock_ns: last, dropped: host.dropped, vms, ..End::default() },
        events,
        tasks,
    })
}

fn of_kvm(line: &Line<'_>) -> bool {
    matches!(line.name, "kvm_entry" | "kvm_exit") && line.vcpu().is_some()
}

/// The vCPUs' threads: their numbers, those of their vCPUs.
fn threads(host: &File<'_>) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    for line in host.lines.iter().filter(|line| of_kvm(line)) {
        if let Some(vcpu) = line.vcpu() {
            found.entry(line.pid).or_insert(vcpu);
        }
    }
    found
}

/// By thread: its slot.
type Slots = BTreeMap<u32, u16>;

/// The VMs, whose slot each thread is, and the places of those VMs that are guessed.
fn vms(threads: &BTreeMap<u32, u32>) -> Result<(Vec<VmAbout>, Slots, BTreeSet<usize>), String> {
    let mut vms: Vec<VmAbout> = Vec::new();
    let mut slots = Slots::new();
    // By place. Each vCPU may say it of every VM, so that nothing is kept of that but once.
    let mut guessed: Vec<bool> = Vec::new();
    for (slot, (tid, vcpu)) in threads.iter().enumerate() {
        let slot = u16::try_from(slot).ok().filter(|slot| *slot < VCPUS_MAX);
        let slot = slot.ok_or_else(|| format!("has {} vCPUs; allowed: {VCPUS_MAX}", threads.len()))?;
        let last = |vm: &VmAbout| vm.vcpus.last().map(|last| last.vcpu);
        // Of one that was never seen to run the number is missing.
        let next = vms.iter().rposition(|vm| last(vm).is_some_and(|last| last.checked_add(1) == Some(*vcpu)));
        let vm = next.or_else(|| vms.iter().rposition(|vm| last(vm).is_some_and(|last| last < *vcpu)));
        let vm = vm.unwrap_or_else(|| {
            let name = format!("vm{}", vms.len());
            vms.push(VmAbout { name, pid: *tid, weight: 100.0, ..VmAbout::default() });
            guessed.push(false);
            vms.len() - 1
        });
        if vm + 1 < vms.len() {
            // Another one has begun before this one was complete.
            guessed[vm..].fill(true);
        }
        vms[vm].vcpus.push(VcpuAbout { slot, vcpu: *vcpu, tid: *tid, ..VcpuAbout::default() });
        slots.insert(*tid, slot);
    }
    let guessed = guessed.iter().enumerate().filter(|(_, is)| **is).map(|(at, _)| at).collect();
    Ok((vms, slots, guessed))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Doing {
    #[default]
    Sleeps,
    Waits,
    Runs,
}

/// What lines say of vCPUs becomes what the probe would have told of them.
struct Teller<'a> {
    slots: &'a Slots,
    /// By slot: its VM, in the order of the list; and by VM and the vCPU's number: the slot.
    vms: Vec<usize>,
    siblings: BTreeMap<(usize, u32), u16>,
    doing: Vec<Doing>,
    /// By vCPU: the last time that it left its guest, it was to halt. Nobody knows: so it was.
    halts: Vec<bool>,
    /// The event by which who wakes is known: the one when it is done or, where there is none, when it is begun.
    wakes: &'static str,
    events: Vec<Event>,
}

impl<'a> Teller<'a> {
    fn new(host: &File<'_>, slots: &'a Slots, vms: &[VmAbout]) -> Self {
        let all =
            || vms.iter().enumerate().flat_map(|(vm, about)| about.vcpus.iter().map(move |vcpu| (vm, vcpu)));
        let mut of_slot: Vec<(u16, usize)> = all().map(|(vm, vcpu)| (vcpu.slot, vm)).collect();
        of_slot.sort_unstable();
        let done = host.lines.iter().any(|line| line.name == "sched_wakeup");
        Self {
            slots,
            vms: of_slot.into_iter().map(|(_, vm)| vm).collect(),
            siblings: all().map(|(vm, vcpu)| ((vm, vcpu.vcpu), vcpu.slot)).collect(),
            doing: vec![Doing::Sleeps; slots.len()],
            halts: vec![true; slots.len()],
            wakes: if done { "sched_wakeup" } else { "sched_waking" },
            events: Vec::new(),
        }
    }

    fn put(&mut self, line: &Line<'_>, vcpu: u16, cpu: u32, kind: Kind) {
        self.put_with(line, vcpu, cpu, kind, 0, 0);
        let doing = match kind {
            Kind::Run => Doing::Runs,
            Kind::Preempted | Kind::Woken | Kind::Moved => Doing::Waits,
            Kind::Halted | Kind::Blocked => Doing::Sleeps,
            _ => return,
        };
        self.doing[usize::from(vcpu)] = doing;
    }

    fn put_with(&mut self, line: &Line<'_>, vcpu: u16, cpu: u32, kind: Kind, a: u8, b: u16) {
        let cpu = cpu.min(PCPUS_MAX - 1) as u16;
        self.events.push(Event { time_ns: line.time_ns, cpu, vcpu, kind, a, b });
    }

    /// What the vCPU's own thread does in KVM.
    fn take_of_kvm(&mut self, line: &Line<'_>, vcpu: u16) {
        match line.name {
            "kvm_exit" => {
                self.halts[usize::from(vcpu)] = line.is_halt();
                if line.is_pause_loop() {
                    self.put(line, vcpu, line.cpu, Kind::Ple);
                }
            }
            // What a vCPU's thread brings to another APIC is an interrupt for its sibling.
            "kvm_apic_accept_irq" => {
                let Some((apic, vector)) = line.interrupt() else { return };
                let to = self.siblings.get(&(self.vms[usize::from(vcpu)], apic)).copied().unwrap_or(NOBODY);
                if to != vcpu {
                    self.put_with(line, vcpu, line.cpu, Kind::Ipi, vector, to);
                }
            }
            "kvm_hypercall" => {
                if let Some(number) = line.hypercall() {
                    self.put_with(line, vcpu, line.cpu, Kind::Hypercall, number, 0);
                }
            }
            "kvm_hv_flush_tlb" | "kvm_hv_flush_tlb_ex" => self.put(line, vcpu, line.cpu, Kind::TlbHypercall),
            "kvm_pv_tlb_flush" => {
                if let Some(of) = line.flush_put_off() {
                    self.put_with(
                        line,
                        vcpu,
                        line.cpu,
                        Kind::TlbDeferred,
                        0,
                        u16::try_from(of).unwrap_or(NOBODY),
                    );
                }
            }
            _ => {}
        }
    }

    fn is(&self, vcpu: u16, doing: Doing) -> bool {
        self.doing[usize::from(vcpu)] == doing
    }

    fn take(&mut self, line: &Line<'_>) {
        let slot = |pid: u32| self.slots.get(&pid).copied();
        match line.name {
            "sched_switch" => {
                let Some(switch) = line.switch() else { return };
                let (from, to) = (slot(switch.prev_pid), slot(switch.next_pid));
                if let Some(from) = from {
                    let halts = self.halts[usize::from(from)] && !switch.uninterruptible;
                    let slept = if halts { Kind::Halted } else { Kind::Blocked };
                    self.put(line, from, line.cpu, if switch.preempted { Kind::Preempted } else { slept });
                }
                if let Some(to) = to {
                    self.put(line, to, line.cpu, Kind::Run);
                }
            }
            name if name == self.wakes || name == "sched_wakeup_new" => {
                let woken = line.woken().and_then(|(pid, cpu)| Some((slot(pid)?, cpu)));
                // Who was woken before it slept has never left its pCPU.
                if let Some((woken, cpu)) = woken.filter(|(woken, _)| self.is(*woken, Doing::Sleeps)) {
                    self.put(line, woken, cpu, Kind::Woken);
                }
            }
            "sched_migrate_task" => {
                let moved = line.moved().and_then(|(pid, cpu)| Some((slot(pid)?, cpu)));
                // Who sleeps is moved when it wakes, which says where to.
                if let Some((moved, cpu)) = moved.filter(|(moved, _)| self.is(*moved, Doing::Waits)) {
                    self.put(line, moved, cpu, Kind::Moved);
                }
            }
            name if name.starts_with("kvm_") => {
                if let Some(vcpu) = slot(line.pid) {
                    self.take_of_kvm(line, vcpu);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod guests_tests;
#[cfg(test)]
mod tests;
