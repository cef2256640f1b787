// SPDX-License-Identifier: GPL-2.0-only
//! Requests and answers, one JSON object per line.
//!
//! `{"id": 7, "op": {"exec": {"sh": "uname -r"}}, "sample": ["/proc/stat"]}` is answered by
//! `{"id": 7, "ok": {…}, "sample": {"before": {…}, "after": {…}}}` or `{"id": 7, "error": "…"}`.
//! Every request may name files in `sample`: they are read right before and right after the operation, the first of them nearest to it. Of a Unix socket
//! it is what somebody answers there who is connected to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    pub id: u64,
    pub op: Op,
    #[serde(default)]
    pub sample: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Answers the agent's time.
    Ping {},
    /// Runs a command to its end.
    Exec {
        #[serde(flatten)]
        command: CommandLine,
        timeout_s: Option<f64>,
    },
    /// Starts a named command that goes on running; its output is kept in files.
    Spawn {
        name: String,
        #[serde(flatten)]
        command: CommandLine,
    },
    /// Sends a signal to a spawned command's whole process group, or only to the command itself.
    Signal {
        name: String,
        signal: i32,
        #[serde(default)]
        leader_only: bool,
    },
    /// Waits for a spawned command's end, at most `timeout_s`.
    Wait {
        name: String,
        timeout_s: f64,
    },
    /// Reads a spawned command's output from `offset`.
    Output {
        name: String,
        stream: Stream,
        #[serde(default)]
        offset: u64,
    },
    ReadFile {
        path: String,
    },
    WriteFile {
        path: String,
        text: String,
    },
    /// Has the shell run `sh` once nobody is left who could ask, on a host without a level in between; takes it back without `sh`.
    AtEnd {
        name: String,
        sh: Option<String>,
    },
    /// Passes an operation on to the agent behind a Unix socket (a guest's port) and answers its answer.
    Forward {
        socket: String,
        op: Value,
        #[serde(default)]
        sample: Vec<String>,
    },
}

/// What to run: `argv` as it is, or `sh` by the shell.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandLine {
    Argv(Vec<String>),
    Sh(String),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Serialize)]
pub struct Answer {
    pub id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ok: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<SamplePair>,
}

#[derive(Serialize)]
pub struct SamplePair {
    pub before: Sample,
    pub after: Sample,
}

/// Files' contents at one time of CLOCK_MONOTONIC; `None` for those that could not be read.
#[derive(Serialize)]
pub struct Sample {
    pub time_ns: u64,
    pub files: BTreeMap<String, Option<String>>,
}
