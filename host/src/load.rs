// SPDX-License-Identifier: GPL-2.0-only
//! Brings the scheduler into the kernel: knobs set, loaded, attached; and says in words why it could not be.

mod config;
mod ending;

use std::mem::MaybeUninit;

use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{ErrorKind, Link, OpenObject};
use tracing::{debug, warn};

use crate::bpf::{self, CohortSkel, OpenCohortSkel};
use crate::intf;
use crate::kernel_ops;
use crate::say::{self, Failure};
use crate::sbco;

use config::IRQ_TRACEPOINT;
pub use config::{Config, Place};
pub use ending::Ending;

/// The memory that libbpf-rs keeps its object in; more places for further tries.
#[derive(Default)]
pub struct Storage {
    first: Option<Box<MaybeUninit<OpenObject>>>,
    second: Option<Box<MaybeUninit<OpenObject>>>,
    third: Option<Box<MaybeUninit<OpenObject>>>,
    fourth: Option<Box<MaybeUninit<OpenObject>>>,
}

/// The scheduler, at work. Dropped, it leaves the kernel.
pub struct Running<'obj> {
    // Dropped in this order: no more boosts, then no more scheduling, then the maps.
    on_spin: Option<Link>,
    on_put: Option<Link>,
    on_irq: Option<Link>,
    /// KVM has delivered what a vCPU sends, by each of its ways.
    on_sent: Option<Vec<Link>>,
    on_fault: Option<Link>,
    on_switch: Option<Link>,
    ops: Option<Link>,
    pub skel: CohortSkel<'obj>,
}

/// Which of KVM's functions are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Watch {
    /// Pause-loop exits.
    spin: bool,
    /// How vCPUs lose their pCPUs: for a guard.
    put: bool,
    /// Interrupts between vCPUs: to find sets, or to boost who is called.
    irq: bool,
    /// Pages that are mapped: for the same.
    fault: bool,
}

impl Watch {
    const NOTHING: Watch = Watch { spin: false, put: false, irq: false, fault: false };
}

/// Load the scheduler. Without watching what the kernel does not let it watch. Each try, which `begins` is told of, may take as long as the verifier does.
pub fn load<'obj>(
    storage: &'obj mut Storage,
    config: &Config,
    place: &Place,
    begins: &mut dyn FnMut(),
) -> Result<CohortSkel<'obj>, Failure> {
    let first = storage.first.insert(Box::new(MaybeUninit::uninit()));
    let second = storage.second.insert(Box::new(MaybeUninit::uninit()));
    let third = storage.third.insert(Box::new(MaybeUninit::uninit()));
    let fourth = storage.fourth.insert(Box::new(MaybeUninit::uninit()));
    say::take_libbpf_warnings();
    let mut load = |storage: &'obj mut MaybeUninit<OpenObject>, watch: Watch| {
        begins();
        open_and_load(storage, config, place, watch)
    };
    if !place.kvm {
        return load(first, Watch::NOTHING).map_err(|e| explain(&e));
    }
    let fault = config.finds_sets() && config.traffic.is_of_faults();
    let irq = config.irqs_are_traffic() || config.axes.boosts_called();
    if irq && !place.sees_irqs {
        no_irq(config, &format!("this kernel has no tracepoint {IRQ_TRACEPOINT}"));
    }
    if let Some(why) = place.sees_no_faults.as_ref().filter(|_| fault) {
        no_fault(why);
    }
    let all = Watch {
        spin: true,
        put: config.axes.guards(),
        irq: irq && place.sees_irqs,
        fault: fault && place.sees_no_faults.is_none(),
    };
    let error = match load(first, all) {
        Ok(skel) => return Ok(skel),
        Err(error) => explain(&error),
    };
    if all.put {
        debug!("loading failed ({}); trying again without watching how vCPUs lose their CPUs", error.line);
        if let Ok(skel) = load(second, Watch { put: false, ..all }) {
            no_guard(&format!("the kernel refuses the program that watches it: {}", error.line));
            return Ok(skel);
        }
    }
    if all.irq || all.fault {
        debug!("loading failed ({}); trying again without watching what vCPUs tell each other", error.line);
        if let Ok(skel) = load(third, Watch { irq: false, fault: false, ..all }) {
            let why = format!("the kernel refuses a program that watches them: {}", error.line);
            no_traffic(config, all, &why);
            return Ok(skel);
        }
    }
    debug!("loading failed ({}); trying again without watching KVM", error.line);
    let why = format!("the kernel refuses the program that watches them: {}", error.line);
    let skel = load(fourth, Watch::NOTHING).map_err(|_| error)?;
    no_spin(&why);
    if all.put {
        no_guard("KVM cannot be watched at all");
    }
    no_traffic(config, all, "KVM cannot be watched at all");
    Ok(skel)
}

