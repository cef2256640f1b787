// SPDX-License-Identifier: GPL-2.0-only
//! Commands that go on running while other requests are served: the scheduler's daemon, QEMU, background load.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use rustix::io::Errno;
use rustix::process::{kill_process, waitid, Signal, WaitId, WaitIdOptions};
use serde_json::{json, Value};

use crate::exec::{self, lock, KILLED_MAX};
use crate::protocol::{CommandLine, Stream};

const CHUNK_BYTES_MAX: u64 = 1 << 20;

struct Job {
    pid: u32,
    /// Exit code, once it has ended.
    rc: Mutex<Option<i32>>,
    ended: Condvar,
}

pub struct Jobs {
    /// Where outputs are kept.
    dir: PathBuf,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    by_name: HashMap<String, Arc<Job>>,
    /// Nothing is started any more.
    is_over: bool,
}

impl Jobs {
    pub fn in_dir(dir: PathBuf) -> Self {
        Self { dir, known: Mutex::default() }
    }

    pub fn spawn(&self, name: &str, line: &CommandLine) -> Result<Value> {
        if name.is_empty() || name.contains('/') {
            bail!("a job's name is a file name, not {name:?}");
        }
        // Until it is started: whoever kills all knows of it then, or it does not start.
        let mut known = lock(&self.known);
        if known.is_over {
            bail!("the agent ends");
        }
        if known.by_name.get(name).is_some_and(|job| lock(&job.rc).is_none()) {
            bail!("{name} is running already");
        }
        fs::create_dir_all(&self.dir)?;
        let mut child = exec::command(line)?
            .stdout(File::create(self.path(name, Stream::Stdout))?)
            .stderr(File::create(self.path(name, Stream::Stderr))?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child.id();
        let job = Arc::new(Job { pid, rc: Mutex::new(None), ended: Condvar::new() });
        known.by_name.insert(name.to_owned(), Arc::clone(&job));
        std::thread::spawn(move || {
            // Its number stays taken until it is reaped, which happens under the lock that `signal` holds.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            if let Ok(pid) = exec::pid(pid) {
                while matches!(waitid(WaitId::Pid(pid), ended), Err(Errno::INTR)) {}
            }
            let mut rc = lock(&job.rc);
            *rc = Some(child.wait().map_or(-1, exec::exit_code));
            job.ended.notify_all();
        });
        Ok(json!({ "pid": pid }))
    }

    pub fn signal(&self, name: &str, signal: i32, leader_only: bool) -> Result<Value> {
        let job = self.get(name)?;
        let signal = Signal::from_named_raw(signal).with_context(|| format!("unknown signal {signal}"))?;
        let rc = lock(&job.rc);
        if rc.is_none() {
            if leader_only {
                match kill_process(exec::pid(job.pid)?, signal) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(error) => return Err(error.into()),
                }
            } else {
                exec::kill_group(job.pid, signal)?;
            }
        }
        Ok(json!({ "rc": *rc }))
    }

    /// Kill all that still run, with their children, and return when they have ended; nothing is started after that.
    pub fn kill_all(&self) {
        let jobs: Vec<(String, Arc<Job>)> = {
            let mut known = lock(&self.known);
            known.is_over = true;
            known.by_name.iter().map(|(name, job)| (name.clone(), Arc::clone(job))).collect()
        };
        for (name, _) in &jobs {
            if let Err(error) = self.signal(name, Signal::KILL.as_raw(), false) {
                eprintln!("cohort-lab-agent: cannot kill {name}: {error:#}");
            }
        }
        for (_, job) in &jobs {
            drop(job.ended.wait_timeout_while(lock(&job.rc), KILLED_MAX, |rc| rc.is_none()));
        }
    }

    pub fn wait(&self, name: &str, timeout_s: f64) -> Result<Value> {
        let job = self.get(name)?;
        let timeout = Duration::try_from_secs_f64(timeout_s).context("timeout_s")?;
        let (rc, _) = job
            .ended
            .wait_timeout_while(lock(&job.rc), timeout, |rc| rc.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        Ok(json!({ "rc": *rc }))
    }

    pub fn output(&self, name: &str, stream: Stream, offset: u64) -> Result<Value> {
        let job = self.get(name)?;
        // Asked first: when it has ended, what is read next is all there will ever be.
        let rc = *lock(&job.rc);
        let mut file = File::open(self.path(name, stream))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(CHUNK_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(json!({
            "text": String::from_utf8_lossy(&bytes),
            "next": offset + bytes.len() as u64,
            "rc": rc,
        }))
    }

    fn path(&self, name: &str, stream: Stream) -> PathBuf {
        let ending = match stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
        };
        self.dir.join(format!("{name}.{ending}"))
    }

    fn get(&self, name: &str) -> Result<Arc<Job>> {
        lock(&self.known).by_name.get(name).cloned().with_context(|| format!("no job is called {name:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(text: &str) -> CommandLine {
        CommandLine::Sh(text.to_owned())
    }

    fn jobs(test: &str) -> Jobs {
        Jobs::in_dir(std::env::temp_dir().join(format!("cohort-lab-{test}-{}", std::process::id())))
    }

    #[test]
    fn a_job_runs_while_others_are_asked_about() {
        let jobs = jobs("run");
        jobs.spawn("long", &sh("echo begun; echo aside >&2; sleep 1000")).unwrap();
        jobs.spawn("short", &sh("exit 3")).unwrap();
        assert_eq!(jobs.wait("short", 60.0).unwrap()["rc"], json!(3));
        assert_eq!(jobs.wait("long", 0.0).unwrap()["rc"], json!(null));
        assert!(jobs.spawn("long", &sh("true")).is_err(), "one name, one running job");
        // Only a job that is known to have spoken can be ended without losing what it said.
        let spoken = || jobs.output("long", Stream::Stderr, 0).unwrap()["text"] == json!("aside\n");
        let soon = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            spoken()
        });
        assert!(soon, "it said nothing in a minute");
        jobs.signal("long", 9, false).unwrap();
        assert_eq!(jobs.wait("long", 60.0).unwrap()["rc"], json!(-9));
        assert_eq!(jobs.output("long", Stream::Stdout, 0).unwrap()["text"], json!("begun\n"));
        assert_eq!(jobs.output("long", Stream::Stderr, 2).unwrap()["text"], json!("ide\n"));
        jobs.signal("long", 9, false).unwrap();
        jobs.spawn("long", &sh("true")).unwrap();
        fs::remove_dir_all(&jobs.dir).unwrap();
    }

    #[test]
    fn nothing_starts_once_all_were_killed() {
        let jobs = jobs("over");
        jobs.spawn("long", &sh("sleep 1000")).unwrap();
        jobs.kill_all();
        assert_eq!(jobs.wait("long", 0.0).unwrap()["rc"], json!(-9));
        assert!(jobs.spawn("late", &sh("true")).is_err());
        fs::remove_dir_all(&jobs.dir).unwrap();
    }

    #[test]
    fn wrong_names_and_numbers_are_errors() {
        let jobs = jobs("wrong");
        assert!(jobs.spawn("", &sh("true")).is_err());
        assert!(jobs.spawn("../x", &sh("true")).is_err());
        assert!(jobs.wait("nobody", 0.0).is_err());
        jobs.spawn("somebody", &sh("true")).unwrap();
        assert!(jobs.wait("somebody", -1.0).is_err());
        assert!(jobs.signal("somebody", 9999, false).is_err());
        fs::remove_dir_all(&jobs.dir).unwrap();
    }
}
