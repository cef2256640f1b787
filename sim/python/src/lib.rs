// SPDX-License-Identifier: GPL-2.0-only
//! The simulator as a Python extension module: text in, text and bytes out. What it means to people is in `cohortlab.sim`.

mod recorded;

use std::collections::BTreeMap;
use std::panic::{catch_unwind, AssertUnwindSafe};

use cohort_sim::run::{Report, Watch};
use cohort_sim::scenario::Scenario;
use cohort_sim::trace::timeline::Timeline;
use cohort_sim::SimError;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::json;

create_exception!(cohort_sim, ConfigError, PyValueError, "The description of the run is wrong.");
create_exception!(cohort_sim, RunError, PyRuntimeError, "The run could not be carried to its end.");
create_exception!(
    cohort_sim,
    LimitError,
    RunError,
    "The run would not end by itself. `vm`: whose workload does nothing for ever; None: of too many events."
);

/// What came of a run, or of a recording. Made of text and bytes alone, so that it can be pickled: workers on other machines send it.
#[pyclass(frozen, module = "cohort_sim")]
#[derive(Default)]
pub struct Run {
    pub json: String,
    pub perfetto: Vec<u8>,
    pub ftrace: String,
    pub recording: Vec<u8>,
    /// By name; see `timeline`.
    pub columns: Columns,
}

pub type Columns = BTreeMap<String, Vec<u8>>;

/// All of a [`Run`].
type Parts<'py> =
    (String, Bound<'py, PyBytes>, String, Bound<'py, PyBytes>, BTreeMap<String, Bound<'py, PyBytes>>);

#[pymethods]
impl Run {
    /// For pickle alone.
    #[new]
    fn new(json: String, perfetto: Vec<u8>, ftrace: String, recording: Vec<u8>, columns: Columns) -> Self {
        Self { json, perfetto, ftrace, recording, columns }
    }

    fn __getnewargs__<'py>(&self, py: Python<'py>) -> Parts<'py> {
        let columns = self.columns.iter().map(|(name, column)| (name.clone(), PyBytes::new(py, column)));
        (
            self.json.clone(),
            PyBytes::new(py, &self.perfetto),
            self.ftrace.clone(),
            PyBytes::new(py, &self.recording),
            columns.collect(),
        )
    }

    /// Figures, as a JSON text.
    #[getter]
    fn json(&self) -> &str {
        &self.json
    }

    /// The Perfetto trace; empty if none was asked for.
    #[getter]
    fn perfetto<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.perfetto)
    }

    /// The sched_switch text; empty if none was asked for.
    #[getter]
    fn ftrace(&self) -> &str {
        &self.ftrace
    }

    /// What `cohort record` would have written; empty if it was not asked for.
    #[getter]
    fn recording<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.recording)
    }

    /// The timeline's columns, little-endian: kind (u8), lane and who (u32), start_ns and end_ns (u64). Empty if none was asked for.
    fn timeline<'py>(&self, py: Python<'py>) -> BTreeMap<&str, Bound<'py, PyBytes>> {
        self.columns.iter().map(|(name, column)| (name.as_str(), PyBytes::new(py, column))).collect()
    }
}

/// A timeline as Python gets it.
pub fn columns(timeline: Option<Timeline>) -> Columns {
    let Some(timeline) = timeline else { return Columns::new() };
    let words = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let longs = |values: &[u64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let all = [
        ("lane", words(&timeline.lane)),
        ("who", words(&timeline.who)),
        ("start_ns", longs(&timeline.start_ns)),
        ("end_ns", longs(&timeline.end_ns)),
        ("kind", timeline.kind),
    ];
    all.map(|(name, column)| (name.to_owned(), column)).into()
}

/// Carry out one run of the scenario in this JSON text. Other Python threads go on meanwhile.
///
/// `figures=False`: no fingerprint either; `buckets=False`: distributions without their buckets, which are most of the JSON text.
///
/// Raises ConfigError and RunError, each with one line; LimitError, a RunError, if it would not end by itself. In the main thread a signal's handler may end
/// it, as that of Ctrl-C does, with its own exception.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // named ones of a Python function
#[pyo3(signature = (scenario, *, figures=true, buckets=true, perfetto_bytes_max=0, ftrace_bytes_max=0, timeline_rows_max=0, recording=false))]
fn run(
    py: Python<'_>,
    scenario: &str,
    figures: bool,
    buckets: bool,
    perfetto_bytes_max: usize,
    ftrace_bytes_max: usize,
    timeline_rows_max: usize,
    recording: bool,
) -> PyResult<Run> {
    let watch = Watch {
        fingerprint: figures,
        metrics: figures,
        buckets,
        perfetto_bytes_max,
        ftrace_bytes_max,
        timeline_rows_max,
        recording,
    };
    let scenario =
        Scenario::from_json(scenario.as_bytes()).map_err(|error| ConfigError::new_err(error.to_string()))?;
    let mut interruption = None;
    let mut is_interrupted = || {
        // Handlers run in the main thread alone; in others nothing comes of this.
        interruption = Python::try_attach(|py| py.check_signals().err()).flatten();
        interruption.is_some()
    };
    // A simulation shares nothing with others, so a panic leaves nothing half done that anybody could see.
    let result =
        py.detach(|| catch_unwind(AssertUnwindSafe(|| simulated(&scenario, watch, &mut is_interrupted))));
    if let Some(interruption) = interruption {
        return Err(interruption);
    }
    match result {
        Ok(Ok(run)) => run.map_err(|error| RunError::new_err(error.to_string())),
        Ok(Err(error)) => Err(raised(py, &error)),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason is known");
            Err(RunError::new_err(format!("internal error of the simulator: {text}")))
        }
    }
}

