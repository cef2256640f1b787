// SPDX-License-Identifier: GPL-2.0-only
//! How a pCPU without a task gets one: it looks for one as it goes idle, or a busy one tells it at a tick that somebody waits there. The kernel's idle
//! pCPUs look at each domain once in as many ms as that has pCPUs, one of them for all that idle (`nohz_idle_balance()`). Here the one that was told looks
//! at all domains at once, for itself, and takes one task.

use crate::host::Core;
use crate::ids::{CpuId, TaskId};

use super::balance::{domains, Find};
use super::newidle::looking_ns;
use super::Fair;

/// Overloaded pCPUs of a domain that a pCPU going idle looks at: the kernel stops when looking has cost as much as idling lasts on average.
const LOOKS_MAX: usize = 32;

impl Fair {
    /// Nothing to do here: take one task from elsewhere, if it seems worth looking for one or another pCPU has asked for it
    /// (`nohz_idle_balance()`). `was_idle`: nobody ran here before. Return true if there is something now.
    pub(super) fn newidle_balance(&mut self, core: &mut Core, cpu: CpuId, was_idle: bool) -> bool {
        // Who was told, and got something to do before it looked, does not look when that ends.
        let kicked = self.balance.kicked[cpu.index()].take().filter(|_| was_idle);
        if !self.config.balance || !core.cpu(cpu).online {
            return false;
        }
        if kicked.is_none() {
            self.balance.idling[cpu.index()].begins(core.now_ns);
        }
        let (rule, now_ns) = (self.config.newidle, core.now_ns);
        let is_long = |fair: &Self, pcpus| {
            kicked.is_some() || fair.balance.idling[cpu.index()].is_long(looking_ns(core, pcpus), rule)
        };
        let domains = domains(core, cpu);
        let first_size = domains.iter().flatten().map(|(_, size)| *size).next().unwrap_or(0);
        if self.balance.overloaded.is_empty() || !is_long(self, first_size) {
            return false;
        }
        self.update_blocked(cpu);
        let mut looked = 0;
        for (level, domain) in domains.into_iter().enumerate() {
            let Some(domain) = domain else { continue };
            if !is_long(self, looked + domain.1) {
                break;
            }
            let idling = &mut self.balance.idling[cpu.index()];
            let counts = if kicked.is_some() { Some(1) } else { idling.dice(now_ns, level, rule) };
            let Some(counts) = counts else { continue };
            looked += domain.1;
            let found = self.busiest_movable(core, cpu, level, domain, kicked);
            let known = &mut self.balance.domains[cpu.index()][level];
            match found {
                // Only balancing that is told to counts failures: the other happens too often.
                Find::NotNow => known.failed += u32::from(kicked.is_some()),
                Find::Nobody | Find::Task(_) => known.failed = 0,
            }
            let task = if let Find::Task(task) = found { Some(task) } else { None };
            let idling = &mut self.balance.idling[cpu.index()];
            if kicked.is_none() {
                idling.count(now_ns, level, task.map_or(0, |_| counts), rule);
            }
            if let Some(task) = task {
                if kicked.is_none() {
                    // It has not idled.
                    idling.ends(now_ns, true);
                }
                self.move_task(core, task, cpu);
                return true;
            }
        }
        false
    }

    /// Who would come to an idle pCPU from the busiest of a domain's pCPUs of which somebody may come, among them the one that has told it. A lone task
    /// that waits for its pCPU to wake is not overload.
    fn busiest_movable(
        &mut self,
        core: &Core,
        cpu: CpuId,
        level: usize,
        (first, size): (u32, u32),
        kicked: Option<CpuId>,
    ) -> Find {
        let mut found = (0, Find::Nobody);
        let mut looks = [cpu; LOOKS_MAX + 1];
        let overloaded = &self.balance.overloaded;
        for (look, other) in looks.iter_mut().zip(overloaded.around(first, size, cpu).take(LOOKS_MAX)) {
            *look = other;
        }
        if let Some(by) = kicked.filter(|by| (first..first + size).contains(&by.0) && overloaded.has(*by)) {
            looks[LOOKS_MAX] = by;
        }
        for other in looks.into_iter().filter(|other| *other != cpu) {
            let load = self.cpu_load(other);
            if found.1 != Find::Nobody && found.0 >= load {
                continue;
            }
            let here = self.candidate(core, other, cpu, level, |_, _| true);
            if here != Find::Nobody {
                found = (load, here);
            }
        }
        found.1
    }

    /// Who waits here, and could run on a pCPU that idles: wake that one, the next in number (`nohz_balancer_kick()`).
    pub(super) fn kick_idle(&mut self, core: &mut Core, cpu: CpuId) {
        if self.waiting_count(core, cpu) == 0 || core.idle.is_empty() {
            return;
        }
        let mut waiting: Vec<TaskId> = std::mem::take(&mut self.balance.scratch);
        self.waiting_on(cpu, &mut waiting);
        let mut idle = std::mem::take(&mut self.balance.scratch_cpus);
        idle.clone_from(&core.idle);
        for task in &waiting {
            if idle.is_empty() {
                break;
            }
            let found = match &core.task(*task).allowed {
                _ if core.task(*task).is_pinned() => None,
                Some(allowed) => idle.first_in_both(allowed, cpu),
                None => idle.first_in_both(&core.online, cpu),
            };
            if let Some(found) = found {
                idle.remove(found);
                self.balance.kicked[found.index()] = Some(cpu);
                core.resched(found);
            }
        }
        self.balance.scratch = waiting;
        self.balance.scratch_cpus = idle;
    }
}

