// SPDX-License-Identifier: GPL-2.0-only
//! The counters for Prometheus, as OpenMetrics text over HTTP on a loopback address.
//!
//! What is served is the last sample: a scrape costs the probe nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::counters::{Counter, Counters, COUNTERS};
use super::http::{answer, Place, Places};
use super::sample::{Sample, Vm};
use crate::say::Failure;

/// Who asks and takes the answer has so long.
const PATIENCE: Duration = Duration::from_secs(2);
/// What is told of each vCPU; of VMs everything is.
const OF_VCPUS: &[&str] = &["run_ns", "ready_ns", "costop_ns", "halted_ns", "preemptions_kernel", "ple"];

/// What the serving thread says, and where.
pub struct Exporter {
    address: SocketAddr,
    page: Arc<Mutex<Arc<str>>>,
}

impl Exporter {
    pub fn listen(address: SocketAddr) -> Result<Self, Failure> {
        let failed =
            |e: io::Error| Failure::refused(format!("--listen {address}: {e}: {}", remedy(e.kind())));
        let listener = TcpListener::bind(address).map_err(failed)?;
        // Of port 0 the kernel makes one that is free.
        let address = listener.local_addr().map_err(failed)?;
        let page = Arc::new(Mutex::new(Arc::from("# EOF\n")));
        let shown = Arc::clone(&page);
        // Each on its own: who connects and says nothing keeps nobody else waiting.
        let places = Arc::new(Places::default());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // Out of file descriptors, for instance: not at full speed.
                    thread::sleep(Duration::from_millis(100));
                    continue;
                };
                let (page, place) = (Arc::clone(&shown), Place::take(&places, stream));
                // Where no thread can be had, it is not answered; nor is that told to who does not listen to the answer.
                let _ = thread::Builder::new().spawn(move || drop(answer(place.stream(), &page, PATIENCE)));
            }
        });
        Ok(Exporter { address, page })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn show(&self, sample: &Sample) {
        let text = render(sample);
        *self.page.lock().unwrap_or_else(|e| e.into_inner()) = text.into();
    }
}

/// Of an address that cannot be had.
fn remedy(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::AddrInUse => "choose another port, or end who has it",
        io::ErrorKind::PermissionDenied => "choose a port from 1024 on, or run as root",
        // As of IPv6, where it is switched off.
        _ => "choose a loopback address that this host has, such as 127.0.0.1",
    }
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `run_ns` is `run_seconds`.
fn metric(counter: &Counter) -> String {
    counter
        .name
        .strip_suffix("_ns")
        .map_or_else(|| counter.name.to_string(), |name| format!("{name}_seconds"))
}

