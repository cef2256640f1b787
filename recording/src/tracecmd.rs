// SPDX-License-Identifier: GPL-2.0-only
//! A recording from the text that `trace-cmd report` prints, of a host alone or merged with its guests: `sched_switch`, `sched_wakeup`,
//! `sched_migrate_task`, and of KVM `kvm_entry` and `kvm_exit`, by which vCPUs' threads are known.
//!
//! The text does not say which VM a vCPU is of. VMMs make the threads of one VM's vCPUs one after the other, so a VM begins, in the order of the threads'
//! numbers, where a vCPU's number is not above the last one's.

use std::collections::BTreeMap;

use crate::about::{End, Header, Pcpu, VcpuAbout, VmAbout};
use crate::event::{Event, Kind};
use crate::reader::{Recording, PCPUS_MAX};

const VCPUS_MAX: u16 = 16_384;
const NS_PER_S: u64 = 1_000_000_000;
/// Years; no clock shows more.
const SECONDS_MAX: u64 = 10_000_000_000;

/// What a line says, as far as it matters.
struct Line<'a> {
    comm: &'a str,
    pid: u32,
    cpu: u32,
    time_ns: u64,
    name: &'a str,
    rest: &'a str,
}

/// The recording in this text, or what is wrong with it: one line, without the file's name.
pub fn read(text: &str) -> Result<Recording, String> {
    let lines: Vec<Line<'_>> = host_lines(text).filter_map(parse).collect();
    let threads = threads(&lines);
    if threads.is_empty() {
        return Err(
            "has no vCPU: record with `trace-cmd record -e sched -e kvm`, which has kvm_entry or kvm_exit"
                .into(),
        );
    }
    let (vms, slots) = vms(&threads)?;
    let mut teller = Teller { slots: &slots, doing: vec![Doing::Sleeps; slots.len()], events: Vec::new() };
    let mut highest = 0;
    for line in &lines {
        highest = highest.max(line.cpu);
        teller.take(line);
    }
    let mut events = teller.events;
    events.sort_by_key(|event| event.time_ns);
    let (Some(first), Some(last)) = (events.first().map(|e| e.time_ns), events.last().map(|e| e.time_ns))
    else {
        return Err("has no sched_switch of a vCPU: record with `trace-cmd record -e sched -e kvm`".into());
    };
    let pcpus = (0..=highest).map(|cpu| Pcpu { cpu, core: cpu, ..Pcpu::default() }).collect();
    let header = Header { clock_ns: first, scheduler: "unknown".into(), pcpus, ..Header::default() };
    Ok(Recording { header, end: End { clock_ns: last, vms, ..End::default() }, events })
}

/// Lines of the host. A merged report has each one's file before it; the host is the one that enters guests.
fn host_lines(text: &str) -> impl Iterator<Item = &str> {
    let prefix = |line: &str| {
        let (before, rest) = line.split_once(':')?;
        // Otherwise the colon is that behind the time.
        let is_file = !before.contains('[') && rest.contains('[');
        is_file.then(|| before.trim().to_string())
    };
    let hosts: Vec<String> =
        text.lines().filter(|line| line.contains("kvm_entry:")).take(1).filter_map(prefix).collect();
    text.lines().filter_map(move |line| match (prefix(line), hosts.first()) {
        (None, _) => Some(line),
        (Some(file), Some(host)) if file == *host => line.split_once(':').map(|(_, rest)| rest),
        _ => None,
    })
}

/// `COMM-PID  [CPU]  SECONDS.FRACTION: NAME: REST`, perhaps with flags before the time.
fn parse(line: &str) -> Option<Line<'_>> {
    let (task, rest) = line.split_once('[')?;
    let (cpu, rest) = rest.split_once(']')?;
    let cpu: u32 = cpu.trim().parse().ok().filter(|cpu| *cpu < PCPUS_MAX)?;
    let (comm, pid) = task.trim().rsplit_once('-')?;
    let (stamp, rest) = rest.split_once(": ")?;
    let (name, rest) = rest.trim_start().split_once(':')?;
    let stamp = stamp.split_whitespace().last()?;
    Some(Line {
        comm: comm.trim(),
        pid: pid.trim().parse().ok()?,
        cpu,
        time_ns: time_ns(stamp)?,
        name: name.trim(),
        rest,
    })
}