#[cfg(test)]
mod tests {
    use crate::bodies::{Program, Simple};
    use crate::class::fair::{FairConfig, Newidle, Variant};
    use crate::class::AnyClass;
    use crate::host::{Host, TaskSpec};
    use crate::ids::GroupId;
    use crate::machine::MachineConfig;
    use crate::time::{Ns, MS};
    use crate::Simulation;

    use super::*;

    fn sim(machine: &MachineConfig, slice_ns: Ns, tasks: &[(u32, Ns)]) -> Simulation<Simple> {
        let newidle = Newidle::Cost;
        let config = FairConfig { slice_ns, newidle, ..FairConfig::of(Variant::EevdfFlat) };
        let host = Host::new(machine, AnyClass::Fair(Fair::new(config)), 1).unwrap();
        let mut s = Simulation::new(host, Simple::default());
        for (cpu, run_ns) in tasks {
            let allowed = Some([CpuId(*cpu)].into_iter().collect());
            let task = s.host.spawn(TaskSpec { allowed, ..TaskSpec::default() });
            let program = if *run_ns == 0 { Program::Busy } else { Program::OnDemand { run_ns: *run_ns } };
            s.bodies.add(task, program);
            s.host.wake(task, None);
        }
        s
    }

    /// Two pCPUs, and a group of two tasks: on which one alone each may run, and what it does.
    fn sim_of_a_group(tasks: [(Option<u32>, Program); 2]) -> Simulation<Simple> {
        let fair = Fair::new(FairConfig::of(Variant::EevdfForfeit));
        let host = Host::new(&MachineConfig::ideal(2), AnyClass::Fair(fair), 1).unwrap();
        let mut s = Simulation::new(host, Simple::default());
        let group = s.host.new_group(GroupId(0), 100);
        for (cpu, program) in tasks {
            let allowed = cpu.map(|cpu| [CpuId(cpu)].into_iter().collect());
            let task = s.host.spawn(TaskSpec { allowed, group, ..TaskSpec::default() });
            s.bodies.add(task, program);
            s.host.wake(task, None);
        }
        s
    }

    /// The load that pCPU 1 has told its group of: that of `sim_of_a_group`.
    fn told(s: &Simulation<Simple>) -> u64 {
        let group = s.host.core.task(TaskId(0)).group;
        let queue = class(s).known_queue(group, CpuId(1)).expect("somebody ran there");
        class(s).rq(queue).told_load
    }

    fn class(s: &Simulation<Simple>) -> &Fair {
        let AnyClass::Fair(fair) = &s.host.class else { panic!("it is the fair class") };
        fair
    }

    #[test]
    fn whoever_is_told_to_look_has_idled_until_then() {
        let mut s = sim(&MachineConfig::ideal(2), 3 * MS, &[(1, 3_200_000), (0, 0), (0, 0)]);
        s.host.set_affinity(TaskId(2), None);
        s.run_until(5 * MS).unwrap();
        assert_eq!(s.host.core.task(TaskId(2)).cpu, CpuId(1));
        // From 3.2 to 4, the first average being 1 ms.
        assert_eq!(class(&s).balance.idling[1].avg_ns(), 975_000);
    }

    #[test]
    fn to_find_nobody_is_no_failure() {
        // Two sockets. pCPU 3 idles; on 2 somebody runs alone, and from 0 and 1 one may come that is hot at the first tick.
        let machine = MachineConfig { sockets: 2, ..MachineConfig::ideal(2) };
        let mut s = sim(&machine, 3_600_000, &[(3, 3_700_000), (2, 0), (1, 0), (0, 0), (0, 0)]);
        s.run_until(3_600_000).unwrap();
        s.host.set_affinity(TaskId(3), None);
        s.host.set_affinity(TaskId(4), None);
        s.run_until(4 * MS + 1).unwrap();
        let failed = class(&s).balance.domains[3].map(|domain| domain.failed);
        assert_eq!(failed, [0, 0, 0, 1]);
    }

    #[test]
    fn ticks_that_come_late_do_not_put_balancing_off() {
        let mut machine = MachineConfig::ideal(2);
        machine.costs.tick_jitter_ns = 3_000;
        let mut s = sim(&machine, 3 * MS, &[(0, 0)]);
        s.run_until(2_000 * MS).unwrap();
        // Every 64 ms less a tick, since the first.
        let next = class(&s).balance.domains[0].map(|domain| domain.next_jiffy).into_iter().max();
        assert_eq!(next.unwrap() % 15, 1);
    }

    #[test]
    fn what_ran_on_a_pcpu_that_idles_is_forgotten() {
        let mut s =
            sim_of_a_group([(Some(0), Program::Busy), (Some(1), Program::OnDemand { run_ns: 300 * MS })]);
        s.run_until(300 * MS).unwrap();
        assert!(told(&s) > 900, "{}", told(&s));
        s.run_until(700 * MS).unwrap();
        assert!(told(&s) < 16, "{}", told(&s));
    }

    #[test]
    fn a_pcpu_that_goes_offline_is_no_part_of_its_groups_nor_has_a_runner() {
        let mut s = sim_of_a_group([(None, Program::Busy), (None, Program::Busy)]);
        s.run_until(400 * MS).unwrap();
        assert!(told(&s) > 900, "{}", told(&s));
        s.host.cpu_offline(CpuId(1));
        assert_eq!(told(&s), 0);
        assert_eq!(class(&s).running[1], None);
        s.run_until(500 * MS).unwrap();
        assert_eq!(told(&s), 0);
        s.host.cpu_online(CpuId(1));
        s.run_until(900 * MS).unwrap();
        let ran_ms = [0, 1].map(|task| s.host.run_ns(TaskId(task)) / MS);
        assert!(ran_ms.iter().all(|ms| (840..=860).contains(ms)), "{ran_ms:?}");
    }
}
