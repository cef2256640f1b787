// SPDX-License-Identifier: GPL-2.0-only
//! What bodies and experiments ask of the host. None of these calls a body.

use crate::events::Event;
use crate::ids::{CpuId, TaskId, VcpuId};
use crate::metrics::window::Counters;
use crate::observe::What;
use crate::time::Ns;

use super::class::{Class, Enqueue};
use super::task::State;
use super::{Host, YieldTo};

impl<C: Class> Host<C> {
    pub fn now_ns(&self) -> Ns {
        self.core.now_ns
    }

    pub fn is_running(&self, task: TaskId) -> bool {
        self.core.task(task).state == State::Running
    }

    /// Where the task runs or waits, or was last.
    pub fn cpu_of(&self, task: TaskId) -> CpuId {
        self.core.task(task).cpu
    }

    /// Tell the observers; the closure is called only if there are any.
    #[inline]
    pub fn tell(&mut self, what: impl FnOnce() -> What) {
        self.core.observers.tell(self.core.now_ns, what);
    }

    /// What its scheduler has counted till now, by name; nothing where it counts nothing.
    pub fn counters(&mut self) -> Counters {
        self.class.counters(&mut self.core)
    }

    /// The first task of the VM's program is there, on this vCPU.
    #[cold]
    pub(crate) fn program_starts(&mut self, vcpu: VcpuId) {
        let stats = self.counters();
        self.core.programs.starts(vcpu.vm, self.core.now_ns, stats);
        self.tell(|| What::ProgramStart { vcpu, program: 0 });
    }

    /// The last one has ended, for the first time.
    #[cold]
    pub(crate) fn program_ends(&mut self, vcpu: VcpuId) {
        let stats = self.counters();
        self.core.programs.ends(vcpu.vm, self.core.now_ns, stats);
        if self.core.stop_span_ns > 0 && self.core.programs.is_done() {
            let span_ns = self.core.stop_span_ns;
            self.core.stop_ns = self.core.now_ns.next_multiple_of(span_ns).max(span_ns);
        }
        self.tell(|| What::ProgramEnd { vcpu, program: 0 });
    }

    /// [`crate::body::Bodies::event`] at that time. Never void: see [`crate::events::Timer`] for timers that are set again or cancelled.
    pub fn set_timer(&mut self, at_ns: Ns, id: u32, what: u8, generation: u32) {
        debug_assert!(at_ns >= self.core.now_ns);
        self.core.events.push(at_ns, Event::Body { id, what, generation });
    }

    /// [`crate::body::Bodies::interrupt`] for the task when an inter-processor interrupt that `from` sends `after_ns` from now has got to its pCPU. Return
    /// false, and send none, if the task does not run now.
    pub fn send_interrupt(&mut self, from: CpuId, to: TaskId, what: u32, after_ns: Ns) -> bool {
        if !self.is_running(to) {
            return false;
        }
        let at_ns = self.core.now_ns + after_ns + self.core.machine.ipi_ns(from, self.cpu_of(to));
        self.core.events.push(at_ns, Event::Interrupt { task: to, what });
        true
    }

    /// The running task waits for something: it leaves its pCPU when the body has returned. A wake-up before that is not lost: it goes on.
    pub fn block(&mut self, task: TaskId) {
        debug_assert!(self.is_running(task));
        self.core.task_mut(task).leaving = true;
        let cpu = self.cpu_of(task);
        self.core.resched_self(cpu);
    }

    /// The running task is on its way through do_exit(): no vCPU any more, and gone when it next blocks.
    pub fn begin_exit(&mut self, task: TaskId) {
        debug_assert!(self.is_running(task));
        self.core.task_mut(task).exiting = true;
        self.core.task_mut(task).kvm.in_kvm = false;
        self.class.vcpu_changed(&mut self.core, task);
    }

    /// The running task ends. Its body is told by `stop`.
    pub fn exit(&mut self, task: TaskId) {
        self.begin_exit(task);
        self.block(task);
    }

