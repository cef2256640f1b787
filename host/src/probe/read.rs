// SPDX-License-Identifier: GPL-2.0-only
//! Reads what the probe has counted, up to now: what a vCPU is in the middle of counts as far as it has gone.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use libbpf_rs::{MapCore, MapFlags};

use super::bpf::types::{probe_pcpu, probe_vcpu, probe_vm};
use super::idle::{Idle, Pcpu};
use super::known::Known;
use super::{intf, Probe};
use crate::checks::Host;
use crate::maps;
use crate::say::Failure;
use crate::top::cgroup::{Figures, WEIGHT_DEFAULT};
use crate::top::counters::Counters;
use crate::top::lag::{Among, Lags};
use crate::top::reach::{self, Reach};
use crate::top::sample::{skew_ns, Sample, State, Vcpu, Vm};
use crate::vmname::{nameless, VmNames};

pub(super) const TIME_MASK: u64 = u64::MAX >> intf::PROBE_COUNT_BITS;
const COUNT_MASK: u64 = (1 << intf::PROBE_COUNT_BITS) - 1;
/// A copy made while the kernel wrote is made again, so often.
const TRIES: usize = 16;

/// Makes samples, and remembers what is not in the kernel: names, and the most and the least of what changes both ways.
#[derive(Default)]
pub struct Reader {
    names: VmNames,
    lags: Lags,
    cgroups: Figures,
    idle: Idle,
    /// By VM.
    vms: HashMap<u64, Known>,
}

/// The kernel's plain bytes as a struct of integers.
///
/// # Safety
/// Every bit pattern must be a valid `T`.
unsafe fn from_bytes<T: Copy>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: there are enough bytes, read_unaligned needs no alignment; the caller vouches for the rest.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

fn vcpu_from(bytes: &[u8]) -> Option<probe_vcpu> {
    // SAFETY: integers only.
    unsafe { from_bytes(bytes) }
}

fn vm_from(bytes: &[u8]) -> Option<probe_vm> {
    // SAFETY: integers only.
    unsafe { from_bytes(bytes) }
}

fn pcpu_from(bytes: &[u8]) -> Option<probe_pcpu> {
    // SAFETY: integers only.
    unsafe { from_bytes(bytes) }
}

/// What a clock word (bpf/probe/intf.h) shows at `now`.
fn clock(word: u64, now: u64) -> u64 {
    let time = word >> intf::PROBE_COUNT_BITS;
    if word & COUNT_MASK == 0 {
        time
    } else {
        time.wrapping_add(now) & TIME_MASK
    }
}

/// From one reading of a clock word to a later one; 0 if it is none.
pub(super) fn clock_since(mark: u64, reading: u64) -> u64 {
    let time = reading.wrapping_sub(mark) & TIME_MASK;
    if time > TIME_MASK / 2 {
        0
    } else {
        time
    }
}

fn state_of(place: u64) -> State {
    match place as u32 & ((1 << intf::PROBE_STATE_BITS) - 1) {
        intf::PROBE_RUN => State::Running,
        intf::PROBE_READY_WOKEN => State::Ready,
        intf::PROBE_READY_PREEMPTED => State::Preempted,
        intf::PROBE_HALTED => State::Halted,
        intf::PROBE_BLOCKED => State::Blocked,
        _ => State::Unknown,
    }
}

