// SPDX-License-Identifier: GPL-2.0-only
//! Lines of `trace-cmd report`: which file each is of, and what it says.
//!
//! An event can be printed in two ways: as the kernel's own format says, or by a plugin of libtraceevent, which trace-cmd uses if it is installed.
//! Debian's depends on it. The plugins know `kvm_entry`, `kvm_exit`, `sched_switch`, `sched_wakeup` and `sched_wakeup_new`.

use crate::reader::PCPUS_MAX;

const NS_PER_S: u64 = 1_000_000_000;
/// Years; no clock shows more.
const SECONDS_MAX: u64 = 10_000_000_000;
/// Pause-loop exits: of VMX (in both ways), of SVM by the plugin and by the kernel.
const PAUSES: [&str; 3] = ["PAUSE_INSTRUCTION", "EXIT_PAUSE", "pause"];
const HALTS: [&str; 3] = ["HLT", "EXIT_HLT", "hlt"];

/// What a line says, as far as it matters.
#[derive(Debug)]
pub struct Line<'a> {
    pub pid: u32,
    pub cpu: u32,
    pub time_ns: u64,
    pub name: &'a str,
    pub rest: &'a str,
}

/// One of the files that were merged; the only one has no name.
#[derive(Debug, Default)]
pub struct File<'a> {
    pub name: &'a str,
    pub cpus: u32,
    pub lines: Vec<Line<'a>>,
    /// Events that the kernel had no room for, and how often nobody knows how many they were.
    pub dropped: u64,
    pub dropped_some: u64,
}

/// All lines by the file that they are of, in the files' order.
pub fn files(text: &str) -> Vec<File<'_>> {
    let mut files: Vec<File<'_>> = Vec::new();
    for (name, cpus) in text.lines().filter_map(head) {
        if !files.iter().any(|file| file.name == name) {
            files.push(File { name, cpus, ..File::default() });
        }
    }
    if files.is_empty() {
        // A part of a report.
        files.push(File::default());
    }
    let mut current = 0;
    for line in text.lines() {
        // A line without a file's name goes on with the line before: so does an event after a remark that some are lost.
        let (at, line) = prefix(&files, line).unwrap_or((current, line));
        current = at;
        let file = &mut files[at];
        if let Some(dropped) = dropped(line) {
            file.dropped = file.dropped.saturating_add(dropped.unwrap_or(0));
            file.dropped_some += u64::from(dropped.is_none());
        } else if let Some(line) = parse(line) {
            file.lines.push(line);
        }
    }
    files
}

/// `cpus=2`, of a merged report with its file's name before it.
fn head(line: &str) -> Option<(&str, u32)> {
    let (name, cpus) = line.rsplit_once(": ").unwrap_or(("", line));
    Some((name.trim(), cpus.trim().strip_prefix("cpus=")?.parse().ok()?))
}

