// SPDX-License-Identifier: GPL-2.0-only
//! From a [`Scenario`] to what came of it: one call is one measurement. Same scenario, same bytes, on any thread.

use cohort_recording::event::NOBODY;
use cohort_recording::reader::PCPUS_MAX;
use cohort_sets::Sets;

use crate::class::ext::SetsTeller;
use crate::class::AnyClass;
use crate::error::SimError;
use crate::guest::Guests;
use crate::ids::VmId;
use crate::machine::Machine;
use crate::metrics::layout::{TaskLayout, VmLayout};
use crate::metrics::window::{Counters, ProgramReport, Programs};
use crate::metrics::{Figures, Fingerprint, Layout, Metrics};
use crate::recorded::tape::Tape;
use crate::scenario::{Outcome, Policy, Scenario};
use crate::sim::Simulation;
use crate::time::{Ns, MS};
use crate::trace::ftrace::Ftrace;
use crate::trace::perfetto::Perfetto;
use crate::trace::timeline::Timeline;
use crate::trace::Shared;
use crate::Host;

/// A run ends with the millisecond in which its last program did, so that its length is a round number. The programs' exact ends are in the events.
const STOP_SPAN_NS: Ns = MS;

/// What to observe. Nothing costs one branch for each event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    pub fingerprint: bool,
    pub metrics: bool,
    /// Distributions in the figures with their buckets, which are most of what figures are in JSON.
    pub buckets: bool,
    /// A Perfetto trace of at most about so many bytes; 0: none.
    pub perfetto_bytes_max: usize,
    /// `sched_switch` text of at most about so many bytes; 0: none.
    pub ftrace_bytes_max: usize,
    /// Intervals to be drawn, at most so many; 0: none.
    pub timeline_rows_max: usize,
    /// A recording, as `cohort record` would have made it.
    pub recording: bool,
}

impl Watch {
    /// Figures, no traces.
    pub fn figures() -> Self {
        Self { fingerprint: true, metrics: true, buckets: true, ..Self::default() }
    }
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub outcome: Outcome,
    /// The workloads of the VMs that have one, in order.
    pub programs: Vec<ProgramReport>,
    /// Counters of the scheduler of `bpf/`, as `cohort run --json` names them; empty under other classes.
    pub stats: Counters,
    /// Of each VM, where the scheduler is told of sets: its sets of more than one vCPU as the scheduler has them at the end.
    pub sets: Vec<Sets>,
    pub fingerprint: Option<String>,
    pub figures: Option<Figures>,
    pub perfetto: Vec<u8>,
    pub ftrace: String,
    pub timeline: Option<Timeline>,
    pub recording: Vec<u8>,
    /// Why a trace is not complete: it has reached its size.
    pub truncated: bool,
    pub tasks: Vec<TaskLayout>,
}

/// Carry out one run.
pub fn run(scenario: &Scenario, watch: Watch) -> Result<Report, SimError> {
    run_or(scenario, watch, &mut || false)
}

