// SPDX-License-Identifier: GPL-2.0-only
//! From exit to entry, halting, and interrupts for vCPUs.

use crate::class::Class as _;
use crate::guest::vm::Vm;
use crate::guest::Wakelist;
use crate::ids::CpuId;
use crate::observe::What;
use crate::time::{Ns, Progress};
use crate::Host;

use super::config::Ipi;
use super::halt::POLL_LOOK_NS;
use super::vcpu::{Exit, Place, Then};
use super::{exit, vector};

/// What an interrupt of the host between pCPUs is for; see [`crate::body::Bodies::interrupt`].
pub const KICK: u32 = 0;
pub const POSTED: u32 = 1;
pub const FLUSH: u32 = 2;

impl Vm {
    /// The vCPU leaves the guest, for KVM to do something that takes `extra_ns`.
    pub(crate) fn begin_exit(&mut self, host: &Host, v: usize, reason: u8, extra_ns: Ns, then: Then) {
        let now_ns = host.now_ns();
        self.pause(now_ns, v);
        let work_ns = host.core.machine.costs.vm_exit_ns + extra_ns;
        let vcpu = &mut self.vcpus[v];
        vcpu.loop_ends();
        vcpu.place = Place::Exit;
        vcpu.at_boundary = reason == exit::INTERRUPT;
        vcpu.exit = Exit { reason, since_ns: now_ns, work: Progress::new(work_ns), then };
        self.counters.exits[usize::from(reason)] += 1;
    }

    fn begin_entry(&mut self, host: &mut Host, v: usize) {
        let vcpu = &mut self.vcpus[v];
        vcpu.place = Place::Exit;
        vcpu.exit.work = Progress::new(host.core.machine.costs.vm_entry_ns);
        vcpu.exit.then = Then::Enter;
        if !self.schedules_first(host, v) {
            self.vcpus[v].at_boundary = false;
        }
    }

    /// Before the guest is entered the thread may have to schedule: vcpu_run() looks for that, and kvm_vcpu_exit_request() at the last moment. Return true if
    /// it has to.
    fn schedules_first(&mut self, host: &mut Host, v: usize) -> bool {
        let schedules = host.schedules_before_guest(self.vcpus[v].task);
        if schedules {
            self.comes_back(host, v);
        }
        schedules
    }

    /// A part of the exit's work is done.
    pub(crate) fn exit_done(&mut self, host: &mut Host, v: usize) {
        match self.vcpus[v].exit.then {
            Then::Enter => self.enter(host, v),
            Then::Done => self.begin_entry(host, v),
            Then::Ipi(vector) => {
                self.deliver_all(host, v, vector);
                self.begin_entry(host, v);
            }
            Then::Kick(to) => {
                let (from, to_id) = (self.vcpus[v].id, self.vcpus[to as usize].id);
                host.tell(|| What::Kick { from, to: to_id });
                let by = host.cpu_of(self.vcpus[v].task);
                self.vcpus[to as usize].kicked = true;
                self.wake_vcpu(host, to as usize, Some(by));
                if self.kvm.kick_yields {
                    self.hypercall_yield(host, v, to as usize);
                } else {
                    self.begin_entry(host, v);
                }
            }
            Then::Yield(to) => self.hypercall_yield(host, v, to as usize),
            Then::Flush => self.hypercall_flush(host, v),
            Then::Halt => self.halt(host, v),
            Then::SpinHook => self.spin_hook(host, v),
            Then::SpinLeaves => self.spin_leaves(host, v),
            Then::SpinLoop => self.spin_loop(host, v),
            Then::SpinEnd => {
                let vcpu = &mut self.vcpus[v];
                vcpu.in_spin_loop = false;
                vcpu.dy_eligible = false;
                self.begin_entry(host, v);
            }
            Then::Fault(gfn) => {
                host.on_fault(self.vcpus[v].task, gfn);
                self.begin_entry(host, v);
            }
            Then::Io(task) => {
                let by = host.cpu_of(self.vcpus[v].task);
                self.io_submit(host, task, by);
                self.begin_entry(host, v);
            }
        }
    }

