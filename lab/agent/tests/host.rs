// SPDX-License-Identifier: GPL-2.0-only
//! The agent on a host: however its user goes away, nothing stays that was started.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

struct Agent {
    child: Child,
    port: UnixStream,
    folder: std::path::PathBuf,
}

impl Agent {
    fn start(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cohort-agent-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (port, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_cohort-lab-agent"))
            .arg("host")
            .arg(&folder)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        Agent { child, port, folder }
    }

    fn send(&mut self, op: &Value) {
        self.port.write_all(format!("{}\n", json!({ "id": 1, "op": op })).as_bytes()).unwrap();
    }

    fn ask(&mut self, op: &Value) -> Value {
        self.send(op);
        let mut line = String::new();
        BufReader::new(&self.port).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn ended(mut self) -> bool {
        drop(self.port);
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().unwrap();
        false
    }
}

fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

#[test]
fn what_was_started_ends_with_who_asked_for_it() {
    let mut agent = Agent::start("ends");
    let folder = agent.folder.clone();
    let sleeper = "trap '' TERM INT HUP; sleep 1000 & wait";
    let pid =
        agent.ask(&json!({ "spawn": { "name": "long", "sh": sleeper } }))["ok"]["pid"].as_u64().unwrap();
    assert!(is_alive(pid));
    for (name, text) in [("first", Some("one")), ("second", Some("two")), ("gone", Some("x")), ("gone", None)]
    {
        let sh = text.map(|text| format!("echo {text} >>{}/done", folder.display()));
        assert_eq!(agent.ask(&json!({ "at_end": { "name": name, "sh": sh } }))["ok"], json!({}));
    }
    assert!(agent.ended());
    assert!(!is_alive(pid), "its job still runs");
    assert_eq!(std::fs::read_to_string(folder.join("done")).unwrap(), "two\none\n", "the last first");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_nobody_waits_for_any_more_ends_as_well() {
    let mut agent = Agent::start("exec");
    let folder = agent.folder.clone();
    let begun = folder.join("begun");
    // It is answered when it ends: that it runs is known by a file, which is whole once it is there.
    let sh = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000", begun.display());
    agent.send(&json!({ "exec": { "sh": sh, "timeout_s": 2000 } }));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !begun.exists() {
        assert!(Instant::now() < deadline, "it does not run");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid: u64 = std::fs::read_to_string(&begun).unwrap().trim().parse().unwrap();
    assert!(is_alive(pid));
    assert!(agent.ended());
    assert!(!is_alive(pid), "its command still runs");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_it_was_handed_is_not_handed_on() {
    // As what holds the host: open in the agent, by a number that it is not told.
    let (kept, held) = UnixStream::pair().unwrap();
    rustix::io::fcntl_setfd(&held, rustix::io::FdFlags::empty()).unwrap();
    let mut agent = Agent::start("handed");
    let folder = agent.folder.clone();
    let done = agent.ask(&json!({ "exec": { "sh": "ls -l /proc/self/fd", "timeout_s": 60 } }));
    let held_by_us =
        std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held))).unwrap();
    assert!(!done["ok"]["stdout"].as_str().unwrap().contains(held_by_us.to_str().unwrap()), "{done}");
    drop((kept, held));
    assert!(agent.ended());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_request_that_is_cut_off_is_no_request() {
    let mut agent = Agent::start("cut");
    assert!(agent.ask(&json!({ "ping": {} }))["ok"]["time_ns"].is_u64());
    agent.port.write_all(b"{\"id\": 2, \"op\": {\"exec\"").unwrap();
    let folder = agent.folder.clone();
    assert!(agent.ended());
    std::fs::remove_dir_all(folder).unwrap();
}