fn time_ns(stamp: &str) -> Option<u64> {
    let (seconds, fraction) = stamp.split_once('.')?;
    let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX)?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    let digits: u64 = fraction.parse().ok()?;
    Some(seconds * NS_PER_S + digits * 10u64.pow(9 - fraction.len() as u32))
}

/// The number behind `key` in a line's words, such as `prev_pid=7` or `vcpu 3,`.
fn number(rest: &str, key: &str) -> Option<u32> {
    let at = rest.find(key)? + key.len();
    let digits = rest[at..].trim_start_matches([' ', '=', ':']);
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// The vCPUs' threads: their numbers, those of their vCPUs, their names.
fn threads<'a>(lines: &[Line<'a>]) -> BTreeMap<u32, (u32, &'a str)> {
    let mut found = BTreeMap::new();
    for line in lines.iter().filter(|line| matches!(line.name, "kvm_entry" | "kvm_exit")) {
        if let Some(vcpu) = number(line.rest, "vcpu") {
            found.entry(line.pid).or_insert((vcpu, line.comm));
        }
    }
    found
}

/// By thread: its slot.
type Slots = BTreeMap<u32, u16>;

fn vms(threads: &BTreeMap<u32, (u32, &str)>) -> Result<(Vec<VmAbout>, Slots), String> {
    let mut vms: Vec<VmAbout> = Vec::new();
    let mut slots = Slots::new();
    let mut last = None;
    for (slot, (tid, (vcpu, _))) in threads.iter().enumerate() {
        let slot = u16::try_from(slot).ok().filter(|slot| *slot < VCPUS_MAX);
        let slot = slot.ok_or_else(|| format!("has {} vCPUs; allowed: {VCPUS_MAX}", threads.len()))?;
        if last.is_none_or(|last| *vcpu <= last) {
            let name = format!("vm{}", vms.len());
            vms.push(VmAbout { name, pid: *tid, weight: 100.0, ..VmAbout::default() });
        }
        last = Some(*vcpu);
        if let Some(vm) = vms.last_mut() {
            vm.vcpus.push(VcpuAbout { slot, vcpu: *vcpu, tid: *tid, ..VcpuAbout::default() });
        }
        slots.insert(*tid, slot);
    }
    Ok((vms, slots))
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
    doing: Vec<Doing>,
    events: Vec<Event>,
}