    /// vcpu_enter_guest(): requests first, then the guest.
    fn enter(&mut self, host: &mut Host, v: usize) {
        if self.schedules_first(host, v) {
            return;
        }
        let flush_ns = self.kvm.costs.flush_ns;
        let vcpu = &mut self.vcpus[v];
        // record_steal_time() takes back both flags at once.
        vcpu.seen_preempted = false;
        if std::mem::take(&mut vcpu.flush_flag) | std::mem::take(&mut vcpu.flush_request) {
            let id = vcpu.id;
            vcpu.exit.work = Progress::new(flush_ns);
            self.flushed(v);
            host.tell(|| What::TlbFlushed { vcpu: id });
            return;
        }
        vcpu.place = Place::Guest;
        vcpu.visible = vcpu.pending;
        let (id, exit) = (vcpu.id, vcpu.exit);
        let ns = host.now_ns() - exit.since_ns;
        host.tell(|| What::Exit { vcpu: id, reason: exit.reason, ns });
    }

    /// The thread has a pCPU, and its own work begins.
    pub(crate) fn sched_in(&mut self, host: &mut Host, v: usize) {
        let now_ns = host.now_ns();
        let vcpu = &mut self.vcpus[v];
        if !vcpu.begun {
            vcpu.begun = true;
            vcpu.place = Place::Guest;
            vcpu.visible = vcpu.pending;
            return;
        }
        match vcpu.place {
            // It lost its pCPU by an exit for the host's interrupt; both ways are paid now.
            Place::Guest => {
                let costs = &host.core.machine.costs;
                let work = Progress::new(costs.vm_exit_ns + costs.vm_entry_ns);
                vcpu.place = Place::Exit;
                vcpu.exit = Exit { reason: exit::PREEMPTED, since_ns: now_ns, work, then: Then::Enter };
                self.counters.exits[usize::from(exit::PREEMPTED)] += 1;
            }
            Place::Blocked => self.unblocked(host, v),
            Place::Exit | Place::Poll => {}
        }
    }

    /// The thread has lost its pCPU, not by blocking.
    pub(crate) fn sched_out(&mut self, now_ns: Ns, v: usize) {
        let tells = self.kvm.steal_time && self.kvm.tells_preempted;
        let vcpu = &mut self.vcpus[v];
        if vcpu.place == Place::Poll {
            vcpu.poll_until_ns = now_ns;
        }
        // kvm_steal_time_set_preempted() only between two of the guest's instructions (since 5.19): not in the middle of an exit's handling, unless the exit
        // is for an interrupt of the host's, which comes between two.
        let is_between = match vcpu.place {
            Place::Guest => vcpu.settled,
            Place::Exit => vcpu.at_boundary,
            Place::Poll | Place::Blocked => false,
        };
        if is_between {
            vcpu.seen_preempted = tells;
            self.look_at_owners();
        }
    }

    /// Is there something for which a halted vCPU goes on (kvm_arch_vcpu_runnable())?
    fn is_wakeable(&self, v: usize) -> bool {
        self.vcpus[v].kicked || self.vcpus[v].pending != 0 && self.cpus[v].interrupts_on()
    }

    /// kvm_vcpu_halt()
    fn halt(&mut self, host: &mut Host, v: usize) {
        if self.is_wakeable(v) {
            self.vcpus[v].kicked = false;
            return self.begin_entry(host, v);
        }
        let now_ns = host.now_ns();
        let vcpu = &mut self.vcpus[v];
        vcpu.place = Place::Poll;
        vcpu.halted_ns = now_ns;
        vcpu.poll_until_ns = now_ns + vcpu.polling.now_ns(&self.kvm.halt_poll);
    }