fn open_and_load<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    config: &Config,
    place: &Place,
    watch: Watch,
) -> libbpf_rs::Result<CohortSkel<'obj>> {
    let skel = open(storage, config, place, watch)?.load()?;
    if let (true, Some(knobs)) = (config.axes.order() == "sbco", skel.maps.rodata_data) {
        sbco::show(&skel.maps.sbco_alpha_now, knobs.sbco_alpha)?;
    }
    Ok(skel)
}

/// The scheduler with everything set that must be set before it is loaded.
fn open<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    config: &Config,
    place: &Place,
    watch: Watch,
) -> libbpf_rs::Result<OpenCohortSkel<'obj>> {
    let mut open = bpf::open(config.axes.gang.number, storage)?;

    if let Some(knobs) = open.maps.rodata_data.as_deref_mut() {
        knobs.nr_cpus = place.nr_cpus;
        config.axes.apply(knobs);
        knobs.irqs_are_traffic = config.irqs_are_traffic().into();
        knobs.calls_have_no_end = (!place.sees_irqs_sent).into();
        config.timing.apply(knobs);
        if let Some(alpha) = config.sbco_alpha {
            alpha.apply(knobs);
        }
    }
    if let Some(kernel) = &place.ops {
        kernel_ops::leave_out_missing(open.struct_ops.cohort_ops_mut(), kernel);
    }
    open.maps.neighbours.set_max_entries(place.nr_cpus)?;
    open.maps.vm_on_cpu.set_max_entries(intf::MAX_VMS * place.nr_cpus)?;
    open.maps.clocks.set_max_entries(intf::MAX_ENTITIES * place.nr_cpus)?;
    open.progs.cohort_on_spin.set_autoload(watch.spin);
    open.progs.cohort_vcpu_put.set_autoload(watch.put);
    open.maps.sbco_cpus.set_max_entries(place.nr_cpus)?;
    only_what_is_used(&mut open, config)?;
    open.progs.cohort_on_irq.set_autoload(watch.irq);
    let ends = watch.irq && config.axes.boosts_called() && place.sees_irqs_sent;
    open.progs.cohort_on_ipi_sent.set_autoload(ends);
    open.progs.cohort_on_pv_ipi_sent.set_autoload(ends);
    open.progs.cohort_on_fast_ipi_sent.set_autoload(ends && place.sends_irqs_fast);
    open.progs.cohort_on_fault.set_autoload(watch.fault);
    open.progs.cohort_sched_switch.set_autoload(place.sees_switches());
    if config.verbose > 1 {
        for mut prog in open.open_object_mut().progs_mut() {
            prog.set_log_level(1);
        }
    }
    Ok(open)
}

/// What only one gang has is small for the others.
fn only_what_is_used(open: &mut OpenCohortSkel<'_>, config: &Config) -> libbpf_rs::Result<()> {
    let gang = config.axes.gang();
    if !gang.starts_with("partial") {
        open.maps.set_of.set_max_entries(1)?;
        open.maps.sets.set_max_entries(1)?;
    }
    if gang != "partial-auto" {
        open.maps.traffic.set_max_entries(1)?;
    }
    if gang != "partial-auto" || !config.traffic.is_of_faults() {
        open.maps.touches.set_max_entries(1)?;
        open.maps.faults.set_max_entries(1)?;
    }
    if gang != "strict" {
        open.maps.strict_vms.set_max_entries(1)?;
        open.maps.strict_seat_of.set_max_entries(1)?;
    }
    if gang != "relaxed" {
        open.maps.relaxed_vms.set_max_entries(1)?;
        open.maps.relaxed_vcpus.set_max_entries(1)?;
    }
    Ok(())
}

/// Watch where KVM has given all of them their interrupt whom a vCPU calls.
fn attach_ends(skel: &CohortSkel<'_>) -> libbpf_rs::Result<Vec<Link>> {
    let ends = [
        &skel.progs.cohort_on_ipi_sent,
        &skel.progs.cohort_on_pv_ipi_sent,
        &skel.progs.cohort_on_fast_ipi_sent,
    ];
    ends.into_iter().filter(|end| end.autoload()).map(|end| end.attach()).collect()
}

