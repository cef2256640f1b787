// SPDX-License-Identifier: GPL-2.0-only
//! TLB shootdown: flush_tlb_mm_range() of arch/x86/mm/tlb.c in three forms. Who has an address space loaded is known exactly (mm_cpumask); who has
//! it loaded only lazily, because it idles, is spared unless page tables are freed (tlb_is_not_lazy()).

use crate::kvm::vcpu::Then;
use crate::kvm::{exit, vector};
use crate::observe::What;
use crate::Host;

use super::config::TlbMode;
use super::ops::Op;
use super::vm::Vm;

impl Vm {
    pub(crate) fn flush_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::Flush { freed } => self.flush(host, v, freed),
            Op::FlushEnd { targets, since_ns } => {
                self.cpus[v].no_preempt -= 1;
                let (id, took_ns) = (self.vcpus[v].id, host.now_ns() - since_ns);
                host.tell(|| What::ShootdownEnd { vcpu: id, targets, took_ns });
            }
            _ => {}
        }
    }

    fn flush(&mut self, host: &mut Host, v: usize, freed: bool) {
        let (space, id) = (self.cpus[v].space, self.vcpus[v].id);
        self.spaces[space as usize] += 1;
        self.flushed(v);
        let wanted = |other: &u32| {
            let cpu = &self.cpus[*other as usize];
            *other as usize != v && cpu.space == space && (freed || !cpu.lazy)
        };
        let mut targets: Vec<u32> = (0..self.cpus.len() as u32).filter(wanted).collect();
        let own = Op::Work(self.guest.costs.flush_ns);
        let count = targets.len() as u32;
        if targets.is_empty() {
            self.frame(v).first(&[own]);
            return;
        }
        host.tell(|| What::ShootdownStart { vcpu: id, targets: count });
        self.cpus[v].no_preempt += 1;
        let end = Op::FlushEnd { targets: count, since_ns: host.now_ns() };
        match self.guest.tlb {
            TlbMode::Hypercall => {
                self.frame(v).first(&[own, end]);
                self.vcpus[v].flush_to = targets;
                self.begin_exit(host, v, exit::HYPERCALL, self.kvm.costs.hypercall_ns, Then::Flush);
                return;
            }
            // kvm_flush_tlb_multi(): a preempted one is flagged. That it may be preempted after this look is the mode's weakness.
            TlbMode::KvmPv => {
                let vcpus = &mut self.vcpus;
                targets.retain(|to| {
                    let vcpu = &mut vcpus[*to as usize];
                    vcpu.flush_flag |= vcpu.seen_preempted;
                    !vcpu.seen_preempted
                });
            }
            TlbMode::Ipi => {}
        }
        self.call_all(v, &targets, vector::TLB);
        let steps = [Op::SendIpis(vector::TLB), Op::SchedYield, own, Op::WaitAnswers(vector::TLB), end];
        self.frame(v).first(&steps);
    }
}