    /// A halted vCPU that polls: until there is something, its time is over, or somebody else wants the pCPU. Return when to look again.
    pub(crate) fn poll(&mut self, host: &mut Host, v: usize) -> Option<Ns> {
        let now_ns = host.now_ns();
        let task = self.vcpus[v].task;
        if self.is_wakeable(v) {
            self.halt_ends(host, v);
            return None;
        }
        let alone = host.class.queue_len(host.cpu_of(task)) <= 1 && !host.needs_resched(task);
        let vcpu = &mut self.vcpus[v];
        if now_ns < vcpu.poll_until_ns && alone {
            return Some(vcpu.poll_until_ns.min(now_ns + POLL_LOOK_NS));
        }
        vcpu.place = Place::Blocked;
        let (id, polled_ns) = (vcpu.id, now_ns - vcpu.halted_ns);
        host.tell(|| What::Halt { vcpu: id, polled_ns });
        host.block(task);
        None
    }

    fn halt_ends(&mut self, host: &mut Host, v: usize) {
        let halted_ns = host.now_ns() - self.vcpus[v].halted_ns;
        let vcpu = &mut self.vcpus[v];
        vcpu.kicked = false;
        vcpu.polling.learn(&self.kvm.halt_poll, halted_ns);
        self.begin_entry(host, v);
    }

    fn unblocked(&mut self, host: &mut Host, v: usize) {
        let id = self.vcpus[v].id;
        host.tell(|| What::Unhalt { vcpu: id });
        self.halt_ends(host, v);
    }

    /// kvm_vcpu_wake_up(), if it halts for what there is now.
    pub(crate) fn wake_vcpu(&mut self, host: &mut Host, v: usize, by: Option<CpuId>) {
        if !self.is_wakeable(v) {
            return;
        }
        match self.vcpus[v].place {
            Place::Poll => self.poke(v),
            Place::Blocked => {
                host.wake(self.vcpus[v].task, by);
                if self.vcpus[v].run.is_some() {
                    // It had not left its pCPU yet, and now does not.
                    self.unblocked(host, v);
                    self.poke(v);
                }
            }
            Place::Guest | Place::Exit => {}
        }
    }

    /// An interrupt for a vCPU, from the pCPU `by`, or from a timer or device, whose interrupt comes to where the vCPU runs.
    pub(crate) fn deliver(&mut self, host: &mut Host, to: usize, vector: u8, by: Option<CpuId>) {
        let vcpu = &mut self.vcpus[to];
        vcpu.pending |= 1 << vector;
        let task = vcpu.task;
        host.set_irq_pending(task, true);
        match (vcpu.place, by) {
            (Place::Poll | Place::Blocked, _) => self.wake_vcpu(host, to, by),
            (Place::Guest, Some(by)) if vcpu.run.is_some() => {
                let what = if self.kvm.ipi == Ipi::Trapped { KICK } else { POSTED };
                host.send_interrupt(by, task, what, 0);
            }
            (Place::Guest, None) if vcpu.settled => self.interrupted(host, to, KICK),
            // It is taken at the next entry.
            (Place::Guest | Place::Exit, _) => {}
        }
    }

    /// Is it one of the interrupts by which Linux calls functions? Those of wake-ups are since 5.8 (a148866489fb), and were RESCHEDULE_VECTOR's in 3.0.
    fn is_call(&self, vector: u8) -> bool {
        matches!(vector, vector::CALL | vector::TLB)
            || vector == vector::WAKE && self.guest.wakelist == Wakelist::Idle
    }

    fn deliver_all(&mut self, host: &mut Host, from: usize, vector: u8) {
        let by = host.cpu_of(self.vcpus[from].task);
        let mut targets = std::mem::take(&mut self.vcpus[from].ipi_to);
        let mut by_kvm = false;
        for to in targets.drain(..) {
            let vcpu = &self.vcpus[to as usize];
            // Hardware that delivers by itself leaves only the halted to KVM.
            if self.kvm.ipi != Ipi::Virtualized || matches!(vcpu.place, Place::Poll | Place::Blocked) {
                by_kvm = true;
                host.on_irq(self.vcpus[from].task, vcpu.task, self.is_call(vector));
            }
            self.deliver(host, to as usize, vector, Some(by));
        }
        self.vcpus[from].ipi_to = targets;
        if by_kvm {
            host.on_irqs_sent(self.vcpus[from].task);
        }
    }