impl Teller<'_> {
    fn put(&mut self, line: &Line<'_>, vcpu: u16, cpu: u32, kind: Kind) {
        let cpu = cpu.min(PCPUS_MAX - 1) as u16;
        self.events.push(Event { time_ns: line.time_ns, cpu, vcpu, kind, a: 0, b: 0 });
        let doing = match kind {
            Kind::Run => Doing::Runs,
            Kind::Preempted | Kind::Woken | Kind::Moved => Doing::Waits,
            Kind::Halted => Doing::Sleeps,
            _ => return,
        };
        self.doing[usize::from(vcpu)] = doing;
    }

    /// The vCPU whose thread has the number behind `key`, or in the short form behind a colon.
    fn slot(&self, part: &str, key: &str) -> Option<u16> {
        let pid = number(part, key).or_else(|| number(part, ":"))?;
        self.slots.get(&pid).copied()
    }

    fn take(&mut self, line: &Line<'_>) {
        match line.name {
            "sched_switch" => {
                // `prev_pid=7 … prev_state=S ==> … next_pid=8`, or `a:7 [120] S ==> b:8 [120]`.
                let Some((before, after)) = line.rest.split_once("==>") else { return };
                let state = before.trim_end().rsplit(['=', ' ']).next().unwrap_or_default();
                if let Some(from) = self.slot(before, "prev_pid=") {
                    let kind = if state.starts_with('R') { Kind::Preempted } else { Kind::Halted };
                    self.put(line, from, line.cpu, kind);
                }
                if let Some(to) = self.slot(after, "next_pid=") {
                    self.put(line, to, line.cpu, Kind::Run);
                }
            }
            "sched_wakeup" => {
                let Some(woken) = self.slot(line.rest, " pid=") else { return };
                let cpu = number(line.rest, "target_cpu=").or_else(|| number(line.rest, "CPU:"));
                // Who was woken before it slept has never left its pCPU.
                if self.doing[usize::from(woken)] == Doing::Sleeps {
                    self.put(line, woken, cpu.unwrap_or(line.cpu), Kind::Woken);
                }
            }
            "sched_migrate_task" => {
                let moved = self.slot(line.rest, " pid=").zip(number(line.rest, "dest_cpu="));
                // Who sleeps is moved when it wakes, which says where to.
                if let Some((moved, cpu)) =
                    moved.filter(|(moved, _)| self.doing[usize::from(*moved)] == Doing::Waits)
                {
                    self.put(line, moved, cpu, Kind::Moved);
                }
            }
            "kvm_exit" => {
                // VMX has a name for it, SVM calls it by what was executed.
                let spins = line.rest.contains("PAUSE_INSTRUCTION") || line.rest.contains("reason pause");
                if let Some(vcpu) = self.slots.get(&line.pid).copied().filter(|_| spins) {
                    self.put(line, vcpu, line.cpu, Kind::Ple);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
cpus=2
       CPU 0/KVM-101   [000]  1.000000100: kvm_entry:            vcpu 0, rip 0xffffffff81000000
       CPU 1/KVM-102   [001]  1.000000100: kvm_exit:             vcpu 1 reason PAUSE_INSTRUCTION rip 0x0 info 0 0
       CPU 0/KVM-201   [001]  1.000000200: kvm_entry:            vcpu 0, rip 0x0
       CPU 0/KVM-101   [000]  1.000001000: sched_switch:         prev_comm=CPU 0/KVM prev_pid=101 prev_prio=120 prev_state=R+ ==> next_comm=x next_pid=9 next_prio=120
            x-9        [000]  1.000001500: sched_wakeup:         comm=CPU 0/KVM pid=201 prio=120 target_cpu=001
            x-9        [000]  1.000001600: sched_migrate_task:   comm=CPU 0/KVM pid=101 prio=120 orig_cpu=0 dest_cpu=1
            x-9        [000]  1.000001700: sched_migrate_task:   comm=CPU 1/KVM pid=102 prio=120 orig_cpu=0 dest_cpu=1
            x-9        [000] d..2.  1.000002000: sched_switch:         x:9 [120] S ==> CPU 0/KVM:101 [120]
";

    #[test]
    fn threads_become_vcpus_of_vms_and_lines_events() {
        let recording = read(TEXT).unwrap();
        let vms: Vec<Vec<u32>> =
            recording.end.vms.iter().map(|vm| vm.vcpus.iter().map(|vcpu| vcpu.tid).collect()).collect();
        assert_eq!(vms, [vec![101, 102], vec![201]]);
        assert_eq!(recording.header.pcpus.len(), 2);
        let told: Vec<(u64, u16, u16, Kind)> =
            recording.events.iter().map(|e| (e.time_ns % NS_PER_S, e.cpu, e.vcpu, e.kind)).collect();
        assert_eq!(
            told,
            [
                (100, 1, 1, Kind::Ple),
                (1_000, 0, 0, Kind::Preempted),
                (1_500, 1, 2, Kind::Woken),
                (1_600, 1, 0, Kind::Moved),
                (2_000, 0, 0, Kind::Run),
            ]
        );
    }

    #[test]
    fn of_a_merged_report_the_lines_of_the_host_count() {
        let merged: String = TEXT
            .lines()
            .flat_map(|line| {
                [format!("  trace.dat: {line}\n"), format!("guest.dat: {}\n", line.replace("kvm_", "vmk_"))]
            })
            .collect();
        assert_eq!(read(&merged).unwrap().events, read(TEXT).unwrap().events);
    }

    #[test]
    fn what_is_no_report_is_one_line() {
        for text in ["", "nonsense", "a-1 [000] 1.0: sched_switch: a:1 [1] R ==> b:2 [1]", "\u{0}\n[[]]]--::"]
        {
            let error = read(text).unwrap_err();
            assert!(error.contains("trace-cmd record") && !error.contains('\n'), "{error}");
        }
    }
}