fn value(counter: &Counter, counters: &Counters) -> String {
    let value = (counter.of)(counters);
    if counter.name.ends_with("_ns") {
        seconds(value)
    } else {
        value.to_string()
    }
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

fn signed_seconds(ns: i64) -> String {
    format!("{}{}", if ns < 0 { "-" } else { "" }, seconds(ns.unsigned_abs()))
}

/// A figure of VMs that is not one of the vCPUs' counters.
struct OfVm {
    name: &'static str,
    /// Its name in a sample.
    field: &'static str,
    kind: &'static str,
    meaning: &'static str,
    of: fn(&Vm) -> String,
}

const OF_VMS: &[OfVm] = &[
    OfVm {
        name: "vcpus",
        field: "vcpus",
        kind: "gauge",
        meaning: "vCPUs that have a thread",
        of: |vm| vm.by_vcpu().len().to_string(),
    },
    OfVm {
        name: "weight",
        field: "weight",
        kind: "gauge",
        meaning: "cpu.weight along its cgroup's path",
        of: |vm| vm.weight.to_string(),
    },
    OfVm {
        name: "throttled_seconds",
        field: "throttled_ns",
        kind: "counter",
        meaning: "kept from running by cpu.max",
        of: |vm| seconds(vm.throttled_ns),
    },
    OfVm {
        name: "stacked_seconds",
        field: "stacked_ns",
        kind: "counter",
        meaning: "of n vCPUs that ran or waited on one pCPU, n - 1",
        of: |vm| seconds(vm.stacked_ns),
    },
    OfVm {
        name: "skew_seconds",
        field: "skew_ns",
        kind: "gauge",
        meaning: "by which siblings' ready times differ",
        of: |vm| seconds(vm.skew_ns),
    },
    OfVm {
        name: "lag_seconds",
        field: "lag_ns",
        kind: "gauge",
        meaning: "its due less what it got",
        of: |vm| signed_seconds(vm.lag_ns),
    },
];

fn family(out: &mut String, name: &str, kind: &str, meaning: &str) {
    let _ = writeln!(out, "# TYPE {name} {kind}");
    if name.ends_with("_seconds") {
        let _ = writeln!(out, "# UNIT {name} seconds");
    }
    let _ = writeln!(out, "# HELP {name} {meaning}");
}

fn render(sample: &Sample) -> String {
    let mut out = String::new();
    // VMs of one process have its number in common, and its name. Of two series that are called the same one is lost.
    let mut of_process: HashMap<i32, u32> = HashMap::new();
    sample.vms.iter().for_each(|vm| *of_process.entry(vm.pid).or_default() += 1);
    let label = |vm: &Vm| {
        let id = if of_process[&vm.pid] > 1 { format!(",id=\"{}\"", vm.id) } else { String::new() };
        format!("vm=\"{}\",pid=\"{}\"{id}", escaped(&vm.name), vm.pid)
    };
    let labels: Vec<String> = sample.vms.iter().map(label).collect();
    let vms = || sample.vms.iter().zip(&labels);
    let is_known = |field: &str| !sample.missing.iter().any(|name| name == field);
    let known = || COUNTERS.iter().filter(|counter| is_known(counter.name));

    family(&mut out, "cohort_host", "info", "Who schedules this host");
    let _ = writeln!(
        out,
        "cohort_host_info{{kernel=\"{}\",scheduler=\"{}\"}} 1",
        escaped(&sample.kernel),
        escaped(&sample.scheduler)
    );
    // Who is stuck would go on serving what it has read last, as if nothing happened any more.
    let sampled = "cohort_host_sampled_timestamp_seconds";
    family(&mut out, sampled, "gauge", "When the figures were read, since 1970");
    let _ = writeln!(out, "{sampled} {:.3}", sample.time_s);
    family(&mut out, "cohort_host_pcpus", "gauge", "pCPUs that are online");
    let _ = writeln!(out, "cohort_host_pcpus {}", sample.pcpus);
    family(&mut out, "cohort_host_idle_seconds", "counter", "Time that pCPUs were idle, all together");
    let _ = writeln!(out, "cohort_host_idle_seconds_total {}", seconds(sample.idle_ns));
    family(&mut out, "cohort_host_switches", "counter", "Switches of all threads");
    let _ = writeln!(out, "cohort_host_switches_total {}", sample.switches);

    for counter in known() {
        let name = format!("cohort_vm_{}", metric(counter));
        family(&mut out, &name, "counter", &format!("All vCPUs of the VM: {}", counter.meaning));
        for (vm, labels) in vms() {
            let _ = writeln!(out, "{name}_total{{{labels}}} {}", value(counter, &vm.total));
        }
    }
    for figure in OF_VMS.iter().filter(|figure| is_known(figure.field)) {
        let name = format!("cohort_vm_{}", figure.name);
        family(&mut out, &name, figure.kind, figure.meaning);
        let suffix = if figure.kind == "counter" { "_total" } else { "" };
        let is_known = |vm: &Vm| !vm.missing.iter().any(|missing| missing == figure.field);
        for (vm, labels) in vms().filter(|(vm, _)| is_known(vm)) {
            let _ = writeln!(out, "{name}{suffix}{{{labels}}} {}", (figure.of)(vm));
        }
    }
    let vcpus: Vec<BTreeMap<u32, Counters>> = sample.vms.iter().map(Vm::by_vcpu).collect();
    for counter in known().filter(|counter| OF_VCPUS.contains(&counter.name)) {
        let name = format!("cohort_vcpu_{}", metric(counter));
        family(&mut out, &name, "counter", counter.meaning);
        for (vcpus, labels) in vcpus.iter().zip(&labels) {
            for (vcpu, counters) in vcpus {
                let _ =
                    writeln!(out, "{name}_total{{{labels},vcpu=\"{vcpu}\"}} {}", value(counter, counters));
            }
        }
    }
    out + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::top::cgroup::{OF_QUOTAS, OF_WEIGHTS};
    use crate::top::http::PLACES;
    use crate::top::rates::tests::vm;
    use std::collections::HashSet;

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_scrape_gets_the_last_sample() {
        let exporter = Exporter::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = exporter.address();
        assert_ne!(address.port(), 0, "where it can be asked");
        assert!(ask(address, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n# EOF\n"));
        exporter.show(&Sample {
            time_s: 7.25,
            vms: vec![vm("a\"b", 7, [(1_500_000_000, 0), (0, 0)])],
            ..Sample::default()
        });
        let page = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("openmetrics-text"), "{page}");
        assert!(
            page.contains("\ncohort_vm_run_seconds_total{vm=\"a\\\"b\",pid=\"7\"} 1.500000000\n"),
            "{page}"
        );
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").contains("404"));
        assert!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").contains("405"));
        assert!(page.contains("\ncohort_host_sampled_timestamp_seconds 7.250\n"), "{page}");
        let taken = Exporter::listen(address).err().unwrap();
        assert!(taken.status == 2 && taken.line.ends_with("or end who has it"), "{taken:?}");
        assert!(remedy(io::ErrorKind::AddrNotAvailable).contains("127.0.0.1"), "no port of it is free");
    }

    #[test]
    fn who_asks_nothing_keeps_nobody_waiting() {
        let exporter = Exporter::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let idle: Vec<_> = (0..PLACES).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
        let begin = std::time::Instant::now();
        assert!(ask(exporter.address(), "GET /metrics HTTP/1.1\r\n\r\n").ends_with("# EOF\n"));
        // One after the other they would take that as often as there are of them; and they have all places.
        assert!(begin.elapsed() < 4 * PATIENCE, "{:?}", begin.elapsed());
        drop(idle);
    }

    #[test]
    fn the_text_is_openmetrics() {
        let sample = Sample {
            missing: vec!["ple".into()],
            vms: vec![vm("a", 1, [(1, 2), (3, 4)]), vm("b", 2, [(1, 2), (3, 4)])],
            ..Sample::default()
        };
        let text = render(&sample);
        assert!(text.ends_with("# EOF\n") && !text.contains("_ple_total") && !text.contains("\n\n"));
        let mut families = HashSet::new();
        let mut family = String::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                family = rest.split(' ').next().unwrap().to_string();
                assert!(families.insert(family.clone()), "twice: {family}");
            } else if !line.starts_with("# ") {
                let (name, value) =
                    (line.split(['{', ' ']).next().unwrap(), line.rsplit(' ').next().unwrap());
                assert!(name.starts_with(&family), "{line} is not of {family}");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert_eq!(signed_seconds(-1_500_000_000), "-1.500000000");
    }

    #[test]
    fn what_is_not_known_is_not_served_as_a_zero() {
        let mut sample = Sample { vms: vec![vm("a", 1, [(1, 2), (3, 4)])], ..Sample::default() };
        let served = |sample: &Sample| {
            let text = render(sample);
            ["weight", "throttled", "lag"].map(|name| text.contains(&format!("cohort_vm_{name}")))
        };
        assert_eq!(served(&sample), [true; 3]);
        sample.missing = OF_WEIGHTS.iter().map(ToString::to_string).collect();
        assert_eq!(served(&sample), [false, true, false]);
        sample.missing = OF_QUOTAS.iter().map(ToString::to_string).collect();
        assert_eq!(served(&sample), [true, false, true]);
    }

    #[test]
    fn what_is_not_known_of_one_vm_is_served_of_the_others() {
        let pinned = Vm { missing: vec!["lag_ns".into()], ..vm("pinned", 1, [(1, 2), (3, 4)]) };
        let text =
            render(&Sample { vms: vec![pinned, vm("other", 2, [(1, 2), (3, 4)])], ..Sample::default() });
        let lags: Vec<&str> = text.lines().filter(|line| line.starts_with("cohort_vm_lag")).collect();
        assert_eq!(lags, ["cohort_vm_lag_seconds{vm=\"other\",pid=\"2\"} 0.000000000"]);
        assert!(text.contains("cohort_vm_skew_seconds{vm=\"pinned\""));
    }

    #[test]
    fn vms_of_one_process_have_series_of_their_own() {
        let vms = [7, 8].into_iter().map(|id| Vm { pid: 1, ..vm("a", id, [(1, 2), (3, 4)]) });
        let text = render(&Sample { vms: vms.collect(), ..Sample::default() });
        let lines = || text.lines().filter(|line| !line.starts_with('#'));
        let series: HashSet<&str> =
            lines().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name).collect();
        assert_eq!(series.len(), lines().count());
        assert!(text.contains("{vm=\"a\",pid=\"1\",id=\"8\",vcpu=\"1\"}"), "{text}");
    }

    #[test]
    fn a_vcpu_that_has_several_threads_is_one_series() {
        let mut turns = vm("a", 1, [(1_000_000_000, 2), (500_000_000, 3)]);
        turns.vcpus[1].vcpu = 0;
        let text = render(&Sample { vms: vec![turns.clone()], ..Sample::default() });
        let of_vcpus = |name: &str| text.lines().filter(|line| line.starts_with(name)).collect::<Vec<_>>();
        assert_eq!(
            of_vcpus("cohort_vcpu_run_seconds_total"),
            ["cohort_vcpu_run_seconds_total{vm=\"a\",pid=\"1\",vcpu=\"0\"} 1.500000000"]
        );
        assert!(of_vcpus("cohort_vcpu_ready_seconds_total")[0].ends_with(" 0.000000005"), "{text}");
        assert_eq!(of_vcpus("cohort_vm_vcpus"), ["cohort_vm_vcpus{vm=\"a\",pid=\"1\"} 1"]);
        // The first one ends: a counter that went back would be taken for one that was reset, and all of it for new.
        turns.gone.insert(0, turns.vcpus.remove(0).counters);
        assert_eq!(render(&Sample { vms: vec![turns], ..Sample::default() }), text);
    }

    #[test]
    fn dashboard_and_alerts_ask_for_what_there_is() {
        let text = render(&Sample { vms: vec![vm("a", 1, [(1, 2), (3, 4)])], ..Sample::default() });
        for file in [include_str!("../../grafana/dashboard.json"), include_str!("../../grafana/alerts.yml")] {
            let names = file.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let names: HashSet<&str> = names.filter(|name| name.starts_with("cohort_")).collect();
            assert!(names.len() > 3);
            for name in names {
                assert!(
                    text.contains(&format!("\n{name}{{")) || text.contains(&format!("\n{name} ")),
                    "{name}"
                );
            }
        }
        // A host without a VM can be chosen as well: the panel of the host is for it, too.
        let dashboard = include_str!("../../grafana/dashboard.json");
        assert!(dashboard.contains("\"label_values(cohort_host_pcpus, instance)\""));
        serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    }
}
