// SPDX-License-Identifier: GPL-2.0-only
//! What `cohort record` has written, for Python.

use std::collections::BTreeMap;

use cohort_recording::{read, tracecmd, Recording as File};
use cohort_sim::recorded::{import, replay, Who};
use cohort_sim::workload::Program;
use cohort_sim::SimError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde_json::json;

use crate::{columns, ConfigError, Run};

/// A recording.
#[pyclass(frozen)]
pub struct Recording {
    file: File,
    who: Who,
}

/// A replay in JSON, its programs as files have them.
fn described(replay: &replay::Replay, name: &str) -> Result<serde_json::Value, toml::ser::Error> {
    let named = |program: &Program| Program { name: name.to_owned(), ..program.clone() };
    Ok(json!({
        "vm": replay.vm,
        "seen": replay.seen,
        "steps": replay.program.threads.iter().map(|thread| thread.steps.len()).sum::<usize>(),
        "program": toml::to_string(&named(&replay.program))?,
        "load": toml::to_string(&named(&replay.load))?,
    }))
}

fn refused(error: &SimError) -> PyErr {
    ConfigError::new_err(error.to_string())
}

fn opened(file: Result<File, String>) -> PyResult<Recording> {
    let file = file.map_err(ConfigError::new_err)?;
    let who = Who::of(&file).map_err(|error| refused(&error))?;
    Ok(Recording { file, who })
}

/// Read a recording's bytes. Raises ConfigError with one line.
#[pyfunction]
pub fn recording(py: Python<'_>, bytes: &[u8]) -> PyResult<Recording> {
    py.detach(|| opened(read(bytes)))
}

/// The same from what `trace-cmd report` prints.
#[pyfunction]
pub fn trace_cmd_report(py: Python<'_>, text: &str) -> PyResult<Recording> {
    py.detach(|| opened(tracecmd::read(text)))
}

#[pymethods]
impl Recording {
    /// Header, end, how long it lasts, how often each kind of event is in it: a JSON text.
    #[getter]
    fn json(&self) -> String {
        let counts: BTreeMap<&str, u64> =
            self.file.counts().into_iter().map(|(kind, count)| (kind.name(), count)).collect();
        let names: Vec<&str> = self.who.layout.vms.iter().map(|vm| vm.name.as_str()).collect();
        let vcpus: Vec<u32> = self.who.layout.vms.iter().map(|vm| vm.vcpus).collect();
        let mut by_vm = vec![BTreeMap::<&str, u64>::new(); names.len()];
        for event in &self.file.events {
            if let Some(vcpu) = self.who.vcpu(event.vcpu, event.time_ns) {
                *by_vm[vcpu.vm.index()].entry(event.kind.name()).or_default() += 1;
            }
        }
        json!({
            "counts_by_vm": by_vm,
            "header": self.file.header,
            "end": self.file.end,
            "start_ns": self.who.start_ns,
            "length_ns": self.who.length_ns,
            "events": self.file.events.len(),
            "counts": counts,
            "names": names,
            "vcpus": vcpus,
        })
        .to_string()
    }

    /// Figures, in the form of a simulated run's, and traces.
    fn import_all(
        &self,
        py: Python<'_>,
        perfetto_bytes_max: usize,
        timeline_rows_max: usize,
    ) -> PyResult<Run> {
        let imported = py
            .detach(|| import(&self.file, perfetto_bytes_max, timeline_rows_max))
            .map_err(|error| refused(&error))?;
        let json = json!({
            "figures": imported.figures,
            "truncated": imported.truncated,
            "unknown": imported.unknown,
            "outcome": { "end_ns": imported.length_ns },
            "tasks": self.who.layout.tasks,
            "programs": [],
        })
        .to_string();
        let (perfetto, columns) = (imported.perfetto, columns(imported.timeline));
        Ok(Run { json, perfetto, columns, ..Run::default() })
    }

    /// What each VM did between two times since the begin, as programs (once, and for ever) in TOML, with these names: a JSON text.
    fn replays(&self, py: Python<'_>, from_ns: u64, to_ns: u64, names: Vec<String>) -> PyResult<String> {
        let replays = py.detach(|| replay::replays(&self.file, &self.who, from_ns, to_ns.max(from_ns)));
        let named = replays.iter().zip(&names);
        let all: Result<Vec<_>, _> = named.map(|(replay, name)| described(replay, name)).collect();
        let all = all.map_err(|error| ConfigError::new_err(error.to_string()))?;
        Ok(serde_json::Value::from(all).to_string())
    }

    /// All events in columns, little-endian: time_ns (u64, since the begin), cpu, slot, b (u16), kind, a (u8); vm and vcpu (u32), 2^32-1 where nobody
    /// knows whose they are.
    fn events<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let events = &self.file.events;
        let column = |bytes: &mut dyn FnMut(&cohort_recording::Event, &mut Vec<u8>)| {
            let mut all = Vec::new();
            events.iter().for_each(|event| bytes(event, &mut all));
            PyBytes::new(py, &all)
        };
        let owner = |event: &cohort_recording::Event| self.who.vcpu(event.vcpu, event.time_ns);
        let columns = PyDict::new(py);
        columns.set_item(
            "time_ns",
            column(&mut |e, to| to.extend(self.who.since_start_ns(e.time_ns).to_le_bytes())),
        )?;
        columns.set_item("cpu", column(&mut |e, to| to.extend(e.cpu.to_le_bytes())))?;
        columns.set_item("slot", column(&mut |e, to| to.extend(e.vcpu.to_le_bytes())))?;
        columns.set_item("b", column(&mut |e, to| to.extend(e.b.to_le_bytes())))?;
        columns.set_item("kind", column(&mut |e, to| to.push(e.kind as u8)))?;
        columns.set_item("a", column(&mut |e, to| to.push(e.a)))?;
        let vm = |e: &_| owner(e).map_or(u32::MAX, |vcpu| vcpu.vm.0);
        columns.set_item("vm", column(&mut |e, to| to.extend(vm(e).to_le_bytes())))?;
        let vcpu = |e: &_| owner(e).map_or(u32::MAX, |vcpu| vcpu.id);
        columns.set_item("vcpu", column(&mut |e, to| to.extend(vcpu(e).to_le_bytes())))?;
        Ok(columns)
    }
}