    /// `try_to_wake_up()`, executed on pCPU `by`: the waker's; `None`: by a timer of the pCPU where it slept. Nothing happens if it does not sleep.
    pub fn wake(&mut self, task: TaskId, by: Option<CpuId>) {
        let known = self.core.task_mut(task);
        if known.held {
            known.woken = true;
            return;
        }
        if known.leaving && !known.exiting {
            known.leaving = false;
            return;
        }
        if known.state != State::Asleep {
            return;
        }
        let prev = known.cpu;
        let by = by.unwrap_or(if self.core.cpu(prev).online { prev } else { self.core.first_online() });
        self.on_cpu(by, |host| host.wake_here(task, prev, Enqueue::Wakeup));
    }

    pub(super) fn wake_here(&mut self, task: TaskId, prev: CpuId, why: Enqueue) {
        let known = self.core.task(task);
        let cpu = match known.is_pinned() {
            true if known.migration_disabled || self.core.can_run_on(task, prev) => prev,
            true => self.fallback_cpu(task),
            false => self.class.select_cpu(&mut self.core, task, prev, why),
        };
        let cpu = if self.core.can_run_on(task, cpu) { cpu } else { self.fallback_cpu(task) };
        self.core.set_task_cpu(task, cpu);
        self.core.starts_to_wait(task);
        self.vcpu_woken(task);
        self.class.vcpu_changed(&mut self.core, task);
        self.class.enqueue(&mut self.core, task, why);
        // The class may have moved it at once.
        let queued = self.cpu_of(task);
        self.core.observers.tell(self.core.now_ns, || What::Wakeup { task, cpu: queued });
        if self.core.cpu(cpu).curr.is_none() {
            self.core.resched(cpu);
        } else {
            self.class.preempt_wakeup(&mut self.core, task);
        }
    }

    /// The task is stopped, as by SIGSTOP: it leaves its pCPU, or the one that it gets next as soon as it has it, and wake-ups are kept for
    /// [`Host::release`]. Its body has to call [`Host::block`] in `start` meanwhile.
    pub fn hold(&mut self, task: TaskId) {
        let known = self.core.task_mut(task);
        known.held = true;
        match known.state {
            State::Running => {
                known.woken = true;
                self.block(task);
            }
            State::Waiting => known.woken = true,
            State::Asleep | State::Dead => {}
        }
    }

    /// It goes on, if it has something to do.
    pub fn release(&mut self, task: TaskId) {
        let known = self.core.task_mut(task);
        known.held = false;
        if std::mem::take(&mut known.woken) {
            self.wake(task, None);
        }
    }

    /// sched_yield() of the running task.
    pub fn yield_now(&mut self, task: TaskId) {
        let cpu = self.cpu_of(task);
        self.on_cpu(cpu, |host| {
            host.class.update_curr(&mut host.core, cpu);
            host.class.yield_now(&mut host.core, task);
            host.core.resched_self(cpu);
        });
    }

    /// The program on `fentry/kvm_vcpu_on_spin`: call this first at a pause-loop exit. If [`Host::needs_resched`] then says so, the pCPU schedules
    /// before KVM goes on to look for a candidate: return from the body, and go on in the next `start`.
    ///
    /// Return true if the program has asked for that: its kick is an interrupt that comes while it still runs, with migration disabled. The body enables
    /// that, as its next step ([`Host::set_migration_disabled`]).
    pub fn on_spin(&mut self, task: TaskId, in_kernel: bool) -> bool {
        // Neither the exit nor KVM looks at what the runner has used, or at a lazy wish to schedule.
        if !self.class.has_spin_program() {
            return false;
        }
        let cpu = self.cpu_of(task);
        let before = self.needs_resched(task);
        let ran = self.on_cpu(cpu, |host| host.class.on_spin(&mut host.core, task, in_kernel));
        let preempted = ran && !before && self.needs_resched(task);
        if preempted {
            self.set_migration_disabled(task, true);
        }
        preempted
    }