/// The vCPU at `now`.
fn vcpu_at(v: &probe_vcpu, vm: &probe_vm, now: u64) -> Vcpu {
    let state = state_of(v.place);
    let mut counters = Counters {
        run_ns: v.run_ns,
        ready_ns: v.ready_ns,
        halted_ns: v.halted_ns,
        blocked_ns: v.blocked_ns,
        costop_ns: v.costop_ns,
        switches: v.switches,
        migrations: v.migrations,
        wakeups: v.wakeups,
        wait_wakeup_ns: v.wait_wakeup_ns,
        preemptions: v.preemptions,
        preemptions_kernel: v.preemptions_kernel,
        wait_kernel_ns: v.wait_kernel_ns,
        halts: v.halts,
        halt_polled_ns: v.halt_polled_ns,
        ple: v.ple,
        ple_kernel: v.ple_kernel,
        ple_chains: v.ple_chains,
        yields_asked: v.yields_asked,
        yields_granted: v.yields_granted,
        ipis_sent: v.ipis_sent,
        ipis_preempted: v.ipis_preempted,
        ipi_wait_ns: v.ipi_wait_ns,
        tlb_hypercalls: v.tlb_hypercalls,
        tlb_deferred: v.tlb_deferred,
        kicks: v.kicks,
    };
    let time = now.saturating_sub(v.since_ns);
    match state {
        // A copy that is not whole may have the begin of the place before, long ago. The next one has what goes on.
        _ if v.seq_begin != v.seq_end => {}
        State::Running => counters.run_ns += time,
        State::Ready | State::Preempted => {
            counters.ready_ns += time;
            let wait = now.saturating_sub(v.ready_since_ns);
            counters.costop_ns += clock_since(v.ran_mark, clock(vm.ran, now)).min(wait);
        }
        State::Halted => counters.halted_ns += time,
        State::Blocked => counters.blocked_ns += time,
        State::Unknown => {}
    }
    Vcpu { vcpu: v.vcpu_id, tid: v.tid, state, pcpu: (v.place >> intf::PROBE_STATE_BITS) as u32, counters }
}

/// The longest wait of a vCPU so far; the one that goes on at `now` is one.
fn longest_wait_ns(v: &probe_vcpu, now: u64) -> u64 {
    match state_of(v.place) {
        // A copy that is not whole may have the begin of the wait before.
        State::Ready | State::Preempted if v.seq_begin == v.seq_end => {
            v.wait_max_ns.max(now.saturating_sub(v.ready_since_ns))
        }
        _ => v.wait_max_ns,
    }
}

/// The clock of bpf_ktime_get_ns().
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to a timespec that lives across the call; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A vCPU and the slot by which events call it.
pub struct Slot {
    pub slot: u32,
    pub vm_slot: u32,
    pub vcpu: u32,
    pub tid: u32,
    /// Of its VM: see [`crate::top::sample::Vm`].
    pub pid: u32,
    pub vm_id: u64,
}

/// A new VM may have an old one's memory, and in another slot the same generation, but not the same slot as well.
/// Samples go into files and to other people, who are not to learn from them where things are in this kernel's memory:
/// so it is a hash, by a key that nobody is told. It has 53 bits, which every reader of JSON keeps.
fn vm_id(slot: u32, vm: &probe_vm) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one((slot, vm.kvm, vm.generation)) >> 11
}

/// Who has which slot now.
pub fn slots(probe: &Probe<'_>) -> libbpf_rs::Result<Vec<Slot>> {
    let maps = &probe.skel.maps;
    let (vms_end, vcpus_end) = probe.ends();
    let mut vms = BTreeMap::new();
    maps::for_each_below(&maps.probe_vms, vms_end, |slot, bytes| {
        if let Some(vm) = vm_from(bytes).filter(|vm| vm.kvm != 0) {
            vms.insert(slot, vm);
        }
    })?;
    let mut found = Vec::new();
    maps::for_each_below(&maps.probe_vcpus, vcpus_end, |slot, bytes| {
        let Some(vcpu) = vcpu_from(bytes).filter(|vcpu| vcpu.tid != 0) else { return };
        let Some(vm) = vms.get(&vcpu.vm).filter(|vm| vm.generation == vcpu.generation) else { return };
        let (tid, vm_slot) = (vcpu.tid, vcpu.vm);
        found.push(Slot { slot, vm_slot, vcpu: vcpu.vcpu_id, tid, pid: vm.tgid, vm_id: vm_id(vm_slot, vm) });
    })?;
    Ok(found)
}

