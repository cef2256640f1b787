// SPDX-License-Identifier: GPL-2.0-only
//! Reads requests from the port, answers each from a thread of its own. The port is QEMU's in a machine of the lab; on a host without a level in
//! between it is the socket that is standard input, and whoever holds its other end may go away at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, Result};
use serde_json::{json, Value};

use crate::exec::{self, now_ns, Running};
use crate::jobs::Jobs;
use crate::protocol::{Answer, CommandLine, Op, Request, Sample, SamplePair};
use crate::relay::Relay;

/// The name QEMU gives the port on its command line.
const PORT_NAME: &str = "cohort.agent";
/// Beside the payload that the init put there.
const JOBS_DIR: &str = "/run/cohort-lab/jobs";
const PORT_WAIT: Duration = Duration::from_millis(50);
const PORT_TRIES: u32 = 400;
/// Who answers at a socket that is sampled has so long.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// How long one thing that must be done at the end may take.
const AT_END_MAX_S: f64 = 60.0;

struct Server {
    port: Mutex<File>,
    jobs: Jobs,
    running: Running,
    relay: Relay,
    /// What to do when the other end is gone, by name, in the order in which it was asked for.
    at_end: Mutex<Vec<(String, String)>>,
}

pub fn run() -> Result<()> {
    let path = find_port()?;
    let port = OpenOptions::new().read(true).write(true).open(path)?;
    // On the console: who waits for this machine sees how far it got.
    eprintln!("cohort-lab-agent: waits for requests");
    let server = Server::at(port.try_clone()?, JOBS_DIR.into());
    // Nobody is connected at the other end. A request they had half sent will never be completed.
    serve(&server, port, |buffer| {
        buffer.clear();
        std::thread::sleep(PORT_WAIT);
        true
    })
}

/// On this very host, until the other end of the socket is gone, however that came about: then everything that was started is killed, and what was
/// to be done at the end is done.
pub fn here(folder: &Path) -> Result<()> {
    // Among what was handed down is what holds this host for one comparison: that is for the agent, not for what it starts.
    // SAFETY: marks descriptors, closes none; without such a call (before Linux 5.11) they stay as they are.
    unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
    let port = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let server = Server::at(port.try_clone()?, folder.join("jobs"));
    let outcome = serve(&server, port, |_| false);
    server.jobs.kill_all();
    server.running.kill_all();
    let at_end = std::mem::take(&mut *server.at_end.lock().unwrap_or_else(PoisonError::into_inner));
    for (name, command) in at_end.into_iter().rev() {
        if let Err(error) = exec::run(&CommandLine::Sh(command), Some(AT_END_MAX_S)) {
            eprintln!("cohort-lab-agent: {name}: {error:#}");
        }
    }
    outcome
}

/// Answer requests; `at_end_of_file` says whether to go on when nobody is at the other end.
fn serve(
    server: &Arc<Server>,
    mut reader: File,
    at_end_of_file: impl Fn(&mut Vec<u8>) -> bool,
) -> Result<()> {
    let mut buffer = Vec::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let length = reader.read(&mut chunk)?;
        if length == 0 {
            if at_end_of_file(&mut buffer) {
                continue;
            }
            return Ok(());
        }
        buffer.extend_from_slice(&chunk[..length]);
        while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let for_thread = Arc::clone(server);
            let started = std::thread::Builder::new().spawn(move || for_thread.handle(&line));
            if let Err(error) = started {
                server.send(&failure(0, format!("cannot start a thread: {error}")));
            }
        }
    }
}

fn find_port() -> Result<PathBuf> {
    for _ in 0..PORT_TRIES {
        for entry in fs::read_dir("/sys/class/virtio-ports").into_iter().flatten().flatten() {
            let name = fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            if name.trim_end() == PORT_NAME {
                return Ok(PathBuf::from("/dev").join(entry.file_name()));
            }
        }
        std::thread::sleep(PORT_WAIT);
    }
    bail!("no virtio port is called {PORT_NAME}")
}

fn failure(id: u64, error: String) -> Answer {
    Answer { id, ok: None, error: Some(error), sample: None }
}

impl Server {
    fn at(port: File, jobs: PathBuf) -> Arc<Self> {
        let (jobs, running) = (Jobs::in_dir(jobs), Running::default());
        let (relay, at_end) = (Relay::default(), Mutex::default());
        Arc::new(Server { port: Mutex::new(port), jobs, running, relay, at_end })
    }

    fn handle(&self, line: &[u8]) {
        self.send(&self.answer_line(line));
    }

    fn answer_line(&self, line: &[u8]) -> Answer {
        match serde_json::from_slice::<Request>(line) {
            Ok(request) => self.answer(&request),
            Err(error) => failure(id_of(line), format!("bad request: {error}")),
        }
    }

    fn answer(&self, request: &Request) -> Answer {
        if request.sample.is_empty() {
            return outcome(request.id, self.perform(&request.op), None);
        }
        let before = sample(&request.sample, Order::TimeLast);
        let result = self.perform(&request.op);
        let after = sample(&request.sample, Order::TimeFirst);
        outcome(request.id, result, Some(SamplePair { before, after }))
    }

