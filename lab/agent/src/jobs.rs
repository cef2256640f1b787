// SPDX-License-Identifier: GPL-2.0-only
//! Commands that go on running while other requests are served: the scheduler's daemon, QEMU, background load.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use rustix::io::Errno;
use rustix::process::{kill_process, waitid, Signal, WaitId, WaitIdOptions};
use serde_json::{json, Value};

use crate::exec;
use crate::protocol::{CommandLine, Stream};

const DIR: &str = "/run/cohort-lab/jobs";
const CHUNK_BYTES_MAX: u64 = 1 << 20;

struct Job {
    pid: u32,
    /// Exit code, once it has ended.
    rc: Mutex<Option<i32>>,
    ended: Condvar,
}

#[derive(Default)]
pub struct Jobs {
    by_name: Mutex<HashMap<String, Arc<Job>>>,
}

/// A thread that panicked while it held the lock left plain data behind: go on with it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Jobs {
    pub fn spawn(&self, name: &str, line: &CommandLine) -> Result<Value> {
        if name.is_empty() || name.contains('/') {
            bail!("a job's name is a file name, not {name:?}");
        }
        let mut by_name = lock(&self.by_name);
        if by_name.get(name).is_some_and(|job| lock(&job.rc).is_none()) {
            bail!("{name} is running already");
        }
        fs::create_dir_all(DIR)?;
        let mut child = exec::command(line)?
            .stdout(File::create(path(name, Stream::Stdout))?)
            .stderr(File::create(path(name, Stream::Stderr))?)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let job = Arc::new(Job { pid: child.id(), rc: Mutex::new(None), ended: Condvar::new() });
        by_name.insert(name.to_owned(), Arc::clone(&job));
        std::thread::spawn(move || {
            // Its number stays taken until it is reaped, which happens under the lock that `signal` holds.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            if let Ok(pid) = exec::pid(job.pid) {
                while matches!(waitid(WaitId::Pid(pid), ended), Err(Errno::INTR)) {}
            }
            let mut rc = lock(&job.rc);
            *rc = Some(child.wait().map_or(-1, exec::exit_code));
            job.ended.notify_all();
        });
        Ok(json!({ "pid": by_name[name].pid }))
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
        let mut file = File::open(path(name, stream))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(CHUNK_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(json!({
            "text": String::from_utf8_lossy(&bytes),
            "next": offset + bytes.len() as u64,
            "rc": rc,
        }))
    }

    fn get(&self, name: &str) -> Result<Arc<Job>> {
        lock(&self.by_name).get(name).cloned().with_context(|| format!("no job is called {name:?}"))
    }
}

fn path(name: &str, stream: Stream) -> PathBuf {
    let ending = match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    };
    PathBuf::from(DIR).join(format!("{name}.{ending}"))
}
