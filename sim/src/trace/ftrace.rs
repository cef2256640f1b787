// SPDX-License-Identifier: GPL-2.0-only
//! `sched_switch`, `sched_wakeup` and `sched_migrate_task` as text in the form of `trace-cmd report`, which LISA reads too.

use std::fmt::Write as _;

use crate::ids::{CpuId, TaskId};
use crate::metrics::Layout;
use crate::observe::{Observer, Stop, What};
use crate::time::{Ns, SEC};

/// The kernel's name of a task has 15 characters at most (TASK_COMM_LEN).
const COMM_MAX: usize = 15;
/// Of a task of nice 0. What a scheduler makes of weights is not in the trace.
const PRIO: u32 = 120;
/// Process numbers below are those of a host's own threads.
const FIRST_PID: u32 = 1000;

pub struct Ftrace {
    text: String,
    bytes_max: usize,
    comms: Vec<String>,
    /// Who runs: the first column is the task in whose context an event happens.
    running: Vec<Option<TaskId>>,
    truncated: bool,
}

impl Ftrace {
    /// Nothing is added any more when the text is as long as this.
    pub fn new(layout: &Layout, bytes_max: usize) -> Self {
        // Blanks would end the name for who reads it; so does a cut within a character.
        let comm = |name: &str| {
            name.chars().map(|c| if c.is_whitespace() { '-' } else { c }).take(COMM_MAX).collect()
        };
        Self {
            text: format!("cpus={}\n", layout.pcpus),
            bytes_max,
            comms: layout.tasks.iter().map(|task| comm(&task.name)).collect(),
            running: vec![None; layout.pcpus as usize],
            truncated: false,
        }
    }

    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Name and number of a task, or of a pCPU's idle task.
    fn who(&self, task: Option<TaskId>, cpu: CpuId) -> (String, u32) {
        match task {
            Some(id) => {
                (self.comms.get(id.index()).map_or_else(|| "?".into(), Clone::clone), FIRST_PID + id.0)
            }
            None => (format!("swapper/{}", cpu.0), 0),
        }
    }

    /// The columns before the event.
    fn stamp(&mut self, now_ns: Ns, cpu: CpuId) {
        let (name, pid) = match self.running.get(cpu.index()).copied().flatten() {
            None => ("<idle>".into(), 0),
            some => self.who(some, cpu),
        };
        let (seconds, rest_ns) = (now_ns / SEC, now_ns % SEC);
        let _ = write!(self.text, "{name:>16}-{pid:<7} [{:03}] {seconds:>5}.{rest_ns:09}: ", cpu.0);
    }
}

impl Observer for Ftrace {
    fn record(&mut self, now_ns: Ns, what: &What) {
        if self.text.len() >= self.bytes_max {
            self.truncated = true;
            return;
        }
        // Writing to a string cannot fail.
        match *what {
            What::Switch { cpu, prev, why, next } => {
                self.stamp(now_ns, cpu);
                let state = match (prev, why) {
                    (None, _) | (_, Stop::Preempted) => 'R',
                    (_, Stop::Blocked) => 'S',
                    (_, Stop::Exited) => 'X',
                };
                let ((from, from_pid), (to, to_pid)) = (self.who(prev, cpu), self.who(next, cpu));
                let _ = writeln!(
                    self.text,
                    "sched_switch: prev_comm={from} prev_pid={from_pid} prev_prio={PRIO} prev_state={state} ==> \
                     next_comm={to} next_pid={to_pid} next_prio={PRIO}"
                );
                if let Some(running) = self.running.get_mut(cpu.index()) {
                    *running = next;
                }
            }
            What::Wakeup { task, cpu } => {
                self.stamp(now_ns, cpu);
                let (name, pid) = self.who(Some(task), cpu);
                let _ = writeln!(
                    self.text,
                    "sched_wakeup: comm={name} pid={pid} prio={PRIO} target_cpu={:03}",
                    cpu.0
                );
            }
            What::Migrate { task, from, to } => {
                self.stamp(now_ns, from);
                let (name, pid) = self.who(Some(task), from);
                let _ = writeln!(
                    self.text,
                    "sched_migrate_task: comm={name} pid={pid} prio={PRIO} orig_cpu={} dest_cpu={}",
                    from.0, to.0
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::layout::TaskLayout;

    fn layout() -> Layout {
        let task = |name: &str| TaskLayout { name: name.into(), ..TaskLayout::default() };
        Layout { pcpus: 2, tasks: vec![task("work/0"), task("a name with blanks")], ..Layout::default() }
    }

    #[test]
    fn is_what_trace_cmd_writes() {
        let mut trace = Ftrace::new(&layout(), 1 << 20);
        trace.record(1_000_000_005, &What::Wakeup { task: TaskId(0), cpu: CpuId(1) });
        let first = What::Switch { cpu: CpuId(1), prev: None, why: Stop::Preempted, next: Some(TaskId(0)) };
        trace.record(1_000_002_005, &first);
        trace.record(1_000_002_006, &What::Migrate { task: TaskId(1), from: CpuId(1), to: CpuId(0) });
        let second = What::Switch { cpu: CpuId(1), prev: Some(TaskId(0)), why: Stop::Blocked, next: None };
        trace.record(2_000_000_000, &second);
        let expected = "\
cpus=2
          <idle>-0       [001]     1.000000005: sched_wakeup: comm=work/0 pid=1000 prio=120 target_cpu=001
          <idle>-0       [001]     1.000002005: sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R \
==> next_comm=work/0 next_pid=1000 next_prio=120
          work/0-1000    [001]     1.000002006: sched_migrate_task: comm=a-name-with-bla pid=1001 prio=120 orig_cpu=1 dest_cpu=0
          work/0-1000    [001]     2.000000000: sched_switch: prev_comm=work/0 prev_pid=1000 prev_prio=120 prev_state=S \
==> next_comm=swapper/1 next_pid=0 next_prio=120
";
        assert_eq!(trace.finish(), expected);
    }

    #[test]
    fn stops_at_its_size() {
        let mut trace = Ftrace::new(&layout(), 50);
        for at_ns in 0..10 {
            trace.record(at_ns, &What::Wakeup { task: TaskId(0), cpu: CpuId(0) });
        }
        assert!(trace.is_truncated());
        assert_eq!(trace.finish().lines().count(), 2);
    }
}
