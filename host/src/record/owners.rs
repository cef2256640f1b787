// SPDX-License-Identifier: GPL-2.0-only
//! Who the slots are that events name: VMs with their names, weights and quotas, vCPUs with their threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cohort_recording::{Event, VcpuAbout, VmAbout};
use tracing::debug;

use crate::checks::Host;
use crate::probe::{self, intf, monotonic_ns, Probe, Slot};
use crate::top::cgroup::{Cgroups, WEIGHT_DEFAULT};
use crate::topology::cpu_list;
use crate::vmname::{nameless, VmNames};

/// By so much an event may come before older ones: each pCPU has a clock of its own, and the ring buffer is emptied now and then.
const OUT_OF_ORDER_NS: u64 = 1_000_000_000;
/// Names that were not told in time are waited for once more, at the end.
const NAMES_WITHIN: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Owners {
    names: VmNames,
    /// Joined, and not looked at yet: by slot.
    new: BTreeMap<u16, Event>,
    /// Slots whose owners' events were not seen: which thread has it, and when that was found.
    assumed: BTreeMap<u16, (u32, u64)>,
    /// Slots, and from when on their owner is not who had them before, but nobody that is known: a thread may
    /// be gone before anyone looks. Not in here: what `vms` says.
    unowned: BTreeSet<(u16, u64)>,
    /// By process and KVM's VM.
    vms: BTreeMap<(u32, u64), VmAbout>,
}

impl Owners {
    /// A slot has a new owner; who it is, look() finds out, if that is in time.
    pub fn joined(&mut self, event: Event) {
        // Who had it is gone, also where another pCPU's clock said so a moment later.
        let later: Vec<_> =
            self.unowned.range((event.vcpu, event.time_ns)..=(event.vcpu, u64::MAX)).copied().collect();
        for one in later {
            self.unowned.remove(&one);
        }
        self.is_of_nobody(event.vcpu, event.time_ns);
        self.new.insert(event.vcpu, event);
    }

    /// A slot's owner is gone. If a next one comes, the event that tells it may be lost.
    pub fn left(&mut self, event: Event) {
        // Of who has joined before; events are told in the order in which slots change hands.
        self.new.remove(&event.vcpu);
        // This one is still its own.
        self.is_of_nobody(event.vcpu, event.time_ns.saturating_add(1));
    }

    fn is_of_nobody(&mut self, number: u16, from_ns: u64) {
        self.unowned.insert((number, from_ns));
        let Some((tid, at_ns)) = self.assumed.get(&number).copied().filter(|(_, at_ns)| from_ns <= *at_ns)
        else {
            return;
        };
        // Somebody else had it before the one that was found there, which then has not had it from the begin.
        let is_it = |vcpu: &&mut VcpuAbout| vcpu.slot == number && vcpu.tid == tid && vcpu.from_ns == 0;
        if let Some(vcpu) = self.vms.values_mut().flat_map(|vm| &mut vm.vcpus).find(is_it) {
            vcpu.from_ns = at_ns;
        }
    }

    /// `lost`: of some that have joined no event tells. False: the VMs could not be looked at.
    pub fn look(&mut self, host: &Host, probe: &Probe<'_>, lost: bool) -> bool {
        match probe::slots(probe) {
            Ok(slots) => self.find(host, probe.processes(host).is_some(), &slots, lost),
            Err(error) => {
                debug!("cannot look at the VMs: {error:#}");
                return false;
            }
        }
        true
    }