/// Put the loaded scheduler in charge of all CPUs.
pub fn attach<'obj>(
    mut skel: CohortSkel<'obj>,
    config: &Config,
    place: &Place,
) -> Result<Running<'obj>, Failure> {
    let ops = skel.maps.cohort_ops.attach_struct_ops().map_err(|error| {
        if let Some(why) = place.isolated.as_ref().filter(|_| error.kind() == ErrorKind::InvalidInput) {
            return Failure::refused(why.clone());
        }
        let why = Ending::read(&skel).map(|e| format!(" ({e})")).unwrap_or_default();
        Failure::failed(format!("the kernel did not let the scheduler start: {error:#}{why}"))
    })?;
    let on_spin = match (place.kvm, skel.progs.cohort_on_spin.autoload()) {
        (true, true) => skel.progs.cohort_on_spin.attach().map_err(|e| no_spin(&format!("{e:#}"))).ok(),
        _ => None,
    };
    let on_put = match (place.kvm, skel.progs.cohort_vcpu_put.autoload()) {
        (true, true) => skel.progs.cohort_vcpu_put.attach().map_err(|e| no_guard(&format!("{e:#}"))).ok(),
        _ => None,
    };
    let on_sent = attach_ends(&skel).map_err(|e| warn!("{}", no_ends(&format!("{e:#}")))).ok();
    let on_irq = match skel.progs.cohort_on_irq.autoload() && (on_sent.is_some() || config.irqs_are_traffic())
    {
        true => skel.progs.cohort_on_irq.attach().map_err(|e| no_irq(config, &format!("{e:#}"))).ok(),
        false => None,
    };
    let on_fault = match skel.progs.cohort_on_fault.autoload() {
        true => skel.progs.cohort_on_fault.attach().map_err(|e| no_fault(&format!("{e:#}"))).ok(),
        false => None,
    };
    let on_switch = match place.sees_switches() {
        true => skel.progs.cohort_sched_switch.attach().map_err(|e| no_switch(&e)).ok(),
        false => None,
    };
    Ok(Running { on_spin, on_put, on_irq, on_sent, on_fault, on_switch, ops: Some(ops), skel })
}

fn no_switch(why: &libbpf_rs::Error) {
    warn!("switches cannot be watched ({why:#}): a vCPU whose pCPU a real-time task takes waits there");
}

fn no_irq(config: &Config, why: &str) {
    let lost = match (config.irqs_are_traffic(), config.axes.boosts_called()) {
        (true, true) => "no sets will be found in them, and nobody is boosted by them",
        (true, false) => "no sets will be found in them",
        _ => "nobody is boosted by them (--boost ipi has no effect)",
    };
    warn!("interrupts between vCPUs cannot be watched ({why}): {lost}");
}

/// Sets are found in interrupts all the same.
fn no_ends(why: &str) -> String {
    format!("the end of interrupts between vCPUs cannot be watched ({why}): nobody is boosted by them (--boost ipi has no effect)")
}

fn no_fault(why: &str) {
    warn!("faults on guests' pages cannot be watched ({why}): no sets will be found in them");
}

fn no_traffic(config: &Config, wanted: Watch, why: &str) {
    if wanted.irq {
        no_irq(config, why);
    }
    if wanted.fault {
        no_fault(why);
    }
}

fn no_spin(why: &str) {
    warn!("pause-loop exits cannot be watched ({why}): boosting only where KVM itself asks for a sibling (any-mode has no effect)");
}

fn no_guard(why: &str) {
    warn!("how vCPUs lose their CPUs cannot be watched ({why}): --guard spares nobody");
}

impl Running<'_> {
    /// Give the CPUs back to the kernel's own scheduler. Returns when that is done.
    pub fn detach(&mut self) {
        self.on_spin = None;
        self.on_put = None;
        self.on_irq = None;
        self.on_sent = None;
        self.on_fault = None;
        self.on_switch = None;
        self.ops = None;
    }

    /// Is it seen when a vCPU faults on its guest's page?
    pub fn sees_faults(&self) -> bool {
        self.on_fault.is_some()
    }

    /// Why the kernel put the scheduler out, if it did.
    pub fn ending(&self) -> Option<Ending> {
        Ending::read(&self.skel)
    }
}

/// One sentence for a failed load, from what libbpf printed.
fn explain(error: &libbpf_rs::Error) -> Failure {
    let log = say::take_libbpf_warnings();
    if let Some(sentence) = explain_log(&log) {
        return Failure::refused(sentence);
    }
    if error.kind() == ErrorKind::PermissionDenied && !log.contains("BEGIN PROG LOAD LOG") {
        return Failure::refused(
            "the kernel does not permit loading BPF: run as root outside containers, with kernel lockdown below `confidentiality`",
        );
    }
    let told = log.lines().find(|line| line.starts_with("libbpf: ")).unwrap_or_default();
    let told = told.trim_start_matches("libbpf: ");
    Failure::failed(format!(
        "the kernel refused the scheduler: {error:#}; {told}; run again with -v for the whole log"
    ))
}