    /// The guest writes the interrupt command register, or makes a hypercall, for those of `ipi_to`.
    pub(crate) fn send_ipis(&mut self, host: &mut Host, from: usize, vector: u8, by_hypercall: bool) {
        let id = self.vcpus[from].id;
        for at in 0..self.vcpus[from].ipi_to.len() {
            let to = self.vcpus[self.vcpus[from].ipi_to[at] as usize].id;
            host.tell(|| What::GuestIpiSent { from: id, to, vector });
        }
        let costs = &self.kvm.costs;
        let more_ns = costs.send_ns.saturating_mul(self.vcpus[from].ipi_to.len() as Ns - 1);
        if by_hypercall {
            let work_ns = costs.hypercall_ns + costs.icr_ns + more_ns;
            self.begin_exit(host, from, exit::HYPERCALL, work_ns, Then::Ipi(vector));
        } else if self.kvm.ipi == Ipi::Virtualized {
            self.deliver_all(host, from, vector);
        } else {
            let work_ns = costs.icr_ns + more_ns;
            self.begin_exit(host, from, exit::ICR, work_ns, Then::Ipi(vector));
        }
    }

    /// An interrupt of the host has got to the pCPU on which the vCPU's thread runs.
    pub(crate) fn interrupted(&mut self, host: &mut Host, v: usize, what: u32) {
        if !self.vcpus[v].in_guest() {
            return;
        }
        match what {
            KICK if self.vcpus[v].pending != 0 => {
                self.begin_exit(host, v, exit::INTERRUPT, 0, Then::Done);
            }
            FLUSH if self.vcpus[v].flush_request => {
                self.begin_exit(host, v, exit::INTERRUPT, 0, Then::Done);
            }
            KICK | FLUSH => return,
            _ => self.vcpus[v].visible = self.vcpus[v].pending,
        }
        self.poke(v);
    }

    /// Shoot4U, section 4; kvm_hv_flush_tlb(): a request for each target, an interrupt for those that are in guest mode now, one after the other, and a
    /// wait for those pCPUs. They always answer, but have to leave the guest first (kvm_make_vcpus_request_mask() with KVM_REQUEST_WAIT).
    fn hypercall_flush(&mut self, host: &mut Host, v: usize) {
        let by = host.cpu_of(self.vcpus[v].task);
        let (send_ns, exit_ns) = (self.kvm.costs.send_ns, host.core.machine.costs.vm_exit_ns);
        let (mut sent_ns, mut wait_ns) = (0, 0);
        let mut targets = std::mem::take(&mut self.vcpus[v].flush_to);
        for to in targets.drain(..) {
            let vcpu = &mut self.vcpus[to as usize];
            vcpu.flush_request = true;
            if vcpu.in_guest() {
                let task = vcpu.task;
                sent_ns += send_ns;
                wait_ns = wait_ns.max(sent_ns + host.core.machine.ipi_ns(by, host.cpu_of(task)) + exit_ns);
                host.send_interrupt(by, task, FLUSH, sent_ns);
            }
        }
        let vcpu = &mut self.vcpus[v];
        vcpu.flush_to = targets;
        vcpu.exit.work = Progress::new(wait_ns);
        vcpu.exit.then = Then::Done;
    }

    /// Take the interrupt that is first, if the guest's code can be interrupted. Return true if it was.
    pub(crate) fn inject(&mut self, host: &mut Host, v: usize) -> bool {
        let vcpu = &mut self.vcpus[v];
        if vcpu.visible == 0 || !self.cpus[v].interrupts_on() {
            return false;
        }
        let vector = vector::first(vcpu.visible);
        vcpu.visible &= !(1 << vector);
        vcpu.pending &= !(1 << vector);
        vcpu.loop_ends();
        let (id, task, more) = (vcpu.id, vcpu.task, vcpu.pending != 0);
        host.set_irq_pending(task, more);
        host.tell(|| What::GuestIpiTaken { vcpu: id, vector });
        self.counters.taken[usize::from(vector)] += 1;
        debug_assert!(usize::from(vector) < vector::COUNT);
        self.handle_interrupt(host, v, vector);
        true
    }
}
