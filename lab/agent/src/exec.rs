// SPDX-License-Identifier: GPL-2.0-only
//! Running a command to its end.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{bail, Context, Result};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::Errno;
use rustix::process::{kill_process_group, pidfd_open, Pid, PidfdFlags, Signal};
use rustix::time::{clock_gettime, ClockId};
use serde_json::{json, Value};

use crate::protocol::CommandLine;

/// More output than this of one command is of no use to anybody; its end is kept.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// A process that was killed ends when the kernel has freed what it had: a guest's memory, a scheduler.
pub const KILLED_MAX: Duration = Duration::from_secs(30);

/// Commands that run to their end, each with its children. None is left when the agent ends.
#[derive(Default)]
pub struct Running {
    /// Nothing is started any more. Whoever starts a command reads this meanwhile; several may at the same time.
    is_over: RwLock<bool>,
    /// The processes that were started, which lead their groups, until right before they are reaped.
    leaders: Mutex<HashSet<u32>>,
    ended: Condvar,
}

/// CLOCK_MONOTONIC, which is not adjusted while a program is being timed.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Let the calling thread run before what it measures, its children as ordinary tasks.
///
/// As a real-time task, not by a nice value: whoever balances loads would see one of weight 88,761 there, long after it slept again, and move vCPUs away.
pub fn hurry() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the parameters, which live until then, and 0 is the calling thread. Without the right to, in a test, it is as quick as the
    // others.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &lowest) };
}

/// The command, in a process group of its own so that it can be killed with its children.
pub fn command(line: &CommandLine) -> Result<Command> {
    let mut command = match line {
        CommandLine::Argv(argv) => {
            let Some((program, rest)) = argv.split_first() else { bail!("argv is empty") };
            let mut command = Command::new(program);
            command.args(rest);
            command
        }
        CommandLine::Sh(text) => {
            let mut command = Command::new("/bin/sh");
            command.arg("-c").arg(text);
            command
        }
    };
    command.process_group(0).stdin(Stdio::null()).current_dir("/");
    Ok(command)
}

/// Exit code, or minus the signal that ended it.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| -status.signal().unwrap_or(0))
}

/// A thread that panicked while it held the lock left plain data behind: go on with it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a command that nobody else needs to know of.
pub fn run(line: &CommandLine, timeout_s: Option<f64>) -> Result<Value> {
    Running::default().run(line, timeout_s)
}

impl Running {
    pub fn run(&self, line: &CommandLine, timeout_s: Option<f64>) -> Result<Value> {
        // Files, not pipes: nobody has to read while the command runs, and a child left behind holds nobody up.
        let stdout: File = memfd_create("stdout", MemfdFlags::CLOEXEC)?.into();
        let stderr: File = memfd_create("stderr", MemfdFlags::CLOEXEC)?.into();
        let limit =
            timeout_s.map(|seconds| Duration::try_from_secs_f64(seconds).context("timeout_s")).transpose()?;
        let mut command = command(line)?;
        command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);

        let is_over = self.is_over.read().unwrap_or_else(PoisonError::into_inner);
        if *is_over {
            bail!("the agent ends");
        }
        let start_ns = now_ns();
        let mut child = command.spawn().context("cannot start the command")?;
        hurry();
        lock(&self.leaders).insert(child.id());
        drop(is_over);
        let timed_out = !wait_until_end(&child, limit)?;
        let end_ns = now_ns();
        if timed_out {
            kill_group(child.id(), Signal::KILL)?;
            wait_until_end(&child, None)?;
        }
        // Once it is reaped its number may be somebody else's.
        lock(&self.leaders).remove(&child.id());
        self.ended.notify_all();
        let status = child.wait()?;
        Ok(json!({
            "rc": exit_code(status),
            "timed_out": timed_out,
            "wall_ns": end_ns - start_ns,
            "stdout": tail(&stdout)?,
            "stderr": tail(&stderr)?,
        }))
    }

    /// Kill all that still run, with their children, and return when they have ended; nothing is started after that.
    pub fn kill_all(&self) {
        *self.is_over.write().unwrap_or_else(PoisonError::into_inner) = true;
        let leaders = lock(&self.leaders);
        for &leader in leaders.iter() {
            if let Err(error) = kill_group(leader, Signal::KILL) {
                eprintln!("cohort-lab-agent: cannot kill process {leader}: {error:#}");
            }
        }
        drop(self.ended.wait_timeout_while(leaders, KILLED_MAX, |leaders| !leaders.is_empty()));
    }
}