/// Causes that are known by what libbpf prints, with their remedy.
fn explain_log(log: &str) -> Option<String> {
    let ksym = |line: &str| line.split('\'').nth(1).unwrap_or("?").to_string();
    let find = |what: &[&str]| log.lines().find(|line| what.iter().all(|w| line.contains(w)));

    if let Some(line) = find(&["func ksym", "incompatible with"]) {
        return Some(format!(
            "the kernel's BTF describes {} wrongly, as kernels built with pahole older than 1.26 do: boot a kernel built with a newer pahole",
            ksym(line)
        ));
    }
    if let Some(line) = find(&["func ksym", "not found in kernel"]) {
        return Some(format!(
            "this kernel's BTF lacks the function {}: it is too old, or was built with a broken pahole; boot one of the tested kernels ({} or newer)",
            ksym(line),
            crate::checks::OLDEST_TESTED
        ));
    }
    if find(&["struct_ops", "sched_ext_ops", "not found"]).is_some() {
        return Some(
            "this kernel's BTF has no sched_ext_ops: boot a kernel built with CONFIG_SCHED_CLASS_EXT=y"
                .to_string(),
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::config::tests::{config, place};
    use super::*;

    #[test]
    fn knobs_and_sizes_are_set_before_loading() {
        let (config, place) = (config("--policy balance --slice-us 1234"), place());
        let mut storage = MaybeUninit::uninit();
        let open = open(&mut storage, &config, &place, Watch::NOTHING).unwrap();
        let knobs = open.maps.rodata_data.as_deref().unwrap();
        assert_eq!((knobs.nr_cpus, knobs.slice_ns, knobs.boost), (24, 1_234_000, 0));
        assert_eq!(open.maps.vm_on_cpu.max_entries(), intf::MAX_VMS * 24);
        assert_eq!(open.maps.stats.max_entries() as usize, intf::STATS.len() + 1);
        assert_eq!(open.maps.neighbours.max_entries(), 24);
        assert!(!open.progs.cohort_on_spin.autoload());
        assert!(!open.progs.cohort_vcpu_put.autoload());
        assert!(open.struct_ops.cohort_ops().cgroup_init.is_null(), "this kernel has no groups");
        assert!(!open.struct_ops.cohort_ops().enqueue.is_null());
    }

    #[test]
    fn the_service_may_make_the_calls_that_attach_the_programs() {
        let (config, place) = (config("--policy balance"), place());
        let mut storage = MaybeUninit::uninit();
        let open = open(&mut storage, &config, &place, Watch::NOTHING).unwrap();
        // bpf() attaches these. For a kprobe or an event of tracefs it takes perf_event_open() as well.
        let by_bpf = ["struct_ops", "tp_btf/", "fentry/", "fexit/", "iter/"];
        for program in open.open_object().progs() {
            let section = program.section().to_str().unwrap();
            assert!(by_bpf.iter().any(|kind| section.starts_with(kind)), "{section}");
        }
        let unit = include_str!("../systemd/cohort.service");
        let calls = unit.lines().find_map(|line| line.strip_prefix("SystemCallFilter="));
        assert_eq!(calls, Some("@system-service bpf"));
    }

    #[test]
    fn the_services_see_the_file_system_read_only() {
        let units =
            [include_str!("../systemd/cohort.service"), include_str!("../systemd/cohort-metrics.service")];
        for unit in units {
            // The first leaves /proc and /sys as they are.
            for part in ["ProtectSystem=strict", "ProtectKernelTunables=yes", "ProtectControlGroups=yes"] {
                assert!(unit.lines().any(|line| line == part), "{part}");
            }
        }
    }

    #[test]
    fn sets_are_found_where_only_the_end_of_a_call_is_not_seen() {
        let told = no_ends("a reason");
        assert!(told.contains("(a reason)") && told.contains("--boost ipi"), "{told}");
        assert!(!told.contains("sets"), "{told}");
    }

    #[test]
    fn old_pahole_is_recognized() {
        let log = "libbpf: extern (func ksym) 'scx_bpf_create_dsq': func_proto [1864] incompatible with vmlinux [60765]\n\
                   libbpf: failed to load BPF skeleton 'cohort_bpf': -EINVAL\n";
        let line = explain_log(log).unwrap();
        assert!(
            line.contains("scx_bpf_create_dsq") && line.contains("pahole") && !line.contains('\n'),
            "{line}"
        );
    }

    #[test]
    fn missing_function_is_recognized() {
        let log = "libbpf: extern (func ksym) 'scx_bpf_dsq_insert': not found in kernel or module BTFs\n";
        let line = explain_log(log).unwrap();
        assert!(line.contains("scx_bpf_dsq_insert") && line.contains("too old"), "{line}");
    }

    #[test]
    fn other_failures_are_not_explained_away() {
        assert_eq!(
            explain_log("libbpf: prog 'cohort_enqueue': BPF program load failed: Invalid argument\n"),
            None
        );
    }
}
