// SPDX-License-Identifier: GPL-2.0-only
//! One number for all that happened in a run: two runs are the same if and only if (but for chance) their fingerprints are.
//!
//! Own code, because the number is part of the results: it is the same on every machine and with every version of every library. Whoever adds a
//! kind of event gives it a number of its own; the numbers of the others stay, and with them the fingerprints of runs without it.

use crate::ids::{CpuId, TaskId, VcpuId};
use crate::observe::{Observer, Spin, Stop, What};
use crate::time::Ns;

/// A hash over the stream of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    hash: u64,
    events: u64,
}

impl Fingerprint {
    /// As it is written: 16 hexadecimal digits.
    pub fn text(&self) -> String {
        format!("{:016x}", self.value())
    }

    pub fn value(&self) -> u64 {
        finish(self.hash ^ self.events)
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// One multiplication and one rotation for each word: order and position count.
    fn add(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// The finalizer of splitmix64: every bit of the hash reaches every bit of the result.
fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Observer for Fingerprint {
    fn record(&mut self, now_ns: Ns, what: &What) {
        self.events += 1;
        self.add(now_ns);
        let (kind, fields) = words(what);
        self.add(kind);
        for word in fields {
            self.add(word);
        }
    }
}

fn vcpu(vcpu: VcpuId) -> u64 {
    u64::from(vcpu.vm.0) << 32 | u64::from(vcpu.id)
}

fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

fn task(task: Option<TaskId>) -> u32 {
    task.map_or(u32::MAX, |task| task.0)
}

fn stop(why: Stop) -> u32 {
    match why {
        Stop::Preempted => 0,
        Stop::Blocked => 1,
        Stop::Exited => 2,
    }
}

fn spin(why: Spin) -> u64 {
    match why {
        Spin::Lock => 0,
        Spin::IpiAnswer => 1,
        Spin::Shootdown => 2,
        Spin::Barrier => 3,
        Spin::User => 4,
    }
}

/// The number of an event's kind, and its fields. Numbers are never used again.
fn words(what: &What) -> (u64, [u64; 3]) {
    match *what {
        What::Switch { cpu: CpuId(cpu), prev, why, next } => {
            (1, [pair(cpu, stop(why)), pair(task(prev), task(next)), 0])
        }
        What::Wakeup { task, cpu } => (2, [pair(task.0, cpu.0), 0, 0]),
        What::Migrate { task, from, to } => (3, [pair(from.0, to.0), u64::from(task.0), 0]),
        What::Speed { cpu, full } => (4, [pair(cpu.0, full.into()), 0, 0]),
        What::Ple { vcpu: v, kernel } => (5, [vcpu(v), kernel.into(), 0]),
        What::DirectedYield { from, to, granted } => (6, [vcpu(from), vcpu(to), granted.into()]),
        What::Exit { vcpu: v, reason, ns } => (7, [vcpu(v), reason.into(), ns]),
        What::Halt { vcpu: v, polled_ns } => (8, [vcpu(v), polled_ns, 0]),
        What::Unhalt { vcpu: v } => (9, [vcpu(v), 0, 0]),
        What::GuestIpiSent { from, to, vector } => (10, [vcpu(from), vcpu(to), vector.into()]),
        What::GuestIpiTaken { vcpu: v, vector } => (11, [vcpu(v), vector.into(), 0]),
        What::Mode { vcpu: v, kernel } => (12, [vcpu(v), kernel.into(), 0]),
        What::GuestSwitch { vcpu: v, prev, next } => (13, [vcpu(v), pair(prev, next), 0]),
        What::LockWait { vcpu: v, lock } => (14, [vcpu(v), lock.into(), 0]),
        What::LockTaken { vcpu: v, lock, waited_ns, .. } => (15, [vcpu(v), lock.into(), waited_ns]),
        What::LockReleased { vcpu: v, lock, held_ns, .. } => (16, [vcpu(v), lock.into(), held_ns]),
        What::SpinStart { vcpu: v, why } => (17, [vcpu(v), spin(why), 0]),
        What::SpinEnd { vcpu: v, why, spun_ns } => (18, [vcpu(v), spin(why), spun_ns]),
        What::ShootdownStart { vcpu: v, targets } => (19, [vcpu(v), targets.into(), 0]),
        What::ShootdownEnd { vcpu: v, targets, took_ns } => (20, [vcpu(v), targets.into(), took_ns]),
        What::Progress { vcpu: v, kind, took_ns } => (21, [vcpu(v), kind.into(), took_ns]),
        What::ProgramEnd { vcpu: v, program } => (22, [vcpu(v), program.into(), 0]),
        What::ProgramStart { vcpu: v, program } => (25, [vcpu(v), program.into(), 0]),
        What::TlbFlushed { vcpu: v } => (23, [vcpu(v), 0, 0]),
        What::Kick { from, to } => (24, [vcpu(from), vcpu(to), 0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VmId;

    fn of(events: &[(Ns, What)]) -> String {
        let mut print = Fingerprint::default();
        for (now_ns, what) in events {
            print.record(*now_ns, what);
        }
        print.text()
    }

    const V: VcpuId = VcpuId { vm: VmId(1), id: 2 };

    /// The numbers are fixed for ever: results of older versions are compared with them.
    #[test]
    fn is_the_same_as_ever() {
        assert_eq!(of(&[]), "0000000000000000");
        let events = [
            (5, What::Switch { cpu: CpuId(0), prev: None, why: Stop::Preempted, next: Some(TaskId(3)) }),
            (9, What::SpinEnd { vcpu: V, why: Spin::Shootdown, spun_ns: 4 }),
        ];
        assert_eq!(of(&events), "0b6bd7b8822722ac");
    }

    #[test]
    fn time_kind_order_and_every_field_count() {
        let base = [(1, What::Unhalt { vcpu: V }), (2, What::Ple { vcpu: V, kernel: true })];
        let mut others = vec![
            vec![base[1], base[0]],
            vec![base[0]],
            vec![(1, What::Unhalt { vcpu: V }), (3, What::Ple { vcpu: V, kernel: true })],
            vec![base[0], (2, What::Ple { vcpu: V, kernel: false })],
            vec![base[0], (2, What::Mode { vcpu: V, kernel: true })],
            vec![(1, What::Unhalt { vcpu: VcpuId { vm: VmId(2), id: 1 } }), base[1]],
        ];
        others.push(base.to_vec());
        let mut prints: Vec<_> = others.iter().map(|events| of(events)).collect();
        prints.sort();
        prints.dedup();
        assert_eq!(prints.len(), others.len());
    }
}
