// SPDX-License-Identifier: GPL-2.0-only
//! Brings the probe into the kernel, without what this kernel has no hook for.

use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{ErrorKind, Iter, Link, MapCore, MapFlags, OpenObject};
use tracing::debug;

use super::bpf::{ProbeSkel, ProbeSkelBuilder};
use super::hooks::{Kernel, OPTIONAL};
use super::intf;
use crate::checks::Host;
use crate::say::{self, Failure};

/// The memory that libbpf-rs keeps its object in; a second place for the second try.
#[derive(Default)]
pub struct Storage {
    first: Option<Box<MaybeUninit<OpenObject>>>,
    second: Option<Box<MaybeUninit<OpenObject>>>,
}

/// The probe at work. Dropped, it leaves the kernel.
pub struct Probe<'obj> {
    // Dropped before the maps.
    _links: Vec<Link>,
    pub skel: ProbeSkel<'obj>,
    /// 1 + the highest possible CPU number.
    pub nr_cpus: u32,
    /// Counters that this kernel cannot count.
    pub missing: Vec<&'static str>,
    /// Why, one sentence each.
    pub notes: Vec<String>,
}

/// What stands in the way of any probe, with its remedy.
pub(super) fn refusal(host: &Host) -> Option<String> {
    if !host.exists("/sys/kernel/btf/vmlinux") {
        return Some(
            "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing): boot one built with CONFIG_DEBUG_INFO_BTF=y"
                .into(),
        );
    }
    if host.capabilities().is_some() {
        return Some(
            "no right to watch the kernel: run as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN".into(),
        );
    }
    if !host.kvm_is_live() {
        return Some(
            "KVM is not loaded, so no VM can run here: load it (modprobe kvm_intel, or kvm_amd) and start again"
                .into(),
        );
    }
    host.kvm_btf()
}

impl<'obj> Probe<'obj> {
    /// Load and attach the probe, and find the vCPUs that run already.
    pub fn start(storage: &'obj mut Storage, host: &Host) -> Result<Self, Failure> {
        Self::recording(storage, host, 0)
    }

    /// The same, with every event in a ring buffer of so many bytes; 0: without.
    pub fn recording(storage: &'obj mut Storage, host: &Host, ring_bytes: u32) -> Result<Self, Failure> {
        if let Some(refusal) = refusal(host) {
            return Err(Failure::refused(refusal));
        }
        let nr_cpus = host.possible_cpus().map_err(Failure::refused)?;
        if nr_cpus > intf::PROBE_MAX_CPUS {
            return Err(Failure::refused(format!(
                "this host can have {nr_cpus} CPUs, more than the {} that the probe handles: boot with possible_cpus={}",
                intf::PROBE_MAX_CPUS,
                intf::PROBE_MAX_CPUS
            )));
        }
        let kernel = Kernel::running().ok_or_else(|| {
            Failure::refused("cannot read the kernel's types from /sys/kernel/btf/vmlinux: mount /sys")
        })?;
        let present: Vec<&str> =
            OPTIONAL.iter().filter(|hook| kernel.has(hook.point)).map(|hook| hook.program).collect();
        let state = kernel.switch_tells_state();
        drop(kernel);

        let first = storage.first.insert(Box::new(MaybeUninit::uninit()));
        let second = storage.second.insert(Box::new(MaybeUninit::uninit()));
        say::take_libbpf_warnings();
        let (skel, loaded) = match load(first, (nr_cpus, ring_bytes), state, &present) {
            Ok(skel) => (skel, present),
            Err(error) => {
                debug!("loading failed ({error:#}); trying again without what not every kernel has");
                let told = say::take_libbpf_warnings();
                let skel = load(second, (nr_cpus, ring_bytes), state, &[])
                    .map_err(|_| refused_by_kernel(&error, &told))?;
                (skel, Vec::new())
            }
        };
        let mut probe = Probe { _links: Vec::new(), skel, nr_cpus, missing: Vec::new(), notes: Vec::new() };
        probe.fill_slots().map_err(|e| Failure::failed(format!("cannot prepare the probe's maps: {e:#}")))?;
        probe.attach(&loaded)?;
        probe.find()?;
        Ok(probe)
    }