impl Reader {
    pub fn read(&mut self, probe: &Probe<'_>, host: &Host) -> Result<Sample, Failure> {
        self.try_read(probe, host)
            .map_err(|e| Failure::failed(format!("cannot read what the probe has counted: {e:#}")))
    }

    fn try_read(&mut self, probe: &Probe<'_>, host: &Host) -> libbpf_rs::Result<Sample> {
        let maps = &probe.skel.maps;
        let (vms_end, vcpus_end) = probe.ends();
        let mut vms = BTreeMap::new();
        maps::for_each_below(&maps.probe_vms, vms_end, |slot, bytes| {
            // Without vCPUs: just being made.
            if let Some(vm) = vm_from(bytes).filter(|vm| vm.kvm != 0 && vm.nr_vcpus != 0) {
                vms.insert(slot, vm);
            }
        })?;
        let mut taken = Vec::new();
        maps::for_each_below(&maps.probe_vcpus, vcpus_end, |slot, bytes| {
            if vcpu_from(bytes).is_some_and(|vcpu| vcpu.tid != 0) {
                taken.push(slot);
            }
        })?;
        // To find the slots that are taken lasts a while where there are many. What is in them is read again, so that all of it is of one moment.
        for (slot, vm) in &mut vms {
            let again = maps.probe_vms.lookup(&slot.to_ne_bytes(), MapFlags::ANY).ok().flatten();
            *vm = again.and_then(|bytes| vm_from(&bytes)).unwrap_or(*vm);
        }
        let mut vcpus: BTreeMap<u32, Vec<probe_vcpu>> = BTreeMap::new();
        for slot in taken {
            let look = || {
                let found = maps.probe_vcpus.lookup(&slot.to_ne_bytes(), MapFlags::ANY).ok().flatten();
                found.and_then(|bytes| vcpu_from(&bytes)).filter(|vcpu| vcpu.tid != 0)
            };
            let Some(mut vcpu) = look() else { continue };
            for _ in 0..TRIES {
                if vcpu.seq_begin == vcpu.seq_end {
                    break;
                }
                vcpu = look().unwrap_or(vcpu);
            }
            vcpus.entry(vcpu.vm).or_default().push(vcpu);
        }
        let now = probe.over_ns.unwrap_or_else(monotonic_ns);
        let mut pcpus: Vec<Pcpu> = Vec::new();
        maps::for_each(&maps.probe_pcpus, |_, bytes| {
            let each = bytes.chunks_exact(size_of::<probe_pcpu>()).filter_map(pcpu_from);
            pcpus =
                each.map(|pcpu| Pcpu { switches: pcpu.switches, idle_ns: clock(pcpu.idle, now) }).collect();
        })?;
        // Both clocks of a word, of the VM and of its pCPUs, are looked at with the vCPUs; what came in between is little.
        let mut present: HashMap<u32, u64> = HashMap::new();
        maps::for_each_below(&maps.probe_presence, vms_end.saturating_mul(probe.nr_cpus), |index, bytes| {
            let slot = index / probe.nr_cpus;
            let word = bytes.first_chunk().map_or(0, |chunk| u64::from_ne_bytes(*chunk));
            if word != 0 && vms.contains_key(&slot) {
                let sum = present.entry(slot).or_default();
                *sum = sum.wrapping_add(clock(word, now)) & TIME_MASK;
            }
        })?;

        let mut sample = Sample {
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64()),
            clock_ns: now,
            pcpus: host.online_cpu_count(),
            idle_ns: self.idle.look(host, &pcpus, now),
            switches: pcpus.iter().map(|pcpu| pcpu.switches).sum(),
            scheduler: host.loaded_scheduler().unwrap_or_else(|| "fair".to_string()),
            kernel: host.read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            ..probe.lost(host).into()
        };
        if let Some(bss) = probe.skel.maps.bss_data.as_deref() {
            // SAFETY: the kernel writes it at any time, hence volatile; any bytes are a valid integer.
            let not_followed = unsafe { std::ptr::read_volatile(&bss.not_followed) };
            if not_followed > 0 {
                sample.notes.push(format!(
                    "more VMs or vCPUs than the {} and {} that the probe follows: {not_followed} left out",
                    intf::PROBE_MAX_VMS,
                    intf::PROBE_MAX_VCPUS
                ));
            }
            // SAFETY: as above.
            let clock_failures = unsafe { std::ptr::read_volatile(&bss.clock_failures) };
            if clock_failures > 0 {
                sample.notes.push(format!(
                    "the probe lost count of vCPUs {clock_failures} times: co-stop and stacking may be wrong"
                ));
            }
        }
        for (slot, vm) in &vms {
            let mut found = vcpus.remove(slot).unwrap_or_default();
            found.retain(|vcpu| vcpu.generation == vm.generation);
            if found.is_empty() {
                continue;
            }
            let present = present.get(slot).copied().unwrap_or_default();
            sample.vms.push(self.vm(probe.processes(host), vm, &found, present, now));
        }
        // Without its processes nothing is known of weights, nor of lags.
        if let Some(host) = probe.processes(host) {
            self.cgroups.update(&mut sample, host);
            let Reach { cpus, pinned } = Reach::of(&sample, reach::allowed);
            let idle_ns = self.idle.grown_ns(|cpu| cpus.contains(cpu));
            self.lags.update(&mut sample, &Among { idle_ns, pinned });
        }
        self.forget_all_but(&sample);
        Ok(sample)
    }

    /// All but what its cgroups say. `host`: where its process is, if that can be looked at.
    fn vm(&mut self, host: Option<&Host>, vm: &probe_vm, found: &[probe_vcpu], present: u64, now: u64) -> Vm {
        let pid = vm.tgid as i32;
        let id = vm_id(found.first().map_or(0, |v| v.vm), vm);
        let mut vcpus: Vec<Vcpu> = found.iter().map(|v| vcpu_at(v, vm, now)).collect();
        vcpus.sort_by_key(|vcpu| vcpu.vcpu);
        let known = self.vms.entry(id).or_default();
        let gone = known.keep(&mut vcpus);
        let mut total = Counters::default();
        vcpus.iter().for_each(|vcpu| total.add(&vcpu.counters));
        let stacked_ns = known.stacked(total.run_ns + total.ready_ns + vm.gone_ns, present);
        gone.values().for_each(|counters| total.add(counters));
        let ple_chain_lengths = known.chains(found);
        let longest = found.iter().map(|v| v.ple_chain_max.max(v.chain)).max().unwrap_or(0);
        known.ple_chain_max = known.ple_chain_max.max(longest);
        known.wait_max_ns = found.iter().map(|v| longest_wait_ns(v, now)).fold(known.wait_max_ns, u64::max);
        let (ple_chain_max, wait_max_ns) = (known.ple_chain_max, known.wait_max_ns);
        let mut sampled = Vm {
            name: host.map_or_else(|| nameless(pid), |host| self.names.get(host, pid, id)),
            pid,
            id,
            weight: WEIGHT_DEFAULT,
            stacked_ns,
            ple_chain_max,
            ple_chain_lengths,
            wait_max_ns,
            total,
            gone,
            vcpus,
            ..Vm::default()
        };
        sampled.skew_ns = skew_ns(&sampled.by_vcpu());
        known.skew_max_ns = known.skew_max_ns.max(sampled.skew_ns);
        sampled.skew_max_ns = known.skew_max_ns;
        sampled
    }

    fn forget_all_but(&mut self, sample: &Sample) {
        let alive: HashSet<u64> = sample.vms.iter().map(|vm| vm.id).collect();
        self.names.keep(|_, id| alive.contains(&id));
        self.vms.retain(|id, _| alive.contains(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vcpu_that_is_unplugged_leaves_its_counters_to_the_vm() {
        let mut reader = Reader::default();
        let mut sum = |times: &[(u32, u64)]| run_ns_of_vm(&mut reader, times);
        assert_eq!(sum(&[(7, 10), (8, 20)]), 30);
        assert_eq!(sum(&[(7, 11)]), 31);
        assert_eq!(sum(&[(7, 12), (9, 1)]), 33);
        reader.forget_all_but(&Sample::default());
        assert!(reader.vms.is_empty());
    }

    #[test]
    fn an_id_is_one_vms_and_no_address() {
        let of = |slot, kvm, generation| vm_id(slot, &probe_vm { kvm, generation, ..probe_vm::default() });
        let id = |kvm, generation| of(0, kvm, generation);
        let kvm = 0xffff_c900_0123_4000;
        assert_eq!(id(kvm, 1), id(kvm, 1));
        assert_ne!(id(kvm, 1), id(kvm, 2), "its slot's next VM");
        assert_ne!(id(kvm, 1), of(1, kvm, 1), "the next VM is in another slot");
        assert_ne!(id(kvm, 1), id(kvm + 4096, 1));
        assert!(id(kvm, 1) < 1 << 53);
    }

    #[test]
    fn a_vcpu_that_is_unplugged_leaves_its_chains_and_waits_to_the_vm() {
        let mut reader = Reader::default();
        let vcpu = |tid: u32, wait_max_ns: u64| {
            let mut vcpu =
                probe_vcpu { tid, wait_max_ns, ple_chain_max: wait_max_ns, ..probe_vcpu::default() };
            vcpu.chain_lengths[0] = 3;
            vcpu
        };
        let mut told = |found: &[probe_vcpu]| {
            let vm = reader.vm(None, &probe_vm::default(), found, 0, 0);
            (vm.ple_chain_lengths[0], vm.ple_chain_max, vm.wait_max_ns)
        };
        assert_eq!(told(&[vcpu(7, 10), vcpu(8, 20)]), (6, 20, 20));
        assert_eq!(told(&[vcpu(7, 11)]), (6, 20, 20));
        assert_eq!(told(&[vcpu(7, 11), vcpu(9, 30)]), (9, 30, 30));
        // A thread that comes back to a vCPU has a slot that begins anew.
        let anew = probe_vcpu { chain_lengths: Default::default(), ..vcpu(7, 11) };
        assert_eq!(told(&[anew, vcpu(9, 30)]), (9, 30, 30));
    }

    #[test]
    fn threads_that_serve_a_vcpu_in_turn_are_no_siblings() {
        let thread = |tid, vcpu_id, ready_ns| probe_vcpu { tid, vcpu_id, ready_ns, ..probe_vcpu::default() };
        let mut reader = Reader::default();
        let mut vm = |found: &[probe_vcpu]| reader.vm(None, &probe_vm::default(), found, 0, 0);
        let then = vm(&[thread(7, 0, 10), thread(8, 0, 20), thread(9, 1, 25)]);
        assert_eq!((then.skew_ns, then.skew_max_ns), (5, 5));
        // One of them ends: the vCPU has waited no less for that.
        let now = vm(&[thread(8, 0, 20), thread(9, 1, 30)]);
        assert_eq!((now.by_vcpu()[&0].ready_ns, now.skew_ns, now.skew_max_ns), (30, 0, 5));
    }

    /// Threads of a VM that have run for so long.
    fn run_ns_of_vm(reader: &mut Reader, times: &[(u32, u64)]) -> u64 {
        let vcpu = |&(tid, run_ns): &(u32, u64)| probe_vcpu { tid, run_ns, ..probe_vcpu::default() };
        let found: Vec<probe_vcpu> = times.iter().map(vcpu).collect();
        reader.vm(None, &probe_vm::default(), &found, 0, 0).total.run_ns
    }

    #[test]
    fn no_counter_goes_back_when_what_went_on_had_ended_before() {
        let mut reader = Reader::default();
        let vm = probe_vm::default();
        let vcpu = |state: u32, since_ns, run_ns| probe_vcpu {
            place: u64::from(state),
            since_ns,
            run_ns,
            ..probe_vcpu::default()
        };
        // It was looked at while it ran; it halted at 1,500, and that look was counted up to 2,000.
        let mut at = |vcpu: probe_vcpu, now: u64| {
            let total = reader.vm(None, &vm, &[vcpu], 0, now).total;
            (total.run_ns, total.halted_ns)
        };
        assert_eq!(at(vcpu(intf::PROBE_RUN, 1_000, 100), 2_000), (1_100, 0));
        assert_eq!(at(vcpu(intf::PROBE_HALTED, 1_500, 600), 2_100), (1_100, 600));
        assert_eq!(at(vcpu(intf::PROBE_RUN, 3_000, 600), 4_000), (1_600, 600));
    }

    #[test]
    fn stacked_time_goes_on_where_the_clock_words_begin_anew() {
        let mut reader = Reader::default();
        // `ran_ns` of one vCPU that is no more count as well.
        let mut stacked = |ran_ns: u64, present: u64| {
            let vm = probe_vm { gone_ns: 100, ..probe_vm::default() };
            let vcpu = probe_vcpu { run_ns: ran_ns - 100, ..probe_vcpu::default() };
            reader.vm(None, &vm, &[vcpu], present & TIME_MASK, 0).stacked_ns
        };
        let wraps = TIME_MASK + 1;
        assert_eq!(stacked(1_000, 1_000), 0);
        assert_eq!(stacked(2_000, 1_700), 300);
        assert_eq!(stacked(wraps / 3, wraps / 3 - 300), 300);
        assert_eq!(stacked(wraps - 10, wraps - 310), 300);
        assert_eq!(stacked(wraps + 20, wraps - 290), 310, "the sum is beyond, the clock words not yet");
        assert_eq!(stacked(wraps + 400, wraps + 90), 310, "52.1 vCPU-days, and both");
        assert_eq!(stacked(wraps + 400, wraps + 93), 310, "looks at both take some time");
        assert_eq!(stacked(wraps + 500, wraps + 100), 400);
    }

    #[test]
    fn a_clock_word_tells_for_how_long_somebody_was_there() {
        // 5 ns so far and nobody now; then somebody since 100.
        let word = 5 << intf::PROBE_COUNT_BITS;
        assert_eq!(clock(word, 1_000), 5);
        let word = (word + 1).wrapping_sub(100 << intf::PROBE_COUNT_BITS);
        assert_eq!(clock(word, 130), 35);
        assert_eq!(clock_since(clock(word, 110), clock(word, 130)), 20);
        assert_eq!(clock_since(20, 19), 0, "clocks of two pCPUs");
    }

    #[test]
    fn what_goes_on_counts_up_to_now() {
        let vm = probe_vm { ran: 1u64.wrapping_sub(1_000 << intf::PROBE_COUNT_BITS), ..probe_vm::default() };
        let place = |state: u32| u64::from(state) | 3 << intf::PROBE_STATE_BITS;
        let ready = probe_vcpu {
            place: place(intf::PROBE_READY_PREEMPTED),
            since_ns: 1_500,
            ready_since_ns: 1_400,
            ran_mark: clock(vm.ran, 1_400),
            ready_ns: 100,
            ..probe_vcpu::default()
        };
        let at = vcpu_at(&ready, &vm, 2_000);
        assert_eq!(
            (at.state, at.pcpu, at.counters.ready_ns, at.counters.costop_ns),
            (State::Preempted, 3, 600, 600)
        );
        let runs = probe_vcpu { place: place(intf::PROBE_RUN), since_ns: 1_500, run_ns: 7, ..ready };
        assert_eq!(vcpu_at(&runs, &vm, 2_000).counters.run_ns, 507);
        assert_eq!(vcpu_at(&runs, &vm, 1_000).counters.run_ns, 7, "a clock that is behind");
        assert_eq!(vcpu_at(&probe_vcpu { seq_begin: 1, ..runs }, &vm, 2_000).counters.run_ns, 7, "not whole");
        assert_eq!((longest_wait_ns(&ready, 2_000), longest_wait_ns(&runs, 2_000)), (600, 0));
    }
}