    /// Who has these slots. `asks`: may /proc be asked about their processes? `lost`: who is there and was not heard of has joined now, as far as one can tell;
    /// in a slot that had nobody before, at the beginning.
    fn find(&mut self, host: &Host, asks: bool, slots: &[Slot], lost: bool) {
        let mut changed = BTreeSet::new();
        let online = cpus(&host.online_cpus().unwrap_or_default());
        for slot in slots {
            let is_new =
                |event: &&Event| u32::from(event.cpu) == slot.vm_slot && u32::from(event.b) == slot.vcpu;
            let number = slot.slot as u16;
            let heard_ns = self.new.get(&number).filter(is_new).map(|event| event.time_ns);
            if let Some(time_ns) = heard_ns {
                self.new.remove(&number);
                self.unowned.remove(&(number, time_ns));
            }
            let is_it =
                |vcpu: &&mut VcpuAbout| vcpu.slot == number && vcpu.vcpu == slot.vcpu && vcpu.tid == slot.tid;
            let vm = self.vms.get_mut(&(slot.pid, slot.vm_id));
            let from_ns = match (heard_ns, vm.and_then(|vm| vm.vcpus.iter_mut().find(is_it))) {
                // Its event was not lost, only late.
                (Some(time_ns), Some(vcpu))
                    if self
                        .assumed
                        .get(&number)
                        .is_some_and(|(tid, at_ns)| *tid == slot.tid && time_ns <= *at_ns) =>
                {
                    vcpu.from_ns = time_ns;
                    self.assumed.remove(&number);
                    continue;
                }
                (Some(time_ns), _) => {
                    self.assumed.remove(&number);
                    time_ns
                }
                (None, None) if lost => {
                    let now_ns = monotonic_ns();
                    self.assumed.insert(number, (slot.tid, now_ns));
                    let had_others = self.unowned.range((number, 0)..=(number, u64::MAX)).next().is_some()
                        || self.vms.values().any(|vm| vm.vcpus.iter().any(|vcpu| vcpu.slot == number));
                    if had_others {
                        now_ns
                    } else {
                        0
                    }
                }
                (None, _) => continue,
            };
            let pid = slot.pid as i32;
            let vm = self.vms.entry((slot.pid, slot.vm_id)).or_insert_with(|| VmAbout {
                name: if asks { self.names.get(host, pid, slot.vm_id) } else { nameless(pid) },
                pid: slot.pid,
                weight: WEIGHT_DEFAULT,
                quota_us: None,
                vcpus: Vec::new(),
            });
            changed.insert((slot.pid, slot.vm_id));
            vm.vcpus.push(VcpuAbout {
                slot: number,
                from_ns,
                vcpu: slot.vcpu,
                tid: slot.tid,
                cpus: if asks { affinity(host, slot.tid, &online) } else { None },
            });
        }
        // When all that have come are known: a quota may be the sum of theirs.
        for key in changed.iter().filter(|_| asks) {
            let tids = slots.iter().filter(|slot| (slot.pid, slot.vm_id) == *key).map(|slot| slot.tid);
            let groups = Cgroups::of(host, key.0 as i32, tids);
            if let (Some(vm), Ok(groups)) = (self.vms.get_mut(key), groups) {
                (vm.weight, vm.quota_us) = (groups.weight(host), groups.quota_us(host));
            }
        }
    }

    /// Forget who had left its slot by then, to another or to nobody: no event that is kept can be its.
    pub fn forget_before(&mut self, oldest_ns: u64) {
        let before_ns = oldest_ns.saturating_sub(OUT_OF_ORDER_NS);
        let mut owned_since = BTreeMap::new();
        let known = self.vms.values().flat_map(|vm| &vm.vcpus).map(|vcpu| (vcpu.slot, vcpu.from_ns));
        let all = known.chain(self.unowned.iter().copied());
        for (slot, from_ns) in all.filter(|(_, from_ns)| *from_ns <= before_ns) {
            let since = owned_since.entry(slot).or_insert(from_ns);
            *since = from_ns.max(*since);
        }
        // Nobody is left whom the older ones would keep from what follows.
        self.unowned.retain(|(_, from_ns)| *from_ns > before_ns);
        let is_kept =
            |vcpu: &VcpuAbout| owned_since.get(&vcpu.slot).is_none_or(|since| vcpu.from_ns >= *since);
        self.vms.values_mut().for_each(|vm| vm.vcpus.retain(is_kept));
        self.vms.retain(|_, vm| !vm.vcpus.is_empty());
        let vms = &self.vms;
        self.names.keep(|pid, vm_id| vms.contains_key(&(pid as u32, vm_id)));
    }

    /// Slots that nobody is known to have, and since when.
    pub fn unowned(&self) -> Vec<(u16, u64)> {
        self.unowned.iter().copied().collect()
    }

