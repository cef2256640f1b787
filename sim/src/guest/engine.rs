// SPDX-License-Identifier: GPL-2.0-only
//! How a vCPU's time passes: the loop that takes one operation after another until one takes time.

use crate::body::Run;
use crate::error::SimError;
use crate::kvm::exit;
use crate::kvm::vcpu::{Place, Then};
use crate::observe::{Spin, What};
use crate::time::{Ns, Progress, Speed};
use crate::Host;

use super::config::LockKind;
use super::ops::{Doing, Loop, Op, Until};
use super::task::NO_SPACE;
use super::vm::Vm;

/// Steps in one instant before it is called a hang; and so many more for each task, which may all have something to do at the same time.
const INSTANT_MAX: usize = 1_000_000;
const INSTANT_TASK_MAX: usize = 64;

/// SPIN_THRESHOLD over PV_PREV_CHECK_MASK + 1.
const PV_LOOKS: Ns = 128;

impl Vm {
    /// Let the vCPU do all that takes no time, up to what does; and that too, as long as nobody else does anything meanwhile.
    pub(crate) fn advance(&mut self, host: &mut Host, v: usize) {
        loop {
            let Some(run) = self.vcpus[v].run else { return };
            if self.vcpus[v].comes_back || self.hangs(host, host.now_ns()) {
                return;
            }
            if let Some(at_ns) = self.step(host, v, run) {
                if !self.passes(host, v, at_ns) {
                    return self.arm(host, v, at_ns);
                }
            }
        }
    }

    /// One step of the vCPU's thread. Returns when it will be done, if it takes time; Ns::MAX: when somebody else does something.
    fn step(&mut self, host: &mut Host, v: usize, run: Run) -> Option<Ns> {
        let now_ns = host.now_ns();
        if !self.vcpus[v].settled {
            if run.from_ns > now_ns {
                return Some(run.from_ns);
            }
            self.vcpus[v].settled = true;
            self.sched_in(host, v);
        }
        match self.vcpus[v].place {
            Place::Blocked => Some(Ns::MAX),
            Place::Poll => self.poll(host, v),
            Place::Exit => {
                let work = &mut self.vcpus[v].exit.work;
                work.stop(now_ns);
                if !work.is_done() {
                    return Some(work.start(now_ns, run.speed));
                }
                self.exit_done(host, v);
                None
            }
            Place::Guest => self.guest_code(host, v),
        }
    }

    fn hangs(&mut self, host: &mut Host, now_ns: Ns) -> bool {
        if self.in_instant.0 != now_ns {
            self.in_instant = (now_ns, 0);
        }
        self.in_instant.1 += 1;
        let max = INSTANT_MAX + INSTANT_TASK_MAX * self.tasks.len();
        if self.in_instant.1 > max {
            let vm = self.name.clone();
            let what = format!(
                "at {now_ns} ns: VM {vm}: {max} steps without time passing; \
                 its workload does nothing for ever"
            );
            host.core.fail(SimError::Endless { vm, what });
            return true;
        }
        false
    }

    /// One step of the guest's code. Returns when it will be done, if it takes time; Ns::MAX: when somebody else does something.
    fn guest_code(&mut self, host: &mut Host, v: usize) -> Option<Ns> {
        let now_ns = host.now_ns();
        self.frame(v).doing.stop(now_ns);
        if self.inject(host, v) {
            return None;
        }
        let speed = self.vcpus[v].run?.speed;
        let frame = self.frame(v);
        match frame.doing {
            Doing::Work(work) if work.is_done() => {
                frame.doing = Doing::Nothing;
                None
            }
            Doing::Work(mut work) => {
                let end_ns = work.start(now_ns, speed);
                frame.doing = Doing::Work(work);
                Some(end_ns)
            }
            Doing::Spin(spin) => self.spin(host, v, spin),
            Doing::Nothing => {
                match frame.pop() {
                    Some(Op::Work(0)) => {}
                    Some(Op::Work(ns)) => frame.doing = Doing::Work(Progress::new(ns)),
                    Some(op) => self.execute(host, v, op),
                    None if self.cpus[v].in_irq => self.interrupt_return(host, v),
                    None if self.is_idle_task(self.cpus[v].current) => self.idle(v),
                    None => self.next_step(host, v),
                }
                None
            }
        }
    }

