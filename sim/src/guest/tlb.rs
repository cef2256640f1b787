// SPDX-License-Identifier: GPL-2.0-only
//! TLB shootdown: flush_tlb_mm_range() of arch/x86/mm/tlb.c in three forms; and who is asked ([`LazyTlb`]).

use crate::kvm::vcpu::Then;
use crate::kvm::{exit, vector};
use crate::observe::What;
use crate::Host;

use super::config::{LazyTlb, TlbMode};
use super::ops::Op;
use super::task::NO_SPACE;
use super::vm::Vm;

/// An address space.
#[derive(Clone, Debug, Default)]
pub struct Space {
    /// How often it has been flushed.
    flushes: u64,
    /// mm_cpumask(): the vCPUs that have it loaded, or were not told yet to forget it.
    of: Vec<bool>,
}

impl Space {
    pub fn new(vcpus: usize) -> Self {
        Self { flushes: 0, of: vec![false; vcpus] }
    }

    pub fn flushes(&self) -> u64 {
        self.flushes
    }
}

impl Vm {
    /// Idle, or another of the kernel's own tasks, has come (enter_lazy_tlb()).
    pub(super) fn space_is_lazy(&mut self, v: usize) {
        self.cpus[v].lazy = true;
        if self.guest.lazy_tlb == LazyTlb::Left && self.cpus[v].space != NO_SPACE {
            self.leave_space(v);
        }
    }

    /// It has the kernel's own loaded from now on (switch_mm_irqs_off() to init_mm).
    fn leave_space(&mut self, v: usize) {
        let space = std::mem::replace(&mut self.cpus[v].space, NO_SPACE);
        self.cpus[v].left_space = space;
        if self.guest.lazy_tlb != LazyTlb::Late {
            self.spaces[space as usize].of[v] = false;
        }
    }

    /// A vCPU loads an address space in place of another.
    pub(super) fn space_changes(&mut self, v: usize, old: u32, new: u32) {
        if old != new && old != NO_SPACE && self.guest.lazy_tlb != LazyTlb::Late {
            self.spaces[old as usize].of[v] = false;
        }
        self.spaces[new as usize].of[v] = true;
    }

    /// flush_tlb_func(): who has the address space only lazily leaves it, and who has left it before is no longer of its vCPUs. Return true if there was
    /// something to flush.
    pub(super) fn told_to_flush(&mut self, v: usize, space: u32) -> bool {
        if self.cpus[v].space != space {
            self.spaces[space as usize].of[v] = false;
            return false;
        }
        if self.cpus[v].lazy {
            self.leave_space(v);
        } else {
            self.flushed(v);
        }
        true
    }

    pub(crate) fn flush_op(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::Flush { freed } => self.flush(host, v, freed),
            Op::FlushEnd { targets, since_ns } => {
                self.cpus[v].no_preempt -= 1;
                self.frame(v).first(&[Op::Preempt]);
                let (id, took_ns) = (self.vcpus[v].id, host.now_ns() - since_ns);
                host.tell(|| What::ShootdownEnd { vcpu: id, targets, took_ns });
            }
            _ => {}
        }
    }

    fn flush(&mut self, host: &mut Host, v: usize, freed: bool) {
        let (space, id) = (self.cpus[v].space, self.vcpus[v].id);
        self.spaces[space as usize].flushes += 1;
        self.flushed(v);
        let of = &self.spaces[space as usize].of;
        let asks_lazy = self.guest.lazy_tlb == LazyTlb::Asked;
        let wanted = |other: &u32| {
            let cpu = &self.cpus[*other as usize];
            let uses = cpu.space == space && (asks_lazy || !cpu.lazy);
            *other as usize != v && of[*other as usize] && (freed || uses)
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