    pub fn into_vms(mut self) -> Vec<VmAbout> {
        self.names.wait(NAMES_WITHIN);
        for ((pid, vm_id), vm) in &mut self.vms {
            if let Some(name) = self.names.found(*pid as i32, *vm_id) {
                vm.name = name.to_string();
            }
        }
        let mut vms: Vec<VmAbout> = self.vms.into_values().collect();
        vms.iter_mut().for_each(|vm| vm.vcpus.sort_by_key(|vcpu| (vcpu.vcpu, vcpu.from_ns)));
        vms
    }
}

fn cpus(list: &str) -> BTreeSet<u32> {
    cpu_list(list, intf::PROBE_MAX_CPUS).into_iter().collect()
}

/// pCPUs that a thread may use; empty: all that are online. None: it is gone, or /proc hides it (hidepid=).
fn affinity(host: &Host, tid: u32, online: &BTreeSet<u32>) -> Option<Vec<u32>> {
    let status = host.read(&format!("/proc/{tid}/status"))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let allowed = cpus(list);
    if online.is_subset(&allowed) {
        return Some(Vec::new());
    }
    Some(allowed.intersection(online).copied().collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;
    use crate::checks::tests::FakeHost;
    use crate::vmname::tests::fifo;
    use cohort_recording::Kind;

    /// A VM of two vCPUs, as libvirt keeps it: each vCPU may use half a pCPU.
    fn libvirt() -> FakeHost {
        let scope = "/machine.slice/a.scope";
        let host = FakeHost::new()
            .file("/sys/devices/system/cpu/online", "0-3\n")
            .file("/proc/7/comm", "qemu-system-x86\n")
            .file("/proc/7/cgroup", &format!("0::{scope}/libvirt/emulator\n"))
            .file(&format!("/sys/fs/cgroup{scope}/cpu.weight"), "200\n");
        [8, 9].iter().fold(host, |host, tid| {
            host.file(&format!("/proc/7/task/{tid}/cgroup"), &format!("0::{scope}/libvirt/vcpu{tid}\n"))
                .file(&format!("/proc/{tid}/status"), "Cpus_allowed_list:\t1\n")
                .file(&format!("/sys/fs/cgroup{scope}/libvirt/vcpu{tid}/cpu.max"), "50000 100000\n")
        })
    }

    /// That VM when its vCPUs join, one after the other.
    fn joined(host: &FakeHost, asks: bool) -> VmAbout {
        let mut owners = Owners::default();
        let slot = |vcpu: u32| Slot { slot: vcpu, vm_slot: 0, vcpu, tid: 8 + vcpu, pid: 7, vm_id: 1 };
        for count in 1..=2 {
            let vcpu = count - 1;
            let (time_ns, number) = (u64::from(count), vcpu as u16);
            owners.joined(Event { time_ns, cpu: 0, vcpu: number, kind: Kind::Joined, a: 0, b: number });
            owners.find(&host.host(), asks, &(0..count).map(slot).collect::<Vec<_>>(), false);
        }
        owners.into_vms().remove(0)
    }

    #[test]
    fn a_vms_quota_is_that_of_all_its_vcpus() {
        let vm = joined(&libvirt(), true);
        assert_eq!((vm.name.as_str(), vm.weight, vm.quota_us), ("a", 200.0, Some((100_000, 100_000))));
        assert!(vm.vcpus.iter().all(|vcpu| vcpu.cpus == Some(vec![1])), "{vm:?}");
    }

    #[test]
    fn who_joined_while_events_were_lost_is_found() {
        let slot = |slot, tid| Slot { slot, vm_slot: 0, vcpu: 0, tid, pid: 7, vm_id: 1 };
        let mut owners = Owners::default();
        let look = |owners: &mut Owners, tid, lost| {
            owners.find(&libvirt().host(), true, &[slot(0, tid)], lost);
            let vms: Vec<_> = owners.vms.values().flat_map(|vm| &vm.vcpus).collect();
            vms.iter().map(|vcpu| (vcpu.tid, vcpu.from_ns)).collect::<Vec<_>>()
        };
        assert_eq!(look(&mut owners, 8, false), [], "nothing was lost, so its event is yet to come");
        assert_eq!(look(&mut owners, 8, true), [(8, 0)]);
        assert_eq!(look(&mut owners, 8, true), [(8, 0)]);
        // Its event was in the ring buffer, behind many others.
        let event = Event { time_ns: 5, cpu: 0, vcpu: 0, kind: Kind::Joined, a: 0, b: 0 };
        owners.joined(event);
        assert_eq!(look(&mut owners, 8, false), [(8, 5)]);
        // It has left the slot and come back, long after.
        owners.joined(Event { time_ns: u64::MAX, ..event });
        assert_eq!(look(&mut owners, 8, false), [(8, 5), (8, u64::MAX)]);
        owners.vms.values_mut().for_each(|vm| vm.vcpus.truncate(1));
        // Another thread has the slot now; an event of an earlier owner hides nobody.
        owners.joined(Event { time_ns: 6, b: 9, ..event });
        let found = look(&mut owners, 9, true);
        assert_eq!(found.len(), 2);
        assert!(found[1].0 == 9 && found[1].1 > 5, "{found:?}");
    }

    #[test]
    fn who_was_gone_before_anyone_looked_is_nobody_known() {
        let slot = |tid, pid| Slot { slot: 0, vm_slot: 0, vcpu: 0, tid, pid, vm_id: 1 };
        let event = |time_ns, kind| Event { time_ns, cpu: 0, vcpu: 0, kind, a: 0, b: 0 };
        let from = |owners: &Owners| {
            let vcpus = owners.vms.values().flat_map(|vm| &vm.vcpus);
            vcpus.map(|vcpu| (vcpu.tid, vcpu.from_ns)).collect::<Vec<_>>()
        };
        let mut owners = Owners::default();
        owners.joined(event(10, Kind::Joined));
        owners.find(&libvirt().host(), true, &[slot(8, 7)], false);
        assert_eq!((from(&owners), owners.unowned()), (vec![(8, 10)], vec![]));
        // It goes, and another one comes and goes.
        owners.left(event(20, Kind::Gone));
        owners.joined(event(30, Kind::Joined));
        owners.left(event(40, Kind::Gone));
        owners.find(&libvirt().host(), true, &[], false);
        assert_eq!((from(&owners), owners.unowned()), (vec![(8, 10)], vec![(0, 21), (0, 30), (0, 41)]));
        // The next one's event is lost: it has not the event of who is gone.
        owners.find(&libvirt().host(), true, &[slot(9, 70)], true);
        let found = from(&owners);
        assert!(found.len() == 2 && found[1].0 == 9 && found[1].1 > 41, "{found:?}");
        // A clock says that the slot was left after the next one had it.
        owners.left(event(u64::MAX - 5, Kind::Gone));
        owners.joined(event(u64::MAX - 9, Kind::Joined));
        owners.find(&libvirt().host(), true, &[slot(10, 71)], false);
        assert_eq!(from(&owners).last(), Some(&(10, u64::MAX - 9)));
        assert_eq!(owners.unowned(), [(0, 21), (0, 30), (0, 41)]);
    }

    #[test]
    fn who_was_found_in_a_slot_that_others_had_has_it_from_then_on() {
        let mut owners = Owners::default();
        let slot = Slot { slot: 0, vm_slot: 1, vcpu: 0, tid: 8, pid: 7, vm_id: 1 };
        owners.find(&libvirt().host(), true, &[slot], true);
        let from_ns = |owners: &Owners| owners.vms.values().next().unwrap().vcpus[0].from_ns;
        assert_eq!(from_ns(&owners), 0);
        // That another one had come before was in the ring buffer, behind many others.
        owners.joined(Event { time_ns: 5, cpu: 0, vcpu: 0, kind: Kind::Joined, a: 0, b: 0 });
        assert!(from_ns(&owners) > 5);
        assert_eq!(owners.unowned(), [(0, 5)]);
    }

    #[test]
    fn who_has_left_before_the_oldest_event_is_forgotten_with_its_slot() {
        const S: u64 = 1_000_000_000;
        let mut owners = Owners::default();
        let event = |time_ns, kind| Event { time_ns, cpu: 0, vcpu: 0, kind, a: 0, b: 0 };
        owners.joined(event(S, Kind::Joined));
        let slot = Slot { slot: 0, vm_slot: 0, vcpu: 0, tid: 8, pid: 7, vm_id: 1 };
        owners.find(&libvirt().host(), true, &[slot], false);
        owners.left(event(3 * S, Kind::Gone));
        owners.forget_before(4 * S);
        assert_eq!((owners.vms.len(), owners.unowned().len()), (1, 1), "within what may be out of order");
        owners.forget_before(5 * S);
        assert_eq!((owners.vms.len(), owners.unowned().len()), (0, 0));
    }

    #[test]
    fn who_is_in_no_event_that_is_kept_is_forgotten() {
        const S: u64 = 1_000_000_000;
        let mut owners = Owners::default();
        // A VM after the other in slot 0, and one that stays in slot 1.
        for (slot, pid, from_ns) in [(1, 100, 2 * S), (0, 7, 3 * S), (0, 8, 10 * S), (0, 9, 20 * S)] {
            let (tid, number) = (pid + 1, slot as u16);
            owners.joined(Event {
                time_ns: from_ns,
                cpu: slot as u16,
                vcpu: number,
                kind: Kind::Joined,
                a: 0,
                b: 0,
            });
            let found = Slot { slot, vm_slot: slot, vcpu: 0, tid, pid, vm_id: 1 };
            owners.find(&libvirt().host(), true, &[found], false);
        }
        let mut pids = |oldest_ns| {
            owners.forget_before(oldest_ns);
            owners.vms.values().map(|vm| vm.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(10 * S), [7, 8, 9, 100], "within what may be out of order");
        assert_eq!(pids(12 * S), [8, 9, 100]);
        assert_eq!(pids(19 * S), [8, 9, 100]);
        assert_eq!(pids(30 * S), [9, 100]);
    }

    #[test]
    fn who_says_its_name_late_has_it_in_the_end() {
        let host = FakeHost::new();
        let late = [7, 20].map(|pid| (pid, fifo(&host, &format!("/proc/{pid}/cmdline"))));
        let mut owners = Owners::default();
        let slot = |slot: u32, pid: u32| Slot { slot, vm_slot: slot, vcpu: 0, tid: pid + 1, pid, vm_id: 1 };
        owners.find(&host.host(), true, &[slot(0, 7), slot(1, 20)], true);
        assert!(owners.vms.values().map(|vm| vm.name.as_str()).eq(["pid 7", "pid 20"]));
        let say = late.map(|(pid, path)| {
            let cmdline = format!("qemu\0-name\0vm{pid}\0");
            thread::spawn(move || fs::write(path, cmdline))
        });
        let vms = owners.into_vms();
        say.into_iter().for_each(|said| said.join().unwrap().unwrap());
        assert!(vms.iter().map(|vm| vm.name.as_str()).eq(["vm7", "vm20"]), "{vms:?}");
    }

    #[test]
    fn another_process_with_the_number_says_nothing_of_a_vm() {
        let vm = joined(&libvirt(), false);
        assert_eq!((vm.name.as_str(), vm.weight, vm.quota_us), ("pid 7", 100.0, None));
        assert!(vm.vcpus.len() == 2 && vm.vcpus.iter().all(|vcpu| vcpu.cpus.is_none()), "{vm:?}");
    }

    #[test]
    fn an_affinity_is_what_is_not_all() {
        let affinity = |host: &Host, tid| affinity(host, tid, &cpus(&host.online_cpus().unwrap()));
        let host = |list: &str| {
            FakeHost::new()
                .file("/sys/devices/system/cpu/online", "0-3\n")
                .file("/proc/7/status", &format!("Name:\tx\nCpus_allowed_list:\t{list}\n"))
        };
        assert_eq!(affinity(&host("0-7").host(), 7), Some(vec![]));
        assert_eq!(affinity(&host("1,3-9").host(), 7), Some(vec![1, 3]));
        assert_eq!(affinity(&host("1").host(), 8), None, "it is gone, or hidden");
        // The kernel has cut the name in the middle of a character.
        let cut = host("1").bytes("/proc/7/status", b"Name:\t\xe3\x82\nCpus_allowed_list:\t1\n");
        assert_eq!(affinity(&cut.host(), 7), Some(vec![1]));
        let large = host("5,1500").file("/sys/devices/system/cpu/online", "0-2047\n");
        assert_eq!(affinity(&large.host(), 7), Some(vec![5, 1500]), "more than the scheduler handles");
    }
}