    /// A loop that waits: is it over, has its patience or the processor's window ended? Otherwise it spins on.
    fn spin(&mut self, host: &mut Host, v: usize, mut spin: Loop) -> Option<Ns> {
        let now_ns = host.now_ns();
        let who = self.waiter(v);
        if let Until::Locked(lock) = spin.until {
            let known = &mut self.locks[lock as usize];
            let joins = known.joins(who);
            // A pv lock's waiter, awake again.
            let awake = std::mem::take(&mut spin.halted);
            if awake {
                known.awake(who);
            }
            if joins || awake {
                spin.limit = Some(Progress::new(self.guest.spin_threshold_ns));
            }
        }
        let over = match spin.until {
            Until::Locked(lock) => self.look(who, lock),
            Until::Answered => self.cpus[v].answers_left == 0,
            Until::Owner(mutex) => self.is_spin_over(v, mutex as usize),
            Until::Passed { barrier, round } => self.barriers[barrier as usize].round != round,
        };
        self.frame(v).doing = Doing::Spin(spin);
        if over {
            self.spin_ends(host, v, &spin);
            return None;
        }
        if spin.limit.is_some_and(|limit| limit.is_done()) {
            self.patience_ends(host, v, &spin);
            return None;
        }
        let speed = self.vcpus[v].run?.speed;
        let mut at_ns = Ns::MAX;
        match self.waits_early(who, &spin) {
            Some(0) => {
                self.patience_ends(host, v, &spin);
                return None;
            }
            Some(rounds_ns) => at_ns = now_ns + speed.time_for(rounds_ns),
            None => {}
        }
        // A window that there is is this loop's.
        if self.vcpus[v].window.is_none() {
            self.vcpus[v].window = self.pause_window_ns(v, &spin).map(Progress::new);
        }
        let vcpu = &mut self.vcpus[v];
        if let Some(window) = &mut vcpu.window {
            window.stop(now_ns);
            if window.is_done() {
                self.pause_loop_exit(host, v);
                return None;
            }
            // It is measured by a counter at the TSC's rate (Intel), or in PAUSEs, whose length the core's other threads do not change.
            at_ns = at_ns.min(window.start(now_ns, Speed::FULL));
        }
        if let Some(wells_ns) = self.kvm.wells.window_ns() {
            let stalls = vcpu.stalls.get_or_insert(Progress::new(wells_ns));
            stalls.stop(now_ns);
            if stalls.is_done() {
                self.pause_loop_exit(host, v);
                return None;
            }
            at_ns = at_ns.min(stalls.start(now_ns, speed));
        }
        spin.from_ns = Some(now_ns);
        if let Some(limit) = &mut spin.limit {
            at_ns = at_ns.min(limit.start(now_ns, speed));
        }
        self.frame(v).doing = Doing::Spin(spin);
        Some(at_ns)
    }

    /// pv_wait_early(): who is behind a halted waiter of a `pv-queued` lock does not spin, and in some kernels nor does who is behind a preempted one. It looks
    /// at that one in every 256th round. Returns how long until the next one.
    fn waits_early(&self, who: u32, spin: &Loop) -> Option<Ns> {
        let (Until::Locked(lock), Some(limit)) = (spin.until, &spin.limit) else { return None };
        let lock = &self.locks[lock as usize];
        if lock.kind() != LockKind::PvQueued {
            return None;
        }
        let asks = self.guest.halts_behind_preempted;
        let is_preempted = |before: u32| asks && self.vcpus[Self::waiter_vcpu(before)].seen_preempted;
        if !lock.is_behind_halted(who) && !lock.before(who).is_some_and(is_preempted) {
            return None;
        }
        let between_ns = (self.guest.spin_threshold_ns / PV_LOOKS).max(1);
        let spent_ns = self.guest.spin_threshold_ns - limit.left_ns();
        Some((between_ns - spent_ns % between_ns) % between_ns)
    }

    /// After how long the processor exits from a loop, if it watches this mode and the loop has a PAUSE often enough. All of the kernel's have one; user
    /// mode's are the program's business.
    fn pause_window_ns(&self, v: usize, spin: &Loop) -> Option<Ns> {
        let every_ns = match spin.until {
            Until::Passed { barrier, .. } => {
                let barrier = &self.barriers[barrier as usize];
                barrier.pause.then_some(barrier.pause_every_ns)?
            }
            Until::Locked(_) | Until::Answered | Until::Owner(_) => 0,
        };
        if !self.watches_pause(self.is_kernel(v)) {
            return None;
        }
        self.kvm.window_ns(self.vcpus[v].window_size, every_ns)
    }

    fn spin_ends(&mut self, host: &mut Host, v: usize, spin: &Loop) {
        let id = self.vcpus[v].id;
        self.vcpus[v].loop_ends();
        self.frame(v).doing = Doing::Nothing;
        let (why, spun_ns) = (spin.why, spin.spun_ns);
        host.tell(|| What::SpinEnd { vcpu: id, why, spun_ns });
        match spin.until {
            Until::Locked(lock) => {
                self.taken(host, v, lock, host.now_ns() - spin.since_ns);
                let handover_ns = self.guest.costs.handover_ns;
                self.frame(v).first(&[Op::Work(handover_ns)]);
            }
            Until::Owner(mutex) => self.owner_spin_ends(host, v, mutex as usize, spin),
            Until::Answered | Until::Passed { .. } => {}
        }
    }