/// Carry it out, and put what came of it into the form that Python gets.
fn simulated(
    scenario: &Scenario,
    watch: Watch,
    is_interrupted: &mut dyn FnMut() -> bool,
) -> Result<serde_json::Result<Run>, SimError> {
    let report = cohort_sim::run::run_or(scenario, watch, is_interrupted)?;
    Ok(describe(&report).map(|json| {
        let Report { perfetto, ftrace, recording, timeline, .. } = report;
        Run { json, perfetto, ftrace, recording, columns: columns(timeline) }
    }))
}

/// What an error of a run is in Python.
fn raised(py: Python<'_>, error: &SimError) -> PyErr {
    let text = error.to_string();
    let vm = match error {
        SimError::Config(_) => return ConfigError::new_err(text),
        SimError::Refused { .. } | SimError::Hang(_) | SimError::Interrupted(_) => {
            return RunError::new_err(text);
        }
        SimError::Limit(_) => None,
        SimError::Endless { vm, .. } => Some(vm.as_str()),
    };
    let error = LimitError::new_err(text);
    let named = error.value(py).setattr("vm", vm);
    match named {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

fn describe(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string(&json!({
        "outcome": report.outcome,
        "programs": report.programs,
        "stats": report.stats,
        "fingerprint": report.fingerprint,
        "figures": report.figures,
        "truncated": report.truncated,
        "tasks": report.tasks,
    }))
}

/// A program's TOML text as the JSON that `run` reads. `file` is named in errors: ConfigError, with one line.
#[pyfunction]
fn model(file: &str, text: &str) -> PyResult<String> {
    as_json(cohort_sim::workload::parse(file, text))
}

/// ... of rt-app's JSON.
#[pyfunction]
fn rt_app(file: &str, text: &str) -> PyResult<String> {
    as_json(cohort_sim::workload::rt_app::from_rt_app(file, text))
}

fn as_json(program: Result<cohort_sim::workload::Program, SimError>) -> PyResult<String> {
    let program = program.map_err(|error| ConfigError::new_err(error.to_string()))?;
    serde_json::to_string(&program).map_err(|error| ConfigError::new_err(error.to_string()))
}

/// The text of the model of this name, as it was compiled in; None: there is none.
#[pyfunction]
fn model_text(name: &str) -> Option<&'static str> {
    cohort_sim::workload::model_text(name)
}

/// The files that the scheduler was compiled from, with their SHA-256: compare with `cohort sources`.
#[pyfunction]
fn sources() -> Vec<(&'static str, &'static str)> {
    cohort_sim::SOURCES.to_vec()
}

/// The tables of bpf/policies.h: for each its rows, as they are on the command line of `cohort run`; the last column says what it is.
#[pyfunction]
fn policies() -> BTreeMap<&'static str, Vec<Vec<&'static str>>> {
    use cohort_sim::policies::{GANGS, GUARDS, ORDERS, PRESETS, SPINS, UNCAUGHT};

    let mut tables: BTreeMap<_, Vec<Vec<_>>> =
        [("order", ORDERS), ("gang", GANGS), ("spin", SPINS), ("guard", GUARDS)]
            .map(|(name, table)| (name, table.iter().map(|row| row.to_vec()).collect()))
            .into();
    tables.insert("uncaught", UNCAUGHT.iter().map(|row| row.to_vec()).collect());
    tables.insert("preset", PRESETS.iter().map(|row| row.to_vec()).collect());
    tables
}

/// What of a policy does not go together, as one line with the reason; None: all does. `axes`: each with its value; `given`: the flags that the command
/// line has. All without dashes.
#[pyfunction]
fn refusal(axes: BTreeMap<String, String>, given: Vec<String>) -> Option<String> {
    let axes: Vec<_> = axes.iter().map(|(axis, value)| (axis.as_str(), value.as_str())).collect();
    let given: Vec<_> = given.iter().map(String::as_str).collect();
    cohort_sim::together::Chosen { axes: &axes, given: &given }.refusal()
}

/// What is wrong with a file of `cohort run --sets`, as one line; None: nothing.
#[pyfunction]
fn wrong_with_sets(text: &str) -> Option<String> {
    cohort_sim::class::ext::wrong_with(text)
}

#[pymodule]
#[pyo3(name = "cohort_sim")]
fn python_module(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Run>()?;
    m.add_class::<recorded::Recording>()?;
    m.add_function(wrap_pyfunction!(recorded::recording, m)?)?;
    m.add_function(wrap_pyfunction!(recorded::trace_cmd_report, m)?)?;
    m.add_function(wrap_pyfunction!(run, m)?)?;
    m.add_function(wrap_pyfunction!(model, m)?)?;
    m.add_function(wrap_pyfunction!(rt_app, m)?)?;
    m.add_function(wrap_pyfunction!(model_text, m)?)?;
    m.add_function(wrap_pyfunction!(sources, m)?)?;
    m.add_function(wrap_pyfunction!(policies, m)?)?;
    m.add_function(wrap_pyfunction!(refusal, m)?)?;
    m.add_function(wrap_pyfunction!(wrong_with_sets, m)?)?;
    m.add("ConfigError", m.py().get_type::<ConfigError>())?;
    m.add("RunError", m.py().get_type::<RunError>())?;
    m.add("LimitError", m.py().get_type::<LimitError>())?;
    // The sources that it was built of, bpf/ aside: build.rs.
    m.add("DECIDES", env!("COHORT_SIM_DECIDES"))?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
