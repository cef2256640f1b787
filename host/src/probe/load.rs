// SPDX-License-Identifier: GPL-2.0-only
//! Brings the probe into the kernel, without what this kernel has no hook for, or refuses.

use std::fmt;
use std::mem::MaybeUninit;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{ErrorKind, Iter, Link, OpenObject};
use tracing::debug;

use super::bpf::{ProbeSkel, ProbeSkelBuilder};
use super::hooks::{Hook, Kernel, Lost, OPTIONAL};
use super::intf;
use super::read::monotonic_ns;
use super::settings;
use crate::checks::Host;
use crate::say::{self, Failure};
use crate::top::cgroup::{OF_QUOTAS, OF_WEIGHTS};

/// The memory that libbpf-rs keeps its object in, for each try to load it.
#[derive(Default)]
pub struct Storage {
    places: Vec<MaybeUninit<OpenObject>>,
}

/// The probe at work. Dropped, it leaves the kernel.
pub struct Probe<'obj> {
    // Dropped before the maps.
    _links: Vec<Link>,
    pub skel: ProbeSkel<'obj>,
    /// 1 + the highest possible CPU number.
    pub nr_cpus: u32,
    /// What cannot be counted on this host, however KVM is set.
    lost: Lost,
    /// The process numbers that the probe tells are those of /proc.
    knows_processes: bool,
    /// When its recording ended.
    pub(super) over_ns: Option<u64>,
}