    fn patience_ends(&mut self, host: &mut Host, v: usize, spin: &Loop) {
        let mut spin = *spin;
        spin.limit = None;
        match spin.until {
            Until::Locked(lock) => {
                let who = self.waiter(v);
                let known = &mut self.locks[lock as usize];
                if !known.lose_patience(who) {
                    spin.limit = Some(Progress::new(self.guest.spin_threshold_ns));
                    self.frame(v).doing = Doing::Spin(spin);
                    return;
                }
                if let Some(next) = known.behind(who).filter(|_| known.kind() == LockKind::PvQueued) {
                    self.poke(Self::waiter_vcpu(next));
                }
                // pv: kvm_wait(). preemptable-ticket: it looks once more at once, out of turn now.
                spin.halted = self.locks[lock as usize].kind() != LockKind::PreemptableTicket;
                self.frame(v).doing = Doing::Spin(spin);
                if spin.halted {
                    self.begin_exit(host, v, exit::HLT, self.kvm.costs.halt_ns, Then::Halt);
                }
            }
            Until::Passed { barrier, round } => {
                self.spin_ends(host, v, &spin);
                self.waits_in_vain(v, barrier, round);
            }
            Until::Answered | Until::Owner(_) => self.frame(v).doing = Doing::Spin(spin),
        }
    }

    pub(crate) fn begin_spin(
        &mut self,
        host: &mut Host,
        v: usize,
        until: Until,
        why: Spin,
        limit: Option<Ns>,
    ) {
        let id = self.vcpus[v].id;
        self.vcpus[v].loop_ends();
        host.tell(|| What::SpinStart { vcpu: id, why });
        let since_ns = host.now_ns();
        let limit = limit.map(Progress::new);
        let spin = Loop { until, why, since_ns, spun_ns: 0, from_ns: None, limit, halted: false };
        self.frame(v).doing = Doing::Spin(spin);
    }

    pub(crate) fn lock(&mut self, host: &mut Host, v: usize, lock: u32) {
        self.cpus[v].no_preempt += 1;
        let who = self.waiter(v);
        if self.locks[lock as usize].acquire(who) {
            return self.taken(host, v, lock, 0);
        }
        let id = self.vcpus[v].id;
        host.tell(|| What::LockWait { vcpu: id, lock });
        let known = &self.locks[lock as usize];
        let limit = match known.kind() {
            LockKind::PvQueued if known.is_stealer(who) => None,
            LockKind::PvTicket | LockKind::PvQueued => Some(self.guest.spin_threshold_ns),
            LockKind::PreemptableTicket => {
                Some(self.guest.ticket_timeout_ns.saturating_mul(known.distance(who)))
            }
            LockKind::Tas | LockKind::Ticket | LockKind::Queued => None,
        };
        self.begin_spin(host, v, Until::Locked(lock), Spin::Lock, limit);
    }

    /// Who stands first in a `pv-queued` lock's queue is another, or spins now.
    fn poke_stealers(&mut self, lock: u32) {
        if self.locks[lock as usize].kind() == LockKind::PvQueued {
            for who in self.locks[lock as usize].looks_at_first().collect::<Vec<_>>() {
                self.poke(Self::waiter_vcpu(who));
            }
        }
    }

    /// This vCPU is seen to be preempted: who stands behind it in a lock's queue looks again.
    pub(crate) fn look_behind(&mut self, v: usize) {
        let cpu = &self.cpus[v];
        let doing = [&self.tasks[cpu.current as usize].frame.doing, &cpu.irq.doing];
        let behind = [0, 1].map(|level: usize| match doing[level] {
            Doing::Spin(Loop { until: Until::Locked(lock), .. }) => {
                self.locks[*lock as usize].behind((v * 2 + level) as u32)
            }
            _ => None,
        });
        for who in behind.into_iter().flatten() {
            self.poke(Self::waiter_vcpu(who));
        }
    }

    fn look(&mut self, who: u32, lock: u32) -> bool {
        let known = &mut self.locks[lock as usize];
        let was_unfair = known.is_unfair();
        let has_it = known.look(who);
        if was_unfair && !known.is_unfair() {
            self.poke_stealers(lock);
        }
        has_it
    }

    fn taken(&mut self, host: &mut Host, v: usize, lock: u32, waited_ns: Ns) {
        let id = self.vcpus[v].id;
        self.locks[lock as usize].since_ns = host.now_ns();
        self.poke_stealers(lock);
        if self.guest.lock_hint_ns > 0 {
            self.cpus[v].locks_held += 1;
            let until_ns = host.now_ns() + self.guest.lock_hint_ns;
            host.announce_lock(self.vcpus[v].task, until_ns, self.kvm.lock_hint_max_ns);
        }
        host.tell(|| What::LockTaken { vcpu: id, lock, sleeps: false, waited_ns });
    }