    /// No event is seen any more; what was counted can still be read.
    pub fn detach(&mut self) {
        self._links.clear();
    }

    fn fill_slots(&self) -> libbpf_rs::Result<()> {
        let maps = &self.skel.maps;
        for slot in 0..intf::PROBE_MAX_VMS {
            maps.probe_free_vms.update(&[], &slot.to_ne_bytes(), MapFlags::ANY)?;
        }
        for slot in 0..intf::PROBE_MAX_VCPUS {
            maps.probe_free_vcpus.update(&[], &slot.to_ne_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn attach(&mut self, loaded: &[&str]) -> Result<(), Failure> {
        let optional = |name: &str| OPTIONAL.iter().find(|hook| hook.program == name);
        for prog in self.skel.object().progs_mut() {
            let name = prog.name().to_string_lossy().into_owned();
            if !prog.autoload() || name == FINDER {
                continue;
            }
            match (prog.attach(), optional(&name)) {
                (Ok(link), _) => self._links.push(link),
                (Err(error), Some(hook)) => {
                    self.missing.extend(hook.counters);
                    self.notes.push(format!("{} cannot be watched: {error:#}", hook.point.name()));
                }
                (Err(error), None) => {
                    return Err(Failure::failed(format!(
                        "the kernel did not let the probe start: {name}: {error:#}"
                    )));
                }
            }
        }
        for hook in OPTIONAL.iter().filter(|hook| !loaded.contains(&hook.program)) {
            self.missing.extend(hook.counters);
            if !hook.counters.is_empty() {
                self.notes.push(format!("this kernel has no {}", hook.point.name()));
            }
        }
        Ok(())
    }

    /// Look for the vCPUs that run already.
    fn find(&self) -> Result<(), Failure> {
        let failed = |e| Failure::failed(format!("cannot look for vCPUs: {e}"));
        let link = self.skel.progs.probe_find.attach().map_err(|e| failed(format!("{e:#}")))?;
        let mut iter = Iter::new(&link).map_err(|e| failed(format!("{e:#}")))?;
        // The program prints nothing: reading runs it over all threads.
        std::io::copy(&mut iter, &mut std::io::sink()).map(|_| ()).map_err(|e| failed(e.to_string()))
    }
}

/// Not attached but run.
const FINDER: &str = "probe_find";

fn load<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    (nr_cpus, ring_bytes): (u32, u32),
    switch_tells_state: bool,
    present: &[&str],
) -> libbpf_rs::Result<ProbeSkel<'obj>> {
    let mut open = ProbeSkelBuilder::default().open(storage)?;
    if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
        knobs.nr_cpus = nr_cpus;
        knobs.recording = ring_bytes > 0;
    }
    if ring_bytes > 0 {
        open.maps.probe_events.set_max_entries(ring_bytes)?;
    }
    open.maps.probe_presence.set_max_entries(intf::PROBE_MAX_VMS * nr_cpus)?;
    open.progs.probe_switch.set_autoload(switch_tells_state);
    open.progs.probe_switch_stateless.set_autoload(!switch_tells_state);
    for mut prog in open.open_object_mut().progs_mut() {
        let name = prog.name().to_string_lossy().into_owned();
        if OPTIONAL.iter().any(|hook| hook.program == name) {
            prog.set_autoload(present.contains(&name.as_str()));
        }
    }
    open.load()
}

fn refused_by_kernel(error: &libbpf_rs::Error, told: &str) -> Failure {
    if error.kind() == ErrorKind::PermissionDenied && !told.contains("BEGIN PROG LOAD LOG") {
        return Failure::refused(
            "the kernel does not permit loading BPF: run as root outside containers, with kernel lockdown below `confidentiality`",
        );
    }
    let told = told.lines().find(|line| line.starts_with("libbpf: ")).unwrap_or_default();
    let told = told.trim_start_matches("libbpf: ");
    Failure::failed(format!(
        "the kernel refused the probe: {error:#}; {told}; run again with -v for the whole log"
    ))
}