    /// The program on the tracepoint `kvm_apic_accept_irq`: KVM delivers an interrupt from running vCPU `from` to vCPU `to`. `called`: it is a call of a
    /// function, a TLB flush too.
    pub fn on_irq(&mut self, from: TaskId, to: TaskId, called: bool) {
        let cpu = self.cpu_of(from);
        self.on_cpu(cpu, |host| host.class.on_irq(&mut host.core, from, to, called));
    }

    /// The programs on `fexit/kvm_apic_send_ipi` and `fexit/kvm_pv_send_ipi`: all that running vCPU `from` sends at once has been delivered.
    pub fn on_irqs_sent(&mut self, from: TaskId) {
        let cpu = self.cpu_of(from);
        self.on_cpu(cpu, |host| host.class.on_irqs_sent(&mut host.core, from));
    }

    /// The program on `fexit/kvm_tdp_mmu_map`: running vCPU `task` touches a page of its VM that KVM has to map.
    pub fn on_fault(&mut self, task: TaskId, gfn: u64) {
        self.class.on_fault(&mut self.core, task, gfn);
    }

    /// The running vCPU's thread is about to enter the guest: vcpu_run() looks whether it is to schedule first, if only lazily. Return true if it is: return
    /// from the body, and go on at this instant or in the next `start`.
    pub fn schedules_before_guest(&mut self, task: TaskId) -> bool {
        let cpu = self.cpu_of(task);
        self.core.leaves_kernel(cpu)
    }

    /// Is the task's pCPU about to schedule?
    pub fn needs_resched(&self, task: TaskId) -> bool {
        self.core.cpu(self.cpu_of(task)).needs_resched
    }

    /// `yield_to()` of kernel/sched/syscalls.c; `from` runs.
    pub fn yield_to(&mut self, from: TaskId, to: TaskId) -> YieldTo {
        let (cpu, to_cpu) = (self.cpu_of(from), self.cpu_of(to));
        if self.class.queue_len(cpu) <= 1 && self.class.queue_len(to_cpu) <= 1 {
            return YieldTo::NoPoint;
        }
        if self.core.task(to).state != State::Waiting {
            return YieldTo::Refused;
        }
        self.on_cpu(cpu, |host| {
            host.class.update_curr(&mut host.core, cpu);
            if !host.class.yield_to(&mut host.core, from, to) {
                return YieldTo::Refused;
            }
            if to_cpu != cpu {
                host.core.resched(to_cpu);
            }
            host.core.resched_self(cpu);
            YieldTo::Granted
        })
    }

    /// Time runnable without a pCPU so far, the present wait included (`run_delay`; KVM shows it to the guest as steal time).
    pub fn run_delay_ns(&self, task: TaskId) -> Ns {
        let task = self.core.task(task);
        let present_ns =
            if task.state == State::Waiting { self.core.now_ns - task.waits_since_ns } else { 0 };
        task.wait_ns + present_ns
    }

    /// A pCPU's busy and idle time so far, up to now.
    pub fn cpu_times_ns(&self, cpu: CpuId) -> (Ns, Ns) {
        let (state, now_ns) = (self.core.cpu(cpu), self.core.now_ns);
        match state.curr {
            Some(_) => (state.busy_ns + now_ns - state.charged_ns, state.idle_ns),
            None if state.taken => (state.busy_ns, state.idle_ns),
            None => (state.busy_ns, state.idle_ns + now_ns - state.idle_since_ns),
        }
    }

    /// CPU time so far, the present turn included.
    pub fn run_ns(&self, task: TaskId) -> Ns {
        let known = self.core.task(task);
        let present_ns = match known.state {
            State::Running => self.core.now_ns - self.core.cpu(known.cpu).charged_ns,
            _ => 0,
        };
        known.run_ns + present_ns
    }
}
