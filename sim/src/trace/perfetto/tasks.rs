// SPDX-License-Identifier: GPL-2.0-only
//! One more track for a vCPU: which task its guest's kernel runs on it, whether or not it has a pCPU.

use crate::ids::VcpuId;
use crate::time::Ns;

use super::fields::event;
use super::writer::About;
use super::{Perfetto, TASKS, VM};

impl Perfetto {
    /// With that track for these vCPUs.
    pub fn with_tasks(mut self, vcpus: impl IntoIterator<Item = VcpuId>) -> Self {
        for vcpu in vcpus {
            let (vm, id) = (vcpu.vm.index() as u64, u64::from(vcpu.id));
            // Behind all others.
            let rank = (2 << 20) + id;
            let track = TASKS + self.at(vcpu) as u64;
            self.writer.track(track, VM + vm, &format!("vCPU {id}, tasks"), rank);
        }
        self
    }

    /// The guest goes over to this task, known there by its number, or is idle.
    pub fn task(&mut self, now_ns: Ns, vcpu: VcpuId, to: Option<(&str, u32)>) {
        if self.is_full() {
            return;
        }
        self.last_ns = now_ns;
        self.end_task(now_ns, self.at(vcpu));
        if let Some((name, pid)) = to {
            let at = self.at(vcpu);
            let about =
                About { category: "guest", name, value: Some(("pid", pid.into())), ..About::default() };
            self.writer.put(now_ns, event::BEGIN, TASKS + at as u64, about);
            self.vcpus[at].task = true;
        }
    }

    pub(super) fn end_task(&mut self, now_ns: Ns, at: usize) {
        if std::mem::take(&mut self.vcpus[at].task) {
            self.writer.put(now_ns, event::END, TASKS + at as u64, About::default());
        }
    }
}