/// The same, but it ends with [`SimError::Interrupted`] soon after `is_interrupted`, which is asked now and then, says so.
pub fn run_or(
    scenario: &Scenario,
    watch: Watch,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<Report, SimError> {
    scenario.check()?;
    if watch.recording {
        check_slots(scenario)?;
    }
    let mut host =
        Host::new(&scenario.machine, AnyClass::new(&scenario.policy, &scenario.machine)?, scenario.seed)?;
    host.core.events_max = scenario.events_max;
    host.core.stop_span_ns = STOP_SPAN_NS;
    let guests = Guests::build(&mut host, &scenario.vms, &scenario.tasks, scenario.seed)?;
    let layout = layout(scenario, &host, &guests);
    let scheduler = if let Policy::Ext(_) = scenario.policy { "cohort" } else { "fair" };
    let observers = Observers::new(&mut host, &layout, watch, scheduler);
    let mut simulation = Simulation::new(host, guests);
    let names = scenario.vms.iter().map(|vm| vm.name.clone()).collect();
    let mut sets = SetsTeller::of(&simulation.host, names)?;
    while simulation.host.now_ns() < scenario.duration_ns && !simulation.has_stopped() {
        let due_ns = sets.as_ref().map_or(scenario.duration_ns, SetsTeller::due_ns);
        simulation.run_until_or(due_ns.min(scenario.duration_ns), is_interrupted)?;
        if let Some(sets) = sets.as_mut().filter(|sets| simulation.host.now_ns() >= sets.due_ns()) {
            sets.look(&mut simulation.host);
        }
    }
    let sets = if sets.is_some() {
        // Without it each look-up would exchange all of the scheduler's variables, twice.
        let _image = simulation.host.class.enter();
        (0..scenario.vms.len()).map(|vm| simulation.host.sets_of(VmId::from(vm))).collect()
    } else {
        Vec::new()
    };
    let mut report = Report {
        sets,
        outcome: Outcome::of(&simulation.host),
        stats: simulation.host.counters(),
        tasks: layout.tasks,
        ..Report::default()
    };
    observers.into_report(&simulation.host.core.programs, &mut report);
    Ok(report)
}

/// A recording knows vCPUs by numbers of 16 bits, and no more pCPUs than the probe.
fn check_slots(scenario: &Scenario) -> Result<(), SimError> {
    let pcpus = Machine::new(&scenario.machine)?.cpus();
    if pcpus > PCPUS_MAX as usize {
        let text = format!("machine: has {pcpus} pCPUs; allowed in a recording: at most {PCPUS_MAX}");
        return Err(SimError::Config(text));
    }
    let vcpus: u64 = scenario.vms.iter().map(|vm| u64::from(vm.vcpus)).sum();
    let max = u64::from(NOBODY);
    if vcpus > max {
        let text = format!("vms: have {vcpus} vCPUs; allowed in a recording: at most {max}");
        return Err(SimError::Config(text));
    }
    Ok(())
}

fn layout(scenario: &Scenario, host: &Host, guests: &Guests) -> Layout {
    let vm = |vm: &crate::scenario::VmConfig| VmLayout {
        name: vm.name.clone(),
        vcpus: vm.vcpus,
        weight: vm.weight,
        pinned: !vm.vcpu_cpus.is_empty() || !vm.cpus.is_empty() && vm.cpus.len() < host.core.cpus.len(),
    };
    let mut layout = Layout::of(host, scenario.vms.iter().map(vm).collect());
    for (number, task) in layout.tasks.iter_mut().enumerate() {
        let name = guests.task_name(number.into());
        if !name.is_empty() {
            task.name = name;
        }
    }
    layout
}

/// The observers of one run.
struct Observers {
    fingerprint: Option<Shared<Fingerprint>>,
    metrics: Option<Shared<Metrics>>,
    buckets: bool,
    perfetto: Option<Shared<Perfetto>>,
    ftrace: Option<Shared<Ftrace>>,
    timeline: Option<Shared<Timeline>>,
    tape: Option<Shared<Tape>>,
    scheduler: &'static str,
}

impl Observers {
    fn new(host: &mut Host, layout: &Layout, watch: Watch, scheduler: &'static str) -> Self {
        fn add<T: crate::observe::Observer + 'static>(
            host: &mut Host,
            wanted: bool,
            make: impl FnOnce() -> T,
        ) -> Option<Shared<T>> {
            wanted.then(|| {
                let observer = Shared::new(make());
                host.core.observers.add(Box::new(observer.handle()));
                observer
            })
        }
        Self {
            fingerprint: add(host, watch.fingerprint, Fingerprint::default),
            metrics: add(host, watch.metrics, || Metrics::new(layout.clone())),
            buckets: watch.buckets,
            perfetto: add(host, watch.perfetto_bytes_max > 0, || {
                Perfetto::new(layout.clone(), watch.perfetto_bytes_max)
            }),
            ftrace: add(host, watch.ftrace_bytes_max > 0, || Ftrace::new(layout, watch.ftrace_bytes_max)),
            timeline: add(host, watch.timeline_rows_max > 0, || {
                Timeline::new(layout.clone(), watch.timeline_rows_max)
            }),
            tape: add(host, watch.recording, || Tape::new(layout)),
            scheduler,
        }
    }

    fn into_report(self, programs: &Programs, report: &mut Report) {
        let now_ns = report.outcome.end_ns;
        report.programs = programs.reports(&report.stats, |vm| {
            self.metrics.as_ref().and_then(|metrics| metrics.with(|metrics| metrics.window(now_ns, vm)))
        });
        report.fingerprint = self.fingerprint.map(|print| print.with(|print| print.text()));
        report.figures = self.metrics.map(|metrics| metrics.with(|metrics| metrics.figures(now_ns)));
        if let Some(figures) = report.figures.as_mut().filter(|_| !self.buckets) {
            figures.drop_buckets();
        }
        if let Some(perfetto) = self.perfetto {
            perfetto.with(|trace| {
                report.perfetto = trace.finish(now_ns);
                report.truncated |= trace.is_truncated();
            });
        }
        if let Some(ftrace) = self.ftrace {
            ftrace.with(|trace| {
                report.ftrace = trace.finish();
                report.truncated |= trace.is_truncated();
            });
        }
        if let Some(tape) = self.tape {
            report.recording = tape.with(|tape| tape.finish(now_ns, self.scheduler));
        }
        report.timeline = self.timeline.map(|timeline| {
            timeline.with(|timeline| {
                timeline.finish(now_ns);
                report.truncated |= timeline.truncated;
                std::mem::take(timeline)
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::VmConfig;

    /// Two processes that never sleep, on one pCPU, for a day.
    const LONG: &str = r#"{
        "name": "long", "seed": 1, "duration_ns": 86400000000000, "events_max": 1000000,
        "machine": { "cores_per_socket": 1 },
        "policy": {
            "class": "round-robin", "slice_min_ns": 1000, "slice_max_ns": 2000, "shared_queue": false
        },
        "tasks": [{ "name": "a" }, { "name": "b" }]
    }"#;

    #[test]
    fn a_recording_of_more_vcpus_than_it_has_numbers_for_is_refused() {
        let mut scenario = Scenario::from_json(LONG.as_bytes()).unwrap();
        scenario.duration_ns = 1;
        scenario.vms = vec![VmConfig { name: "large".into(), vcpus: 65_536, ..VmConfig::default() }];
        let ended = run(&scenario, Watch { recording: true, ..Watch::default() });
        let said = "vms: have 65536 vCPUs; allowed in a recording: at most 65535";
        assert_eq!(ended.err(), Some(SimError::Config(said.into())));
    }

    #[test]
    fn a_recording_of_more_pcpus_than_can_be_read_is_refused() {
        let mut scenario = Scenario::from_json(LONG.as_bytes()).unwrap();
        scenario.duration_ns = 1;
        let mut recorded = |pcpus| {
            scenario.machine.cores_per_socket = pcpus;
            run(&scenario, Watch { recording: true, ..Watch::default() }).map(|report| report.recording)
        };
        assert!(cohort_recording::read(&recorded(4_096).unwrap()).is_ok());
        let said = "machine: has 4097 pCPUs; allowed in a recording: at most 4096";
        assert_eq!(recorded(4_097).err(), Some(SimError::Config(said.into())));
    }

    #[test]
    fn a_run_ends_soon_after_it_is_interrupted() {
        let scenario = Scenario::from_json(LONG.as_bytes()).unwrap();
        let mut asked = 0;
        let ended = run_or(&scenario, Watch::default(), &mut || {
            asked += 1;
            asked == 3
        });
        let Err(SimError::Interrupted(what)) = ended else { panic!("it went on") };
        assert!(what.ends_with(" ns: interrupted"), "{what}");
        assert_eq!(asked, 3);
    }
}