/// Return true if the child ended in time. A pidfd becomes readable at once, unlike a loop that looks now and then.
fn wait_until_end(child: &Child, limit: Option<Duration>) -> Result<bool> {
    let pidfd = pidfd_open(pid(child.id())?, PidfdFlags::empty())?;
    let deadline_ns =
        limit.map(|limit| now_ns().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
    loop {
        let left = deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns()));
        let timeout = left.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], timeout.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub fn kill_group(leader: u32, signal: Signal) -> Result<()> {
    match kill_process_group(pid(leader)?, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub fn pid(raw: u32) -> Result<Pid> {
    Pid::from_raw(raw.try_into()?).context("no process has the number 0")
}

fn tail(file: &File) -> Result<String> {
    // Not from the place at which the file is: a child left behind has the same one, and goes on writing there.
    let length = file.metadata()?.len();
    let from = length.saturating_sub(OUTPUT_BYTES_MAX);
    let mut bytes = vec![0; (length - from) as usize];
    let mut count = 0;
    while count < bytes.len() {
        match file.read_at(&mut bytes[count..], from + count as u64)? {
            0 => break,
            more => count += more,
        }
    }
    Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, SeekFrom, Write};

    fn sh(text: &str, timeout_s: Option<f64>) -> Value {
        run(&CommandLine::Sh(text.to_owned()), timeout_s).unwrap()
    }

    #[test]
    fn both_outputs_and_the_exit_code_come_back() {
        let done = sh("echo out; echo err >&2; exit 7", None);
        assert_eq!((&done["rc"], &done["timed_out"]), (&json!(7), &json!(false)));
        assert_eq!((&done["stdout"], &done["stderr"]), (&json!("out\n"), &json!("err\n")));
    }

    #[test]
    fn a_signal_is_a_negative_exit_code() {
        assert_eq!(sh("kill -SEGV $$", None)["rc"], json!(-11));
    }

    #[test]
    fn time_is_up_for_the_children_too() {
        let done = sh("sleep 1000 & echo $!; wait", Some(0.2));
        assert_eq!((&done["rc"], &done["timed_out"]), (&json!(-9), &json!(true)));
        let child = done["stdout"].as_str().unwrap().trim();
        // A busy machine takes a while to end it, and it may stay a zombie until its new parent reaps it.
        let mut state = String::new();
        for _ in 0..3000 {
            state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("still there: {state}");
    }

    #[test]
    fn a_child_left_behind_does_not_hold_the_answer_up() {
        let done = sh("sleep 1000 & echo $!", Some(60.0));
        assert_eq!(done["timed_out"], json!(false));
        let child = done["stdout"].as_str().unwrap().trim().parse().unwrap();
        rustix::process::kill_process(pid(child).unwrap(), Signal::KILL).unwrap();
    }

    #[test]
    fn of_much_output_the_end_is_kept() {
        let done = sh("head -c 3000000 /dev/zero | tr '\\0' x; echo end", None);
        let stdout = done["stdout"].as_str().unwrap();
        assert_eq!(stdout.len() as u64, OUTPUT_BYTES_MAX);
        assert!(stdout.ends_with("xend\n"));
    }

    #[test]
    fn a_child_left_behind_goes_on_writing_where_it_was() {
        let stdout: File = memfd_create("stdout", MemfdFlags::CLOEXEC).unwrap().into();
        let mut left_behind = stdout.try_clone().unwrap();
        left_behind.write_all(b"result\n").unwrap();
        left_behind.seek(SeekFrom::Start(3)).unwrap();
        assert_eq!(tail(&stdout).unwrap(), "result\n");
        assert_eq!(left_behind.stream_position().unwrap(), 3);
    }

    #[test]
    fn what_runs_is_killed_at_the_end_and_nothing_runs_after_that() {
        let (running, line) = (Running::default(), CommandLine::Sh("sleep 1000; exit 3".to_owned()));
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| running.run(&line, None).unwrap());
            while lock(&running.leaders).is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            running.kill_all();
            assert!(lock(&running.leaders).is_empty());
            assert_eq!(asked.join().unwrap()["rc"], json!(-9));
        });
        assert!(running.run(&line, None).is_err());
    }

    #[test]
    fn what_cannot_be_run_is_an_error() {
        assert!(run(&CommandLine::Argv(vec![]), None).is_err());
        assert!(run(&CommandLine::Argv(vec!["/does/not/exist".to_owned()]), None).is_err());
        for timeout_s in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(run(&CommandLine::Sh("true".to_owned()), Some(timeout_s)).is_err());
        }
    }
}