    pub(crate) fn unlock(&mut self, host: &mut Host, v: usize, lock: u32) {
        let Self { vcpus, cpus, tasks, locks, lock_rng, .. } = self;
        cpus[v].no_preempt -= 1;
        let known = &mut locks[lock as usize];
        debug_assert_eq!(known.holder().map(Self::waiter_vcpu), Some(v));
        let (id, held_ns) = (vcpus[v].id, host.now_ns() - known.since_ns);
        let next = known.release(lock_rng, |who| Self::spins(vcpus, cpus, tasks, who, lock));
        host.tell(|| What::LockReleased { vcpu: id, lock, sleeps: false, held_ns });
        if self.guest.lock_hint_ns > 0 {
            self.cpus[v].locks_held -= 1;
            if self.cpus[v].locks_held == 0 {
                host.lock_released(self.vcpus[v].task);
            }
        }
        if let Some(who) = next.granted {
            self.poke(Self::waiter_vcpu(who));
        }
        self.frame(v).first(&[Op::Preempt]);
        if let Some(who) = next.kicked {
            let to = Self::waiter_vcpu(who) as u32;
            self.frame(v).first(&[Op::Kick(to)]);
        }
    }

    fn execute(&mut self, host: &mut Host, v: usize, op: Op) {
        match op {
            Op::Work(_) => {}
            Op::ToKernel => {
                let task = self.cpus[v].current as usize;
                self.tasks[task].kernel = true;
                self.tell_mode(host, v);
            }
            Op::ToUser => {
                let syscall_ns = self.guest.costs.syscall_ns;
                self.frame(v).first(&[Op::Work(syscall_ns), Op::Return { kernel: false }]);
            }
            Op::IrqOff => self.cpus[v].irq_off += 1,
            Op::IrqOn => {
                self.cpus[v].irq_off -= 1;
                self.frame(v).first(&[Op::Preempt]);
                self.tell_slice(host, v);
            }
            Op::Lock(lock) => self.lock(host, v, lock),
            Op::Unlock(lock) => self.unlock(host, v, lock),
            Op::LockRq => self.lock(host, v, self.cpus[v].rq_lock),
            Op::UnlockRq => self.unlock(host, v, self.cpus[v].rq_lock),
            Op::Schedule | Op::Preempt | Op::Switch | Op::Return { .. } => self.scheduler_op(host, v, op),
            Op::Wake(_) | Op::WakeSync(_) | Op::Enqueue { .. } | Op::Resched(_) => {
                self.scheduler_op(host, v, op);
            }
            Op::LeaveWake { .. } | Op::TakeWakes | Op::WakeAll => self.wakelist_op(host, v, op),
            Op::Tick | Op::SliceEnd | Op::TellSlice | Op::Timers | Op::SetTimer | Op::IoDone => {
                self.interrupt_op(host, v, op);
            }
            Op::Answer(_) | Op::Ack { .. } | Op::KickIdle => self.interrupt_op(host, v, op),
            Op::SendIpis(_) | Op::SchedYield | Op::WaitAnswers(_) | Op::Call { .. } | Op::CallEnd => {
                self.call_op(host, v, op);
            }
            Op::Flush { .. } | Op::FlushEnd { .. } => self.flush_op(host, v, op),
            Op::Touch { memory, page, end } => self.touch(host, v, memory, page..end),
            Op::Halt => {
                // Interrupts are off between this look and HLT; one that comes now ends the halt at once.
                if !self.cpus[v].need_resched {
                    self.begin_exit(host, v, exit::HLT, self.kvm.costs.halt_ns, Then::Halt);
                }
            }
            Op::Kick(to) => {
                self.begin_exit(host, v, exit::HYPERCALL, self.kvm.costs.hypercall_ns, Then::Kick(to));
            }
            Op::Done(kind) => self.unit_done(host, v, kind),
            Op::Exit => self.task_ends(host, v),
            _ => self.sync_op(host, v, op),
        }
    }

    /// The idle loop, do_idle().
    fn idle(&mut self, v: usize) {
        let busy = self.cpus[v].need_resched || !self.cpus[v].queue.is_empty();
        let idle_ns = self.guest.costs.idle_ns;
        let frame = self.frame(v);
        if busy {
            frame.first(&[Op::Schedule]);
        } else {
            frame.first(&[Op::Work(idle_ns), Op::Halt]);
        }
    }

    /// A flush has been carried out on this vCPU: for the address space it has loaded, it is in order.
    pub(crate) fn flushed(&mut self, v: usize) {
        let space = self.cpus[v].space;
        if space != NO_SPACE {
            self.cpus[v].flushed = self.spaces[space as usize].flushes();
        }
    }
}