fn prefix<'a>(files: &[File<'_>], line: &'a str) -> Option<(usize, &'a str)> {
    let line = line.trim_start();
    let named = files.iter().enumerate().filter(|(_, file)| !file.name.is_empty());
    let rest = |(at, file): (usize, &File<'_>)| Some((at, line.strip_prefix(file.name)?.strip_prefix(": ")?));
    named.filter_map(rest).min_by_key(|(_, rest)| rest.len())
}

/// `CPU:1 [17 EVENTS DROPPED]`, or without a number.
fn dropped(line: &str) -> Option<Option<u64>> {
    let (cpu, rest) = line.trim().strip_prefix("CPU:")?.split_once(" [")?;
    let count = rest.strip_suffix("EVENTS DROPPED]").filter(|_| cpu.bytes().all(|c| c.is_ascii_digit()))?;
    Some(count.trim().parse().ok())
}

/// `COMM-PID  [CPU]  SECONDS.FRACTION: NAME: REST`, perhaps with flags before the time and what passed since the last line behind it.
fn parse(line: &str) -> Option<Line<'_>> {
    let (pid, cpu, rest) = line.match_indices('[').find_map(|(at, _)| {
        // Only what is near a bracket: some other text, such as JSON, may have millions of them in one line.
        let before = line[..at].trim_end();
        let comm = before.trim_end_matches(|c: char| c.is_ascii_digit());
        let pid = before[comm.len()..].parse().ok().filter(|_| comm.ends_with('-'))?;
        let (inside, behind) = line[at + 1..].split_at(line[at + 1..].find(['[', ']'])?);
        Some((pid, inside.trim().parse().ok()?, behind.strip_prefix(']')?))
    })?;
    let (stamp, rest) = rest.split_once(": ")?;
    let (name, rest) = rest.split_once(':')?;
    Some(Line {
        pid,
        cpu: Some(cpu).filter(|cpu| *cpu < PCPUS_MAX)?,
        time_ns: time_ns(stamp.split_whitespace().last()?)?,
        name: name.split_whitespace().last()?,
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

/// The number behind the last `key`, such as `target_cpu=` or `vcpu `. A task's name may contain the key, but it comes first.
fn number(rest: &str, key: &str) -> Option<u32> {
    let digits = &rest[rest.rfind(key)? + key.len()..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Who is meant by `comm=NAME pid=7 prio=120`, with `side` before both keys, or in the plugin's way by `NAME:7 [120]`.
fn who<'a>(part: &'a str, side: &str) -> Option<(&'a str, u32)> {
    let long = part.rfind(&format!(" {side}pid=")).and_then(|at| {
        let comm = part[..at].trim_start().strip_prefix(side)?.strip_prefix("comm=")?;
        Some((comm, number(&part[at..], "pid=")?))
    });
    long.or_else(|| {
        let (comm, pid) = part.rsplit_once(" [")?.0.rsplit_once(':')?;
        Some((comm.trim_start(), pid.parse().ok()?))
    })
}

/// What `sched_switch` says.
#[derive(Debug, PartialEq, Eq)]
pub struct Switch<'a> {
    pub prev_pid: u32,
    /// It could have gone on.
    pub preempted: bool,
    /// It waits for what cannot be interrupted, such as a page.
    pub uninterruptible: bool,
    pub next_comm: &'a str,
    pub next_pid: u32,
}

impl<'a> Line<'a> {
    /// The number of the vCPU that enters or leaves its guest: the plugin does not say it of `kvm_exit`.
    pub fn vcpu(&self) -> Option<u32> {
        number(self.rest, "vcpu ")
    }

    fn exit_reason(&self) -> &'a str {
        self.rest
            .split_once("reason ")
            .and_then(|(_, rest)| rest.split_whitespace().next())
            .unwrap_or_default()
    }

    pub fn is_pause_loop(&self) -> bool {
        PAUSES.contains(&self.exit_reason())
    }

    pub fn is_halt(&self) -> bool {
        HALTS.contains(&self.exit_reason())
    }

    /// `prev_comm=a prev_pid=7 prev_prio=120 prev_state=S ==> next_comm=b next_pid=8 next_prio=120`, or `a:7 [120] S ==> b:8 [120]`.
    pub fn switch(&self) -> Option<Switch<'a>> {
        let (before, after) = self.rest.split_once(" ==> ")?;
        let state = before.trim_end().rsplit(['=', ' ']).next().unwrap_or_default();
        let (_, prev_pid) = who(before, "prev_")?;
        let (next_comm, next_pid) = who(after, "next_")?;
        let (preempted, uninterruptible) = (state.starts_with('R'), state.starts_with('D'));
        Some(Switch { prev_pid, preempted, uninterruptible, next_comm, next_pid })
    }

    /// Whom `sched_wakeup` and its like wake, and for which pCPU: `comm=a pid=7 prio=120 target_cpu=001`, or `a:7 [120] CPU:001`.
    pub fn woken(&self) -> Option<(u32, u32)> {
        // Of kernels before 4.3: it was awake.
        if self.rest.contains(" success=0") {
            return None;
        }
        let (_, pid) = who(self.rest, "")?;
        let cpu = number(self.rest, " target_cpu=").or_else(|| number(self.rest, " CPU:"));
        Some((pid, cpu.unwrap_or(self.cpu)))
    }

    /// Whose APIC takes an interrupt, and which: `kvm_apic_accept_irq`'s `apicid 1 vec 253 (Fixed|edge)`.
    pub fn interrupt(&self) -> Option<(u32, u8)> {
        let (_, rest) = self.rest.split_once("apicid ")?;
        let (apic, rest) = rest.split_once(" vec ")?;
        Some((u32::from_str_radix(apic, 16).ok()?, rest.split_whitespace().next()?.parse().ok()?))
    }

    /// The number in `kvm_hypercall`'s `nr 0x5 a0 0x0 …`, as the probe tells it.
    pub fn hypercall(&self) -> Option<u8> {
        let (_, rest) = self.rest.split_once("nr 0x")?;
        Some(u64::from_str_radix(rest.split_whitespace().next()?, 16).ok()? as u8)
    }

    /// Which vCPU carries out a flush that was put off, by `kvm_pv_tlb_flush`: `vcpu 1 need_flush_tlb true`.
    pub fn flush_put_off(&self) -> Option<u32> {
        self.vcpu().filter(|_| self.rest.contains("need_flush_tlb true"))
    }

    /// Whom `sched_migrate_task` moves, and where to; it has no plugin.
    pub fn moved(&self) -> Option<(u32, u32)> {
        let (_, pid) = who(self.rest, "")?;
        Some((pid, number(self.rest, " dest_cpu=")?))
    }
}