/// What stands in the way of any probe, with its remedy.
pub(super) fn refusal(host: &Host) -> Option<String> {
    if !host.exists("/sys/kernel/btf/vmlinux") {
        return Some(
            "this kernel does not describe its types (/sys/kernel/btf/vmlinux is missing): boot one built with CONFIG_DEBUG_INFO_BTF=y"
                .into(),
        );
    }
    if let Some(why) = host.lockdown() {
        return Some(why);
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
        let mut lost = Lost::of(&kernel);
        let present: Vec<&Hook> = OPTIONAL.iter().filter(|hook| kernel.has(hook.point)).collect();
        let state = kernel.switch_tells_state();
        drop(kernel);
        let knows_processes = knows_processes(host, &mut lost);

        // Each try but the first has one program less.
        storage.places = (0..=present.len()).map(|_| MaybeUninit::uninit()).collect();
        say::take_libbpf_warnings();
        let loaded = load_what_goes(&mut storage.places, present, |place, hooks| {
            load(place, (nr_cpus, ring_bytes), state, hooks)
                .map_err(|error| (error, say::take_libbpf_warnings()))
        });
        let Loaded { object: skel, refused } =
            loaded.map_err(|(error, told)| refused_by_kernel(&error, &told))?;
        for (hook, why) in refused {
            lost.add(hook.counters, format!("{} cannot be watched: {why}", hook.point.name()));
        }
        let mut probe = Probe { _links: Vec::new(), skel, nr_cpus, lost, knows_processes, over_ns: None };
        probe.attach()?;
        probe.find()?;
        Ok(probe)
    }

    /// Where the processes are that the probe tells; None: their numbers are others' here.
    pub fn processes<'host>(&self, host: &'host Host) -> Option<&'host Host> {
        self.knows_processes.then_some(host)
    }

    /// What cannot be counted now.
    pub fn lost(&self, host: &Host) -> Lost {
        settings::with_what_is_hidden(&self.lost, host)
    }

    /// End a recording: no event is seen any more, and what was counted can still be read, as it is now. Before the programs leave the kernel, which lasts.
    pub fn end_recording(&mut self) {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            // SAFETY: the kernel only reads it, at any time, hence volatile.
            unsafe { std::ptr::write_volatile(&raw mut bss.over, 1) };
        }
        self.over_ns = Some(monotonic_ns());
        self._links.clear();
    }

    /// Slots of VMs, and of vCPUs, that were ever taken. Behind them tables are empty.
    pub fn ends(&self) -> (u32, u32) {
        self.skel.maps.bss_data.as_deref().map_or((intf::PROBE_MAX_VMS, intf::PROBE_MAX_VCPUS), |bss| {
            // SAFETY: the kernel writes them at any time, hence volatile; any bytes are valid integers.
            unsafe { (std::ptr::read_volatile(&bss.vms_end), std::ptr::read_volatile(&bss.vcpus_end)) }
        })
    }

    fn attach(&mut self) -> Result<(), Failure> {
        let optional = |name: &str| OPTIONAL.iter().find(|hook| hook.program == name);
        for prog in self.skel.object().progs_mut() {
            let name = prog.name().to_string_lossy().into_owned();
            if !prog.autoload() || name == FINDER {
                continue;
            }
            match (prog.attach(), optional(&name)) {
                (Ok(link), _) => self._links.push(link),
                (Err(error), Some(hook)) => {
                    self.lost
                        .add(hook.counters, format!("{} cannot be watched: {error:#}", hook.point.name()));
                }
                (Err(error), None) => {
                    return Err(Failure::failed(format!(
                        "the kernel did not let the probe start: {name}: {error:#}"
                    )));
                }
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

/// May /proc be asked about the processes that the probe tells? If not, what it would say is lost.
fn knows_processes(host: &Host, lost: &mut Lost) -> bool {
    let Some(why) = host.foreign_process_numbers() else { return true };
    let fields = [OF_QUOTAS, OF_WEIGHTS].concat();
    lost.add(&fields, format!("names, weights and quotas of VMs cannot be read: {why}"));
    false
}

/// Not attached but run.
const FINDER: &str = "probe_find";

/// What the kernel took, and what it did not, with the reason.
struct Loaded<T> {
    object: T,
    refused: Vec<(&'static Hook, String)>,
}

/// Load with all hooks; without those whose programs the kernel refuses, one more with each try. There is a place for each try.
fn load_what_goes<P, T, E: fmt::Display>(
    places: impl IntoIterator<Item = P>,
    mut hooks: Vec<&'static Hook>,
    mut load: impl FnMut(P, &[&'static Hook]) -> Result<T, (E, String)>,
) -> Result<Loaded<T>, (E, String)> {
    let mut places = places.into_iter();
    let mut refused = Vec::new();
    loop {
        // Each try that goes on has a hook less than the one before, and there is one place more than hooks.
        let place = places.next().expect("a place for each try");
        let (error, told) = match load(place, &hooks) {
            Ok(object) => return Ok(Loaded { object, refused }),
            Err(error) => error,
        };
        debug!("loading failed ({error:#})");
        match refused_program(&told) {
            Some((program, why)) => {
                // One that the probe cannot do without is the end.
                let Some(at) = hooks.iter().position(|hook| hook.program == program) else {
                    return Err((error, told));
                };
                refused.push((hooks.remove(at), format!("the kernel refused the program for it ({why})")));
            }
            None if hooks.is_empty() => return Err((error, told)),
            None => {
                let why = format!("the kernel refused the probe with this and more, without saying what is wrong ({error:#})");
                refused.extend(hooks.drain(..).map(|hook| (hook, why.clone())));
            }
        }
    }
}

/// The program that could not be loaded, by libbpf's warnings: the one that it speaks of last; and why.
fn refused_program(told: &str) -> Option<(&str, &str)> {
    told.lines().rev().find_map(|line| line.strip_prefix("libbpf: prog '")?.split_once("': "))
}

fn load<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    (nr_cpus, ring_bytes): (u32, u32),
    switch_tells_state: bool,
    hooks: &[&Hook],
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
            prog.set_autoload(hooks.iter().any(|hook| hook.program == name));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::tests::FakeHost;

    #[test]
    fn a_process_with_anothers_number_is_not_asked() {
        let mut lost = Lost::default();
        assert!(knows_processes(&FakeHost::new().host(), &mut lost));
        assert_eq!(lost, Lost::default());
        assert!(!knows_processes(&FakeHost::new().in_a_container().host(), &mut lost));
        assert!(lost.counters.contains(&"throttled_ns") && lost.counters.contains(&"weight"));
        assert!(lost.notes[0].contains("--pid=host"), "{:?}", lost.notes);
    }

    /// What libbpf says of a program that the kernel's verifier refuses.
    fn said_of(program: &str) -> String {
        format!(
            "libbpf: prog 'probe_exit': failed to bind map '.rodata': -EPERM\n\
             libbpf: prog '{program}': BPF program load failed: -EINVAL\n\
             libbpf: prog '{program}': -- BEGIN PROG LOAD LOG --\n\
             0: R1=ctx() R10=fp0\n\
             -- END PROG LOAD LOG --\n\
             libbpf: prog '{program}': failed to load: -EINVAL\n\
             libbpf: failed to load object 'probe_bpf'\n"
        )
    }

    /// Load with all hooks into a kernel that refuses these programs. Return with how many hooks each try was, too.
    fn loaded(refuses: &[&str], told: impl Fn(&str) -> String) -> (Result<Loaded<()>, String>, Vec<usize>) {
        let mut tries = Vec::new();
        let hooks: Vec<&Hook> = OPTIONAL.iter().collect();
        let places = 0..=hooks.len();
        let result = load_what_goes(places, hooks, |_, hooks| {
            tries.push(hooks.len());
            let always = ["probe_switch", "probe_exit"].into_iter();
            let refused =
                always.chain(hooks.iter().map(|hook| hook.program)).find(|program| refuses.contains(program));
            refused.map_or(Ok(()), |program| Err(("Invalid argument", told(program))))
        });
        (result.map_err(|(error, _)| error.to_string()), tries)
    }

    fn programs(loaded: &Loaded<()>) -> Vec<&str> {
        loaded.refused.iter().map(|(hook, _)| hook.program).collect()
    }

    #[test]
    fn only_what_the_kernel_refuses_is_left_out() {
        let all = OPTIONAL.len();
        let (result, tries) = loaded(&[], said_of);
        assert_eq!((programs(&result.unwrap()), tries), (vec![], vec![all]));
        let (result, tries) = loaded(&["probe_irq", "probe_spin"], said_of);
        let result = result.unwrap();
        assert_eq!(
            (programs(&result), tries),
            (vec!["probe_spin", "probe_irq"], vec![all, all - 1, all - 2])
        );
        assert_eq!(result.refused[0].1, "the kernel refused the program for it (failed to load: -EINVAL)");
        let every: Vec<&str> = OPTIONAL.iter().map(|hook| hook.program).collect();
        assert_eq!(programs(&loaded(&every, said_of).0.unwrap()), every);
    }

    #[test]
    fn without_what_is_always_needed_there_is_no_probe() {
        let (result, tries) = loaded(&["probe_exit"], said_of);
        assert_eq!((result.err(), tries), (Some("Invalid argument".to_string()), vec![OPTIONAL.len()]));
    }

    #[test]
    fn where_the_kernel_names_nothing_that_is_not_claimed() {
        let nothing = |_: &str| "libbpf: Error in bpf_create_map_xattr(probe_events): -ENOMEM\n".to_string();
        let (result, tries) = loaded(&["probe_irq"], nothing);
        let result = result.unwrap();
        assert_eq!((result.refused.len(), tries), (OPTIONAL.len(), vec![OPTIONAL.len(), 0]));
        assert!(result.refused[0].1.contains("without saying"), "{}", result.refused[0].1);
        let (result, tries) = loaded(&["probe_exit"], nothing);
        assert_eq!((result.err(), tries), (Some("Invalid argument".to_string()), vec![OPTIONAL.len(), 0]));
    }
}