    fn perform(&self, op: &Op) -> Result<Value> {
        match op {
            Op::Ping {} => Ok(json!({ "time_ns": now_ns() })),
            Op::Exec { command, timeout_s } => self.running.run(command, *timeout_s),
            Op::Spawn { name, command } => self.jobs.spawn(name, command),
            Op::Signal { name, signal, leader_only } => self.jobs.signal(name, *signal, *leader_only),
            Op::Wait { name, timeout_s } => self.jobs.wait(name, *timeout_s),
            Op::Output { name, stream, offset } => self.jobs.output(name, *stream, *offset),
            Op::ReadFile { path } => Ok(json!({ "text": String::from_utf8_lossy(&fs::read(path)?) })),
            Op::WriteFile { path, text } => {
                fs::write(path, text)?;
                Ok(json!({}))
            }
            Op::Forward { socket, op, sample } => self.relay.forward(socket, op, sample),
            Op::AtEnd { name, sh } => {
                let mut at_end = self.at_end.lock().unwrap_or_else(PoisonError::into_inner);
                at_end.retain(|(known, _)| known != name);
                at_end.extend(sh.as_ref().map(|sh| (name.clone(), sh.clone())));
                Ok(json!({}))
            }
        }
    }

    fn send(&self, answer: &Answer) {
        let mut line = match serde_json::to_vec(answer) {
            Ok(line) => line,
            Err(error) => format!("{{\"id\":{},\"error\":\"{error}\"}}", answer.id).into_bytes(),
        };
        line.push(b'\n');
        let mut port = self.port.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = port.write_all(&line) {
            eprintln!("cohort-lab-agent: cannot answer: {error}");
        }
    }
}

fn outcome(id: u64, result: Result<Value>, sample: Option<SamplePair>) -> Answer {
    match result {
        Ok(value) => Answer { id, ok: Some(value), error: None, sample },
        Err(error) => Answer { id, ok: None, error: Some(format!("{error:#}")), sample },
    }
}

/// The id of a request that is otherwise wrong, so that its sender still gets the answer.
fn id_of(line: &[u8]) -> u64 {
    serde_json::from_slice::<Value>(line).ok().and_then(|value| value.get("id")?.as_u64()).unwrap_or(0)
}

/// Which side of the files the clock is read on: always the one next to the operation. Of the files, those named first are next to it.
enum Order {
    TimeFirst,
    TimeLast,
}

fn sample(paths: &[String], order: Order) -> Sample {
    let early_ns = now_ns();
    let mut ordered: Vec<&String> = paths.iter().collect();
    if matches!(order, Order::TimeLast) {
        ordered.reverse();
    }
    let files = ordered.into_iter().map(|path| (path.clone(), contents(path).ok())).collect();
    Sample { time_ns: if matches!(order, Order::TimeFirst) { early_ns } else { now_ns() }, files }
}

/// A file's contents, or what somebody says who answers at a Unix socket.
fn contents(path: &str) -> io::Result<String> {
    if !fs::metadata(path)?.file_type().is_socket() {
        return fs::read_to_string(path);
    }
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(line: &str) -> Value {
        let server = Server::at(File::open("/dev/null").unwrap(), std::env::temp_dir());
        serde_json::to_value(server.answer_line(line.as_bytes())).unwrap()
    }

    #[test]
    fn a_bad_request_gets_an_error_with_its_id() {
        assert_eq!(answer("nonsense")["id"], json!(0));
        for op in [
            r#"{"fly": {}}"#,
            r#""exec""#,
            r#"{"exec": {"argv": "x"}}"#,
            r#"{"exec": {"sh": "true", "x": 1}}"#,
        ] {
            let answer = answer(&format!(r#"{{"id": 5, "op": {op}}}"#));
            assert_eq!(answer["id"], json!(5), "{op}");
            assert!(answer["error"].as_str().unwrap().starts_with("bad request"), "{op}: {answer}");
        }
        assert!(answer(r#"{"id": 5, "op": {"ping": {}}, "extra": 1}"#)["error"].is_string());
    }

    #[test]
    fn files_are_sampled_around_the_operation() {
        let path = std::env::temp_dir().join(format!("cohort-lab-sample-{}", std::process::id()));
        fs::write(&path, "old").unwrap();
        let path = path.to_str().unwrap();
        let op = json!({ "write_file": { "path": path, "text": "new" } });
        let answer = answer(&json!({ "id": 1, "op": op, "sample": [path, "/does/not/exist"] }).to_string());
        let (before, after) = (&answer["sample"]["before"], &answer["sample"]["after"]);
        assert_eq!((&before["files"][path], &after["files"][path]), (&json!("old"), &json!("new")));
        fs::remove_file(path).unwrap();
        assert_eq!(before["files"]["/does/not/exist"], json!(null));
        assert!(before["time_ns"].as_u64().unwrap() < after["time_ns"].as_u64().unwrap());
    }
    #[test]
    fn a_socket_is_sampled_by_what_it_answers() {
        let path = std::env::temp_dir().join(format!("cohort-lab-socket-{}", std::process::id()));
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let asked = std::thread::spawn(move || {
            for text in ["before", "after"] {
                listener.accept().unwrap().0.write_all(text.as_bytes()).unwrap();
            }
        });
        let path = path.to_str().unwrap();
        let answer = answer(&json!({ "id": 1, "op": { "ping": {} }, "sample": [path] }).to_string());
        let at = |when: &str| answer["sample"][when]["files"][path].clone();
        assert_eq!((at("before"), at("after")), (json!("before"), json!("after")));
        asked.join().unwrap();
        fs::remove_file(path).unwrap();
    }
}
